//! Models as files of other systems, and back.
//!
//! - [`onnx()`] writes the prediction step of a model as an ONNX file, for any number of examples or a fixed one.
//! - [`tflite()`] writes it as a TFLite file of a fixed batch, with weights of f32, f16 or bytes.
//! - [`ExportGraph::on_bytes`] is a step whose layers run on bytes: an ONNX file then has pairs of ops that quantize and dequantize, a
//!   TFLite file inputs, outputs and sums of integers.
//! - [`OnnxModel`] is a model that was read from such a file, by whatever program wrote it: it is planned, trained and exported
//!   like any other.
//!
//! Weights pass through a buffer piece by piece ([`Weights`]), so a model may be larger than memory. A file is there whole or not
//! at all ([`PartialFile`]).

mod batch;
mod error;
mod file;
mod int8;
mod onnx;
mod pattern;
#[cfg(test)]
mod test_models;
mod tflite;
mod weights;

pub use batch::{Batch, ExportGraph, Format};
pub use error::ExportError;
pub use file::{PARTIAL, PartialFile, give_up_when, is_written_in_place};
pub use onnx::{OnnxModel, OnnxOptions, onnx};
pub use tflite::{TfliteWeights, tflite};
pub use weights::{BUFFER_BYTES, Weights};

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exported {
    /// Ops of the model in its new format.
    pub ops: usize,
    /// Tensors.
    pub tensors: usize,
    /// Bytes of all files.
    pub bytes: u64,
}
