//! ONNX files: written from a prediction step, and read as models.

pub(crate) mod emit;
mod held;
mod import;
pub(crate) mod proto;
mod read;
mod write;

#[cfg(test)]
mod tests;

pub use import::OnnxModel;
pub use write::{OnnxOptions, onnx};
