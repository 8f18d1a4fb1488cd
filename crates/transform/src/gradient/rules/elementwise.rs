//! Scalar functions of every element.

use super::{Gradients, Rule};
use plimsoll_graph::op::{Binary, Elementwise, Unary};
use plimsoll_graph::{Builder, GraphError, ValueId};

pub(super) fn backward(b: &mut Builder, op: Elementwise, r: &Rule<'_>) -> Gradients {
    let (x, y, dy) = (r.x, r.y[0], r.dy()?);
    let dtype = b.ty(dy).dtype;
    let mut gradients: Vec<Option<ValueId>> = match op {
        // A step function has no slope: `gradient` names it if that cuts a parameter off.
        Elementwise::Unary(op) if op.is_step() => vec![None],
        Elementwise::Unary(op) => vec![Some(unary(b, op, x[0], y, dy)?)],
        Elementwise::Binary(op) => binary(b, op, y, dy, r)?,
        Elementwise::Select => {
            let zero = b.constant(0.0, dtype)?;
            vec![None, Some(b.select(x[0], dy, zero)?), Some(b.select(x[0], zero, dy)?)]
        }
        Elementwise::Cast(_) if b.ty(x[0]).dtype.is_float() => {
            // A sum over the batch, as the gradient of a bias is, stays f32.
            let from = b.ty(x[0]).dtype;
            vec![Some(b.cast(dy, if b.is_batched(x[0]) { from } else { from.wide() })?)]
        }
        Elementwise::Cast(_) => vec![None],
        Elementwise::Constant { .. } => vec![],
    };
    for (gradient, &input) in gradients.iter_mut().zip(x) {
        if let Some(value) = gradient {
            *gradient = Some(b.sum_like(*value, input)?);
        }
    }
    Ok(gradients)
}

fn unary(b: &mut Builder, op: Unary, x: ValueId, y: ValueId, dy: ValueId) -> Result<ValueId, GraphError> {
    let dtype = b.ty(dy).dtype;
    match op {
        Unary::Neg => b.unary(Unary::Neg, dy),
        Unary::Abs => {
            let zero = b.constant(0.0, dtype)?;
            let (positive, negative) =
                (b.binary(Binary::Greater, x, zero)?, b.binary(Binary::Greater, zero, x)?);
            let minus = b.unary(Unary::Neg, dy)?;
            let rest = b.select(negative, minus, zero)?;
            b.select(positive, dy, rest)
        }
        Unary::Square => {
            let double = b.scale(x, 2.0)?;
            b.mul(dy, double)
        }
        Unary::Sqrt => {
            let double = b.scale(y, 2.0)?;
            b.div(dy, double)
        }
        Unary::Rsqrt => {
            let square = b.unary(Unary::Square, y)?;
            let cube = b.mul(square, y)?;
            let slope = b.scale(cube, -0.5)?;
            b.mul(dy, slope)
        }
        Unary::Exp => b.mul(dy, y),
        Unary::Log => b.div(dy, x),
        Unary::Tanh => {
            let square = b.unary(Unary::Square, y)?;
            let one = b.constant(1.0, dtype)?;
            let slope = b.sub(one, square)?;
            b.mul(dy, slope)
        }
        Unary::Sigmoid => {
            let one = b.constant(1.0, dtype)?;
            let rest = b.sub(one, y)?;
            let slope = b.mul(y, rest)?;
            b.mul(dy, slope)
        }
        Unary::Erf => {
            let square = b.unary(Unary::Square, x)?;
            let minus = b.unary(Unary::Neg, square)?;
            let bell = b.unary(Unary::Exp, minus)?;
            let slope = b.scale(bell, std::f64::consts::FRAC_2_SQRT_PI)?;
            b.mul(dy, slope)
        }
        Unary::Sin => {
            let slope = b.unary(Unary::Cos, x)?;
            b.mul(dy, slope)
        }
        Unary::Cos => {
            let sin = b.unary(Unary::Sin, x)?;
            let slope = b.unary(Unary::Neg, sin)?;
            b.mul(dy, slope)
        }
        Unary::Log1p => {
            let above = b.with_constant(Binary::Add, x, 1.0)?;
            b.div(dy, above)
        }
        Unary::Expm1 => {
            let slope = b.with_constant(Binary::Add, y, 1.0)?;
            b.mul(dy, slope)
        }
        Unary::Softplus => {
            let slope = b.unary(Unary::Sigmoid, x)?;
            b.mul(dy, slope)
        }
        // From the output, so that the input need not be kept.
        Unary::Relu => {
            let zero = b.constant(0.0, dtype)?;
            let positive = b.binary(Binary::Greater, y, zero)?;
            b.select(positive, dy, zero)
        }
        Unary::Floor | Unary::Ceil | Unary::Round | Unary::Sign => {
            unreachable!("step functions have no gradient")
        }
    }
}

fn binary(b: &mut Builder, op: Binary, y: ValueId, dy: ValueId, r: &Rule<'_>) -> Gradients {
    let x = r.x;
    Ok(match op {
        Binary::Add => vec![Some(dy), Some(dy)],
        Binary::Sub => vec![Some(dy), r.want(b, 1, |b| b.unary(Unary::Neg, dy))?],
        Binary::Mul => vec![r.want(b, 0, |b| b.mul(dy, x[1]))?, r.want(b, 1, |b| b.mul(dy, x[0]))?],
        Binary::Div => vec![
            r.want(b, 0, |b| b.div(dy, x[1]))?,
            r.want(b, 1, |b| {
                let slope = b.div(y, x[1])?;
                let product = b.mul(dy, slope)?;
                b.unary(Unary::Neg, product)
            })?,
        ],
        Binary::Max => {
            vec![r.want(b, 0, |b| winner(b, x[0], x[1], dy))?, r.want(b, 1, |b| winner(b, x[1], x[0], dy))?]
        }
        Binary::Min => {
            vec![r.want(b, 0, |b| loser(b, x[0], x[1], dy))?, r.want(b, 1, |b| loser(b, x[1], x[0], dy))?]
        }
        Binary::Pow => vec![
            // The slope is 0 where a power of zero is taken, and where zero is the base: never 0 · infinity.
            r.want(b, 0, |b| {
                let less = b.with_constant(Binary::Sub, x[1], 1.0)?;
                let power = b.binary(Binary::Pow, x[0], less)?;
                let slope = b.mul(x[1], power)?;
                where_not_zero(b, x[1], dy, slope)
            })?,
            r.want(b, 1, |b| {
                let log = b.unary(Unary::Log, x[0])?;
                let slope = b.mul(y, log)?;
                where_not_zero(b, x[0], dy, slope)
            })?,
        ],
        Binary::Greater | Binary::GreaterEqual | Binary::Equal => vec![None, None],
    })
}

/// `dy · slope` where x is not zero, else zero.
fn where_not_zero(b: &mut Builder, x: ValueId, dy: ValueId, slope: ValueId) -> Result<ValueId, GraphError> {
    let zero = b.constant(0.0, b.ty(dy).dtype)?;
    let is_zero = b.binary(Binary::Equal, x, zero)?;
    let product = b.mul(dy, slope)?;
    b.select(is_zero, zero, product)
}

/// The gradient of the operand `a` of a maximum: all of it where `a` is greater, half where they are equal.
fn winner(b: &mut Builder, a: ValueId, other: ValueId, dy: ValueId) -> Result<ValueId, GraphError> {
    let greater = b.binary(Binary::Greater, a, other)?;
    share(b, greater, a, other, dy)
}

/// The gradient of the operand `a` of a minimum.
fn loser(b: &mut Builder, a: ValueId, other: ValueId, dy: ValueId) -> Result<ValueId, GraphError> {
    let smaller = b.binary(Binary::Greater, other, a)?;
    share(b, smaller, a, other, dy)
}

fn share(
    b: &mut Builder,
    wins: ValueId,
    a: ValueId,
    other: ValueId,
    dy: ValueId,
) -> Result<ValueId, GraphError> {
    let zero = b.constant(0.0, b.ty(dy).dtype)?;
    let half = b.scale(dy, 0.5)?;
    let equal = b.binary(Binary::Equal, a, other)?;
    let tie = b.select(equal, half, zero)?;
    b.select(wins, dy, tie)
}
