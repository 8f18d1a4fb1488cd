//! Figures over any number of rows, in memory that is fixed when they are made.
//!
//! A [`Metric`] takes batches of [`Rows`] one after the other and tells its figures whenever asked. It allocates when
//! it is made and then never again: [`Metric::bytes`] is its memory, and [`MetricSpec::bytes`] says it beforehand.
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
//! - Weights are scikit-learn's `sample_weight`: a row of weight 2 counts as two equal rows. A row of weight zero does
//!   not count and is not looked at: its label may be out of range and its scores NaN. Only [`Confusion`] counts rows
//!   and not weights: every row of weight above zero is one.
//! - A batch is counted whole or, where [`Metric::update`] fails, not at all.
//! - A figure without rows to tell it from is NaN.
//!
//! # How exact
//!
//! Rows are counted one by one in order, so the same rows in the same order give the same bits, however they are cut
//! into batches. In another order, sums of weights are exact where the weights are whole numbers (below 2⁵³ in all);
//! any other sum of n terms is within n · 2⁻⁵³ of the sum of the terms' magnitudes. [`Auc`] adds an error of its own,
//! and tells it.

mod auc;
mod class_scores;
mod confusion;
mod decision;
mod error;
mod hits;
mod loss;
mod regression;
mod rows;
mod spec;

pub use auc::Auc;
pub use class_scores::{Average, ClassScores, Measure};
pub use confusion::Confusion;
pub use decision::Decision;
pub use error::MetricError;
pub use hits::{Accuracy, TopK};
pub use loss::{Loss, LossFigure};
pub use regression::{Distance, Regression};
pub use rows::{Outputs, Rows, Targets};
pub use spec::{MetricSpec, NAMES};

use std::fmt;

/// A figure, or a few, over all rows seen.
pub trait Metric: Send {
    /// The metric's name, which its figures' names begin with.
    fn name(&self) -> &str;

    /// Counts a batch; allocates nothing. A batch that is refused changes nothing.
    fn update(&mut self, rows: &Rows<'_>) -> Result<(), MetricError>;

    /// Tells each figure with its name, like `precision/macro`. The names come unformatted, so that telling allocates
    /// nothing either.
    fn figures(&self, tell: &mut dyn FnMut(fmt::Arguments<'_>, f64));

    /// Forgets all rows.
    fn reset(&mut self);

    /// Bytes that the metric takes, itself included. They never change.
    fn bytes(&self) -> usize;
}

/// Figures of one metric that validations tell at most: a table of more is read in place ([`crate::Session::metrics`]).
pub const MOST_TOLD: usize = 1024;

/// How many figures a metric has.
pub fn count(metric: &dyn Metric) -> usize {
    let mut figures = 0;
    metric.figures(&mut |_, _| figures += 1);
    figures
}

/// The figures that validations tell.
pub(crate) fn told(metrics: &[Box<dyn Metric>]) -> Vec<(String, f64)> {
    let small = metrics.iter().filter(|metric| count(metric.as_ref()) <= MOST_TOLD);
    small.flat_map(|metric| figures(metric.as_ref())).collect()
}

/// A metric's figures as a list.
pub fn figures(metric: &dyn Metric) -> Vec<(String, f64)> {
    let mut list = Vec::new();
    metric.figures(&mut |name, value| list.push((name.to_string(), value)));
    list
}

/// The metric of a name, like `top5`; `classes` is the number of classes, which metrics of values do not look at. What
/// can be asked for is in [`NAMES`].
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

/// A part of a whole; NaN where the whole is nothing.
fn share(part: f64, whole: f64) -> f64 {
    if whole == 0.0 { f64::NAN } else { part / whole }
}

/// A table of zeros, or an error where the system has no such memory.
fn zeros<T: Clone + Default>(metric: &'static str, elements: Option<usize>) -> Result<Box<[T]>, MetricError> {
    let mut table = Vec::new();
    let elements = elements.filter(|&elements| table.try_reserve_exact(elements).is_ok());
    table.resize(elements.ok_or(MetricError::Memory { metric })?, T::default());
    Ok(table.into_boxed_slice())
}
