//! Lion.

use super::{Decay, Optimizer, Parameter, descend, exactly, moment};
use plimsoll_graph::{Builder, GraphError, ValueId};

/// Lion (Chen et al. 2023): `p = p - rate · (sign(β1 · m + (1 - β1) · g) + decay · p)`, `m = β2 · m + (1 - β2) · g`.
/// 4 bytes of state per parameter.
#[derive(Clone, Debug)]
pub struct Lion {
    rate: f64,
    beta1: f64,
    beta2: f64,
    decay: Decay,
}

impl Lion {
    /// With betas 0.9 and 0.99 and no weight decay.
    pub fn new(rate: f64) -> Self {
        Self { rate, beta1: 0.9, beta2: 0.99, decay: Decay::new(0.0) }
    }

    /// With other betas.
    pub fn betas(self, beta1: f64, beta2: f64) -> Self {
        Self { beta1, beta2, ..self }
    }

    /// With decoupled weight decay.
    pub fn weight_decay(self, decay: impl Into<Decay>) -> Self {
        Self { decay: decay.into(), ..self }
    }
}

impl Optimizer for Lion {
    fn setting_names(&self) -> Vec<String> {
        [self.decay.setting_names(), vec!["rate".into()]].concat()
    }

    fn settings(&self, _: u64, scale: f64, values: &mut [f64]) {
        let rate = self.rate * scale;
        self.decay.settings(rate, values).copy_from_slice(&[rate]);
    }

    fn description(&self) -> String {
        let Self { rate, beta1, beta2, decay } = self;
        format!("lion (rate {rate}, betas {beta1} {beta2}, {})", decay.description())
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
        let [rate] = exactly(settings)?;
        let old = moment(b, parameter, "mean");
        // Both means use one difference, so that they fuse into one kernel.
        let difference = b.sub(gradient, old)?;
        let toward = |b: &mut Builder, weight: f64| {
            let change = b.scale(difference, weight)?;
            b.add(old, change)
        };
        let direction = toward(b, 1.0 - self.beta1)?;
        let direction = b.sign(direction)?;
        let mean = toward(b, 1.0 - self.beta2)?;
        b.set_state(old, mean);
        descend(b, parameter, kept, direction, rate)
    }
}
