//! Optimizers as graph builders. A parameter's update is a few ops next to its gradient; where the rule is elementwise, it
//! becomes one fused, in-place kernel.

mod adafactor;
mod adam;
mod clip;
mod decay;
mod lion;
mod moment;
mod pattern;
mod recipe;
mod rmsprop;
mod sgd;

pub use adafactor::Adafactor;
pub use adam::{Adam, AdamW, Adaptive};
pub use clip::Clip;
pub use decay::Decay;
pub use lion::Lion;
pub use moment::Moments;
pub use pattern::Pattern;
pub use recipe::{AVERAGE, MASK, Recipe, gradient_name};
pub use rmsprop::RmsProp;
pub use sgd::Sgd;

use plimsoll_graph::{Builder, GraphError, Init, Role, State, ValueId};
use plimsoll_tensor::{DType, TensorType};

/// An update rule.
pub trait Optimizer: Send + Sync {
    /// Names of the settings: the numbers that the update reads and that change from step to step.
    fn setting_names(&self) -> Vec<String>;
    /// Writes the settings of step `step` (from 0), with the learning rate times `scale`; they are computed in f64 and
    /// rounded once.
    fn settings(&self, step: u64, scale: f64, values: &mut [f64]);
    /// The rule and its hyperparameters. Checkpoints store it, and a run resumes only under the same.
    fn description(&self) -> String {
        self.setting_names().join(", ")
    }
    /// Its weight decay, if it has one.
    fn decay(&self) -> Option<&Decay> {
        None
    }
    /// Adds the update of one parameter; `settings` are the settings' values in the graph.
    fn update(
        &self,
        b: &mut Builder,
        parameter: &Parameter,
        gradient: ValueId,
        settings: &[ValueId],
    ) -> Result<(), GraphError>;
    /// Adds the updates of all trained parameters, each in its layer.
    fn updates(
        &self,
        b: &mut Builder,
        parameters: &[Parameter],
        gradients: &[ValueId],
        settings: &[ValueId],
    ) -> Result<(), GraphError> {
        for (parameter, &gradient) in parameters.iter().zip(gradients) {
            b.within(parameter.layer().into(), |b| self.update(b, parameter, gradient, settings))?;
        }
        Ok(())
    }
    /// As [`Optimizer::updates`], but every state keeps its value unless `good` is true.
    fn guarded_updates(
        &self,
        b: &mut Builder,
        parameters: &[Parameter],
        gradients: &[ValueId],
        settings: &[ValueId],
        good: ValueId,
    ) -> Result<(), GraphError> {
        let before: Vec<Option<ValueId>> = b.graph().states.iter().map(|s| s.output).collect();
        self.updates(b, parameters, gradients, settings)?;
        let changed = |(i, s): (usize, &State)| {
            let new = s.output.filter(|_| before.get(i).is_none_or(|old| *old != s.output))?;
            Some((s.input, new, s.name.clone()))
        };
        let changed: Vec<_> = b.graph().states.iter().enumerate().filter_map(changed).collect();
        for (old, new, name) in changed {
            let layer = parameters.iter().find(|p| name.starts_with(&p.name)).map_or("", Parameter::layer);
            let next = b.within(layer.into(), |b| b.select(good, new, old))?;
            b.set_state(old, next);
        }
        Ok(())
    }
    /// Whether a parameter is trained; a frozen one has neither gradient nor moments.
    fn trains(&self, name: &str) -> bool {
        let _ = name;
        true
    }
    /// Whether it keeps a running average of every trained parameter, as the state [`AVERAGE`]. Evaluation and prediction
    /// read the averages.
    fn averages(&self) -> bool {
        false
    }
    /// Checks its patterns of parameter names against a model's.
    fn check(&self, names: &[&str]) -> Result<(), GraphError> {
        self.decay().map_or(Ok(()), |decay| decay.check(names))
    }
}

impl Optimizer for Box<dyn Optimizer> {
    fn setting_names(&self) -> Vec<String> {
        self.as_ref().setting_names()
    }

    fn settings(&self, step: u64, scale: f64, values: &mut [f64]) {
        self.as_ref().settings(step, scale, values);
    }

    fn description(&self) -> String {
        self.as_ref().description()
    }

    fn decay(&self) -> Option<&Decay> {
        self.as_ref().decay()
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

    fn updates(
        &self,
        b: &mut Builder,
        parameters: &[Parameter],
        gradients: &[ValueId],
        settings: &[ValueId],
    ) -> Result<(), GraphError> {
        self.as_ref().updates(b, parameters, gradients, settings)
    }

    fn guarded_updates(
        &self,
        b: &mut Builder,
        parameters: &[Parameter],
        gradients: &[ValueId],
        settings: &[ValueId],
        good: ValueId,
    ) -> Result<(), GraphError> {
        self.as_ref().guarded_updates(b, parameters, gradients, settings, good)
    }

    fn trains(&self, name: &str) -> bool {
        self.as_ref().trains(name)
    }

    fn averages(&self) -> bool {
        self.as_ref().averages()
    }

    fn check(&self, names: &[&str]) -> Result<(), GraphError> {
        self.as_ref().check(names)
    }
}

/// A trained parameter in the graph.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Its full name.
    pub name: String,
    /// Its value before the update.
    pub value: ValueId,
}

impl Parameter {
    /// The layer that it belongs to.
    pub fn layer(&self) -> &str {
        self.name.rsplit_once('/').map_or("", |(layer, _)| layer)
    }
}

/// A per-parameter state of any type, initially zero.
fn state(b: &mut Builder, parameter: &Parameter, name: &str, ty: TensorType) -> ValueId {
    b.named_state(format!("{}/{name}", parameter.name), ty, Role::Moment, Init::Zeros)
}

/// A per-parameter state of the parameter's type, initially zero.
fn moment(b: &mut Builder, parameter: &Parameter, name: &str) -> ValueId {
    let ty = b.ty(parameter.value).clone();
    state(b, parameter, name, ty)
}

/// The exponential moving average `beta · old + (1 - beta) · new`.
fn moving_average(b: &mut Builder, old: ValueId, new: ValueId, beta: f64) -> Result<ValueId, GraphError> {
    let (old, new) = (b.scale(old, beta)?, b.scale(new, 1.0 - beta)?);
    b.add(old, new)
}

/// Momentum: the new velocity `momentum · velocity + direction`.
fn velocity(
    b: &mut Builder,
    parameter: &Parameter,
    direction: ValueId,
    momentum: f64,
) -> Result<ValueId, GraphError> {
    let old = moment(b, parameter, "velocity");
    let slowed = b.scale(old, momentum)?;
    let new = b.add(slowed, direction)?;
    b.set_state(old, new);
    Ok(new)
}

/// Sets the parameter to `from - rate · direction`.
fn descend(
    b: &mut Builder,
    parameter: &Parameter,
    from: ValueId,
    direction: ValueId,
    rate: ValueId,
) -> Result<(), GraphError> {
    let change = b.mul(direction, rate)?;
    let next = b.sub(from, change)?;
    b.set_state(parameter.value, next);
    Ok(())
}

/// The sum of a value's squares, a scalar: over each row first, then over the rows.
pub(crate) fn square_sum(b: &mut Builder, x: ValueId) -> Result<ValueId, GraphError> {
    let columns = b.shape(x).last().copied().unwrap_or(1).max(1);
    let rows = b.shape(x).elements() / columns;
    let matrix = b.reshape(x, [rows, columns])?;
    let rows = b.square_sum(matrix, &[1], true)?;
    let sum = b.sum(rows, &[0], true)?;
    b.reshape(sum, [])
}

/// Adds the settings of an optimizer as inputs of the graph.
pub(crate) fn setting_inputs(b: &mut Builder, optimizer: &dyn Optimizer, dtype: DType) -> Vec<ValueId> {
    let names = optimizer.setting_names().into_iter();
    names.map(|name| b.setting(&format!("optimizer/{name}"), TensorType::scalar(dtype))).collect()
}

/// The settings as an array.
fn exactly<const N: usize>(settings: &[ValueId]) -> Result<[ValueId; N], GraphError> {
    let count = settings.len();
    settings
        .try_into()
        .map_err(|_| GraphError::Broken(format!("the optimizer has {N} settings, not {count}")))
}
