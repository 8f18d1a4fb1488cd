//! Adam and AdamW.

use super::{Decay, Moments, Optimizer, Parameter, blend, exactly};
use plimsoll_graph::op::{Binary, Unary};
use plimsoll_graph::{Builder, GraphError, ValueId};

/// Adam (Kingma and Ba 2015) with weight decay as part of the gradient, as PyTorch has it.
pub type Adam = Adaptive<false>;

/// Adam with weight decay apart from the gradient (Loshchilov and Hutter 2019), as PyTorch has it.
pub type AdamW = Adaptive<true>;

/// Steps along the running mean of gradients over the root of their running mean square. 8 bytes of state per parameter,
/// or as [`Moments`] says.
#[derive(Clone, Debug)]
pub struct Adaptive<const APART: bool> {
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

impl<const APART: bool> Adaptive<APART> {
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

    /// With moments that take less memory.
    pub fn moments(self, moments: Moments) -> Self {
        Self { moments, ..self }
    }
}

impl<const APART: bool> Optimizer for Adaptive<APART> {
    fn setting_names(&self) -> Vec<String> {
        let own = vec!["rate".into(), "root".into()];
        if APART { [self.decay.setting_names(), own].concat() } else { own }
    }

    fn settings(&self, step: u64, scale: f64, values: &mut [f64]) {
        let rate = self.rate * scale;
        let t = i32::try_from(step + 1).unwrap_or(i32::MAX);
        let (correction1, correction2) = (1.0 - self.beta1.powi(t), 1.0 - self.beta2.powi(t));
        let own = if APART { self.decay.settings(rate, values) } else { values };
        own.copy_from_slice(&[rate / correction1, 1.0 / correction2.sqrt()]);
    }

    fn description(&self) -> String {
        let Self { rate, beta1, beta2, eps, decay, moments } = self;
        let (name, decay, moments) =
            (if APART { "adamw" } else { "adam" }, decay.description(), moments.name());
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
        let (kept, gradient, settings) = if APART {
            let (kept, settings) = self.decay.apart(b, parameter, settings)?;
            (kept, gradient, settings)
        } else {
            (parameter.value, self.decay.inside(b, parameter, gradient)?, settings)
        };
        let [rate, root] = exactly(settings)?;
        let (m, mean_place) = self.moments.load(b, parameter, "mean", true)?;
        let (v, variance_place) = self.moments.load(b, parameter, "variance", false)?;
        let mean = blend(b, m, gradient, self.beta1)?;
        mean_place.store(b, mean)?;
        let square = b.unary(Unary::Square, gradient)?;
        let variance = blend(b, v, square, self.beta2)?;
        variance_place.store(b, variance)?;
        let deviation = b.unary(Unary::Sqrt, variance)?;
        let deviation = b.mul(deviation, root)?;
        let deviation = b.with_constant(Binary::Add, deviation, self.eps)?;
        let direction = b.div(mean, deviation)?;
        let change = b.mul(direction, rate)?;
        let next = b.sub(kept, change)?;
        b.set_state(parameter.value, next);
        Ok(())
    }
}
