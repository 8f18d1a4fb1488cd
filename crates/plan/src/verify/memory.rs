//! A simulated arena: which bytes hold which value.

use plimsoll_graph::ValueId;
use std::{collections::BTreeMap, fmt, ops::Range};

/// What a range of bytes holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// A value, in the version of a micro-batch; a value that is the same in all of them is always version 0.
    Value(ValueId, usize),
    /// A state of another graph.
    Foreign(usize),
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value, micro_batch) => write!(f, "{value} of micro-batch {micro_batch}"),
            Self::Foreign(state) => write!(f, "state {state} of another batch type"),
        }
    }
}

/// Ranges with known content; they never overlap. Bytes outside them must not be read.
#[derive(Default)]
pub(super) struct Memory {
    /// End and content, by start.
    ranges: BTreeMap<usize, (usize, Content)>,
}

impl Memory {
    /// What exactly this range holds.
    pub fn at(&self, range: &Range<usize>) -> Option<Content> {
        self.ranges.get(&range.start).filter(|(end, _)| *end == range.end).map(|(_, content)| *content)
    }

    /// What a range holds, for messages.
    pub fn describe(&self, range: &Range<usize>) -> String {
        match self.ranges.range(..range.end).next_back().filter(|(_, (end, _))| *end > range.start) {
            Some((_, (_, content))) => content.to_string(),
            None => "nothing".to_string(),
        }
    }

    /// Invalidates every value that shares a byte with a range.
    pub fn invalidate(&mut self, range: &Range<usize>) {
        if range.is_empty() {
            return;
        }
        while let Some((&start, _)) =
            self.ranges.range(..range.end).next_back().filter(|(_, (end, _))| *end > range.start)
        {
            self.ranges.remove(&start);
        }
    }

    /// Writes a value.
    pub fn write(&mut self, range: &Range<usize>, content: Content) {
        if !range.is_empty() {
            self.invalidate(range);
            self.ranges.insert(range.start, (range.end, content));
        }
    }
}

/// Whether two ranges share a byte.
pub(super) fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end && !a.is_empty() && !b.is_empty()
}
