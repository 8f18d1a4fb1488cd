//! The way of offloaded bytes between the device's memory and host memory, from where they go to a file.

use crate::device::words;
use crate::driver::{Address, CudaError, Event, Stream};
use plimsoll_runtime::transfer::{DeviceLane, StagedQueue};
use std::sync::Arc;

/// A stream beside the kernels'.
pub(crate) struct FileLane {
    stream: Stream,
    /// The kernels' stream.
    compute: Arc<Stream>,
    /// Where the kernels' stream was at a request.
    marks: Vec<Event>,
}

impl FileLane {
    /// Beside a stream of kernels.
    pub fn new(compute: &Arc<Stream>) -> Result<Self, CudaError> {
        let context = &compute.context;
        let marks = (0..StagedQueue::MARKS).map(|_| Event::new(context)).collect::<Result<_, _>>()?;
        Ok(Self { stream: Stream::new(context)?, compute: compute.clone(), marks })
    }
}

impl DeviceLane for FileLane {
    fn mark(&self, number: usize) -> Result<(), String> {
        self.marks[number].record(&self.compute).map_err(words)
    }

    fn reach(&self, number: usize) -> Result<(), String> {
        self.marks[number].finish().map_err(words)
    }

    unsafe fn copy_in(&self, to: *mut u8, from: &[u8]) -> Result<(), String> {
        // SAFETY: the caller's promise; the copy is done before this returns.
        unsafe { self.stream.copy_in(to as Address, from.as_ptr(), from.len()) }.map_err(words)?;
        self.stream.finish().map_err(words)
    }

    unsafe fn copy_out(&self, from: *const u8, into: &mut [u8]) -> Result<(), String> {
        // SAFETY: as above.
        unsafe { self.stream.copy_out(into.as_mut_ptr(), from as Address, into.len()) }.map_err(words)?;
        self.stream.finish().map_err(words)
    }
}
