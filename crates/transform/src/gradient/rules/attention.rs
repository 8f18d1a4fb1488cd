//! Attention.

use super::{Gradients, Rule};
use plimsoll_graph::op::Attention;
use plimsoll_graph::{Builder, Op};

pub(super) fn backward(b: &mut Builder, op: Attention, r: &Rule<'_>) -> Gradients {
    match op {
        Attention::Forward { causal, window, masked } => {
            let (x, y, dy) = (r.x, r.y, r.dy()?);
            let (operands, mask) = x.split_at(3);
            let op = Op::Attention(Attention::Grad { causal, window, masked });
            let gradients = b.node(op, &[operands, &[y[0], y[1], dy], mask].concat())?;
            Ok(gradients.into_iter().map(Some).chain(mask.iter().map(|_| None)).collect())
        }
        Attention::Grad { .. } => Err(r.refuse("it is itself a gradient")),
        Attention::Rotary { base, inverse, start } => {
            let op = Op::Attention(Attention::Rotary { base, inverse: !inverse, start });
            Ok(vec![Some(b.node(op, &[r.dy()?])?[0])])
        }
    }
}
