//! What a model said, row by row.

use plimsoll_data::Preparation;
use plimsoll_tensor::{Tensor, TensorType};
use std::fmt;
use std::rc::Rc;

/// The most values of a row that are shown.
const MOST_SHOWN: usize = 8;

/// The outputs of a model for some rows, and what they mean.
pub struct Predictions {
    outputs: Vec<Tensor>,
    rows: usize,
    /// Rows whose outputs are there.
    filled: usize,
    /// Files; empty where rows have only numbers.
    names: Vec<String>,
    /// Classes of the model's labels; `None` for values.
    classes: Option<usize>,
    preparation: Rc<Preparation>,
}

/// A class that a model takes to be likely.
#[derive(Clone, Debug, PartialEq)]
pub struct Likely {
    /// Its number.
    pub class: usize,
    /// Its name, or its number where it has none.
    pub name: String,
    /// How likely it is, from 0 to 1: the softmax of the scores.
    pub probability: f64,
}

/// The likeliest classes of a row of scores with their probabilities, the likeliest first; of equal ones the first. A score that
/// is no number comes before all others, as for the accuracy.
///
/// ```
/// use plimsoll_train::likeliest;
/// let classes: Vec<usize> = likeliest(&[0.0, 2.0, 1.0], 2).iter().map(|(class, _)| *class).collect();
/// assert_eq!(classes, [1, 2]);
/// ```
pub fn likeliest(scores: &[f32], top: usize) -> Vec<(usize, f64)> {
    let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let parts: Vec<f64> = scores.iter().map(|score| f64::from(score - most).exp()).collect();
    let sum: f64 = parts.iter().sum();
    let mut order: Vec<usize> = (0..scores.len()).collect();
    let key = |class: usize| if scores[class].is_nan() { f32::INFINITY } else { scores[class] };
    order.sort_by(|&a, &b| key(b).total_cmp(&key(a)).then(a.cmp(&b)));
    order.truncate(top);
    order.into_iter().map(|class| (class, parts[class] / sum)).collect()
}

impl Predictions {
    pub(super) fn new(
        rows: usize,
        names: Vec<String>,
        classes: Option<usize>,
        preparation: Rc<Preparation>,
    ) -> Self {
        Self { outputs: Vec::new(), rows, filled: 0, names, classes, preparation }
    }

    /// Adds the outputs of a batch, whose rows follow those that are there.
    pub(super) fn add(&mut self, batch: &[Tensor]) {
        let Some(first) = batch.first().and_then(|output| output.ty().shape.first()) else { return };
        if self.outputs.is_empty() {
            let whole = |output: &Tensor| {
                let mut shape = output.ty().shape.to_vec();
                shape[0] = self.rows;
                Tensor::zeros(TensorType::new(output.ty().dtype, shape))
            };
            self.outputs = batch.iter().map(whole).collect();
        }
        for (all, output) in self.outputs.iter_mut().zip(batch) {
            let each = all.as_bytes().len() / self.rows.max(1);
            let start = (self.filled * each).min(all.as_bytes().len());
            let bytes = output.as_bytes().len().min(all.as_bytes().len() - start);
            all.as_bytes_mut()[start..start + bytes].copy_from_slice(&output.as_bytes()[..bytes]);
        }
        self.filled += first;
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// The model's first output, scores or values; axis 0 is the rows.
    pub fn output(&self) -> &Tensor {
        &self.outputs[0]
    }

    /// All outputs of the model.
    pub fn into_outputs(self) -> Vec<Tensor> {
        self.outputs
    }

    /// The first output of a row, in f32; empty past the last row.
    pub fn row(&self, row: usize) -> &[f32] {
        let all = self.output().as_f32().unwrap_or(&[]);
        all.chunks(all.len() / self.rows.max(1)).nth(row).unwrap_or(&[])
    }

    /// What a row is: its file, or its number, counted from zero.
    pub fn name(&self, row: usize) -> String {
        self.names.get(row).cloned().unwrap_or_else(|| row.to_string())
    }

    /// The likeliest classes of a row, the likeliest first; none for models of values, or of more than one label to a row.
    pub fn likeliest(&self, row: usize, top: usize) -> Vec<Likely> {
        let scores = self.row(row);
        if self.classes != Some(scores.len()) {
            return Vec::new();
        }
        let named = |(class, probability)| Likely { class, name: self.preparation.class(class), probability };
        likeliest(scores, top).into_iter().map(named).collect()
    }
}

/// A line for each row: its name, and its likeliest class or its first values.
impl fmt::Display for Predictions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letters = |text: &str| text.chars().count();
        let likeliest = |row: usize| self.likeliest(row, 1).into_iter().next();
        let names = (0..self.rows).map(|row| letters(&self.name(row))).max().unwrap_or(0);
        let classes =
            (0..self.rows).filter_map(|row| Some(letters(&likeliest(row)?.name))).max().unwrap_or(0);
        for row in 0..self.rows {
            let answer = match likeliest(row) {
                Some(likely) => format!("{:<classes$} {:>6.2} %", likely.name, 100.0 * likely.probability),
                None => {
                    let values = self.row(row).iter().take(MOST_SHOWN).map(|value| format!("{value:.4}"));
                    let more = if self.row(row).len() > MOST_SHOWN { ", ..." } else { "" };
                    values.collect::<Vec<_>>().join(", ") + more
                }
            };
            let end = if row + 1 < self.rows { "\n" } else { "" };
            write!(f, "{:<names$}  {answer}{end}", self.name(row))?;
        }
        Ok(())
    }
}
