//! Convolution.

use super::{Gradients, Rule};
use plimsoll_graph::op::{Conv, Epilogue};
use plimsoll_graph::{Builder, Op};

pub(super) fn backward(b: &mut Builder, op: &Conv, r: &Rule<'_>) -> Gradients {
    let x = r.x;
    let dy = b.cast(r.dy()?, b.ty(x[0]).dtype)?;
    let output = r.product(b, 0);
    match *op {
        Conv::Forward { geometry, groups, epilogue, .. } if epilogue == Epilogue::default() => {
            let image = [b.shape(x[0])[1], b.shape(x[0])[2]];
            let input = Op::Conv(Conv::InputGrad { geometry, groups, image, output });
            let weight = Op::Conv(Conv::WeightGrad { geometry, groups });
            Ok(vec![
                r.want(b, 0, |b| b.one(input, &[dy, x[1]]))?,
                r.want(b, 1, |b| b.one(weight, &[x[0], dy]))?,
            ])
        }
        Conv::Forward { .. } => Err(r.refuse("`fuse` runs after `gradient`")),
        // The same sums of products with image and result swapped.
        Conv::InputGrad { geometry, groups, .. } => {
            let input = Op::Conv(Conv::Forward { geometry, groups, epilogue: Epilogue::default(), output });
            let weight = Op::Conv(Conv::WeightGrad { geometry, groups });
            Ok(vec![
                r.want(b, 0, |b| b.one(input, &[dy, x[1]]))?,
                r.want(b, 1, |b| b.one(weight, &[dy, x[0]]))?,
            ])
        }
        Conv::WeightGrad { .. } => Err(r.refuse("it is itself a gradient")),
    }
}
