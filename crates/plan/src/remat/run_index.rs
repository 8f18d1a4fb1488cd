//! The positions of each call's runs in a run list.

use super::table::Table;

/// Positions of the runs of each call, in order.
#[derive(Debug, Default)]
pub(super) struct RunIndex {
    starts: Vec<u32>,
    positions: Vec<u32>,
}

impl Clone for RunIndex {
    fn clone(&self) -> Self {
        Self { starts: self.starts.clone(), positions: self.positions.clone() }
    }

    fn clone_from(&mut self, other: &Self) {
        self.starts.clone_from(&other.starts);
        self.positions.clone_from(&other.positions);
    }
}

impl RunIndex {
    pub fn new(table: &Table, runs: &[u32]) -> Self {
        let mut starts = vec![0_u32; table.calls + 1];
        runs.iter().for_each(|&c| starts[c as usize + 1] += 1);
        for call in 0..table.calls {
            starts[call + 1] += starts[call];
        }
        let mut next = starts.clone();
        let mut positions = vec![0; runs.len()];
        for (position, &call) in runs.iter().enumerate() {
            positions[next[call as usize] as usize] = position as u32;
            next[call as usize] += 1;
        }
        Self { starts, positions }
    }

    /// Positions of the runs of a call.
    pub fn of(&self, call: u32) -> &[u32] {
        &self.positions[self.starts[call as usize] as usize..self.starts[call as usize + 1] as usize]
    }

    /// Follows the insertion of a run at a position.
    pub fn insert(&mut self, call: u32, position: usize) {
        let position = position as u32;
        self.positions.iter_mut().for_each(|p| *p += u32::from(*p >= position));
        let at = self.of(call).partition_point(|&p| p < position) + self.starts[call as usize] as usize;
        self.positions.insert(at, position);
        self.starts[call as usize + 1..].iter_mut().for_each(|s| *s += 1);
    }

    /// Follows the removal of a run at a position.
    pub fn remove(&mut self, call: u32, position: usize) {
        let position = position as u32;
        let at = self.of(call).partition_point(|&p| p < position) + self.starts[call as usize] as usize;
        self.positions.remove(at);
        self.starts[call as usize + 1..].iter_mut().for_each(|s| *s -= 1);
        self.positions.iter_mut().for_each(|p| *p -= u32::from(*p > position));
    }

    /// The first run of a call at or after a position, or `usize::MAX`.
    pub fn first_from(&self, call: u32, position: usize) -> usize {
        let runs = self.of(call);
        runs.iter().map(|&p| p as usize).find(|&p| p >= position).unwrap_or(usize::MAX)
    }

    /// The last run of a call before a position.
    pub fn last_before(&self, call: u32, position: usize) -> Option<usize> {
        self.of(call).iter().rev().map(|&p| p as usize).find(|&p| p < position)
    }

    /// The first run at or after a position that reads a tensor, or `usize::MAX`.
    pub fn next_read(&self, table: &Table, tensor: u32, position: usize) -> usize {
        let readers = table.readers.row(tensor as usize).iter();
        readers.map(|&r| self.first_from(r, position)).min().unwrap_or(usize::MAX)
    }

    /// Whether a tensor produced earlier is live before a position: it is read from there on before it is produced
    /// again.
    pub fn is_live_before(&self, table: &Table, tensor: u32, position: usize) -> bool {
        let read = self.next_read(table, tensor, position);
        let produced = self.first_from(table.producer[tensor as usize], position);
        if read == usize::MAX {
            table.kept[tensor as usize] && produced == usize::MAX
        } else {
            read <= produced
        }
    }
}
