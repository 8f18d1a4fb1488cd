//! Precision, recall, F1, IoU and Dice.

use super::{Decision, Metric, MetricError, Rows, share, zeros};
use std::fmt;

/// A class's figure, from the weights of its hits (label and choice), of the rows it was chosen for, and of the rows
/// whose label it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Hits of the chosen.
    Precision,
    /// Hits of the labels.
    Recall,
    /// Twice the hits of the chosen and the labels together: the harmonic mean of precision and recall.
    F1,
    /// Hits of the rows that are either: the intersection over the union.
    Iou,
    /// The same as F1, by the name it has for pixels.
    Dice,
}

/// How the classes' figures become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Average {
    /// The mean over the classes present, which are those that some row has as label or choice.
    Macro,
    /// The figure of all classes' weights together.
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
        let Tally { hits, chosen, labels } = *tally;
        let (part, whole) = match self {
            Self::Precision => (hits, chosen),
            Self::Recall => (hits, labels),
            Self::F1 | Self::Dice => (2.0 * hits, chosen + labels),
            Self::Iou => (hits, chosen + labels - hits),
        };
        if whole > 0.0 { part / whole } else { 0.0 }
    }
}

/// Weights of one class's rows.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    hits: f64,
    chosen: f64,
    labels: f64,
}

impl Tally {
    fn present(&self) -> bool {
        self.chosen + self.labels > 0.0
    }
}

/// Precision, recall, F1, IoU or Dice of every class, in three numbers per class: `f1/macro`, `f1/micro`,
/// `f1/weighted`, for two classes `f1/binary`, which is class 1's, and where asked for `f1/0`, `f1/1` and so on.
///
/// As scikit-learn has it, nothing over nothing is 0 (the precision of a class that is never chosen), and a class that
/// no row has is in no average. `iou/macro` is the mean IoU.
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
    /// A measure of classes chosen so.
    pub fn new(measure: Measure, decision: Decision) -> Result<Self, MetricError> {
        let tallies = zeros(measure.name(), Some(decision.classes))?;
        Ok(Self { measure, decision, each: false, tallies })
    }

    /// Tells each class's figure beside the averages.
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
                share(sum, present().count() as f64)
            }
            Average::Micro => {
                let all = present().fold(Tally::default(), |all, tally| Tally {
                    hits: all.hits + tally.hits,
                    chosen: all.chosen + tally.chosen,
                    labels: all.labels + tally.labels,
                });
                if all.present() { self.measure.of(&all) } else { f64::NAN }
            }
            Average::Weighted => {
                let sum: f64 = present().map(|tally| tally.labels * self.measure.of(tally)).sum();
                share(sum, present().map(|tally| tally.labels).sum())
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
        for (label, chosen, weight) in self.decision.pairs(self.measure.name(), rows)? {
            self.tallies[label].labels += weight;
            self.tallies[chosen].chosen += weight;
            if label == chosen {
                self.tallies[label].hits += weight;
            }
        }
        Ok(())
    }

    fn figures(&self, tell: &mut dyn FnMut(fmt::Arguments<'_>, f64)) {
        let name = self.measure.name();
        if self.decision.classes == 2 {
            tell(format_args!("{name}/binary"), self.value(Average::Class(1)));
        }
        tell(format_args!("{name}/macro"), self.value(Average::Macro));
        tell(format_args!("{name}/micro"), self.value(Average::Micro));
        tell(format_args!("{name}/weighted"), self.value(Average::Weighted));
        for class in 0..if self.each { self.decision.classes } else { 0 } {
            tell(format_args!("{name}/{class}"), self.value(Average::Class(class)));
        }
    }

    fn reset(&mut self) {
        self.tallies.fill(Tally::default());
    }

    fn bytes(&self) -> usize {
        size_of_val(self) + size_of_val(&*self.tallies)
    }
}
