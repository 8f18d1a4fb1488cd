//! Matrix product.

use super::{Gradients, Rule};
use plimsoll_graph::op::{Epilogue, MatMul};
use plimsoll_graph::{Builder, Op};

pub(super) fn backward(b: &mut Builder, op: MatMul, r: &Rule<'_>) -> Gradients {
    if op.epilogue != Epilogue::default() {
        return Err(r.refuse("`fuse` runs after `gradient`"));
    }
    let x = r.x;
    let dy = b.cast(r.dy()?, b.ty(x[0]).dtype)?;
    let outputs = [r.product(b, 0), r.product(b, 1)];
    let product = |input: usize, transpose_a, transpose_b| {
        let output = outputs[input];
        Op::MatMul(MatMul { transpose_a, transpose_b, epilogue: Epilogue::default(), output })
    };
    let (ta, tb) = (op.transpose_a, op.transpose_b);
    // C = A·B: dA = dC·Bᵀ and dB = Aᵀ·dC; a transposed operand's gradient is the transpose, so its factors swap.
    let da = |b: &mut Builder| {
        if ta { b.one(product(0, tb, true), &[x[1], dy]) } else { b.one(product(0, false, !tb), &[dy, x[1]]) }
    };
    let db = |b: &mut Builder| {
        if tb { b.one(product(1, true, ta), &[dy, x[0]]) } else { b.one(product(1, !ta, false), &[x[0], dy]) }
    };
    Ok(vec![r.want(b, 0, da)?, r.want(b, 1, db)?])
}
