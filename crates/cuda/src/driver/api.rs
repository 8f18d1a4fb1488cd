//! The driver's functions that are used, and NVML's.

use super::library::library;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// A handle of the driver.
pub(crate) type Handle = *mut c_void;
/// An address in device memory.
pub(crate) type Address = u64;

library! {
    /// The driver.
    DriverApi {
        cuInit(c_uint) -> c_int;
        cuDriverGetVersion(*mut c_int) -> c_int;
        cuGetErrorName(c_int, *mut *const c_char) -> c_int;
        cuGetErrorString(c_int, *mut *const c_char) -> c_int;
        cuDeviceGetCount(*mut c_int) -> c_int;
        cuDeviceGet(*mut c_int, c_int) -> c_int;
        cuDeviceGetName(*mut c_char, c_int, c_int) -> c_int;
        cuDeviceGetUuid_v2(*mut [u8; 16], c_int) -> c_int;
        cuDeviceGetAttribute(*mut c_int, c_int, c_int) -> c_int;
        cuDeviceTotalMem_v2(*mut usize, c_int) -> c_int;
        cuDevicePrimaryCtxRetain(*mut Handle, c_int) -> c_int;
        cuDevicePrimaryCtxRelease_v2(c_int) -> c_int;
        cuCtxSetCurrent(Handle) -> c_int;
        cuCtxSetLimit(c_int, usize) -> c_int;
        cuMemGetInfo_v2(*mut usize, *mut usize) -> c_int;
        cuMemAlloc_v2(*mut Address, usize) -> c_int;
        cuMemFree_v2(Address) -> c_int;
        cuMemHostAlloc(*mut *mut c_void, usize, c_uint) -> c_int;
        cuMemFreeHost(*mut c_void) -> c_int;
        cuMemcpyHtoDAsync_v2(Address, *const c_void, usize, Handle) -> c_int;
        cuMemcpyDtoHAsync_v2(*mut c_void, Address, usize, Handle) -> c_int;
        cuMemcpyDtoDAsync_v2(Address, Address, usize, Handle) -> c_int;
        cuMemsetD8Async(Address, u8, usize, Handle) -> c_int;
        cuStreamCreate(*mut Handle, c_uint) -> c_int;
        cuStreamDestroy_v2(Handle) -> c_int;
        cuStreamSynchronize(Handle) -> c_int;
        cuStreamQuery(Handle) -> c_int;
        cuStreamWaitEvent(Handle, Handle, c_uint) -> c_int;
        cuStreamBeginCapture_v2(Handle, c_uint) -> c_int;
        cuStreamEndCapture(Handle, *mut Handle) -> c_int;
        cuGraphInstantiateWithFlags(*mut Handle, Handle, u64) -> c_int;
        cuGraphUpload(Handle, Handle) -> c_int;
        cuGraphLaunch(Handle, Handle) -> c_int;
        cuGraphDestroy(Handle) -> c_int;
        cuGraphExecDestroy(Handle) -> c_int;
        cuEventCreate(*mut Handle, c_uint) -> c_int;
        cuEventDestroy_v2(Handle) -> c_int;
        cuEventRecord(Handle, Handle) -> c_int;
        cuEventSynchronize(Handle) -> c_int;
        cuModuleLoadData(*mut Handle, *const c_void) -> c_int;
        cuModuleUnload(Handle) -> c_int;
        cuModuleGetFunction(*mut Handle, Handle, *const c_char) -> c_int;
        cuFuncGetAttribute(*mut c_int, c_int, Handle) -> c_int;
        cuLaunchKernelEx(*const LaunchConfig, Handle, *mut *mut c_void, *mut *mut c_void) -> c_int;
    }
}

/// How a kernel is launched.
#[repr(C)]
pub(crate) struct LaunchConfig {
    pub blocks: [c_uint; 3],
    pub threads: [c_uint; 3],
    pub shared_bytes: c_uint,
    pub stream: Handle,
    pub attributes: *const LaunchAttribute,
    pub attribute_count: c_uint,
}

/// An attribute of a launch: its number, and its value in the first bytes.
#[repr(C)]
pub(crate) struct LaunchAttribute {
    pub id: c_int,
    pub padding: c_int,
    pub value: [u64; 8],
}

/// Attributes of a device that are asked for.
#[derive(Clone, Copy)]
pub(crate) enum Attribute {
    Multiprocessors = 16,
    MemoryClockKhz = 36,
    MemoryBusBits = 37,
    ClockKhz = 13,
    CapabilityMajor = 75,
    CapabilityMinor = 76,
}

/// A process that uses a GPU, as NVML has it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct NvmlProcess {
    pub pid: c_uint,
    pub used_bytes: u64,
    pub gpu_instance: c_uint,
    pub compute_instance: c_uint,
}

/// A GPU's memory, as NVML has it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct NvmlMemory {
    pub total: u64,
    pub free: u64,
    pub used: u64,
}

library! {
    /// The driver's management library.
    NvmlApi {
        nvmlInit_v2() -> c_int;
        nvmlDeviceGetHandleByUUID(*const c_char, *mut Handle) -> c_int;
        nvmlDeviceGetMemoryInfo(Handle, *mut NvmlMemory) -> c_int;
        nvmlDeviceGetComputeRunningProcesses_v3(Handle, *mut c_uint, *mut NvmlProcess) -> c_int;
    }
}
