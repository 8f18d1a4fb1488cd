//! Accuracy and top-k accuracy.

use super::{Decision, Metric, MetricError, Rows, WeightedMean};
use std::fmt;

/// Fraction of rows whose predicted class is the label: `accuracy`.
#[derive(Clone, Debug)]
pub struct Accuracy {
    decision: Decision,
    mean: WeightedMean,
}

impl Accuracy {
    /// Accuracy of classes predicted by this rule.
    pub fn new(decision: Decision) -> Self {
        Self { decision, mean: WeightedMean::default() }
    }

    /// The accuracy, so far.
    pub fn value(&self) -> f64 {
        self.mean.value()
    }
}

impl Metric for Accuracy {
    fn name(&self) -> &str {
        "accuracy"
    }

    fn update(&mut self, rows: &Rows<'_>) -> Result<(), MetricError> {
        for (label, predicted, weight) in self.decision.pairs("accuracy", rows)? {
            self.mean.add(f64::from(label == predicted), weight);
        }
        Ok(())
    }

    fn figures(&self, report: &mut dyn FnMut(fmt::Arguments<'_>, f64)) {
        report(format_args!("accuracy"), self.value());
    }

    fn reset(&mut self) {
        self.mean = WeightedMean::default();
    }

    fn bytes(&self) -> usize {
        size_of_val(self)
    }
}

/// Fraction of rows whose label is among the k highest scores: `top5`. Of equal scores the first ranks higher.
///
/// ```
/// use plimsoll_train::metrics::{Metric, Outputs, Rows, Targets, TopK};
///
/// let mut top2 = TopK::new(2, 3)?;
/// let scores = Outputs::Scores { values: &[0.1, 0.7, 0.2, 0.5, 0.3, 0.2], width: 3 };
/// top2.update(&Rows::new(scores, Targets::Classes(&[2, 2]), &[])?)?;
/// assert_eq!(top2.value(), 0.5);
/// # Ok::<(), plimsoll_train::metrics::MetricError>(())
/// ```
#[derive(Clone, Debug)]
pub struct TopK {
    name: Box<str>,
    k: usize,
    classes: usize,
    mean: WeightedMean,
}

impl TopK {
    /// Top-k accuracy over `classes` classes.
    pub fn new(k: usize, classes: usize) -> Result<Self, MetricError> {
        if k == 0 || k > classes {
            let reason = format!("k is {k}, and must be in 1..={classes}, the number of classes");
            return Err(MetricError::Setting { metric: "topK", reason });
        }
        Ok(Self { name: format!("top{k}").into(), k, classes, mean: WeightedMean::default() })
    }

    /// The accuracy, so far.
    pub fn value(&self) -> f64 {
        self.mean.value()
    }
}

impl Metric for TopK {
    fn name(&self) -> &str {
        &self.name
    }

    fn update(&mut self, rows: &Rows<'_>) -> Result<(), MetricError> {
        let (metric, classes) = ("topK", self.classes);
        let expected = rows.expected(metric, classes)?;
        let (values, width) = rows.scores(metric, classes)?;
        if width != classes {
            return Err(MetricError::Width { metric, classes, width });
        }
        for (row, weight) in rows.counted() {
            let (scores, label) = (&values[row * width..][..width], expected.class(row));
            let (before, after) = (&scores[..label], &scores[label + 1..]);
            let higher = before.iter().filter(|&&score| score >= scores[label]).count()
                + after.iter().filter(|&&score| score > scores[label]).count();
            self.mean.add(f64::from(higher < self.k), weight);
        }
        Ok(())
    }

    fn figures(&self, report: &mut dyn FnMut(fmt::Arguments<'_>, f64)) {
        report(format_args!("{}", self.name), self.value());
    }

    fn reset(&mut self) {
        self.mean = WeightedMean::default();
    }

    fn bytes(&self) -> usize {
        size_of_val(self) + self.name.len()
    }
}
