//! The driver: contexts, memory, streams, events and modules, each with its errors.

mod api;
mod context;
mod error;
mod gpu;
pub(crate) mod library;
mod resources;

pub(crate) use api::{Address, Handle};
pub(crate) use context::Context;
pub use error::CudaError;
pub use gpu::{Gpu, Holder};
pub(crate) use gpu::driver;
pub(crate) use resources::{DeviceMemory, Event, HostMemory, Module, Stream};
