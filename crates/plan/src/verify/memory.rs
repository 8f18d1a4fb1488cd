//! An arena on paper: which bytes hold what.

use plimsoll_graph::ValueId;
use std::{collections::BTreeMap, fmt, ops::Range};

/// What a range of bytes holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// A value, in the version of a micro-batch; what does not change between micro-batches is always version 0.
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

/// Ranges with known content; they never overlap. Bytes outside them hold nothing that may be read.
#[derive(Default)]
pub(super) struct Memory {
    /// End and content, by start.
    ranges: BTreeMap<usize, (usize, Content)>,
}

impl Memory {
    /// What lies at exactly this range.
    pub fn at(&self, range: &Range<usize>) -> Option<Content> {
        self.ranges.get(&range.start).filter(|(end, _)| *end == range.end).map(|(_, content)| *content)
    }

    /// What lies at a range, in words.
    pub fn words(&self, range: &Range<usize>) -> String {
        match self.ranges.range(..range.end).next_back().filter(|(_, (end, _))| *end > range.start) {
            Some((_, (_, content))) => content.to_string(),
            None => "nothing".to_string(),
        }
    }

    /// Forgets everything that shares a byte with a range: a value missing a part is no value.
    pub fn spoil(&mut self, range: &Range<usize>) {
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
            self.spoil(range);
            self.ranges.insert(range.start, (range.end, content));
        }
    }
}

/// Whether two ranges share a byte.
pub(super) fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end && !a.is_empty() && !b.is_empty()
}
