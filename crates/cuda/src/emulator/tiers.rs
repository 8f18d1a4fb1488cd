//! The tiers of the emulator: memory of the host, and a file. Its kernels have run when they are queued, and so have its copies.

use plimsoll_runtime::arena::Arena;
use plimsoll_runtime::spill::TransferError;
use plimsoll_runtime::transfer::DeviceLane;
use plimsoll_runtime::{Ticket, TransferQueue};
use std::time::Duration;

/// The host tier: a second arena.
pub(super) struct HostTier(Arena);

impl HostTier {
    /// Of so many bytes.
    pub fn new(bytes: usize) -> Result<Self, TransferError> {
        Arena::new(bytes).map(Self).map_err(|e| TransferError::Start { reason: e.to_string() })
    }

    fn at(&self, offset: u64, bytes: usize) -> *mut u8 {
        self.0.at(offset as usize, bytes)
    }
}

impl TransferQueue for HostTier {
    unsafe fn load(&self, offset: u64, into: *mut u8, bytes: usize) -> Ticket {
        // SAFETY: inside the arena, which is apart from the device's; the rest is the caller's promise.
        unsafe { self.at(offset, bytes).copy_to_nonoverlapping(into, bytes) };
        Ticket(0)
    }

    unsafe fn store(&self, offset: u64, from: *const u8, bytes: usize) -> Ticket {
        // SAFETY: as above.
        unsafe { self.at(offset, bytes).copy_from_nonoverlapping(from, bytes) };
        Ticket(0)
    }

    fn wait(&self, _: Ticket) -> Result<(), TransferError> {
        Ok(())
    }

    fn drain(&self) -> Result<(), TransferError> {
        Ok(())
    }

    fn read_now(&self, offset: u64, into: &mut [u8]) -> Result<(), TransferError> {
        // SAFETY: as above.
        unsafe { self.load(offset, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    fn write_now(&self, offset: u64, from: &[u8]) -> Result<(), TransferError> {
        // SAFETY: as above.
        unsafe { self.store(offset, from.as_ptr(), from.len()) };
        Ok(())
    }

    fn waited(&self) -> Duration {
        Duration::ZERO
    }
}

/// The way to the file.
pub(super) struct HostLane;

impl DeviceLane for HostLane {
    fn mark(&self, _: usize) -> Result<(), String> {
        Ok(())
    }

    fn reach(&self, _: usize) -> Result<(), String> {
        Ok(())
    }

    unsafe fn copy_in(&self, to: *mut u8, from: &[u8]) -> Result<(), String> {
        // SAFETY: the caller's promise.
        unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
        Ok(())
    }

    unsafe fn copy_out(&self, from: *const u8, into: &mut [u8]) -> Result<(), String> {
        // SAFETY: the caller's promise.
        unsafe { from.copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) };
        Ok(())
    }
}
