//! Comparing validations: which figure counts, and the best one so far.

use super::Evaluation;
use crate::TrainError;

/// The figure by which validations are compared.
///
/// ```
/// use plimsoll_train::Monitor;
/// assert_eq!("accuracy".parse::<Monitor>()?, Monitor::Highest("accuracy".into()));
/// assert_eq!("loss".parse::<Monitor>()?, Monitor::Loss);
/// # Ok::<(), std::convert::Infallible>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Monitor {
    /// The loss; lower is better.
    #[default]
    Loss,
    /// The accuracy, or the metric's figure with this name; higher is better.
    Highest(String),
    /// The metric's figure with this name; lower is better.
    Lowest(String),
}

/// Figures that are better when they are lower.
const LOWER_IS_BETTER: [&str; 3] = ["perplexity", "mse", "mae"];

impl std::str::FromStr for Monitor {
    type Err = std::convert::Infallible;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Ok(match name {
            "loss" => Self::Loss,
            name if LOWER_IS_BETTER.contains(&name) => Self::Lowest(name.into()),
            name => Self::Highest(name.into()),
        })
    }
}

impl Monitor {
    /// The figure's name.
    pub fn name(&self) -> &str {
        match self {
            Self::Loss => "loss",
            Self::Highest(name) | Self::Lowest(name) => name,
        }
    }

    /// The figure and its direction, in words. Part of a run's identity in checkpoints.
    pub(crate) fn description(&self) -> String {
        match self {
            Self::Loss => "loss".into(),
            Self::Highest(name) => format!("highest {name}"),
            Self::Lowest(name) => format!("lowest {name}"),
        }
    }

    /// The figure as a cost: lower is better.
    pub(crate) fn cost(&self, evaluation: &Evaluation, figures: &[(String, f64)]) -> Result<f64, TrainError> {
        let name = self.name();
        let of_metric = || figures.iter().find(|(figure, _)| figure == name).map(|(_, value)| *value);
        let own = if name == "accuracy" { evaluation.accuracy } else { None };
        let value = if *self == Self::Loss { Some(evaluation.loss) } else { own.or_else(of_metric) };
        let value = value.ok_or_else(|| {
            let mut known: Vec<&str> = figures.iter().map(|(figure, _)| figure.as_str()).collect();
            known.insert(0, "loss");
            if evaluation.accuracy.is_some() && !known.contains(&"accuracy") {
                known.push("accuracy");
            }
            let known = known.join(", ");
            TrainError::Setting(format!("validations have no `{name}` to be compared by: they have {known}"))
        })?;
        Ok(if let Self::Highest(_) = self { -value } else { value })
    }
}

/// The best validation so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Best {
    /// The bits of its cost, an f64: the figure, negated where higher is better.
    pub cost_bits: u64,
    /// The step after which it ran.
    pub step: u64,
    /// Validations since then.
    pub waited: u64,
}

impl Default for Best {
    fn default() -> Self {
        Self { cost_bits: f64::INFINITY.to_bits(), step: 0, waited: 0 }
    }
}

impl Best {
    /// Records a validation after a step; returns whether it is the best so far. Only due validations count as waited.
    pub(crate) fn observe(&mut self, cost: f64, step: u64, due: bool) -> bool {
        // NaN is never better.
        let better = cost < f64::from_bits(self.cost_bits);
        *self = match better {
            true => Self { cost_bits: cost.to_bits(), step, waited: 0 },
            false => Self { waited: self.waited + u64::from(due), ..*self },
        };
        better
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn best_is_the_first_validation_of_lowest_cost() {
        let mut best = Best::default();
        let better = [3.0, 2.0, 2.0, f64::NAN, 1.0].map(|cost| best.observe(cost, cost as u64, true));
        assert_eq!(better, [true, true, false, false, true]);
        assert_eq!((best.step, best.waited), (1, 0));
        best.observe(1.5, 9, true);
        best.observe(1.5, 10, false);
        assert_eq!((best.step, best.waited), (1, 1));
        assert!(best.observe(0.5, 11, false));
    }

    #[test]
    fn monitor_finds_figures_by_name() {
        let evaluation = Evaluation { loss: 0.5, accuracy: Some(0.75), examples: 4, classes: true };
        let figures = [("f1/macro".to_string(), 0.25), ("perplexity".to_string(), 8.0)];
        let cost = |name: &str| name.parse::<Monitor>().unwrap().cost(&evaluation, &figures);
        assert_eq!(cost("loss").unwrap(), 0.5);
        assert_eq!(cost("accuracy").unwrap(), -0.75);
        assert_eq!(cost("f1/macro").unwrap(), -0.25);
        assert_eq!(cost("perplexity").unwrap(), 8.0);
        let error = cost("f2").unwrap_err().to_string();
        assert!(error.contains("`f2`") && error.contains("loss, f1/macro, perplexity, accuracy"), "{error}");
    }
}
