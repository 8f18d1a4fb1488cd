//! Memory that several threads fill at once, each its own rows.

use crate::{DataError, budget::zeroed};
use std::cell::UnsafeCell;

/// Bytes of one column of a batch. Who may touch which row when is the running pipeline's to decide.
pub(crate) struct Block {
    cells: Box<[UnsafeCell<u8>]>,
}

// SAFETY: bytes may be seen from any thread; that no two touch the same at once is what the callers of `row` and `at`
// promise.
unsafe impl Sync for Block {}

impl Block {
    /// Zeros.
    pub fn new(what: &str, bytes: u64) -> Result<Self, DataError> {
        let bytes: *mut [u8] = Box::into_raw(zeroed(what, bytes)?.into_boxed_slice());
        // SAFETY: the box is whole and given up, and a cell of a byte is laid out as the byte.
        let cells = unsafe { Box::from_raw(bytes as *mut [UnsafeCell<u8>]) };
        Ok(Self { cells })
    }

    /// `len` bytes from `start` on, to write to.
    ///
    /// # Safety
    /// Until the slice is dropped, nobody else reads or writes these bytes.
    #[allow(clippy::mut_from_ref, reason = "the cells are there for this")]
    pub unsafe fn row(&self, start: usize, len: usize) -> &mut [u8] {
        let cells = &self.cells[start..start + len];
        // SAFETY: the range was checked, and the caller has it alone.
        unsafe { std::slice::from_raw_parts_mut(UnsafeCell::raw_get(cells.as_ptr()), len) }
    }

    /// `len` bytes from `start` on.
    ///
    /// # Safety
    /// Until the slice is dropped, nobody writes these bytes.
    pub unsafe fn at(&self, start: usize, len: usize) -> &[u8] {
        let cells = &self.cells[start..start + len];
        // SAFETY: the range was checked, and nobody writes to it.
        unsafe { std::slice::from_raw_parts(UnsafeCell::raw_get(cells.as_ptr()), len) }
    }
}
