//! Mean loss and perplexity.

use super::{Metric, MetricError, Outputs, Rows, WeightedMean};
use std::fmt;

/// Which figure of the losses is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossFigure {
    /// The weighted mean: `loss`.
    Mean,
    /// exp of the weighted mean: `perplexity`.
    Perplexity,
}

/// The mean loss per row, or the perplexity.
///
/// Takes losses as they are ([`Outputs::Losses`]), or logits with labels, whose cross-entropy it computes in f64; a
/// single logit is that of class 1 against class 0. A loss may be infinite (a label whose logit is -∞); a row's highest
/// logit must be finite.
///
/// ```
/// use plimsoll_train::metrics::{Loss, LossFigure, Metric, Outputs, Rows, Targets};
///
/// let mut perplexity = Loss::new(LossFigure::Perplexity, 4);
/// let scores = Outputs::Scores { values: &[0.0; 8], width: 4 };
/// perplexity.update(&Rows::new(scores, Targets::Classes(&[3, 0]), &[])?)?;
/// assert!((perplexity.value() - 4.0).abs() < 1e-12);
/// # Ok::<(), plimsoll_train::metrics::MetricError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Loss {
    figure: LossFigure,
    classes: usize,
    mean: WeightedMean,
}

impl Loss {
    /// An empty metric over `classes` classes, which [`Outputs::Losses`] do not need.
    pub fn new(figure: LossFigure, classes: usize) -> Self {
        Self { figure, classes, mean: WeightedMean::default() }
    }

    /// The figure, so far.
    pub fn value(&self) -> f64 {
        match self.figure {
            LossFigure::Mean => self.mean.value(),
            LossFigure::Perplexity => self.mean.value().exp(),
        }
    }
}

impl LossFigure {
    /// The figure's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mean => "loss",
            Self::Perplexity => "perplexity",
        }
    }
}

impl Metric for Loss {
    fn name(&self) -> &str {
        self.figure.name()
    }

    fn update(&mut self, rows: &Rows<'_>) -> Result<(), MetricError> {
        let metric = self.figure.name();
        if let Outputs::Losses(losses) = rows.outputs {
            // The sum of +∞ and -∞ is NaN, so -∞ is refused.
            rows.refuse("a loss", losses, |loss| loss == f32::NEG_INFINITY, "losses are above -∞")?;
            rows.counted().for_each(|(row, weight)| self.mean.add(f64::from(losses[row]), weight));
            return Ok(());
        }
        if let Outputs::Classes(_) = rows.outputs {
            return Err(MetricError::Needs { metric, needs: "losses, or logits and labels" });
        }
        let labels = rows.labels(metric, self.classes)?;
        let (values, width) = rows.scores(metric, self.classes)?;
        rows.check_softmax(values, width)?;
        for (row, weight) in rows.counted() {
            let logits = &values[row * width..][..width];
            self.mean.add(cross_entropy(logits, labels[row] as usize, self.classes), weight);
        }
        Ok(())
    }

    fn figures(&self, report: &mut dyn FnMut(fmt::Arguments<'_>, f64)) {
        report(format_args!("{}", self.figure.name()), self.value());
    }

    fn reset(&mut self) {
        self.mean = WeightedMean::default();
    }

    fn bytes(&self) -> usize {
        size_of_val(self)
    }
}

/// -log of the label's probability; all logits are below +∞, one is finite.
fn cross_entropy(logits: &[f32], label: usize, classes: usize) -> f64 {
    if let ([logit], 2) = (logits, classes) {
        let against = if label == 1 { -f64::from(*logit) } else { f64::from(*logit) };
        return against.max(0.0) + (-against.abs()).exp().ln_1p();
    }
    let highest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - highest).exp()).sum();
    sum.ln() + highest - f64::from(logits[label])
}
