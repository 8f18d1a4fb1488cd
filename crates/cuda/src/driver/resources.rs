//! What a context owns: memory, streams, events, modules. Each is released when it is dropped; errors of releasing are
//! those of a lost device, which every other call reports.

use super::api::{Address, Handle, LaunchAttribute, LaunchConfig};
use super::{Context, CudaError};
use crate::kernels::WAITING_KERNELS;
use std::ffi::{c_char, c_uint, c_void};
use std::sync::Arc;

/// Events do not measure time, which makes them cheap.
const EVENT_WITHOUT_TIME: c_uint = 2;
/// Streams do not wait for the default stream.
const STREAM_OF_ITS_OWN: c_uint = 1;
/// Host memory that every context may copy from and to.
const HOST_MEMORY_FOR_ALL: c_uint = 1;
/// Capturing concerns the calls that go to its stream alone.
const CAPTURE_RELAXED: c_uint = 2;
/// The code of a stream that has work to do.
const NOT_READY: i32 = 600;
/// A function's attribute: bytes of stack that a thread needs.
const LOCAL_BYTES: i32 = 3;

/// A launch's attribute: it may begin while the kernel before it in its stream ends, and waits for it by itself
/// (`kernels::device_source`).
const BESIDE_THE_LAST: LaunchAttribute =
    LaunchAttribute { id: 6, padding: 0, value: [1, 0, 0, 0, 0, 0, 0, 0] };

/// Device memory.
pub(crate) struct DeviceMemory {
    pub context: Arc<Context>,
    pub start: Address,
    pub bytes: usize,
}

impl DeviceMemory {
    /// Allocates bytes; if they are not there, the error says who holds them.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, CudaError> {
        context.enter()?;
        let mut start = 0;
        if bytes > 0 {
            // SAFETY: the pointer is valid.
            let code = unsafe { (context.driver.api.cuMemAlloc_v2)(&mut start, bytes) };
            if let Err(error) = context.check("cuMemAlloc", code) {
                let free = context.free_bytes().map_err(|_| error)?;
                // Who holds memory now.
                let gpu = super::Gpu::describe(context.gpu.index).unwrap_or_else(|_| context.gpu.clone());
                return Err(gpu.full(bytes, free));
            }
        }
        Ok(Self { context: context.clone(), start, bytes })
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.bytes > 0 && self.context.enter().is_ok() {
            // SAFETY: allocated in `new`; freeing waits for what uses it.
            let _ = unsafe { (self.context.driver.api.cuMemFree_v2)(self.start) };
        }
    }
}

/// Page-locked host memory, zeroed.
pub(crate) struct HostMemory {
    context: Arc<Context>,
    pub start: *mut u8,
    pub bytes: usize,
}

// SAFETY: plain memory; those who use it keep their accesses apart.
unsafe impl Send for HostMemory {}
// SAFETY: as above.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Allocates bytes.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, CudaError> {
        context.enter()?;
        let mut start = std::ptr::null_mut();
        if bytes > 0 {
            // SAFETY: the pointer is valid.
            let code = unsafe { (context.driver.api.cuMemHostAlloc)(&mut start, bytes, HOST_MEMORY_FOR_ALL) };
            context.check("cuMemHostAlloc", code)?;
            // SAFETY: just allocated. Every page is touched, so that it is resident from here on.
            unsafe { start.cast::<u8>().write_bytes(0, bytes) };
        }
        Ok(Self { context: context.clone(), start: start.cast(), bytes })
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        if self.bytes > 0 && self.context.enter().is_ok() {
            // SAFETY: allocated in `new`.
            let _ = unsafe { (self.context.driver.api.cuMemFreeHost)(self.start.cast()) };
        }
    }
}

/// A queue of work on the device, which runs in order.
pub(crate) struct Stream {
    pub context: Arc<Context>,
    pub handle: Handle,
}

// SAFETY: the driver's streams may be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// A new stream.
    pub fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        context.enter()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the pointer is valid.
        let code = unsafe { (context.driver.api.cuStreamCreate)(&mut handle, STREAM_OF_ITS_OWN) };
        context.check("cuStreamCreate", code)?;
        Ok(Self { context: context.clone(), handle })
    }

    /// Waits until all its work is done.
    pub fn finish(&self) -> Result<(), CudaError> {
        self.context.enter()?;
        // SAFETY: the stream is alive.
        let code = unsafe { (self.context.driver.api.cuStreamSynchronize)(self.handle) };
        self.context.check("cuStreamSynchronize", code)
    }

    /// Whether it has work to do. An error is not told here, but by whatever is queued next.
    pub fn is_running(&self) -> bool {
        // SAFETY: the stream is alive.
        self.context.enter().is_ok()
            && unsafe { (self.context.driver.api.cuStreamQuery)(self.handle) } == NOT_READY
    }

    /// What is queued from now on waits for an event.
    pub fn wait_for(&self, event: &Event) -> Result<(), CudaError> {
        self.context.enter()?;
        // SAFETY: both are alive.
        let code = unsafe { (self.context.driver.api.cuStreamWaitEvent)(self.handle, event.handle, 0) };
        self.context.check("cuStreamWaitEvent", code)
    }

    /// Queues a copy to the device.
    ///
    /// # Safety
    /// Both ranges are valid, and nothing else uses them until the copy is done. Memory that is not page-locked is read
    /// before this returns.
    pub unsafe fn copy_in(&self, to: Address, from: *const u8, bytes: usize) -> Result<(), CudaError> {
        self.context.enter()?;
        // SAFETY: the caller's promise.
        let code =
            unsafe { (self.context.driver.api.cuMemcpyHtoDAsync_v2)(to, from.cast(), bytes, self.handle) };
        self.context.check("cuMemcpyHtoDAsync", code)
    }

    /// Queues a copy from the device.
    ///
    /// # Safety
    /// As for [`Stream::copy_in`]; others may read the device's range.
    pub unsafe fn copy_out(&self, to: *mut u8, from: Address, bytes: usize) -> Result<(), CudaError> {
        self.context.enter()?;
        // SAFETY: the caller's promise.
        let code =
            unsafe { (self.context.driver.api.cuMemcpyDtoHAsync_v2)(to.cast(), from, bytes, self.handle) };
        self.context.check("cuMemcpyDtoHAsync", code)
    }

    /// Queues a copy inside the device's memory.
    ///
    /// # Safety
    /// Both ranges are valid and apart, and nothing else uses them until the copy is done.
    pub unsafe fn copy(&self, to: Address, from: Address, bytes: usize) -> Result<(), CudaError> {
        self.context.enter()?;
        // SAFETY: the caller's promise.
        let code = unsafe { (self.context.driver.api.cuMemcpyDtoDAsync_v2)(to, from, bytes, self.handle) };
        self.context.check("cuMemcpyDtoDAsync", code)
    }

    /// Queues the filling of a range with a byte.
    ///
    /// # Safety
    /// The range is valid, and nothing else uses it until it is filled.
    pub unsafe fn fill(&self, start: Address, bytes: usize, byte: u8) -> Result<(), CudaError> {
        self.context.enter()?;
        // SAFETY: the caller's promise.
        let code = unsafe { (self.context.driver.api.cuMemsetD8Async)(start, byte, bytes, self.handle) };
        self.context.check("cuMemsetD8Async", code)
    }

    /// Queues a kernel. Where the GPU can, it is made ready while the kernel before it ends.
    ///
    /// # Safety
    /// The function takes such parameters, and what it does to memory with them is right. It was compiled from a
    /// [`device_source`](crate::kernels::device_source).
    pub unsafe fn launch(
        &self,
        function: Handle,
        blocks: [u32; 3],
        threads: u32,
        parameters: &mut [*mut c_void],
    ) -> Result<(), CudaError> {
        self.context.enter()?;
        let config = LaunchConfig {
            blocks,
            threads: [threads, 1, 1],
            shared_bytes: 0,
            stream: self.handle,
            attributes: &BESIDE_THE_LAST,
            attribute_count: u32::from(self.context.gpu.capability >= WAITING_KERNELS),
        };
        // SAFETY: the caller's promise.
        let code = unsafe {
            (self.context.driver.api.cuLaunchKernelEx)(
                &config,
                function,
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        self.context.check("cuLaunchKernelEx", code)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: created in `new`; its work goes on until it is done.
            let _ = unsafe { (self.context.driver.api.cuStreamDestroy_v2)(self.handle) };
        }
    }
}

/// What a stream was told to do, as a graph that it can be told again at once.
pub(crate) struct Graph {
    stream: Arc<Stream>,
    handle: Handle,
}

// SAFETY: one thread at a time uses it, which may be any.
unsafe impl Send for Graph {}

impl Graph {
    /// Of what a function tells the stream, which the stream does not do. `None` if the function fails.
    pub fn capture(
        stream: &Arc<Stream>,
        tell: &mut dyn FnMut() -> Result<(), String>,
    ) -> Result<Option<Self>, CudaError> {
        let context = &stream.context;
        context.enter()?;
        let api = &context.driver.api;
        // SAFETY: the stream is alive.
        let code = unsafe { (api.cuStreamBeginCapture_v2)(stream.handle, CAPTURE_RELAXED) };
        context.check("cuStreamBeginCapture", code)?;
        let told = tell();
        let mut captured = std::ptr::null_mut();
        // SAFETY: the pointer is valid. The stream is as before from here on, also where there is no graph.
        let code = unsafe { (api.cuStreamEndCapture)(stream.handle, &mut captured) };
        context.check("cuStreamEndCapture", code)?;
        let mut graph = Self { stream: stream.clone(), handle: std::ptr::null_mut() };
        // SAFETY: the graph was made above, and nothing needs it once another was made of it.
        let code = unsafe {
            let made = match told {
                Ok(()) => Some((api.cuGraphInstantiateWithFlags)(&mut graph.handle, captured, 0)),
                Err(_) => None,
            };
            (api.cuGraphDestroy)(captured);
            made
        };
        let Some(code) = code else { return Ok(None) };
        context.check("cuGraphInstantiate", code)?;
        // SAFETY: both are alive.
        let code = unsafe { (api.cuGraphUpload)(graph.handle, stream.handle) };
        context.check("cuGraphUpload", code)?;
        Ok(Some(graph))
    }

    /// Queues it.
    ///
    /// # Safety
    /// What was captured is right with the memory as it is now.
    pub unsafe fn launch(&self) -> Result<(), CudaError> {
        let context = &self.stream.context;
        context.enter()?;
        // SAFETY: both are alive; the rest is the caller's promise.
        let code = unsafe { (context.driver.api.cuGraphLaunch)(self.handle, self.stream.handle) };
        context.check("cuGraphLaunch", code)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let _ = self.stream.finish();
        if !self.handle.is_null() && self.stream.context.enter().is_ok() {
            // SAFETY: made in `capture`, and the stream has done it.
            let _ = unsafe { (self.stream.context.driver.api.cuGraphExecDestroy)(self.handle) };
        }
    }
}

/// A moment in a stream.
pub(crate) struct Event {
    context: Arc<Context>,
    handle: Handle,
}

// SAFETY: the driver's events may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// A new event, which has happened.
    pub fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        context.enter()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the pointer is valid.
        let code = unsafe { (context.driver.api.cuEventCreate)(&mut handle, EVENT_WITHOUT_TIME) };
        context.check("cuEventCreate", code)?;
        Ok(Self { context: context.clone(), handle })
    }

    /// Happens when all that is in the stream now is done.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        self.context.enter()?;
        // SAFETY: both are alive.
        let code = unsafe { (self.context.driver.api.cuEventRecord)(self.handle, stream.handle) };
        self.context.check("cuEventRecord", code)
    }

    /// Waits for it.
    pub fn finish(&self) -> Result<(), CudaError> {
        self.context.enter()?;
        // SAFETY: the event is alive.
        let code = unsafe { (self.context.driver.api.cuEventSynchronize)(self.handle) };
        self.context.check("cuEventSynchronize", code)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: created in `new`.
            let _ = unsafe { (self.context.driver.api.cuEventDestroy_v2)(self.handle) };
        }
    }
}

/// Compiled code on the device.
pub(crate) struct Module {
    context: Arc<Context>,
    handle: Handle,
    /// Its function.
    pub function: Handle,
}

// SAFETY: the driver's modules may be used from any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// Loads compiled code and finds the function of a name in it.
    pub fn new(context: &Arc<Context>, code: &[u8], name: &std::ffi::CStr) -> Result<Self, CudaError> {
        context.enter()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the pointers are valid; the compiler made the code, or a file of ours whose contents were checked.
        let loaded = unsafe { (context.driver.api.cuModuleLoadData)(&mut handle, code.as_ptr().cast()) };
        context.check("cuModuleLoadData", loaded)?;
        let mut module = Self { context: context.clone(), handle, function: std::ptr::null_mut() };
        let name: *const c_char = name.as_ptr();
        // SAFETY: the pointers are valid.
        let found = unsafe { (context.driver.api.cuModuleGetFunction)(&mut module.function, handle, name) };
        context.check("cuModuleGetFunction", found)?;
        Ok(module)
    }

    /// Bytes of stack that a thread of the function needs.
    pub fn stack_bytes(&self) -> Result<usize, CudaError> {
        let mut bytes = 0;
        // SAFETY: the pointer is valid, and the function alive.
        let code =
            unsafe { (self.context.driver.api.cuFuncGetAttribute)(&mut bytes, LOCAL_BYTES, self.function) };
        self.context.check("cuFuncGetAttribute", code)?;
        Ok(bytes.max(0) as usize)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: loaded in `new`; nothing of it runs any more, because the device has finished.
            let _ = unsafe { (self.context.driver.api.cuModuleUnload)(self.handle) };
        }
    }
}
