//! A buffer that several threads fill at once, each its own rows.

use crate::DataError;
use crate::core::budget::zeroed;
use std::cell::UnsafeCell;

/// Bytes that threads share: one column of a batch, or a cache. The owner decides which thread may touch which bytes when.
pub(crate) struct SharedBuffer {
    cells: Box<[UnsafeCell<u8>]>,
}

// SAFETY: bytes may be accessed from any thread; the callers of `write` and `read` guarantee that no two threads access the
// same bytes at once unless both read.
unsafe impl Sync for SharedBuffer {}

impl SharedBuffer {
    /// Zeros.
    pub fn new(what: &str, bytes: u64) -> Result<Self, DataError> {
        zeroed(what, bytes).map(Self::of)
    }

    /// These bytes.
    pub fn of(bytes: Vec<u8>) -> Self {
        let bytes: *mut [u8] = Box::into_raw(bytes.into_boxed_slice());
        // SAFETY: the box is whole and given up, and `UnsafeCell<u8>` has the layout of `u8`.
        let cells = unsafe { Box::from_raw(bytes as *mut [UnsafeCell<u8>]) };
        Self { cells }
    }

    /// `len` bytes from `start` on, for writing.
    ///
    /// # Safety
    /// Until the slice is dropped, no other thread reads or writes these bytes.
    #[allow(clippy::mut_from_ref, reason = "interior mutability of the cells")]
    pub unsafe fn write(&self, start: usize, len: usize) -> &mut [u8] {
        let cells = &self.cells[start..start + len];
        // SAFETY: the range was checked, and the caller has exclusive access to it.
        unsafe { std::slice::from_raw_parts_mut(UnsafeCell::raw_get(cells.as_ptr()), len) }
    }

    /// `len` bytes from `start` on, for reading.
    ///
    /// # Safety
    /// Until the slice is dropped, no thread writes these bytes.
    pub unsafe fn read(&self, start: usize, len: usize) -> &[u8] {
        let cells = &self.cells[start..start + len];
        // SAFETY: the range was checked, and no thread writes to it.
        unsafe { std::slice::from_raw_parts(UnsafeCell::raw_get(cells.as_ptr()), len) }
    }
}
