//! Gradients kept from growing.

use super::{Parameter, square_sum};
use plimsoll_graph::op::{Binary, Unary};
use plimsoll_graph::{Builder, GraphError, ValueId};

/// Added to a norm before it divides, as PyTorch has it.
const EPS: f64 = 1e-6;

/// How gradients are kept from growing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Clip {
    /// Every element stays within ± this value.
    Value(f64),
    /// The norm of each parameter's gradient is at most this.
    Norm(f64),
    /// The norm of all gradients together is at most this. No parameter is updated, and no gradient freed, before all
    /// gradients are known.
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

/// What all gradients are multiplied with so that their norm is at most this. The squares are added up in the order of the
/// parameters.
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
    let total = total.ok_or_else(|| GraphError::Broken("there is no gradient to clip".into()))?;
    b.within("clip".into(), |b| factor(b, total, most))
}

/// `most / norm` where that is below one, from the norm's square.
fn factor(b: &mut Builder, square: ValueId, most: f64) -> Result<ValueId, GraphError> {
    let norm = b.unary(Unary::Sqrt, square)?;
    let norm = b.with_constant(Binary::Add, norm, EPS)?;
    let most = b.constant(most, b.ty(norm).dtype)?;
    let factor = b.div(most, norm)?;
    b.with_constant(Binary::Min, factor, 1.0)
}
