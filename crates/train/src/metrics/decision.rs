//! How a row's class is predicted.

use super::{MetricError, Outputs, Rows};

/// How a row's class is predicted: the highest score, the first of equal ones. A single score per row is that of class 1
/// against class 0: class 1 if the score is at or above a threshold.
///
/// Classes that the model predicted itself ([`Outputs::Classes`]) are taken as they are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    pub(super) classes: usize,
    threshold: Option<f32>,
}

impl Decision {
    /// The highest score. The threshold of single scores is 0, as for logits.
    pub const fn highest(classes: usize) -> Self {
        Self { classes, threshold: None }
    }

    /// Class 1 if the score is at or above the threshold. The score of a row of two is the second minus the first.
    pub const fn threshold(threshold: f32) -> Self {
        Self { classes: 2, threshold: Some(threshold) }
    }

    fn class(&self, scores: &[f32]) -> usize {
        match (scores, self.threshold) {
            ([score], threshold) if self.classes == 2 => usize::from(*score >= threshold.unwrap_or(0.0)),
            ([first, second], Some(threshold)) => {
                // Equal scores apart: the difference of infinite ones is NaN.
                let score = if first == second { 0.0 } else { f64::from(*second) - f64::from(*first) };
                usize::from(score >= f64::from(threshold))
            }
            _ => highest(scores),
        }
    }

    /// Label, predicted class and weight of every row that counts.
    pub(super) fn pairs<'a>(
        self,
        metric: &'static str,
        rows: &Rows<'a>,
    ) -> Result<impl Iterator<Item = (usize, usize, f64)> + use<'a>, MetricError> {
        let expected = rows.expected(metric, self.classes)?;
        let outputs = rows.outputs;
        match outputs {
            Outputs::Classes(classes) => rows.check_classes("predicted class", classes, self.classes)?,
            _ => drop(rows.scores(metric, self.classes)?),
        }
        Ok(rows.counted().map(move |(row, weight)| {
            let predicted = match outputs {
                Outputs::Classes(classes) => classes[row] as usize,
                Outputs::Scores { values, width } => self.class(&values[row * width..][..width]),
                Outputs::Losses(_) => 0,
            };
            (expected.class(row), predicted, weight)
        }))
    }
}

/// Index of the highest score, the first of equal ones.
pub(super) fn highest(scores: &[f32]) -> usize {
    (1..scores.len()).fold(0, |best, i| if scores[i] > scores[best] { i } else { best })
}
