//! Allocation of memory for data. Lengths from untrusted input are checked against a limit before anything is allocated.

use crate::DataError;

/// A limit on bytes, and how many of them are taken.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    taken: u64,
}

impl Budget {
    pub fn new(max_bytes: usize) -> Self {
        Self { limit: max_bytes as u64, taken: 0 }
    }

    /// Exactly `bytes` zeros; an error before allocation if they exceed the limit.
    pub fn take(&mut self, what: &str, bytes: u64) -> Result<Vec<u8>, DataError> {
        let total = self.taken.saturating_add(bytes);
        if total > self.limit {
            return Err(DataError::TooLarge { what: what.into(), bytes: total, limit: self.limit });
        }
        let buffer = zeroed(what, bytes)?;
        self.taken = total;
        Ok(buffer)
    }

    /// Bytes taken so far.
    #[cfg(test)]
    pub fn taken(&self) -> u64 {
        self.taken
    }
}

/// A vector of exactly `bytes` zeros, or an error where the system has not enough memory.
pub(crate) fn zeroed(what: &str, bytes: u64) -> Result<Vec<u8>, DataError> {
    let refused = || DataError::OutOfMemory { what: what.into(), bytes };
    let length = usize::try_from(bytes).map_err(|_| refused())?;
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(length).map_err(|_| refused())?;
    buffer.resize(length, 0);
    Ok(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_over_the_limit_allocates_nothing() {
        let mut budget = Budget::new(100);
        assert_eq!(budget.take("a", 60).unwrap().capacity(), 60);
        let error = budget.take("b", 41).unwrap_err();
        assert!(matches!(error, DataError::TooLarge { bytes: 101, limit: 100, .. }), "{error}");
        assert!(matches!(budget.take("c", u64::MAX), Err(DataError::TooLarge { .. })));
        assert_eq!(budget.taken(), 60);
    }

    #[test]
    fn an_impossible_size_is_an_error() {
        assert!(matches!(zeroed("a", u64::MAX), Err(DataError::OutOfMemory { .. })));
    }
}
