//! Optimizers as graph builders: each parameter's update is a few elementwise ops next to its gradient.

use plimsoll_graph::{Builder, GraphError, Init, Role, ValueId, op::Unary};
use plimsoll_tensor::{DType, TensorType};

/// A rule that turns a gradient into a parameter's next version.
pub trait Optimizer: Send + Sync {
    /// Names of the numbers that the update reads and that change from step to step.
    fn setting_names(&self) -> &'static [&'static str];
    /// Writes those numbers for step `step` (from 0), with the learning rate times `scale`; they are computed in f64
    /// and rounded once.
    fn settings(&self, step: u64, scale: f64, values: &mut [f64]);
    /// The rule and its numbers, in words: a checkpoint goes on only under the same.
    fn description(&self) -> String {
        self.setting_names().join(", ")
    }
    /// Adds the update of one parameter; `settings` are the settings' values in the graph.
    fn update(
        &self,
        b: &mut Builder,
        parameter: &Parameter,
        gradient: ValueId,
        settings: &[ValueId],
    ) -> Result<(), GraphError>;
}

impl Optimizer for Box<dyn Optimizer> {
    fn setting_names(&self) -> &'static [&'static str] {
        self.as_ref().setting_names()
    }

    fn settings(&self, step: u64, scale: f64, values: &mut [f64]) {
        self.as_ref().settings(step, scale, values);
    }

    fn description(&self) -> String {
        self.as_ref().description()
    }

    fn update(
        &self,
        b: &mut Builder,
        parameter: &Parameter,
        gradient: ValueId,
        settings: &[ValueId],
    ) -> Result<(), GraphError> {
        self.as_ref().update(b, parameter, gradient, settings)
    }
}

/// A parameter under update.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Its full name.
    pub name: String,
    /// The version the step reads.
    pub value: ValueId,
}

/// A moment of a parameter, of its type, starting at zero.
fn moment(b: &mut Builder, parameter: &Parameter, name: &str) -> ValueId {
    let ty: TensorType = b.ty(parameter.value).clone();
    b.named_state(format!("{}/{name}", parameter.name), ty, Role::Moment, Init::Zeros)
}

/// Adds the settings of an optimizer as inputs of the graph.
pub(crate) fn setting_inputs(b: &mut Builder, optimizer: &dyn Optimizer, dtype: DType) -> Vec<ValueId> {
    let names = optimizer.setting_names().iter();
    names.map(|name| b.setting(&format!("optimizer/{name}"), TensorType::scalar(dtype))).collect()
}

/// Stochastic gradient descent, with momentum if asked for: `v = momentum · v + g`, `p = p - rate · v`.
#[derive(Clone, Copy, Debug)]
pub struct Sgd {
    rate: f64,
    momentum: f64,
}

impl Sgd {
    /// Plain descent.
    pub fn new(rate: f64) -> Self {
        Self { rate, momentum: 0.0 }
    }

    /// With momentum; costs one moment per parameter.
    pub fn momentum(self, momentum: f64) -> Self {
        Self { momentum, ..self }
    }
}

impl Optimizer for Sgd {
    fn setting_names(&self) -> &'static [&'static str] {
        &["rate"]
    }

    fn settings(&self, _: u64, scale: f64, values: &mut [f64]) {
        values.copy_from_slice(&[self.rate * scale]);
    }

    fn description(&self) -> String {
        format!("{self:?}")
    }

    fn update(
        &self,
        b: &mut Builder,
        parameter: &Parameter,
        gradient: ValueId,
        settings: &[ValueId],
    ) -> Result<(), GraphError> {
        let mut velocity = gradient;
        if self.momentum != 0.0 {
            let old = moment(b, parameter, "velocity");
            let slowed = b.scale(old, self.momentum)?;
            velocity = b.add(slowed, gradient)?;
            b.set_state(old, velocity);
        }
        let change = b.mul(velocity, settings[0])?;
        let next = b.sub(parameter.value, change)?;
        b.set_state(parameter.value, next);
        Ok(())
    }
}

/// Adam with decoupled weight decay, as PyTorch has it.
#[derive(Clone, Copy, Debug)]
pub struct AdamW {
    rate: f64,
    beta1: f64,
    beta2: f64,
    eps: f64,
    weight_decay: f64,
}

impl AdamW {
    /// With betas 0.9 and 0.999, eps 1e-8 and weight decay 0.01.
    pub fn new(rate: f64) -> Self {
        Self { rate, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 }
    }

    /// With other betas.
    pub fn betas(self, beta1: f64, beta2: f64) -> Self {
        Self { beta1, beta2, ..self }
    }

    /// With another weight decay; 0 gives Adam.
    pub fn weight_decay(self, weight_decay: f64) -> Self {
        Self { weight_decay, ..self }
    }
}

impl Optimizer for AdamW {
    fn setting_names(&self) -> &'static [&'static str] {
        &["decay", "rate", "root"]
    }

    fn settings(&self, step: u64, scale: f64, values: &mut [f64]) {
        let rate = self.rate * scale;
        let t = i32::try_from(step + 1).unwrap_or(i32::MAX);
        let (correction1, correction2) = (1.0 - self.beta1.powi(t), 1.0 - self.beta2.powi(t));
        let decay = 1.0 - rate * self.weight_decay;
        values.copy_from_slice(&[decay, rate / correction1, 1.0 / correction2.sqrt()]);
    }

    fn description(&self) -> String {
        format!("{self:?}")
    }

    fn update(
        &self,
        b: &mut Builder,
        parameter: &Parameter,
        gradient: ValueId,
        settings: &[ValueId],
    ) -> Result<(), GraphError> {
        let &[decay, rate, root] = settings else {
            return Err(GraphError::Broken("adamw needs three settings".into()));
        };
        let (m, v) = (moment(b, parameter, "mean"), moment(b, parameter, "variance"));
        let (old, share) = (b.scale(m, self.beta1)?, b.scale(gradient, 1.0 - self.beta1)?);
        let mean = b.add(old, share)?;
        b.set_state(m, mean);
        let square = b.unary(Unary::Square, gradient)?;
        let (old, share) = (b.scale(v, self.beta2)?, b.scale(square, 1.0 - self.beta2)?);
        let variance = b.add(old, share)?;
        b.set_state(v, variance);
        let deviation = b.unary(Unary::Sqrt, variance)?;
        let deviation = b.mul(deviation, root)?;
        let deviation = b.with_constant(plimsoll_graph::op::Binary::Add, deviation, self.eps)?;
        let direction = b.div(mean, deviation)?;
        let change = b.mul(direction, rate)?;
        let kept = b.mul(parameter.value, decay)?;
        let next = b.sub(kept, change)?;
        b.set_state(parameter.value, next);
        Ok(())
    }
}
