//! Attention.

use super::{Gradients, Rule};
use plimsoll_graph::op::Attention;
use plimsoll_graph::{Builder, Op};

pub(super) fn backward(b: &mut Builder, op: Attention, r: &Rule<'_>) -> Gradients {
    match op {
        Attention::Forward { causal } => {
            let (x, y, dy) = (r.x, r.y, r.dy()?);
            let op = Op::Attention(Attention::Grad { causal });
            let gradients = b.node(op, &[x[0], x[1], x[2], y[0], y[1], dy])?;
            Ok(gradients.into_iter().map(Some).collect())
        }
        Attention::Grad { .. } => Err(r.refuse("it is itself a gradient")),
    }
}
