//! Matrix product.

use crate::elementwise::relu;
use crate::evaluate::Values;
use crate::tensor::{Elements, at};
use plimsoll_graph::op::{Epilogue, MatMul};

pub(crate) fn evaluate(op: &MatMul, inputs: &[Elements<'_>]) -> Values {
    let (a, b) = (&inputs[0], &inputs[1]);
    let types: Vec<_> = inputs.iter().map(|input| input.ty).collect();
    let (m, n, k) = op.extents(&types).expect("the type rule checks the extents");
    let products: usize = a.shape()[..a.shape().rank() - 2].iter().product();
    let mut y = vec![0.0; products * m * n];
    for p in 0..products {
        for i in 0..m {
            for j in 0..n {
                for l in 0..k {
                    let left = if op.transpose_a { at([k, m], [l, i]) } else { at([m, k], [i, l]) };
                    let right = if op.transpose_b { at([n, k], [j, l]) } else { at([k, n], [l, j]) };
                    y[at([products, m, n], [p, i, j])] +=
                        a.data[p * m * k + left] * b.data[p * k * n + right];
                }
            }
        }
    }
    finish(op.epilogue, &mut y, inputs);
    Ok(vec![y])
}

/// Applies an epilogue to finished sums; its bias is the last input.
pub(crate) fn finish(epilogue: Epilogue, y: &mut [f64], inputs: &[Elements<'_>]) {
    if epilogue.bias {
        let bias = &inputs[inputs.len() - 1].data;
        y.iter_mut().enumerate().for_each(|(i, y)| *y += bias[i % bias.len()]);
    }
    if epilogue.relu {
        y.iter_mut().for_each(|y| *y = relu(*y));
    }
}
