//! Resizing.

use super::{Gradients, Rule};
use plimsoll_graph::op::Resize;
use plimsoll_graph::{Builder, Op};

pub(super) fn backward(b: &mut Builder, op: &Resize, r: &Rule<'_>) -> Gradients {
    let size = [b.shape(r.x[0])[1], b.shape(r.x[0])[2]];
    let op = match *op {
        Resize::Forward { mode, .. } => Resize::Grad { mode, image: size },
        // The adjoint of a linear function's adjoint is the function.
        Resize::Grad { mode, .. } => Resize::Forward { mode, output: size },
    };
    let dy = r.dy()?;
    Ok(vec![Some(b.one(Op::Resize(op), &[dy])?)])
}
