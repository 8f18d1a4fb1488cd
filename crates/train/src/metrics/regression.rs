//! Metrics of values: mean squared error, mean absolute error, cosine similarity.

use super::{Metric, MetricError, Outputs, Rows, Targets, WeightedMean};
use std::fmt;

/// The distance between a row's values and targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distance {
    /// The mean squared difference: `mse`.
    Squared,
    /// The mean absolute difference: `mae`.
    Absolute,
    /// The cosine of the angle between them, 0 where either is all zeros: `cosine`.
    Cosine,
}

impl Distance {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Squared, Self::Absolute, Self::Cosine];

    /// The figure's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Squared => "mse",
            Self::Absolute => "mae",
            Self::Cosine => "cosine",
        }
    }

    fn of(self, values: &[f32], targets: &[f32]) -> f64 {
        let pairs =
            || values.iter().zip(targets).map(|(&value, &target)| (f64::from(value), f64::from(target)));
        match self {
            Self::Squared => pairs().map(|(v, t)| (v - t) * (v - t)).sum::<f64>() / values.len() as f64,
            Self::Absolute => pairs().map(|(v, t)| (v - t).abs()).sum::<f64>() / values.len() as f64,
            Self::Cosine => {
                let (product, value, target) = pairs()
                    .fold((0.0, 0.0, 0.0), |(product, value, target), (v, t)| {
                        (product + v * t, value + v * v, target + t * t)
                    });
                if value == 0.0 || target == 0.0 { 0.0 } else { product / value.sqrt() / target.sqrt() }
            }
        }
    }
}

/// The mean over rows of a distance between values and targets. Both must be finite.
///
/// ```
/// use plimsoll_train::metrics::{Distance, Metric, Outputs, Regression, Rows, Targets};
///
/// let mut mse = Regression::new(Distance::Squared);
/// let values = Outputs::Scores { values: &[1.0, 2.0, 3.0], width: 1 };
/// mse.update(&Rows::new(values, Targets::Values(&[1.0, 4.0, 2.0]), &[1.0, 0.5, 0.5])?)?;
/// assert_eq!(mse.value(), 1.25);
/// # Ok::<(), plimsoll_train::metrics::MetricError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Regression {
    distance: Distance,
    mean: WeightedMean,
}

impl Regression {
    /// An empty metric.
    pub fn new(distance: Distance) -> Self {
        Self { distance, mean: WeightedMean::default() }
    }

    /// The mean, so far.
    pub fn value(&self) -> f64 {
        self.mean.value()
    }
}

impl Metric for Regression {
    fn name(&self) -> &str {
        self.distance.name()
    }

    fn update(&mut self, rows: &Rows<'_>) -> Result<(), MetricError> {
        let (Outputs::Scores { values, width }, Targets::Values(targets)) = (rows.outputs, rows.targets)
        else {
            let needs = "values and target values";
            return Err(MetricError::Needs { metric: self.distance.name(), needs });
        };
        let infinite = |value: f32| value.is_infinite();
        rows.refuse("a value", values, infinite, "values must be finite")?;
        rows.refuse("a target", targets, infinite, "targets must be finite")?;
        for (row, weight) in rows.counted() {
            let range = row * width..(row + 1) * width;
            self.mean.add(self.distance.of(&values[range.clone()], &targets[range]), weight);
        }
        Ok(())
    }

    fn figures(&self, report: &mut dyn FnMut(fmt::Arguments<'_>, f64)) {
        report(format_args!("{}", self.distance.name()), self.value());
    }

    fn reset(&mut self) {
        self.mean = WeightedMean::default();
    }

    fn bytes(&self) -> usize {
        size_of_val(self)
    }
}
