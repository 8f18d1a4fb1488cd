//! Gradient clipping.

use super::{Parameter, square_sum};
use plimsoll_graph::op::Binary;
use plimsoll_graph::{Builder, GraphError, ValueId};

/// Added to a norm before it divides, as in PyTorch.
const EPS: f64 = 1e-6;

/// Gradient clipping.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Clip {
    /// Clamps every element to ± this value.
    Value(f64),
    /// Scales each parameter's gradient to at most this norm.
    Norm(f64),
    /// Scales all gradients together to at most this norm. The first update waits for the last gradient, so all gradients
    /// are live at once.
    GlobalNorm(f64),
}

impl Clip {
    /// The clipped gradients.
    pub(super) fn apply(
        self,
        b: &mut Builder,
        parameters: &[Parameter],
        gradients: &[ValueId],
    ) -> Result<Vec<ValueId>, GraphError> {
        let global = match self {
            Self::GlobalNorm(most) => Some(global_factor(b, parameters, gradients, most)?),
            _ => None,
        };
        let clipped = parameters.iter().zip(gradients).map(|(parameter, &gradient)| {
            b.within(parameter.layer().into(), |b| match (self, global) {
                (Self::Value(most), _) => b.clamp(gradient, -most, most),
                (Self::Norm(most), _) => {
                    let sum = square_sum(b, gradient)?;
                    let factor = factor(b, sum, most)?;
                    b.mul(gradient, factor)
                }
                (_, Some(factor)) => b.mul(gradient, factor),
                (_, None) => Ok(gradient),
            })
        });
        clipped.collect()
    }
}

/// The factor that scales all gradients together to at most the norm `most`. Squares are added in the parameters' order.
fn global_factor(
    b: &mut Builder,
    parameters: &[Parameter],
    gradients: &[ValueId],
    most: f64,
) -> Result<ValueId, GraphError> {
    let mut total = None;
    for (parameter, &gradient) in parameters.iter().zip(gradients) {
        let sum = b.within(parameter.layer().into(), |b| square_sum(b, gradient))?;
        total = Some(match total {
            Some(total) => b.within("clip".into(), |b| b.add(total, sum))?,
            None => sum,
        });
    }
    let total = total.ok_or_else(|| GraphError::Choice("there is no gradient to clip".into()))?;
    b.within("clip".into(), |b| factor(b, total, most))
}

/// `min(most / norm, 1)`, from the norm's square.
fn factor(b: &mut Builder, square: ValueId, most: f64) -> Result<ValueId, GraphError> {
    let norm = b.sqrt(square)?;
    let norm = b.with_constant(Binary::Add, norm, EPS)?;
    let most = b.constant(most, b.ty(norm).dtype)?;
    let factor = b.div(most, norm)?;
    b.with_constant(Binary::Min, factor, 1.0)
}
