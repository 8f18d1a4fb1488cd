//! Precision, recall, F1, IoU and Dice.

use super::{Decision, Metric, MetricError, Rows, ratio, zeros};
use std::fmt;

/// A class's figure, from the weights of its true positives (hits), of the rows predicted as it, and of the rows labelled
/// as it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Hits over predictions.
    Precision,
    /// Hits over labels.
    Recall,
    /// Twice the hits over predictions plus labels: the harmonic mean of precision and recall.
    F1,
    /// Hits over rows that are predicted or labelled: the intersection over the union.
    Iou,
    /// The same as F1, by its name for pixels.
    Dice,
}

/// How the classes' figures are averaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Average {
    /// The mean over the classes present, as label or prediction of some row.
    Macro,
    /// The figure of all classes' weights added up.
    Micro,
    /// The mean over the classes, weighted by their labels.
    Weighted,
    /// One class's own figure; NaN for a class that is not present.
    Class(usize),
}

impl Measure {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Precision, Self::Recall, Self::F1, Self::Iou, Self::Dice];

    /// The measure's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Precision => "precision",
            Self::Recall => "recall",
            Self::F1 => "f1",
            Self::Iou => "iou",
            Self::Dice => "dice",
        }
    }

    fn of(self, tally: &Tally) -> f64 {
        let Tally { hits, predicted, labels } = *tally;
        let (part, whole) = match self {
            Self::Precision => (hits, predicted),
            Self::Recall => (hits, labels),
            Self::F1 | Self::Dice => (2.0 * hits, predicted + labels),
            Self::Iou => (hits, predicted + labels - hits),
        };
        if whole > 0.0 { part / whole } else { 0.0 }
    }
}

/// Weights of one class's rows.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    hits: f64,
    predicted: f64,
    labels: f64,
}

impl Tally {
    fn present(&self) -> bool {
        self.predicted + self.labels > 0.0
    }
}

/// Precision, recall, F1, IoU or Dice of every class, in three numbers per class: `f1/macro`, `f1/micro`,
/// `f1/weighted`, for two classes `f1/binary`, which is class 1's, and with [`ClassScores::each_class`] `f1/0`, `f1/1` and
/// so on.
///
/// As in scikit-learn, zero over zero is 0 (the precision of a class that is never predicted), and a class that no row has is
/// left out of averages. `iou/macro` is the mean IoU.
///
/// ```
/// use plimsoll_train::metrics::{Average, ClassScores, Decision, Measure, Metric, Outputs, Rows, Targets};
///
/// let mut precision = ClassScores::new(Measure::Precision, Decision::threshold(0.5))?;
/// let scores = Outputs::Scores { values: &[0.9, 0.6, 0.2, 0.7], width: 1 };
/// precision.update(&Rows::new(scores, Targets::Classes(&[1, 0, 1, 1]), &[])?)?;
/// assert_eq!(precision.value(Average::Class(1)), 2.0 / 3.0);
/// # Ok::<(), plimsoll_train::metrics::MetricError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ClassScores {
    measure: Measure,
    decision: Decision,
    each: bool,
    tallies: Box<[Tally]>,
}

impl ClassScores {
    /// A measure of classes predicted by this rule.
    pub fn new(measure: Measure, decision: Decision) -> Result<Self, MetricError> {
        let tallies = zeros(measure.name(), Some(decision.classes))?;
        Ok(Self { measure, decision, each: false, tallies })
    }

    /// Also reports each class's figure.
    pub fn each_class(mut self, each: bool) -> Self {
        self.each = each;
        self
    }

    /// The figure, so far.
    pub fn value(&self, average: Average) -> f64 {
        let present = || self.tallies.iter().filter(|tally| tally.present());
        match average {
            Average::Macro => {
                let sum: f64 = present().map(|tally| self.measure.of(tally)).sum();
                ratio(sum, present().count() as f64)
            }
            Average::Micro => {
                let all = present().fold(Tally::default(), |all, tally| Tally {
                    hits: all.hits + tally.hits,
                    predicted: all.predicted + tally.predicted,
                    labels: all.labels + tally.labels,
                });
                if all.present() { self.measure.of(&all) } else { f64::NAN }
            }
            Average::Weighted => {
                let sum: f64 = present().map(|tally| tally.labels * self.measure.of(tally)).sum();
                ratio(sum, present().map(|tally| tally.labels).sum())
            }
            Average::Class(class) => {
                let tally = self.tallies.get(class).filter(|tally| tally.present());
                tally.map_or(f64::NAN, |tally| self.measure.of(tally))
            }
        }
    }

    pub(super) fn bytes_of(classes: usize) -> usize {
        classes.saturating_mul(size_of::<Tally>()).saturating_add(size_of::<Self>())
    }
}

impl Metric for ClassScores {
    fn name(&self) -> &str {
        self.measure.name()
    }

    fn update(&mut self, rows: &Rows<'_>) -> Result<(), MetricError> {
        for (label, predicted, weight) in self.decision.pairs(self.measure.name(), rows)? {
            self.tallies[label].labels += weight;
            self.tallies[predicted].predicted += weight;
            if label == predicted {
                self.tallies[label].hits += weight;
            }
        }
        Ok(())
    }

    fn figures(&self, report: &mut dyn FnMut(fmt::Arguments<'_>, f64)) {
        let name = self.measure.name();
        if self.decision.classes == 2 {
            report(format_args!("{name}/binary"), self.value(Average::Class(1)));
        }
        report(format_args!("{name}/macro"), self.value(Average::Macro));
        report(format_args!("{name}/micro"), self.value(Average::Micro));
        report(format_args!("{name}/weighted"), self.value(Average::Weighted));
        for class in 0..if self.each { self.decision.classes } else { 0 } {
            report(format_args!("{name}/{class}"), self.value(Average::Class(class)));
        }
    }

    fn reset(&mut self) {
        self.tallies.fill(Tally::default());
    }

    fn bytes(&self) -> usize {
        size_of_val(self) + size_of_val(&*self.tallies)
    }
}
