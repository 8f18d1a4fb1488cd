//! The confusion matrix.

use super::{Decision, Metric, MetricError, Rows, zeros};
use std::fmt;

/// The confusion matrix: rows by label and predicted class, `confusion/LABEL/PREDICTED`. Weights only decide whether a row
/// counts.
///
/// ```
/// use plimsoll_train::metrics::{Confusion, Decision, Metric, Outputs, Rows, Targets};
///
/// let mut confusion = Confusion::new(Decision::highest(3))?;
/// let rows = Rows::new(Outputs::Classes(&[0, 2, 2]), Targets::Classes(&[0, 1, 2]), &[0.5, 2.0, 0.0])?;
/// confusion.update(&rows)?;
/// assert_eq!(confusion.counts(), [1, 0, 0, 0, 0, 1, 0, 0, 0]);
/// let confusion: Box<dyn Metric> = Box::new(confusion);
/// assert_eq!(confusion.to_string(), "confusion, labels down and predictions across:\n0 | 1 0 0\n1 | 0 0 1\n2 | 0 0 0");
/// # Ok::<(), plimsoll_train::metrics::MetricError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Confusion {
    decision: Decision,
    counts: Box<[u64]>,
}

impl Confusion {
    /// An empty matrix of classes predicted by this rule.
    pub fn new(decision: Decision) -> Result<Self, MetricError> {
        let counts = zeros("confusion", decision.classes.checked_mul(decision.classes))?;
        Ok(Self { decision, counts })
    }

    /// The counts, a row per label and a column per predicted class.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    pub(super) fn bytes_of(classes: usize) -> usize {
        classes.saturating_mul(classes).saturating_mul(size_of::<u64>()).saturating_add(size_of::<Self>())
    }
}

impl Metric for Confusion {
    fn name(&self) -> &str {
        "confusion"
    }

    fn update(&mut self, rows: &Rows<'_>) -> Result<(), MetricError> {
        for (label, predicted, _) in self.decision.pairs("confusion", rows)? {
            self.counts[label * self.decision.classes + predicted] += 1;
        }
        Ok(())
    }

    fn figures(&self, report: &mut dyn FnMut(fmt::Arguments<'_>, f64)) {
        for (label, row) in self.counts.chunks_exact(self.decision.classes.max(1)).enumerate() {
            for (predicted, count) in row.iter().enumerate() {
                report(format_args!("confusion/{label}/{predicted}"), *count as f64);
            }
        }
    }

    /// The matrix, a line per label.
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let classes = self.decision.classes.max(1);
        let [label_width, width] = [Some(classes as u64 - 1), self.counts.iter().max().copied()]
            .map(|most| most.unwrap_or(0).to_string().len());
        write!(f, "confusion, labels down and predictions across:")?;
        for (label, row) in self.counts.chunks_exact(classes).enumerate() {
            write!(f, "\n{label:>label_width$} |")?;
            row.iter().try_for_each(|count| write!(f, " {count:>width$}"))?;
        }
        Ok(())
    }

    fn reset(&mut self) {
        self.counts.fill(0);
    }

    fn bytes(&self) -> usize {
        size_of_val(self) + size_of_val(&*self.counts)
    }
}
