//! Eager tensors through the public interface.

mod accelerators;
mod compiled;
mod devices;
mod lifetime;
mod memory_limit;
mod networks;
mod operators;
mod random_programs;
mod tapes;

use plimsoll_eager::{Eager, Tensor};
use plimsoll_tensor::random::Stream;

/// A context on two threads.
fn eager() -> Eager {
    Eager::builder().threads(2).build().unwrap()
}

/// Standard normal numbers.
fn normal(eager: &Eager, name: &str, ty: &str) -> Tensor {
    let (ty, stream) = (ty.parse::<plimsoll_tensor::TensorType>().unwrap(), Stream::new(1, 0, name));
    let values: Vec<f64> = (0..ty.shape.elements() as u64).map(|i| f64::from(stream.normal(0, i))).collect();
    eager.tensor(plimsoll_tensor::Tensor::from_f64(ty, &values).unwrap()).unwrap()
}
