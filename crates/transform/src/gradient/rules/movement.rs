//! Moving elements.

use super::{Gradients, Rule};
use plimsoll_graph::op::Movement;
use plimsoll_graph::{Builder, Op};

pub(super) fn backward(b: &mut Builder, op: &Movement, r: &Rule<'_>) -> Gradients {
    let (shape, dy) = (b.shape(r.x[0]).clone(), r.dy()?);
    let dx = match op {
        Movement::Reshape(_) => b.reshape(dy, shape)?,
        Movement::Broadcast(_) => b.sum_to(dy, &shape)?,
        Movement::Transpose(axes) => {
            let mut inverse = vec![0; axes.len()];
            axes.iter().enumerate().for_each(|(i, &a)| inverse[a] = i);
            b.one(Op::Movement(Movement::Transpose(inverse)), &[dy])?
        }
    };
    Ok(vec![Some(dx)])
}
