//! The area under the ROC curve.

use super::decision::highest;
use super::{Metric, MetricError, Rows, ratio, zeros};
use std::fmt;

/// The area under the ROC curve, from a histogram of scores: `auc` for two classes; `auc/macro`, the mean of every
/// class against the rest, for more; `auc/error` beside either; with [`Auc::each_class`], `auc/0`, `auc/1` and so on.
///
/// The area is the fraction of pairs of a positive and a negative row in which the positive one has the higher score;
/// equal scores count a half. Pairs in different bins of the histogram are ranked exactly. Pairs in one bin count a half
/// each, so the area is off by at most half their fraction. That is `auc/error`: **the exact area lies within
/// `auc ± auc/error`**, up to the rounding of the sums. No narrower bound follows from the histogram, which cannot
/// distinguish equal scores from near ones. The error depends on the rows (all scores might fall into one bin), so it is
/// reported with the figure; for smooth scores it shrinks as 1 / bins. A class without positive or without negative rows
/// is NaN and left out of the mean.
///
/// Rows of scores are logits. The score of a class is its log-odds against the rest under softmax, which ranks rows as
/// their probabilities do; give logarithms of probabilities where a model gives those. A single score per row may be
/// anything that rises with class 1. Bins are even in `x / (1 + |x|)`: near 0 they are 2 / bins wide, at x
/// `(1 + |x|)²` times that, and the outermost reach to infinity.
///
/// ```
/// use plimsoll_train::metrics::{Auc, Metric, Outputs, Rows, Targets};
///
/// let mut auc = Auc::new(2, Auc::BINS)?;
/// let scores = Outputs::Scores { values: &[0.1, 0.4, 0.35, 0.8], width: 1 };
/// auc.update(&Rows::new(scores, Targets::Classes(&[0, 0, 1, 1]), &[])?)?;
/// assert_eq!((auc.value(), auc.error()), (0.75, 0.0));
/// # Ok::<(), plimsoll_train::metrics::MetricError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Auc {
    classes: usize,
    bins: usize,
    each: bool,
    /// Weights, `[curves, negative and positive, bins]`.
    weights: Box<[f64]>,
}

impl Auc {
    /// The default number of bins: 32 KiB per class.
    pub const BINS: usize = 2048;

    /// The area over `classes` classes with `bins` bins per curve; two classes have one curve.
    pub fn new(classes: usize, bins: usize) -> Result<Self, MetricError> {
        if classes < 2 || bins == 0 {
            let reason = format!("it needs two classes and one bin or more, not {classes} and {bins}");
            return Err(MetricError::Setting { metric: "auc", reason });
        }
        let elements = bins.checked_mul(2).and_then(|both| both.checked_mul(curves(classes)));
        Ok(Self { classes, bins, each: false, weights: zeros("auc", elements)? })
    }

    /// Also reports each class's area.
    pub fn each_class(mut self, each: bool) -> Self {
        self.each = each;
        self
    }

    /// The area, so far: of class 1 for two classes, the mean over the classes for more.
    pub fn value(&self) -> f64 {
        self.mean().0
    }

    /// How far the area may be off.
    pub fn error(&self) -> f64 {
        self.mean().1
    }

    /// One class's area against the rest, and how far it may be off.
    pub fn class(&self, class: usize) -> (f64, f64) {
        match (self.classes, class) {
            (2, 0 | 1) => self.area(0),
            _ if class < self.classes => self.area(class),
            _ => (f64::NAN, f64::NAN),
        }
    }

    fn mean(&self) -> (f64, f64) {
        let (mut value, mut error, mut areas) = (0.0, 0.0, 0.0);
        for area in (0..curves(self.classes)).map(|curve| self.area(curve)).filter(|area| !area.0.is_nan()) {
            value += area.0;
            error += area.1;
            areas += 1.0;
        }
        (ratio(value, areas), ratio(error, areas))
    }

    fn area(&self, curve: usize) -> (f64, f64) {
        let (negative, positive) = self.weights[curve * 2 * self.bins..][..2 * self.bins].split_at(self.bins);
        let (mut below, mut positives, mut higher, mut together) = (0.0, 0.0, 0.0, 0.0);
        for (negative, positive) in negative.iter().zip(positive) {
            higher += positive * below;
            together += positive * negative;
            below += negative;
            positives += positive;
        }
        let pairs = positives * below;
        (ratio(higher + together / 2.0, pairs), ratio(together / 2.0, pairs))
    }

    fn count(&mut self, curve: usize, score: f64, positive: bool, weight: f64) {
        let bin = ((position(score) * self.bins as f64) as usize).min(self.bins - 1);
        self.weights[(curve * 2 + usize::from(positive)) * self.bins + bin] += weight;
    }

    pub(super) fn bytes_of(classes: usize, bins: usize) -> usize {
        let elements = curves(classes).saturating_mul(2).saturating_mul(bins);
        elements.saturating_mul(size_of::<f64>()).saturating_add(size_of::<Self>())
    }
}

impl Metric for Auc {
    fn name(&self) -> &str {
        "auc"
    }

    fn update(&mut self, rows: &Rows<'_>) -> Result<(), MetricError> {
        let expected = rows.expected("auc", self.classes)?;
        let (values, width) = rows.scores("auc", self.classes)?;
        if width > 1 {
            rows.check_softmax(values, width)?;
        }
        for (row, weight) in rows.counted() {
            let label = expected.class(row);
            match values[row * width..][..width] {
                [score] => self.count(0, f64::from(score), label == 1, weight),
                [first, second] => {
                    self.count(0, f64::from(second) - f64::from(first), label == 1, weight);
                }
                ref scores => {
                    let odds = Odds::of(scores);
                    for (class, &score) in scores.iter().enumerate() {
                        self.count(class, odds.class(class, score), class == label, weight);
                    }
                }
            }
        }
        Ok(())
    }

    fn figures(&self, report: &mut dyn FnMut(fmt::Arguments<'_>, f64)) {
        let (value, error) = self.mean();
        match self.classes {
            2 => report(format_args!("auc"), value),
            _ => report(format_args!("auc/macro"), value),
        }
        report(format_args!("auc/error"), error);
        for class in 0..if self.each { self.classes } else { 0 } {
            report(format_args!("auc/{class}"), self.class(class).0);
        }
    }

    fn reset(&mut self) {
        self.weights.fill(0.0);
    }

    fn bytes(&self) -> usize {
        size_of_val(self) + size_of_val(&*self.weights)
    }
}

fn curves(classes: usize) -> usize {
    if classes == 2 { 1 } else { classes }
}

/// A score's position in 0..=1. Each operation is monotone with its rounding, so the order of scores is kept.
fn position(score: f64) -> f64 {
    let half = 0.5 / (1.0 + score.abs());
    if score < 0.0 { half } else { 1.0 - half }
}

/// The terms of the log-odds of a row's classes.
struct Odds {
    best: usize,
    highest: f64,
    /// Sum of exp(score − highest) over all but the best.
    others: f64,
    /// Log-odds of the best class, from the other scores alone: one minus a probability near one would lose its digits.
    of_best: f64,
}

impl Odds {
    fn of(scores: &[f32]) -> Self {
        let best = highest(scores);
        let others =
            || scores.iter().enumerate().filter(|&(i, _)| i != best).map(|(_, &score)| f64::from(score));
        let highest = f64::from(scores[best]);
        let second = others().fold(f64::NEG_INFINITY, f64::max);
        let of_best = match second {
            f64::NEG_INFINITY => f64::INFINITY,
            _ => highest - second - others().map(|score| (score - second).exp()).sum::<f64>().ln(),
        };
        Self { best, highest, others: others().map(|score| (score - highest).exp()).sum(), of_best }
    }

    fn class(&self, class: usize, score: f32) -> f64 {
        if class == self.best {
            return self.of_best;
        }
        let score = f64::from(score) - self.highest;
        score - (self.others - score.exp()).ln_1p()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Neither a probability near one nor one near zero loses the digits of its log-odds.
    #[test]
    fn log_odds_are_exact_near_zero_and_one() {
        let check = |scores: &[f32], expected: &[f64]| {
            let odds = Odds::of(scores);
            for (class, (&score, expected)) in scores.iter().zip(expected).enumerate() {
                let found = odds.class(class, score);
                assert!(
                    (found - expected).abs() <= 1e-13 * expected.abs(),
                    "{scores:?}: {found}, not {expected}"
                );
            }
        };
        let ln2 = std::f64::consts::LN_2;
        check(&[100.0, 0.0, 0.0], &[100.0 - ln2, -100.0, -100.0]);
        check(&[3.0, 3.0, 3.0], &[-ln2, -ln2, -ln2]);
        check(&[-500.0, 0.0, 0.0], &[-500.0 - ln2, 0.0, 0.0]);
    }

    #[test]
    fn positions_rise_with_scores() {
        let scores = [f64::NEG_INFINITY, -1e30, -2.0, -1.0, -1e-3, 0.0, 1e-3, 1.0, 2.0, 1e15, f64::INFINITY];
        let positions: Vec<f64> = scores.iter().map(|&score| position(score)).collect();
        assert!(positions.windows(2).all(|pair| pair[0] < pair[1]), "{positions:?}");
        assert_eq!((positions[0], positions[3], positions[7], positions[10]), (0.0, 0.25, 0.75, 1.0));
    }
}
