//! Weight decay by group of parameters.

use super::{Parameter, Pattern};
use plimsoll_graph::{Builder, GraphError, ValueId};

/// The word for parameters of fewer than two axes: biases, and gains of norms.
const VECTORS: &str = "vectors";

/// How strongly parameters are drawn towards zero: one weight for all, others for groups of them.
///
/// ```
/// use plimsoll_nn::Decay;
/// let decay = Decay::new(0.1).group("embed", 0.01).group("vectors", 0.0);
/// assert_eq!(decay.of("block1/kernel", 2), 0.1);
/// assert_eq!(decay.of("embed/table", 2), 0.01);
/// assert_eq!(decay.of("block1/bias", 1), 0.0);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Decay {
    weight: f64,
    groups: Vec<(Pattern, f64)>,
    /// The weights that are not zero, each once: kept, because steps ask for them and allocate nothing.
    weights: Vec<f64>,
}

impl Decay {
    /// The same for all parameters.
    pub fn new(weight: f64) -> Self {
        Self { weight, groups: Vec::new(), weights: Vec::new() }.counted()
    }

    /// Another weight for the parameters that a [`Pattern`] names, or for all `vectors`: those of fewer than two axes,
    /// like biases and gains. The first group that a parameter belongs to counts.
    pub fn group(mut self, pattern: &str, weight: f64) -> Self {
        self.groups.push((Pattern::new(pattern), weight));
        self.counted()
    }

    /// The weight of a parameter with so many axes.
    pub fn of(&self, name: &str, axes: usize) -> f64 {
        let is_in = |pattern: &Pattern| match pattern.to_string() == VECTORS {
            true => axes < 2,
            false => pattern.matches(name),
        };
        self.groups.iter().find(|(pattern, _)| is_in(pattern)).map_or(self.weight, |(_, weight)| *weight)
    }

    /// The weights in words.
    pub(super) fn description(&self) -> String {
        let groups = self.groups.iter().map(|(pattern, weight)| format!(", of {pattern} {weight}"));
        format!("decay {}{}", self.weight, groups.collect::<String>())
    }

    pub(super) fn check(&self, names: &[&str]) -> Result<(), GraphError> {
        let patterns = self.groups.iter().map(|(pattern, _)| pattern).filter(|p| p.to_string() != VECTORS);
        unused(patterns, names).map_or(Ok(()), |pattern| {
            Err(GraphError::Choice(format!(
                "weight decay: no parameter is named `{pattern}`; there are {}",
                named(names)
            )))
        })
    }

    /// With its weights listed.
    fn counted(mut self) -> Self {
        self.weights.clear();
        for weight in std::iter::once(self.weight).chain(self.groups.iter().map(|(_, weight)| *weight)) {
            if weight != 0.0 && !self.weights.contains(&weight) {
                self.weights.push(weight);
            }
        }
        self
    }

    /// Names of the settings for decay apart from the gradient: what is left of a parameter, for each weight.
    pub(super) fn setting_names(&self) -> Vec<String> {
        let name = |i: usize| if i == 0 { "decay".to_string() } else { format!("decay{i}") };
        (0..self.weights.len()).map(name).collect()
    }

    /// Writes those settings for a learning rate; returns the rest.
    pub(super) fn settings<'v>(&self, rate: f64, values: &'v mut [f64]) -> &'v mut [f64] {
        let (own, rest) = values.split_at_mut(self.weights.len());
        own.iter_mut().zip(&self.weights).for_each(|(value, weight)| *value = 1.0 - rate * weight);
        rest
    }

    /// The parameter drawn towards zero, apart from its gradient; and the settings that are not for decay.
    pub(super) fn apart<'s>(
        &self,
        b: &mut Builder,
        parameter: &Parameter,
        settings: &'s [ValueId],
    ) -> Result<(ValueId, &'s [ValueId]), GraphError> {
        let (weights, weight) = (&self.weights, self.of(&parameter.name, b.shape(parameter.value).rank()));
        let place = weights.iter().position(|&w| w == weight);
        let kept = match place.and_then(|place| settings.get(place)) {
            Some(&left) => b.mul(parameter.value, left)?,
            None => parameter.value,
        };
        Ok((kept, settings.get(weights.len()..).unwrap_or_default()))
    }

    /// The gradient with the parameter's decay in it, as a penalty on squares has it.
    pub(super) fn inside(
        &self,
        b: &mut Builder,
        parameter: &Parameter,
        gradient: ValueId,
    ) -> Result<ValueId, GraphError> {
        match self.of(&parameter.name, b.shape(parameter.value).rank()) {
            0.0 => Ok(gradient),
            weight => {
                let pull = b.scale(parameter.value, weight)?;
                b.add(gradient, pull)
            }
        }
    }
}

impl From<f64> for Decay {
    fn from(weight: f64) -> Self {
        Self::new(weight)
    }
}

/// The first pattern that names nothing.
pub(super) fn unused<'p>(
    mut patterns: impl Iterator<Item = &'p Pattern>,
    names: &[&str],
) -> Option<&'p Pattern> {
    patterns.find(|pattern| !names.iter().any(|name| pattern.matches(name)))
}

/// Some of the names there are.
pub(super) fn named(names: &[&str]) -> String {
    const SHOWN: usize = 8;
    let shown = names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let more = names.len().saturating_sub(SHOWN);
    if more == 0 { shown } else { format!("{shown} and {more} more") }
}
