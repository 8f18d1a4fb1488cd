//! A batch's outputs, targets and weights, row by row.

use super::MetricError;
use super::decision::highest;

/// A model's outputs for each row.
#[derive(Clone, Copy, Debug)]
pub enum Outputs<'a> {
    /// Scores or values, `[rows, width]`.
    Scores {
        /// All rows, one after the other.
        values: &'a [f32],
        /// Scores of one row.
        width: usize,
    },
    /// The class that the model predicted for each row.
    Classes(&'a [i32]),
    /// Each row's loss; a batch's mean loss is one row with the batch's weight.
    Losses(&'a [f32]),
}

/// The expected result of each row.
#[derive(Clone, Copy, Debug)]
pub enum Targets<'a> {
    /// A class per row.
    Classes(&'a [i32]),
    /// Values, `[rows, width]` like the scores.
    Values(&'a [f32]),
    /// None: outputs are losses.
    None,
}

/// The class that is expected of each row.
#[derive(Clone, Copy, Debug)]
pub(super) enum Expected<'a> {
    Labels(&'a [i32]),
    Values { values: &'a [f32], width: usize },
}

impl Expected<'_> {
    /// The class of a row that counts.
    pub fn class(self, row: usize) -> usize {
        match self {
            Self::Labels(labels) => labels[row] as usize,
            Self::Values { values, width: 1 } => usize::from(values[row] >= 0.5),
            Self::Values { values, width } => highest(&values[row * width..][..width]),
        }
    }
}

/// A batch's outputs and targets, row by row. Pixels and tokens are rows like others.
///
/// ```
/// use plimsoll_train::metrics::{Outputs, Rows, Targets};
///
/// let scores = Outputs::Scores { values: &[0.5, -0.5, f32::NAN], width: 1 };
/// let labels = Targets::Classes(&[1, 0, -100]);
/// assert!(Rows::new(scores, labels, &[]).is_err());
/// assert!(Rows::new(scores, labels, &[1.0, 1.0, 0.0]).is_ok());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    pub(super) outputs: Outputs<'a>,
    pub(super) targets: Targets<'a>,
    weights: &'a [f32],
    rows: usize,
}

impl<'a> Rows<'a> {
    /// Rows with their weights; an empty slice means ones. Weights must be finite and not negative, lengths must match, and
    /// rows that count must not be NaN. Metrics check infinite scores themselves.
    pub fn new(outputs: Outputs<'a>, targets: Targets<'a>, weights: &'a [f32]) -> Result<Self, MetricError> {
        let check_length = |what, found, wanted| match found == wanted {
            true => Ok(()),
            false => Err(MetricError::Length { what, found, wanted }),
        };
        let (what, values, rows): (_, &[f32], _) = match outputs {
            Outputs::Scores { values, width } => {
                let rows = values.len().checked_div(width).unwrap_or(0);
                check_length("scores", values.len(), rows * width)?;
                ("a score", values, rows)
            }
            Outputs::Classes(classes) => ("", &[], classes.len()),
            Outputs::Losses(losses) => ("a loss", losses, losses.len()),
        };
        match targets {
            Targets::Classes(labels) => check_length("labels", labels.len(), rows)?,
            Targets::Values(targets) => check_length("target values", targets.len(), values.len())?,
            Targets::None => {}
        }
        if !weights.is_empty() {
            check_length("weights", weights.len(), rows)?;
        }
        if let Some(row) = weights.iter().position(|w| !w.is_finite() || *w < 0.0) {
            let wanted = "weights are finite and not negative";
            return Err(MetricError::Value { what: "the weight", row, value: weights[row], wanted });
        }
        let checked = Self { outputs, targets, weights, rows };
        let wanted =
            "the model does not answer with numbers: its weights are damaged, or it diverged in training";
        checked.refuse(what, values, f32::is_nan, wanted)?;
        if let Targets::Values(targets) = targets {
            let wanted = "give rows that shall not count the weight 0";
            checked.refuse("a target", targets, f32::is_nan, wanted)?;
        }
        Ok(checked)
    }

    /// Rows, including those of weight zero.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// The rows that count, in order, with their weights.
    pub(super) fn counted(&self) -> impl Iterator<Item = (usize, f64)> + use<'a> {
        let weights = self.weights;
        let weight = move |row: usize| (row, f64::from(weights.get(row).copied().unwrap_or(1.0)));
        (0..self.rows).map(weight).filter(|&(_, weight)| weight > 0.0)
    }

    /// The class that is expected of each row: its label, or where targets are values like the scores (one-hot labels) the highest of
    /// them. A single value is that of class 1, from a half on.
    pub(super) fn expected(&self, metric: &'static str, classes: usize) -> Result<Expected<'a>, MetricError> {
        match (self.targets, self.outputs) {
            (Targets::Values(values), Outputs::Scores { width, .. })
                if width == classes || (width == 1 && classes == 2) =>
            {
                Ok(Expected::Values { values, width })
            }
            _ => self.labels(metric, classes).map(Expected::Labels),
        }
    }

    /// The labels, which must be in `0..classes` for every row that counts.
    pub(super) fn labels(&self, metric: &'static str, classes: usize) -> Result<&'a [i32], MetricError> {
        let Targets::Classes(labels) = self.targets else {
            return Err(MetricError::Needs { metric, needs: "labels: one class per row, or one-hot" });
        };
        self.check_classes("label", labels, classes)?;
        Ok(labels)
    }

    /// The scores and their width: one per class, or a single one for two classes.
    pub(super) fn scores(
        &self,
        metric: &'static str,
        classes: usize,
    ) -> Result<(&'a [f32], usize), MetricError> {
        let Outputs::Scores { values, width } = self.outputs else {
            return Err(MetricError::Needs { metric, needs: "scores, one per class" });
        };
        if width == classes || (width == 1 && classes == 2) {
            return Ok((values, width));
        }
        Err(MetricError::Width { metric, classes, width })
    }

    /// Refuses rows of logits without a softmax: those whose highest is infinite.
    pub(super) fn check_softmax(&self, values: &[f32], width: usize) -> Result<(), MetricError> {
        for (row, _) in self.counted() {
            let highest = values[row * width..][..width].iter().copied().fold(f32::NEG_INFINITY, f32::max);
            if highest.is_infinite() {
                let (what, wanted) = ("the highest score", "it must be finite, or there is no softmax");
                return Err(MetricError::Value { what, row, value: highest, wanted });
            }
        }
        Ok(())
    }

    /// Refuses classes outside `0..classes` in rows that count.
    pub(super) fn check_classes(
        &self,
        what: &'static str,
        values: &[i32],
        classes: usize,
    ) -> Result<(), MetricError> {
        let is_class = |value| usize::try_from(value).is_ok_and(|class| class < classes);
        match self.counted().find(|&(row, _)| !is_class(values[row])) {
            Some((row, _)) => Err(MetricError::Class { what, value: values[row], row, classes }),
            None => Ok(()),
        }
    }

    /// Refuses `bad` numbers in rows that count.
    pub(super) fn refuse(
        &self,
        what: &'static str,
        values: &[f32],
        bad: impl Fn(f32) -> bool,
        wanted: &'static str,
    ) -> Result<(), MetricError> {
        let width = values.len().checked_div(self.rows).unwrap_or(0);
        for (row, _) in self.counted() {
            if let Some(&value) = values[row * width..][..width].iter().find(|&&value| bad(value)) {
                return Err(MetricError::Value { what, row, value, wanted });
            }
        }
        Ok(())
    }
}
