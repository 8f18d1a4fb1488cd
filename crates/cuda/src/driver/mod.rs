//! The driver: contexts, memory, streams, events and modules, each with its errors.

mod api;
mod context;
mod error;
mod gpu;
pub(crate) mod library;
mod resources;

pub(crate) use api::{Address, Handle};
pub(crate) use context::{Context, STACK_BYTES};
pub use error::CudaError;
pub(crate) use gpu::driver_version;
pub use gpu::{Gpu, Holder};
pub(crate) use resources::{DeviceMemory, Event, Graph, HostMemory, Module, Stream};
