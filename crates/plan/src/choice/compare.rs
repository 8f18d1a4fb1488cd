//! The one comparator of plans.

/// How good a plan is under a limit. Lower is better: first it has to fit, then it has to be fast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Score {
    /// Bytes above the limit.
    excess_bytes: usize,
    /// Predicted time of a training step.
    nanoseconds: u64,
}

impl Score {
    /// Of a plan with this peak and time.
    pub fn new(peak_bytes: usize, limit_bytes: usize, nanoseconds: u64) -> Self {
        Self { excess_bytes: peak_bytes.saturating_sub(limit_bytes), nanoseconds }
    }

    /// Whether the plan fits.
    pub fn fits(&self) -> bool {
        self.excess_bytes == 0
    }
}

/// The better of two candidates; the first on a tie.
pub(super) fn better<T>(first: T, second: T, score: impl Fn(&T) -> Score) -> T {
    if score(&second) < score(&first) { second } else { first }
}
