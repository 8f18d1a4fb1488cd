//! What a tier's bytes are in: memory, or a file behind a staging buffer.

use plimsoll_runtime::TransferQueue;
use plimsoll_runtime::arena::Arena;
use plimsoll_runtime::spill::TransferError;
use plimsoll_runtime::transfer::FileQueue;

/// Bytes that pass the staging buffer at a time.
const STAGING_BYTES: usize = 1 << 20;

/// The bytes of a tier.
pub(crate) enum Store {
    /// Memory: an arena that stands for pinned host memory.
    Memory(Arena),
    /// A file. What moves between it and the device passes a buffer in host memory.
    File {
        /// The file.
        file: FileQueue,
        /// The buffer.
        staging: Arena,
    },
}

impl Store {
    /// Memory of so many bytes.
    pub fn memory(bytes: usize) -> Result<Self, TransferError> {
        Ok(Self::Memory(Arena::new(bytes).map_err(start)?))
    }

    /// A file with its staging buffer.
    pub fn file(file: FileQueue) -> Result<Self, TransferError> {
        Ok(Self::File { file, staging: Arena::new(STAGING_BYTES).map_err(start)? })
    }

    /// Host memory that a file needs beside its queue's.
    pub const fn staging_bytes() -> usize {
        STAGING_BYTES
    }

    /// How many bytes there are.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Memory(arena) => arena.bytes() as u64,
            Self::File { file, .. } => file.file().bytes(),
        }
    }

    /// Copies to memory.
    ///
    /// # Safety
    /// The memory has that many bytes, and nothing else uses it or these bytes of the store meanwhile; one thread at a time
    /// moves bytes of a file.
    pub(crate) unsafe fn load(&self, offset: u64, into: *mut u8, bytes: usize) -> Result<(), TransferError> {
        match self {
            Self::Memory(arena) => {
                let from = arena.at(offset as usize, bytes);
                // SAFETY: inside the arena, which is apart from the device's; the rest is the caller's promise.
                unsafe { std::ptr::copy_nonoverlapping(from, into, bytes) };
            }
            Self::File { file, staging } => {
                for at in (0..bytes).step_by(STAGING_BYTES) {
                    let length = STAGING_BYTES.min(bytes - at);
                    // SAFETY: the buffer is this thread's.
                    let staged: &mut [u8] = unsafe { staging.view_mut(0, length) };
                    file.read_now(offset + at as u64, staged)?;
                    // SAFETY: inside both; the rest is the caller's promise.
                    unsafe { std::ptr::copy_nonoverlapping(staged.as_ptr(), into.add(at), length) };
                }
            }
        }
        Ok(())
    }

    /// Copies from memory.
    ///
    /// # Safety
    /// As for [`Store::load`]; others may read the memory meanwhile.
    pub(crate) unsafe fn store(
        &self,
        offset: u64,
        from: *const u8,
        bytes: usize,
    ) -> Result<(), TransferError> {
        match self {
            Self::Memory(arena) => {
                let to = arena.at(offset as usize, bytes);
                // SAFETY: as for loads.
                unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
            }
            Self::File { file, staging } => {
                for at in (0..bytes).step_by(STAGING_BYTES) {
                    let length = STAGING_BYTES.min(bytes - at);
                    // SAFETY: the buffer is this thread's.
                    let staged: &mut [u8] = unsafe { staging.view_mut(0, length) };
                    // SAFETY: inside both; the rest is the caller's promise.
                    unsafe { std::ptr::copy_nonoverlapping(from.add(at), staged.as_mut_ptr(), length) };
                    file.write_now(offset + at as u64, staged)?;
                }
            }
        }
        Ok(())
    }
}

fn start(error: std::io::Error) -> TransferError {
    TransferError::Start { reason: error.to_string() }
}
