//! Matrix product.

use super::{Gradients, Rule};
use plimsoll_graph::op::{Epilogue, MatMul};
use plimsoll_graph::{Builder, Op};

pub(super) fn backward(b: &mut Builder, op: MatMul, r: &Rule<'_>) -> Gradients {
    if op.epilogue != Epilogue::default() {
        return Err(r.refuse("`fuse` runs after `gradient`"));
    }
    let (x, dy) = (r.x, r.dy()?);
    let product = |transpose_a, transpose_b| {
        Op::MatMul(MatMul { transpose_a, transpose_b, epilogue: Epilogue::default() })
    };
    let (ta, tb) = (op.transpose_a, op.transpose_b);
    // C = A·B: dA = dC·Bᵀ and dB = Aᵀ·dC; a transposed operand's gradient is the transpose, so its factors swap.
    let da = |b: &mut Builder| {
        if ta { b.one(product(tb, true), &[x[1], dy]) } else { b.one(product(false, !tb), &[dy, x[1]]) }
    };
    let db = |b: &mut Builder| {
        if tb { b.one(product(true, ta), &[dy, x[0]]) } else { b.one(product(!ta, false), &[x[0], dy]) }
    };
    Ok(vec![r.want(b, 0, da)?, r.want(b, 1, db)?])
}
