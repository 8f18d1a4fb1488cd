//! Stochastic gradient descent.

use super::{Decay, Optimizer, Parameter, descend, exactly, velocity};
use plimsoll_graph::{Builder, GraphError, ValueId};

/// Stochastic gradient descent, optionally with momentum: `v = momentum · v + g`, `p = p - rate · v`. No state without
/// momentum, 4 bytes per parameter with it.
#[derive(Clone, Debug)]
pub struct Sgd {
    rate: f64,
    momentum: f64,
    nesterov: bool,
    decay: Decay,
}

impl Sgd {
    /// Without momentum and weight decay.
    pub fn new(rate: f64) -> Self {
        Self { rate, momentum: 0.0, nesterov: false, decay: Decay::new(0.0) }
    }

    /// With momentum; costs one moment per parameter.
    pub fn momentum(self, momentum: f64) -> Self {
        Self { momentum, ..self }
    }

    /// With Nesterov momentum: the step is along `g + momentum · v`.
    pub fn nesterov(self, momentum: f64) -> Self {
        Self { momentum, nesterov: true, ..self }
    }

    /// With L2 weight decay: added to the gradient.
    pub fn weight_decay(self, decay: impl Into<Decay>) -> Self {
        Self { decay: decay.into(), ..self }
    }
}

impl Optimizer for Sgd {
    fn setting_names(&self) -> Vec<String> {
        vec!["rate".into()]
    }

    fn settings(&self, _: u64, scale: f64, values: &mut [f64]) {
        values.copy_from_slice(&[self.rate * scale]);
    }

    fn description(&self) -> String {
        let Self { rate, momentum, nesterov, decay } = self;
        let kind = if *nesterov { "nesterov" } else { "momentum" };
        format!("sgd (rate {rate}, {kind} {momentum}, {})", decay.description())
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
        let [rate] = exactly(settings)?;
        let gradient = self.decay.add_to_gradient(b, parameter, gradient)?;
        let mut direction = gradient;
        if self.momentum != 0.0 {
            direction = velocity(b, parameter, gradient, self.momentum)?;
            if self.nesterov {
                let ahead = b.scale(direction, self.momentum)?;
                direction = b.add(gradient, ahead)?;
            }
        }
        descend(b, parameter, parameter.value, direction, rate)
    }
}
