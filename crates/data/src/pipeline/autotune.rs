//! Numbers of threads and batches: fixed, or autotuned while the pipeline runs.

/// Worker threads of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workers {
    /// A fixed number; with 0 the thread that asks for a batch reads it.
    Exactly(usize),
    /// One, and another whenever the consumer waits for batches, up to this number.
    UpTo(usize),
}

impl Workers {
    /// The maximum.
    pub fn most(self) -> usize {
        match self {
            Self::Exactly(workers) | Self::UpTo(workers) => workers,
        }
    }
}

impl From<usize> for Workers {
    fn from(workers: usize) -> Self {
        Self::Exactly(workers)
    }
}

/// Batches that workers may have ready or in progress beside the one in use; at least one.
///
/// ```
/// use plimsoll_data::Prefetch;
/// assert_eq!((Prefetch::from(0).least(), Prefetch::from(0).most()), (1, 1));
/// assert_eq!((Prefetch::UpTo(8).least(), Prefetch::UpTo(8).most()), (1, 8));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefetch {
    /// A fixed number.
    Exactly(usize),
    /// One, and another whenever batches come unevenly, up to this number: workers were idle at times, and the consumer
    /// waited all the same. Where they are never idle, more batches would not help, and another worker joins
    /// ([`Workers::UpTo`]).
    UpTo(usize),
}

impl Prefetch {
    /// The number at the start.
    pub fn least(self) -> usize {
        match self {
            Self::Exactly(batches) => batches.max(1),
            Self::UpTo(_) => 1,
        }
    }

    /// The maximum.
    pub fn most(self) -> usize {
        match self {
            Self::Exactly(batches) | Self::UpTo(batches) => batches.max(1),
        }
    }

    /// Limits an autotuned number to what `bytes` hold, apart from the first batch.
    pub(crate) fn within(self, bytes: usize, batch_bytes: usize) -> Self {
        match self {
            Self::Exactly(_) => self,
            Self::UpTo(most) => Self::UpTo(most.max(1).min((bytes / batch_bytes.max(1)).saturating_add(1))),
        }
    }
}

impl From<usize> for Prefetch {
    fn from(batches: usize) -> Self {
        Self::Exactly(batches)
    }
}
