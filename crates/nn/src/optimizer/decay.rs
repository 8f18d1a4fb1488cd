//! Weight decay by group of parameters.

use super::{Parameter, Pattern};
use plimsoll_graph::{Builder, GraphError, ValueId};

/// The group of parameters with fewer than two axes: biases, and gains of norms.
const VECTORS: &str = "vectors";

/// Weight decay: one coefficient for all parameters, others for groups of them.
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
    /// The distinct non-zero weights, precomputed: steps must not allocate.
    weights: Vec<f64>,
}

impl Decay {
    /// The same for all parameters.
    pub fn new(weight: f64) -> Self {
        Self { weight, groups: Vec::new(), weights: Vec::new() }.with_weights()
    }

    /// Another weight for the parameters that a [`Pattern`] matches, or for all `vectors`: those with fewer than two axes,
    /// like biases and gains. The first group that matches a parameter counts.
    pub fn group(mut self, pattern: &str, weight: f64) -> Self {
        self.groups.push((Pattern::new(pattern), weight));
        self.with_weights()
    }

    /// The weight of a parameter with this many axes.
    pub fn of(&self, name: &str, axes: usize) -> f64 {
        let is_in = |pattern: &Pattern| match pattern.to_string() == VECTORS {
            true => axes < 2,
            false => pattern.matches(name),
        };
        self.groups.iter().find(|(pattern, _)| is_in(pattern)).map_or(self.weight, |(_, weight)| *weight)
    }

    /// The weights, for [`Optimizer::description`](super::Optimizer::description).
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

    /// With `weights` filled in.
    fn with_weights(mut self) -> Self {
        self.weights.clear();
        for weight in std::iter::once(self.weight).chain(self.groups.iter().map(|(_, weight)| *weight)) {
            if weight != 0.0 && !self.weights.contains(&weight) {
                self.weights.push(weight);
            }
        }
        self
    }

    /// Names of the settings of decoupled decay: the factor `1 - rate · weight`, for each weight.
    pub(super) fn setting_names(&self) -> Vec<String> {
        let name = |i: usize| if i == 0 { "decay".to_string() } else { format!("decay{i}") };
        (0..self.weights.len()).map(name).collect()
    }

    /// Writes these settings for a learning rate; returns the rest.
    pub(super) fn settings<'v>(&self, rate: f64, values: &'v mut [f64]) -> &'v mut [f64] {
        let (own, rest) = values.split_at_mut(self.weights.len());
        own.iter_mut().zip(&self.weights).for_each(|(value, weight)| *value = 1.0 - rate * weight);
        rest
    }

    /// Decoupled weight decay: the decayed parameter, and the settings that are not for decay.
    pub(super) fn decoupled<'s>(
        &self,
        b: &mut Builder,
        parameter: &Parameter,
        settings: &'s [ValueId],
    ) -> Result<(ValueId, &'s [ValueId]), GraphError> {
        let (weights, weight) = (&self.weights, self.of(&parameter.name, b.shape(parameter.value).rank()));
        let index = weights.iter().position(|&w| w == weight);
        let kept = match index.and_then(|index| settings.get(index)) {
            Some(&factor) => b.mul(parameter.value, factor)?,
            None => parameter.value,
        };
        Ok((kept, settings.get(weights.len()..).unwrap_or_default()))
    }

    /// L2 weight decay: the gradient plus `weight · parameter`.
    pub(super) fn add_to_gradient(
        &self,
        b: &mut Builder,
        parameter: &Parameter,
        gradient: ValueId,
    ) -> Result<ValueId, GraphError> {
        match self.of(&parameter.name, b.shape(parameter.value).rank()) {
            0.0 => Ok(gradient),
            weight => {
                let decay = b.scale(parameter.value, weight)?;
                b.add(gradient, decay)
            }
        }
    }
}

impl From<f64> for Decay {
    fn from(weight: f64) -> Self {
        Self::new(weight)
    }
}

/// The first pattern that matches no name.
pub(super) fn unused<'p>(
    mut patterns: impl Iterator<Item = &'p Pattern>,
    names: &[&str],
) -> Option<&'p Pattern> {
    patterns.find(|pattern| !names.iter().any(|name| pattern.matches(name)))
}

/// The first few names, for messages.
pub(super) fn named(names: &[&str]) -> String {
    const SHOWN: usize = 8;
    let shown = names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let more = names.len().saturating_sub(SHOWN);
    if more == 0 { shown } else { format!("{shown} and {more} more") }
}
