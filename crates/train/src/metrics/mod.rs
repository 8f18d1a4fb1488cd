//! Metrics over any number of rows, in memory that is fixed when they are created.
//!
//! A [`Metric`] is updated with batches of [`Rows`] and reports its figures at any time. It allocates only when it is
//! created: [`Metric::bytes`] is its memory, and [`MetricSpec::bytes`] states it beforehand.
//!
//! ```
//! use plimsoll_train::metrics::{self, Outputs, Rows, Targets};
//!
//! let mut accuracy = metrics::from_name("accuracy", 3)?;
//! let scores = [0.1, 2.0, 0.3, 1.5, 0.2, 0.9]; // two rows, three classes
//! let rows = Rows::new(Outputs::Scores { values: &scores, width: 3 }, Targets::Classes(&[1, 2]), &[])?;
//! accuracy.update(&rows)?;
//! assert_eq!(metrics::figures(accuracy.as_ref()), [("accuracy".to_string(), 0.5)]);
//! # Ok::<(), metrics::MetricError>(())
//! ```
//!
//! # What counts
//!
//! - Weights are scikit-learn's `sample_weight`: a row of weight 2 counts as two equal rows. A row of weight zero is
//!   ignored: its label may be out of range and its scores NaN. [`Confusion`] counts rows of weight above zero, not their
//!   weights.
//! - A batch is counted whole or, if [`Metric::update`] fails, not at all.
//! - A figure over no rows is NaN.
//!
//! # How exact
//!
//! Rows are counted one by one in order, so the same rows in the same order give the same bits, however they are split
//! into batches. In another order, sums of weights are exact where the weights are whole numbers (below 2⁵³ in all);
//! any other sum of n terms is within n · 2⁻⁵³ of the sum of the terms' magnitudes. [`Auc`] adds an error of its own,
//! and reports it.

mod accuracy;
mod auc;
mod class_scores;
mod confusion;
mod decision;
mod error;
mod loss;
mod regression;
mod rows;
mod spec;

pub use accuracy::{Accuracy, TopK};
pub use auc::Auc;
pub use class_scores::{Average, ClassScores, Measure};
pub use confusion::Confusion;
pub use decision::Decision;
pub use error::MetricError;
pub use loss::{Loss, LossFigure};
pub use regression::{Distance, Regression};
pub use rows::{Outputs, Rows, Targets};
pub use spec::{MetricSpec, NAMES};

use std::fmt;

/// One or more figures over all rows seen.
pub trait Metric: Send {
    /// The metric's name, the prefix of its figures' names.
    fn name(&self) -> &str;

    /// Counts a batch; allocates nothing. A batch that is refused changes nothing.
    fn update(&mut self, rows: &Rows<'_>) -> Result<(), MetricError>;

    /// Reports each figure with its name, like `precision/macro`. Names are passed unformatted, so that reporting allocates
    /// nothing.
    fn figures(&self, report: &mut dyn FnMut(fmt::Arguments<'_>, f64));

    /// Writes what [`fmt::Display`] shows: a list of its figures, if nothing else is more readable.
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut written, mut between) = (Ok(()), "");
        self.figures(&mut |name, value| {
            written = written.and_then(|()| write!(f, "{between}{name} {value:.4}"));
            between = ", ";
        });
        written
    }

    /// Forgets all rows.
    fn reset(&mut self);

    /// Bytes that the metric takes, itself included. They never change.
    fn bytes(&self) -> usize;
}

/// Its figures: `precision/macro 0.9312, precision/0 0.9518`.
///
/// ```
/// use plimsoll_train::metrics::{Metric, MetricSpec, Outputs, Rows, Targets};
///
/// let mut score: Box<dyn Metric> = "accuracy".parse::<MetricSpec>()?.make(2)?;
/// score.update(&Rows::new(Outputs::Scores { values: &[0.1, 0.7, 0.8, 0.2], width: 2 }, Targets::Classes(&[1, 1]), &[])?)?;
/// assert_eq!(score.to_string(), "accuracy 0.5000");
/// # Ok::<(), plimsoll_train::metrics::MetricError>(())
/// ```
impl fmt::Display for dyn Metric + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.show(f)
    }
}

/// A metric of more figures than this is left out of [`crate::TrainEvent::Validation`]; read it in
/// [`crate::Session::metrics`].
pub const MAX_REPORTED: usize = 1024;

/// How many figures a metric has.
pub fn count(metric: &dyn Metric) -> usize {
    let mut figures = 0;
    metric.figures(&mut |_, _| figures += 1);
    figures
}

/// The figures that validations report.
pub(crate) fn reported_figures(metrics: &[Box<dyn Metric>]) -> Vec<(String, f64)> {
    let small = metrics.iter().filter(|metric| count(metric.as_ref()) <= MAX_REPORTED);
    small.flat_map(|metric| figures(metric.as_ref())).collect()
}

/// A metric's figures as a list.
pub fn figures(metric: &dyn Metric) -> Vec<(String, f64)> {
    let mut list = Vec::new();
    metric.figures(&mut |name, value| list.push((name.to_string(), value)));
    list
}

/// The metric of a name, like `top5`. `classes` is the number of classes, which metrics of values ignore. [`NAMES`] lists
/// the names.
///
/// ```
/// use plimsoll_train::metrics;
///
/// assert_eq!(metrics::from_name("top5", 1000)?.name(), "top5");
/// let error = metrics::from_name("acuracy", 10).err().unwrap().to_string();
/// assert!(error.starts_with("unknown metric `acuracy`: the metrics are accuracy[:THRESHOLD], topK, "));
/// # Ok::<(), metrics::MetricError>(())
/// ```
pub fn from_name(name: &str, classes: usize) -> Result<Box<dyn Metric>, MetricError> {
    name.parse::<MetricSpec>()?.make(classes)
}

/// `part / whole`; NaN if the whole is zero.
fn ratio(part: f64, whole: f64) -> f64 {
    if whole == 0.0 { f64::NAN } else { part / whole }
}

/// A weighted mean over rows.
#[derive(Clone, Copy, Debug, Default)]
struct WeightedMean {
    sum: f64,
    weight: f64,
}

impl WeightedMean {
    fn add(&mut self, value: f64, weight: f64) {
        self.sum += value * weight;
        self.weight += weight;
    }

    fn value(&self) -> f64 {
        ratio(self.sum, self.weight)
    }
}

/// A table of zeros, or an error if it cannot be allocated.
fn zeros<T: Clone + Default>(metric: &'static str, elements: Option<usize>) -> Result<Box<[T]>, MetricError> {
    let mut table = Vec::new();
    let elements = elements.filter(|&elements| table.try_reserve_exact(elements).is_ok());
    table.resize(elements.ok_or(MetricError::Memory { metric })?, T::default());
    Ok(table.into_boxed_slice())
}
