//! Adafactor.

use super::{Decay, Optimizer, Parameter, descend, exactly, moment, square_sum, state};
use plimsoll_graph::op::Binary;
use plimsoll_graph::{Builder, GraphError, ValueId};
use plimsoll_tensor::DType;

/// Adafactor (Shazeer and Stern 2018) without first moment, as in PyTorch. The second moment of a matrix (the last two axes)
/// is factored into mean squares of rows and of columns: `4 · (rows + columns)` bytes; a vector takes 4 bytes per element.
/// The step is relative to the parameter: `rate` times the root of its mean square.
#[derive(Clone, Debug)]
pub struct Adafactor {
    rate: f64,
    beta2_decay: f64,
    eps: (Option<f64>, f64),
    threshold: f64,
    decay: Decay,
}

impl Adafactor {
    /// With a second moment that decays as `step^-0.8`, updates clipped to a mean square of one, and no weight decay.
    pub fn new(rate: f64) -> Self {
        Self { rate, beta2_decay: -0.8, eps: (None, 1e-3), threshold: 1.0, decay: Decay::new(0.0) }
    }

    /// With other lower bounds: of the root mean square of gradients (by default the float type's epsilon), and of the
    /// parameter's root mean square that steps are relative to.
    pub fn eps(self, gradient: f64, parameter: f64) -> Self {
        Self { eps: (Some(gradient), parameter), ..self }
    }

    /// With decoupled weight decay.
    pub fn weight_decay(self, decay: impl Into<Decay>) -> Self {
        Self { decay: decay.into(), ..self }
    }

    /// The second moment of each element, from the factors of rows and columns or, of a vector, itself.
    fn estimate(
        &self,
        b: &mut Builder,
        parameter: &Parameter,
        gradient: ValueId,
        forget: ValueId,
        eps: f64,
    ) -> Result<ValueId, GraphError> {
        let axes = b.shape(gradient).rank();
        if axes < 2 {
            let square = b.square(gradient)?;
            let old = moment(b, parameter, "variance");
            let variance = lerp(b, old, square, forget)?;
            b.set_state(old, variance);
            return Ok(variance);
        }
        let part = |b: &mut Builder, axis: usize, name: &str| {
            let sums = b.square_sum(gradient, &[axis], true)?;
            let means = b.scale(sums, 1.0 / b.shape(gradient)[axis] as f64)?;
            let ty = b.ty(means).clone();
            let old = state(b, parameter, name, ty);
            let new = lerp(b, old, means, forget)?;
            b.set_state(old, new);
            Ok::<_, GraphError>(new)
        };
        let rows = part(b, axes - 1, "rows")?;
        let columns = part(b, axes - 2, "columns")?;
        let sum = b.sum(rows, &[axes - 2], true)?;
        let mean = b.scale(sum, 1.0 / b.shape(rows)[axes - 2] as f64)?;
        let mean = b.with_constant(Binary::Max, mean, eps)?;
        let product = b.mul(rows, columns)?;
        b.div(product, mean)
    }
}

/// `old + weight · (new - old)`.
fn lerp(b: &mut Builder, old: ValueId, new: ValueId, weight: ValueId) -> Result<ValueId, GraphError> {
    let difference = b.sub(new, old)?;
    let change = b.mul(difference, weight)?;
    b.add(old, change)
}

/// The root of a value's mean square.
fn root_mean_square(b: &mut Builder, x: ValueId) -> Result<ValueId, GraphError> {
    let sum = square_sum(b, x)?;
    let mean = b.scale(sum, 1.0 / b.shape(x).elements().max(1) as f64)?;
    b.sqrt(mean)
}

impl Optimizer for Adafactor {
    fn setting_names(&self) -> Vec<String> {
        [self.decay.setting_names(), vec!["rate".into(), "forget".into()]].concat()
    }

    fn settings(&self, step: u64, scale: f64, values: &mut [f64]) {
        let (rate, t) = (self.rate * scale, (step + 1) as f64);
        let own = self.decay.settings(rate, values);
        own.copy_from_slice(&[rate.min(1.0 / t.sqrt()), t.powf(self.beta2_decay)]);
    }

    fn description(&self) -> String {
        let Self { rate, beta2_decay, eps: (first, second), threshold, decay } = self;
        let first = first.map_or("of the type".to_string(), |eps| eps.to_string());
        let decay = decay.description();
        format!(
            "adafactor (rate {rate}, forgets {beta2_decay}, eps {first} {second}, threshold {threshold}, {decay})"
        )
    }

    fn decay(&self) -> Option<&Decay> {
        Some(&self.decay)
    }

    fn update(
        &self,
        b: &mut Builder,
        parameter: &Parameter,
        gradient: ValueId,
        settings: &[ValueId],
    ) -> Result<(), GraphError> {
        let (kept, settings) = self.decay.decoupled(b, parameter, settings)?;
        let [rate, forget] = exactly(settings)?;
        let eps = self.eps.0.unwrap_or(match b.ty(gradient).dtype {
            DType::F64 => f64::EPSILON,
            _ => f64::from(f32::EPSILON),
        });
        let estimate = self.estimate(b, parameter, gradient, forget, eps)?;
        let estimate = b.with_constant(Binary::Max, estimate, eps * eps)?;
        let scale = b.rsqrt(estimate)?;
        let update = b.mul(scale, gradient)?;
        // The step size: relative to the parameter, and clipped where the update is large.
        let size = root_mean_square(b, parameter.value)?;
        let size = b.with_constant(Binary::Max, size, self.eps.1)?;
        let step = b.mul(size, rate)?;
        let length = root_mean_square(b, update)?;
        let length = b.scale(length, 1.0 / self.threshold)?;
        let length = b.with_constant(Binary::Max, length, 1.0)?;
        let step = b.div(step, length)?;
        descend(b, parameter, kept, update, step)
    }
}
