//! Errors of rows and metrics.

use super::spec::NAMES;
use std::fmt;
use thiserror::Error;

/// Why rows cannot be counted or a metric cannot be created.
#[derive(Clone, PartialEq, Error)]
pub enum MetricError {
    /// Slices whose lengths do not match.
    #[error("{what}: {found} elements were given, {wanted} were expected")]
    Length {
        /// What has the wrong length.
        what: &'static str,
        /// Its length.
        found: usize,
        /// The length that matches the outputs.
        wanted: usize,
    },
    /// Outputs or targets of a kind that the metric does not take.
    #[error("`{metric}` needs {needs}")]
    Needs {
        /// The metric.
        metric: &'static str,
        /// What it takes.
        needs: &'static str,
    },
    /// Another number of scores per row than there are classes.
    #[error("`{metric}` over {classes} classes cannot be computed from rows of {width} scores")]
    Width {
        /// The metric.
        metric: &'static str,
        /// Its classes.
        classes: usize,
        /// Scores per row.
        width: usize,
    },
    /// A class out of range.
    #[error(
        "{what} {value} of row {row} is not in 0..{classes}: give rows that shall not count the weight 0"
    )]
    Class {
        /// `label`, or `predicted class`.
        what: &'static str,
        /// The class.
        value: i32,
        /// The row of the batch.
        row: usize,
        /// The number of classes.
        classes: usize,
    },
    /// A number that cannot be counted.
    #[error("{what} of row {row} is {value}: {wanted}")]
    Value {
        /// What the number is.
        what: &'static str,
        /// The row of the batch.
        row: usize,
        /// The number.
        value: f32,
        /// What it may be.
        wanted: &'static str,
    },
    /// A name that no metric has.
    #[error("unknown metric `{name}`: the metrics are {}", NAMES.join(", "))]
    Name {
        /// The name.
        name: String,
    },
    /// An invalid setting of a metric.
    #[error("`{metric}`: {reason}")]
    Setting {
        /// The metric.
        metric: &'static str,
        /// What to change.
        reason: String,
    },
    /// Not enough memory.
    #[error("`{metric}` over so many classes takes more memory than the system has")]
    Memory {
        /// The metric.
        metric: &'static str,
    },
}

/// As the message: that is what a program shows whose `main` returns the error.
impl fmt::Debug for MetricError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
