//! The context of a GPU: what everything on it belongs to.

use super::api::Handle;
use super::gpu::{Driver, driver};
use super::{CudaError, Gpu};
use crate::target::CONTEXT_BYTES;
use std::cell::Cell;
use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The driver's code where memory is short.
const OUT_OF_MEMORY: c_int = 2;

/// The limit of the stack of a device thread, by the driver's number.
const STACK_LIMIT: c_int = 0;

/// Bytes of stack of a device thread. Every KiB takes some 264 MiB of a large GPU. Our kernels have no stack frame.
pub(crate) const STACK_BYTES: usize = 256;

/// Whether a function's code says that the context is of no more use, as the driver's manual has it: every later call fails, and memory
/// of the device cannot be read.
fn loses_context(code: c_int) -> bool {
    match code {
        // The driver shuts down; the device is gone, or taken for others.
        4 | 46 | 100 | 709 => true,
        // Memory or a link of the device is damaged.
        214 | 220 | 721 => true,
        // A kernel did what none may, or did not end.
        700 | 702 | 710 | 714..=720 => true,
        // An error of another device, or one that nobody knows.
        911 | 999 => true,
        _ => false,
    }
}

thread_local! {
    /// The number of the context that is current in this thread.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

/// Contexts are numbered: a handle may be that of an earlier one, which a thread still has as its own.
static OPENED: AtomicU64 = AtomicU64::new(0);

/// The primary context of a GPU, retained.
pub(crate) struct Context {
    pub gpu: Gpu,
    pub driver: &'static Driver,
    device: c_int,
    handle: Handle,
    number: u64,
    /// The first error after which it is of no more use.
    lost: OnceLock<CudaError>,
}

// SAFETY: the driver's contexts may be used from any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Opens a GPU.
    pub fn open(index: usize) -> Result<Self, CudaError> {
        let driver = driver()?;
        let gpu = Gpu::describe(index)?;
        let device = driver.device(index)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the pointer is valid; the context is released when this is dropped.
        let code = unsafe { (driver.api.cuDevicePrimaryCtxRetain)(&mut handle, device) };
        // Without a context the driver itself does not tell what is free.
        if let Some(free) = gpu.free_bytes.filter(|_| code == OUT_OF_MEMORY) {
            return Err(gpu.full(CONTEXT_BYTES, free));
        }
        driver.check("cuDevicePrimaryCtxRetain", code)?;
        let number = OPENED.fetch_add(1, Ordering::Relaxed) + 1;
        let context = Self { gpu, driver, device, handle, number, lost: OnceLock::new() };
        context.enter()?;
        // SAFETY: a plain call.
        context.check("cuCtxSetLimit", unsafe { (driver.api.cuCtxSetLimit)(STACK_LIMIT, STACK_BYTES) })?;
        Ok(context)
    }

    /// Makes it this thread's context, for the calls that follow.
    pub fn enter(&self) -> Result<(), CudaError> {
        if CURRENT.get() == self.number {
            return Ok(());
        }
        // SAFETY: the context is retained.
        self.check("cuCtxSetCurrent", unsafe { (self.driver.api.cuCtxSetCurrent)(self.handle) })?;
        CURRENT.set(self.number);
        Ok(())
    }

    /// The error of a function that returned a code.
    pub fn check(&self, call: &'static str, code: c_int) -> Result<(), CudaError> {
        let checked = self.driver.check(call, code);
        if let Err(error) = &checked
            && loses_context(code)
        {
            self.lost.get_or_init(|| error.clone());
        }
        checked
    }

    /// The error that made it useless, if one did.
    pub fn lost(&self) -> Option<&CudaError> {
        self.lost.get()
    }

    /// Free bytes of the GPU's memory.
    pub fn free_bytes(&self) -> Result<usize, CudaError> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the pointers are valid.
        self.check("cuMemGetInfo", unsafe { (self.driver.api.cuMemGetInfo_v2)(&mut free, &mut total) })?;
        Ok(free)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained in `open`. Nothing can be done about an error.
        let _ = unsafe { (self.driver.api.cuDevicePrimaryCtxRelease_v2)(self.device) };
    }
}
