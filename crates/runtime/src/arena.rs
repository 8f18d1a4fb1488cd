//! One mapping for all tensor memory of a run.

use crate::device::Memory;
use std::ptr::NonNull;

/// Alignment of the arena's start: a huge page, so that the system may back it with such pages.
const ALIGNMENT: usize = 2 << 20;

/// Zeroed memory, mapped and touched once.
///
/// Views are given by offset. Their safety rests on the plan: `verify` has shown that buffers live at the same time do
/// not overlap, and the executor runs one step at a time.
pub struct Arena {
    start: NonNull<u8>,
    bytes: usize,
    mapping: Mapping,
}

// SAFETY: the arena owns its memory and hands out views only through unsafe functions.
unsafe impl Send for Arena {}
// SAFETY: as above; shared access goes through unsafe functions whose callers rule out data races.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps `bytes` and makes every page resident, so that the process runs out of memory here or never.
    pub fn new(bytes: usize) -> std::io::Result<Self> {
        let (start, mapping) = Mapping::new(bytes)?;
        Ok(Self { start, bytes, mapping })
    }

    /// Length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A pointer to `offset`, from which `bytes` may be used.
    ///
    /// # Panics
    /// If the range is not inside the arena.
    pub fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        assert!(
            offset <= self.bytes && bytes <= self.bytes - offset,
            "{offset} + {bytes} is outside the arena"
        );
        // SAFETY: the range was just checked to lie inside the mapping.
        unsafe { self.start.as_ptr().add(offset) }
    }

    /// The elements at `offset`.
    ///
    /// # Safety
    /// Nothing may write to the range while the view lives, and its bytes must be valid elements.
    pub unsafe fn view<T: Copy>(&self, offset: usize, elements: usize) -> &[T] {
        let start = self.at(offset, elements * size_of::<T>()).cast::<T>();
        debug_assert!(start.is_aligned());
        // SAFETY: inside the arena (checked by `at`); the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts(start, elements) }
    }

    /// The elements at `offset`, for writing.
    ///
    /// # Safety
    /// Nothing else may use the range while the view lives, and its bytes must be valid elements.
    #[allow(clippy::mut_from_ref, reason = "the plan keeps live ranges apart, which no borrow could express")]
    pub unsafe fn view_mut<T: Copy>(&self, offset: usize, elements: usize) -> &mut [T] {
        let start = self.at(offset, elements * size_of::<T>()).cast::<T>();
        debug_assert!(start.is_aligned());
        // SAFETY: inside the arena (checked by `at`); the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(start, elements) }
    }
}

/// Kernels of a device that computes in host memory have completed when they return.
impl Memory for Arena {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        self.at(offset, bytes)
    }

    unsafe fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), String> {
        // SAFETY: nothing writes to the range, by the caller's promise.
        into.copy_from_slice(unsafe { self.view(offset, into.len()) });
        Ok(())
    }

    unsafe fn write(&self, offset: usize, from: &[u8]) -> Result<(), String> {
        // SAFETY: nothing else uses the range, by the caller's promise.
        unsafe { self.view_mut(offset, from.len()) }.copy_from_slice(from);
        Ok(())
    }

    unsafe fn fill(&self, offset: usize, bytes: usize, byte: u8) -> Result<(), String> {
        // SAFETY: nothing else uses the range, by the caller's promise.
        unsafe { self.view_mut::<u8>(offset, bytes) }.fill(byte);
        Ok(())
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.mapping.release();
    }
}

#[cfg(unix)]
struct Mapping {
    start: *mut std::ffi::c_void,
    length: usize,
}

#[cfg(unix)]
impl Mapping {
    fn new(bytes: usize) -> std::io::Result<(NonNull<u8>, Self)> {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        // Longer by an alignment, so that the start can be aligned; pages that are not touched cost nothing.
        let length = bytes.checked_add(ALIGNMENT).ok_or(std::io::ErrorKind::OutOfMemory)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | NO_RESERVE;
        // SAFETY: a new anonymous mapping at an address of the system's choice.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), length, protection, flags)? };
        let mapping = Self { start, length };
        let aligned = (start as usize).next_multiple_of(ALIGNMENT) as *mut u8;
        advise_huge_pages(aligned, bytes);
        for offset in (0..bytes).step_by(rustix::param::page_size()) {
            // SAFETY: inside the mapping, which nobody else knows yet; the write makes the page resident.
            unsafe { aligned.add(offset).write_volatile(0) };
        }
        let aligned = NonNull::new(aligned).ok_or(std::io::ErrorKind::OutOfMemory)?;
        Ok((aligned, mapping))
    }

    fn release(&self) {
        // SAFETY: exactly what `new` mapped, and no view outlives the arena. A mapping of our own can be unmapped.
        let _ = unsafe { rustix::mm::munmap(self.start, self.length) };
    }
}

/// Swap space is not reserved for the mapping: all of it is touched at once anyway.
#[cfg(target_os = "linux")]
const NO_RESERVE: rustix::mm::MapFlags = rustix::mm::MapFlags::NORESERVE;

#[cfg(all(unix, not(target_os = "linux")))]
const NO_RESERVE: rustix::mm::MapFlags = rustix::mm::MapFlags::empty();

/// Asks for huge pages wherever a whole one fits into the range: fewer faults, fewer page tables.
#[cfg(target_os = "linux")]
fn advise_huge_pages(start: *mut u8, bytes: usize) {
    use rustix::mm::{Advice, madvise};
    let whole = bytes / ALIGNMENT * ALIGNMENT;
    if whole > 0 {
        // SAFETY: advice on a range inside our own mapping. Failing is harmless.
        let _ = unsafe { madvise(start.cast(), whole, Advice::LinuxHugepage) };
    }
}

#[cfg(all(unix, not(target_os = "linux")))]
fn advise_huge_pages(_: *mut u8, _: usize) {}

#[cfg(not(unix))]
struct Mapping {
    start: *mut u8,
    layout: std::alloc::Layout,
}

#[cfg(not(unix))]
impl Mapping {
    fn new(bytes: usize) -> std::io::Result<(NonNull<u8>, Self)> {
        let layout = std::alloc::Layout::from_size_align(bytes.max(1), 4096)
            .map_err(|_| std::io::Error::from(std::io::ErrorKind::OutOfMemory))?;
        // SAFETY: the layout has a size of at least one.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        let found = NonNull::new(start).ok_or(std::io::ErrorKind::OutOfMemory)?;
        // SAFETY: inside the allocation; the write makes the pages resident.
        unsafe { start.write_bytes(0, bytes) };
        Ok((found, Self { start, layout }))
    }

    fn release(&self) {
        // SAFETY: exactly what `new` allocated.
        unsafe { std::alloc::dealloc(self.start, self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arena_is_zeroed_aligned_and_bounded() {
        let arena = Arena::new(5 << 20).unwrap();
        assert_eq!(arena.at(0, 0) as usize % ALIGNMENT.min(4096), 0);
        // SAFETY: nothing else uses the arena; every byte pattern is a valid f32.
        let all: &[f32] = unsafe { arena.view(0, (5 << 20) / 4) };
        assert!(all.iter().all(|x| *x == 0.0));
    }

    #[test]
    #[should_panic(expected = "outside the arena")]
    fn a_range_past_the_end_is_refused() {
        Arena::new(100).unwrap().at(64, 64);
    }

    #[test]
    fn an_empty_arena_is_fine() {
        assert_eq!(Arena::new(0).unwrap().bytes(), 0);
    }
}
