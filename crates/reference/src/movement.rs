//! Moving elements without changing them.

use crate::evaluate::Values;
use crate::tensor::{Tensor, offsets};
use plimsoll_graph::op::Movement;
use plimsoll_tensor::TensorType;

pub(crate) fn evaluate(op: &Movement, inputs: &[Tensor<'_>], output: &TensorType) -> Values {
    let x = &inputs[0];
    Ok(vec![match op {
        Movement::Reshape(_) => x.data.clone(),
        Movement::Transpose(axes) => {
            let strides = x.shape().strides();
            let moved: Vec<usize> = axes.iter().map(|&axis| strides[axis]).collect();
            offsets(&output.shape, &moved).into_iter().map(|offset| x.data[offset]).collect()
        }
        Movement::Broadcast(shape) => x.broadcast(shape),
    }])
}
