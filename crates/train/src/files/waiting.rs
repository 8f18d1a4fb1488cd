//! Records of steps that wait to be written together.
//!
//! A step's kernels drive the code that formats and writes, and its memory, out of the processor's caches. So many records are written in the
//! time that a few would take one by one (`docs/watching.md` has what a step of LeNet takes longer).

use std::time::{Duration, Instant};

/// The longest that a record waits for the next ones.
const WRITE_EVERY: Duration = Duration::from_millis(250);

/// Records that are not written yet, in their order.
pub(super) struct Waiting<R> {
    records: Vec<R>,
    most: usize,
    /// When they were last taken.
    taken: Instant,
}

impl<R> Waiting<R> {
    /// Memory for so many.
    pub fn new(most: usize) -> Self {
        Self { records: Vec::with_capacity(most), most, taken: Instant::now() }
    }

    /// Adds a record; there must be room.
    pub fn push(&mut self, record: R) {
        self.records.push(record);
    }

    /// Whether they are to be written now, after a step that took this long: because there is no room for so many more, or because the next
    /// step, if it is as long, ends too late.
    pub fn is_due(&self, step: Duration, more: usize) -> bool {
        self.records.len() + more > self.most || self.taken.elapsed() + step >= WRITE_EVERY
    }

    /// Calls a function with each of them, up to its first error, and forgets them all.
    pub fn take<E>(&mut self, write: impl FnMut(R) -> Result<(), E>) -> Result<(), E> {
        self.taken = Instant::now();
        self.records.drain(..).try_for_each(write)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_wait_for_each_other_but_not_for_long() {
        let mut waiting = Waiting::new(4);
        let short = Duration::from_millis(1);
        waiting.push(1);
        assert!(!waiting.is_due(short, 1));
        assert!(waiting.is_due(WRITE_EVERY, 1), "the next step ends too late");
        waiting.push(2);
        assert!(!waiting.is_due(short, 2) && waiting.is_due(short, 3), "there is room for two more");
        std::thread::sleep(WRITE_EVERY);
        assert!(waiting.is_due(Duration::ZERO, 0), "they waited long enough");
        let mut taken = Vec::new();
        let written = waiting.take(|record| {
            taken.push(record);
            Ok::<(), ()>(())
        });
        assert_eq!((written, taken), (Ok(()), vec![1, 2]));
        assert!(!waiting.is_due(short, 4));
    }
}
