//! Gradient clipping, weight averaging, frozen parameters and gradients to read around an optimizer.

use super::decay::{named, unused};
use super::{Clip, Decay, Optimizer, Parameter, Pattern};
use plimsoll_graph::{Builder, GraphError, Role, ValueId};

/// The last part of the name of a parameter's running average; the first is the parameter's name.
pub const AVERAGE: &str = "average";

/// The last part of the name of a pruned parameter's mask; the first is the parameter's name.
pub const MASK: &str = plimsoll_transform::SPARSE[1];

/// The name of the output that holds a parameter's gradient ([`Recipe::read_gradients`]).
pub fn gradient_name(parameter: &str) -> String {
    format!("gradient/{parameter}")
}

/// An optimizer with gradient clipping before its updates, weight averaging after them, and frozen parameters.
///
/// ```
/// use plimsoll_nn::{AdamW, Clip, Dense, Flatten, Recipe, Sequential, step};
/// let model = Sequential::classifier([4, 4, 1], 3)
///     .push(Flatten)
///     .layer("hidden", Dense::new(8))
///     .layer("head", Dense::new(3));
/// let recipe = Recipe::new(AdamW::new(1e-3)).clip(Clip::GlobalNorm(1.0)).average(0.999).freeze("hidden");
/// let graph = step::training(&model, &recipe, 16)?;
/// let names: Vec<&str> = graph.states.iter().map(|s| s.name.as_str()).collect();
/// assert!(names.contains(&"head/kernel/average") && !names.contains(&"hidden/kernel/mean"));
/// # Ok::<(), plimsoll_graph::GraphError>(())
/// ```
pub struct Recipe {
    optimizer: Box<dyn Optimizer>,
    clip: Option<Clip>,
    average: Option<f64>,
    frozen: Vec<Pattern>,
    read: Vec<Pattern>,
}

impl Recipe {
    /// The optimizer alone.
    pub fn new(optimizer: impl Optimizer + 'static) -> Self {
        Self {
            optimizer: Box::new(optimizer),
            clip: None,
            average: None,
            frozen: Vec::new(),
            read: Vec::new(),
        }
    }

    /// Clips gradients.
    pub fn clip(self, clip: Clip) -> Self {
        Self { clip: Some(clip), ..self }
    }

    /// Keeps an exponential moving average of every parameter, `average = decay · average + (1 - decay) · parameter`, which
    /// starts as the parameter after the first step. Evaluation, prediction and saved weights use the averages.
    pub fn average(self, decay: f64) -> Self {
        Self { average: Some(decay), ..self }
    }

    /// Freezes the parameters that a [`Pattern`] matches: they have no gradients, moments or averages. Running statistics of
    /// norms are still updated.
    pub fn freeze(mut self, pattern: &str) -> Self {
        self.frozen.push(Pattern::new(pattern));
        self
    }

    /// Keeps the gradients of the parameters that a [`Pattern`] matches (`"*"` for all) to the end of the step, for a training
    /// loop that reads them. They are those of the mean loss over the whole batch, before clipping. Each takes a parameter's
    /// memory, which the plan accounts for; the numbers of the run stay the same.
    pub fn read_gradients(mut self, pattern: &str) -> Self {
        self.read.push(Pattern::new(pattern));
        self
    }

    /// Clips before updates, and averages after them.
    fn around(
        &self,
        b: &mut Builder,
        parameters: &[Parameter],
        gradients: &[ValueId],
        settings: &[ValueId],
        update: impl FnOnce(&mut Builder, &[ValueId], &[ValueId]) -> Result<(), GraphError>,
    ) -> Result<(), GraphError> {
        for (parameter, &gradient) in parameters.iter().zip(gradients) {
            if self.read.iter().any(|pattern| pattern.matches(&parameter.name)) {
                b.output(&gradient_name(&parameter.name), gradient);
            }
        }
        let clipped = self.clip.map(|clip| clip.apply(b, parameters, gradients)).transpose()?;
        let gradients = clipped.as_deref().unwrap_or(gradients);
        let (decay, own) = match (self.average, settings) {
            (Some(_), [own @ .., decay]) => (Some(*decay), own),
            _ => (None, settings),
        };
        update(b, gradients, own)?;
        if let Some(decay) = decay {
            for parameter in parameters {
                b.within(parameter.layer().into(), |b| average(b, parameter, decay))?;
            }
        }
        Ok(())
    }
}

impl Optimizer for Recipe {
    fn setting_names(&self) -> Vec<String> {
        let mut names = self.optimizer.setting_names();
        names.extend(self.average.map(|_| AVERAGE.to_string()));
        names
    }

    fn settings(&self, step: u64, scale: f64, values: &mut [f64]) {
        let Some(decay) = self.average else { return self.optimizer.settings(step, scale, values) };
        if let Some((last, own)) = values.split_last_mut() {
            self.optimizer.settings(step, scale, own);
            // After the first step the average is the parameter.
            *last = if step == 0 { 0.0 } else { decay };
        }
    }

    fn description(&self) -> String {
        let clip = self.clip.map(|clip| format!("clip {clip:?}"));
        let average = self.average.map(|decay| format!("average {decay}"));
        let frozen = self.frozen.iter().map(|pattern| format!("frozen {pattern}"));
        let parts = std::iter::once(self.optimizer.description()).chain(clip).chain(average).chain(frozen);
        parts.collect::<Vec<_>>().join(", ")
    }

    fn decay(&self) -> Option<&Decay> {
        self.optimizer.decay()
    }

    fn update(
        &self,
        b: &mut Builder,
        parameter: &Parameter,
        gradient: ValueId,
        settings: &[ValueId],
    ) -> Result<(), GraphError> {
        self.updates(b, std::slice::from_ref(parameter), &[gradient], settings)
    }

    fn updates(
        &self,
        b: &mut Builder,
        parameters: &[Parameter],
        gradients: &[ValueId],
        settings: &[ValueId],
    ) -> Result<(), GraphError> {
        self.around(b, parameters, gradients, settings, |b, gradients, own| {
            self.optimizer.updates(b, parameters, gradients, own)
        })
    }

    /// A skipped step updates the averages, not the parameters.
    fn guarded_updates(
        &self,
        b: &mut Builder,
        parameters: &[Parameter],
        gradients: &[ValueId],
        settings: &[ValueId],
        good: ValueId,
    ) -> Result<(), GraphError> {
        self.around(b, parameters, gradients, settings, |b, gradients, own| {
            self.optimizer.guarded_updates(b, parameters, gradients, own, good)
        })
    }

    fn trains(&self, name: &str) -> bool {
        !self.frozen.iter().any(|pattern| pattern.matches(name)) && self.optimizer.trains(name)
    }

    fn averages(&self) -> bool {
        self.average.is_some()
    }

    fn check(&self, names: &[&str]) -> Result<(), GraphError> {
        self.optimizer.check(names)?;
        for (what, patterns) in [("freeze", &self.frozen), ("read gradients", &self.read)] {
            if let Some(pattern) = unused(patterns.iter(), names) {
                let reason = format!("{what}: no parameter is named `{pattern}`; there are {}", named(names));
                return Err(GraphError::Choice(reason));
            }
        }
        if !names.is_empty() && !names.iter().any(|name| self.trains(name)) {
            return Err(GraphError::Choice("every parameter is frozen: leave one to train".into()));
        }
        Ok(())
    }
}

/// Adds the running average of an updated parameter.
fn average(b: &mut Builder, parameter: &Parameter, decay: ValueId) -> Result<(), GraphError> {
    let state = b.graph().states.iter().find(|s| s.input == parameter.value);
    let Some((new, init)) = state.and_then(|s| Some((s.output?, s.init))) else { return Ok(()) };
    let ty = b.ty(parameter.value).clone();
    let old = b.named_state(format!("{}/{AVERAGE}", parameter.name), ty, Role::Average, init);
    // `new + decay · (old - new)`: exactly the new value if the decay is zero.
    let difference = b.sub(old, new)?;
    let kept = b.mul(difference, decay)?;
    let next = b.add(new, kept)?;
    b.set_state(old, next);
    Ok(())
}
