//! Adam and AdamW.

use super::{Decay, Moments, Optimizer, Parameter, descend, exactly, moving_average};
use plimsoll_graph::op::Binary;
use plimsoll_graph::{Builder, GraphError, ValueId};

/// Adam (Kingma and Ba 2015) with L2 weight decay in the gradient, as in PyTorch.
pub type Adam = Adaptive<false>;

/// Adam with decoupled weight decay (Loshchilov and Hutter 2019), as in PyTorch.
pub type AdamW = Adaptive<true>;

/// Steps along the running mean of gradients over the root of their running mean square. 8 bytes of state per parameter, or
/// fewer with other [`Moments`].
#[derive(Clone, Debug)]
pub struct Adaptive<const DECOUPLED: bool> {
    rate: f64,
    beta1: f64,
    beta2: f64,
    eps: f64,
    decay: Decay,
    moments: Moments,
}

impl Adam {
    /// With betas 0.9 and 0.999, eps 1e-8 and no weight decay.
    pub fn new(rate: f64) -> Self {
        Self::with_decay(rate, 0.0)
    }
}

impl AdamW {
    /// With betas 0.9 and 0.999, eps 1e-8 and weight decay 0.01.
    pub fn new(rate: f64) -> Self {
        Self::with_decay(rate, 0.01)
    }
}

impl<const DECOUPLED: bool> Adaptive<DECOUPLED> {
    fn with_decay(rate: f64, decay: f64) -> Self {
        let (decay, moments) = (Decay::new(decay), Moments::Whole);
        Self { rate, beta1: 0.9, beta2: 0.999, eps: 1e-8, decay, moments }
    }

    /// With other betas.
    pub fn betas(self, beta1: f64, beta2: f64) -> Self {
        Self { beta1, beta2, ..self }
    }

    /// With another weight decay.
    pub fn weight_decay(self, decay: impl Into<Decay>) -> Self {
        Self { decay: decay.into(), ..self }
    }

    /// With moments stored in less memory.
    pub fn moments(self, moments: Moments) -> Self {
        Self { moments, ..self }
    }
}

impl<const DECOUPLED: bool> Optimizer for Adaptive<DECOUPLED> {
    fn setting_names(&self) -> Vec<String> {
        let own = vec!["rate".into(), "root".into()];
        if DECOUPLED { [self.decay.setting_names(), own].concat() } else { own }
    }

    fn settings(&self, step: u64, scale: f64, values: &mut [f64]) {
        let rate = self.rate * scale;
        let t = i32::try_from(step + 1).unwrap_or(i32::MAX);
        let (correction1, correction2) = (1.0 - self.beta1.powi(t), 1.0 - self.beta2.powi(t));
        let own = if DECOUPLED { self.decay.settings(rate, values) } else { values };
        own.copy_from_slice(&[rate / correction1, 1.0 / correction2.sqrt()]);
    }

    fn description(&self) -> String {
        let Self { rate, beta1, beta2, eps, decay, moments } = self;
        let (name, decay, moments) =
            (if DECOUPLED { "adamw" } else { "adam" }, decay.description(), moments.name());
        format!("{name} (rate {rate}, betas {beta1} {beta2}, eps {eps}, {decay}, moments {moments})")
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
        let (kept, gradient, settings) = if DECOUPLED {
            let (kept, settings) = self.decay.decoupled(b, parameter, settings)?;
            (kept, gradient, settings)
        } else {
            (parameter.value, self.decay.add_to_gradient(b, parameter, gradient)?, settings)
        };
        let [rate, root] = exactly(settings)?;
        let (m, mean_state) = self.moments.load(b, parameter, "mean", true)?;
        let (v, variance_state) = self.moments.load(b, parameter, "variance", false)?;
        let mean = moving_average(b, m, gradient, self.beta1)?;
        mean_state.store(b, mean)?;
        let square = b.square(gradient)?;
        let variance = moving_average(b, v, square, self.beta2)?;
        variance_state.store(b, variance)?;
        let deviation = b.sqrt(variance)?;
        let deviation = b.mul(deviation, root)?;
        let deviation = b.with_constant(Binary::Add, deviation, self.eps)?;
        let direction = b.div(mean, deviation)?;
        descend(b, parameter, kept, direction, rate)
    }
}
