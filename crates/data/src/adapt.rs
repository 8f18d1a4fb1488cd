//! Threads and batches of a running pipeline: fixed, or found out while it runs.

/// Worker threads of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workers {
    /// So many; none means that whoever asks for a batch reads it.
    Exactly(usize),
    /// One, and one more whenever batches are waited for, up to so many.
    UpTo(usize),
}

impl Workers {
    /// The most there may be.
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

/// Batches that workers may have ready or in the making beside the one in use; at least one.
///
/// ```
/// use plimsoll_data::Prefetch;
/// assert_eq!((Prefetch::from(0).least(), Prefetch::from(0).most()), (1, 1));
/// assert_eq!((Prefetch::UpTo(8).least(), Prefetch::UpTo(8).most()), (1, 8));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefetch {
    /// So many.
    Exactly(usize),
    /// One, and one more whenever batches come unevenly, up to so many: workers had time to rest, and were waited for all
    /// the same. Where they never rest, more batches would not help, and another worker joins ([`Workers::UpTo`]).
    UpTo(usize),
}

impl Prefetch {
    /// Those that there are from the start.
    pub fn least(self) -> usize {
        match self {
            Self::Exactly(batches) => batches.max(1),
            Self::UpTo(_) => 1,
        }
    }

    /// The most there may be.
    pub fn most(self) -> usize {
        match self {
            Self::Exactly(batches) | Self::UpTo(batches) => batches.max(1),
        }
    }

    /// Where the number is found out: no more than so many bytes hold, besides the first.
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
