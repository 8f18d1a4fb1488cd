//! TFLite files, written from a prediction step of a fixed batch.

mod emit;
mod int8;
mod ops;
mod schema;
#[cfg(test)]
mod tests;
mod write;

pub use write::{TfliteWeights, tflite};
