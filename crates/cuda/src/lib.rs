//! The executor for NVIDIA GPUs.
//!
//! - `kernels`: which launches compute a node, as plain data: kernels in CUDA C and matrix products. Pure functions, without a
//!   device.
//! - `driver`: the driver, loaded at run time: a machine without one gets an error, not a crash. [`Gpu`] lists its GPUs.
//! - `compiler`: kernels to machine code, by NVRTC; `products`: matrix products, by cuBLASLt; `tuning`: their fastest algorithms; `rates`: what
//!   a GPU reaches; `kept`: the folder that keeps these.
//! - `device`, `recording`, `host_queue`, `file_lane`, `staging`: what the runtime computes and transfers with. Everything is queued on streams; the host waits
//!   when it reads a result.
//! - [`Cuda`]: the executor.

mod compiler;
mod device;
mod driver;
#[cfg(feature = "emulator")]
pub mod emulator;
mod executor;
mod faults;
mod file_lane;
mod host_queue;
mod kept;
mod kernels;
mod products;
mod rates;
mod recording;
mod staging;
pub mod target;
mod tuning;

pub use driver::{CudaError, Gpu, Holder};
pub use executor::Cuda;
pub use kernels::{
    Call, Fault, Kernel, Launch, Matrix, Operand, PRELUDE, Parameter, Pointer, Product, find, join,
};
pub use plimsoll_runtime::transfer::DEVICE_STAGING_BYTES;
pub use rates::Rates;

/// Machine code for kernels' sources, behind the prelude, for a compute capability: what a device of it would load for each of them, in
/// one file.
///
/// # Errors
/// If there is no compiler, or in its words.
pub fn machine_code(sources: &[&str], capability: (u32, u32)) -> Result<Vec<u8>, CudaError> {
    compiler::Compiler::new(capability, kept::Kept::new(None))?.compile(&kernels::device_program(sources))
}

/// What is installed: the driver, the compiler and the library of products, each with its version or why it cannot be used.
pub fn libraries() -> [(&'static str, Result<String, CudaError>); 3] {
    let compiler =
        compiler::Compiler::new((9, 0), kept::Kept::new(None)).map(|compiler| compiler.version_text());
    [("driver", driver::driver_version()), ("NVRTC", compiler), ("cuBLASLt", products::installed_version())]
}
