//! Accuracy and top-k accuracy.

use super::{Decision, Metric, MetricError, Rows, ratio};
use std::fmt;

/// Weights of correct rows and of all.
#[derive(Clone, Copy, Debug, Default)]
struct Hits {
    correct: f64,
    all: f64,
}

impl Hits {
    fn count(&mut self, correct: bool, weight: f64) {
        self.correct += if correct { weight } else { 0.0 };
        self.all += weight;
    }
}

/// Fraction of rows whose predicted class is the label: `accuracy`.
#[derive(Clone, Debug)]
pub struct Accuracy {
    decision: Decision,
    hits: Hits,
}

impl Accuracy {
    /// Accuracy of classes predicted by this rule.
    pub fn new(decision: Decision) -> Self {
        Self { decision, hits: Hits::default() }
    }

    /// The accuracy, so far.
    pub fn value(&self) -> f64 {
        ratio(self.hits.correct, self.hits.all)
    }
}

impl Metric for Accuracy {
    fn name(&self) -> &str {
        "accuracy"
    }

    fn update(&mut self, rows: &Rows<'_>) -> Result<(), MetricError> {
        for (label, predicted, weight) in self.decision.pairs("accuracy", rows)? {
            self.hits.count(label == predicted, weight);
        }
        Ok(())
    }

    fn figures(&self, report: &mut dyn FnMut(fmt::Arguments<'_>, f64)) {
        report(format_args!("accuracy"), self.value());
    }

    fn reset(&mut self) {
        self.hits = Hits::default();
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
    hits: Hits,
}

impl TopK {
    /// Top-k accuracy over `classes` classes.
    pub fn new(k: usize, classes: usize) -> Result<Self, MetricError> {
        if k == 0 || k > classes {
            let reason = format!("k is {k}, and must be in 1..={classes}, the number of classes");
            return Err(MetricError::Setting { metric: "topK", reason });
        }
        Ok(Self { name: format!("top{k}").into(), k, classes, hits: Hits::default() })
    }

    /// The accuracy, so far.
    pub fn value(&self) -> f64 {
        ratio(self.hits.correct, self.hits.all)
    }
}

impl Metric for TopK {
    fn name(&self) -> &str {
        &self.name
    }

    fn update(&mut self, rows: &Rows<'_>) -> Result<(), MetricError> {
        let (metric, classes) = ("topK", self.classes);
        let labels = rows.labels(metric, classes)?;
        let (values, width) = rows.scores(metric, classes)?;
        if width != classes {
            return Err(MetricError::Width { metric, classes, width });
        }
        for (row, weight) in rows.counted() {
            let (scores, label) = (&values[row * width..][..width], labels[row] as usize);
            let (before, after) = (&scores[..label], &scores[label + 1..]);
            let higher = before.iter().filter(|&&score| score >= scores[label]).count()
                + after.iter().filter(|&&score| score > scores[label]).count();
            self.hits.count(higher < self.k, weight);
        }
        Ok(())
    }

    fn figures(&self, report: &mut dyn FnMut(fmt::Arguments<'_>, f64)) {
        report(format_args!("{}", self.name), self.value());
    }

    fn reset(&mut self) {
        self.hits = Hits::default();
    }

    fn bytes(&self) -> usize {
        size_of_val(self) + self.name.len()
    }
}
