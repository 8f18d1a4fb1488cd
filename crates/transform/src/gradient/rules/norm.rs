//! Normalisation.

use super::{Gradients, Rule};
use plimsoll_graph::op::{Norm, NormAxis, Unary};
use plimsoll_graph::{Builder, GraphError, Op, ValueId};

pub(super) fn backward(b: &mut Builder, op: &Norm, r: &Rule<'_>) -> Gradients {
    match op {
        Norm::Layer { .. } => layer(b, r.x, r.y, r.dy()?),
        Norm::Batch { .. } => batch(b, r.x, r.y, r.dy()?),
        Norm::LogSumExp => {
            // Softmax in the form that forward computes it, so that `simplify` merges the two.
            let dy = r.dy()?;
            let below = b.sub(r.x[0], r.y[0])?;
            let softmax = b.unary(Unary::Exp, below)?;
            Ok(vec![Some(b.mul(dy, softmax)?)])
        }
        Norm::Stats { .. } | Norm::Moments | Norm::StatsOfMoments { .. } | Norm::Sums { .. } => {
            Err(r.refuse("it is part of a norm's own gradient"))
        }
    }
}

/// `x̂ = (x - mean) · rstd`.
fn normal(b: &mut Builder, x: ValueId, mean: ValueId, rstd: ValueId) -> Result<ValueId, GraphError> {
    let centred = b.sub(x, mean)?;
    b.mul(centred, rstd)
}

/// `dx = rstd · (g - (Σ g + x̂ · Σ g·x̂) / n)` over rows with `g = dy · gain`; gain and bias sum over rows.
fn layer(b: &mut Builder, x: &[ValueId], y: &[ValueId], dy: ValueId) -> Gradients {
    let (input, gain, mean, rstd) = (x[0], x[1], y[1], y[2]);
    let width = b.shape(gain)[0];
    let scaled = b.mul(dy, gain)?;
    let row = b.node(Op::Norm(Norm::Sums { axis: NormAxis::Row }), &[scaled, input, mean, rstd])?;
    let channel = b.node(Op::Norm(Norm::Sums { axis: NormAxis::Channel }), &[dy, input, mean, rstd])?;
    let dx = centre(b, [input, mean, rstd], scaled, [row[0], row[1]], width)?;
    Ok(vec![Some(b.mul(dx, rstd)?), Some(channel[1]), Some(channel[0])])
}

/// `dx = gain · rstd · (dy - (Σ dy + x̂ · Σ dy·x̂) / n)` over channels.
fn batch(b: &mut Builder, x: &[ValueId], y: &[ValueId], dy: ValueId) -> Gradients {
    let (input, gain, mean, rstd) = (x[0], x[1], y[1], y[3]);
    let rows = b.shape(input).elements() / b.shape(gain)[0].max(1);
    let sums = b.node(Op::Norm(Norm::Sums { axis: NormAxis::Channel }), &[dy, input, mean, rstd])?;
    let centred = centre(b, [input, mean, rstd], dy, [sums[0], sums[1]], rows)?;
    let factor = b.mul(gain, rstd)?;
    Ok(vec![Some(b.mul(centred, factor)?), Some(sums[1]), Some(sums[0])])
}

/// `g - (s + x̂ · t) / n`.
fn centre(
    b: &mut Builder,
    [x, mean, rstd]: [ValueId; 3],
    g: ValueId,
    [s, t]: [ValueId; 2],
    n: usize,
) -> Result<ValueId, GraphError> {
    let normal = normal(b, x, mean, rstd)?;
    let slope = b.mul(normal, t)?;
    let sum = b.add(slope, s)?;
    let mean = b.scale(sum, 1.0 / n.max(1) as f64)?;
    b.sub(g, mean)
}
