//! How high a list of runs stands, to the byte, in one pass from its end.

use super::table::Table;

/// What a list of runs costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Level {
    /// The largest sum of resident bytes at any moment.
    pub peak: u64,
    /// The run at which it is first reached.
    pub at: usize,
    /// The time of all runs.
    pub nanoseconds: u64,
}

/// Measures lists of runs of one problem.
pub(super) struct PeakSimulator<'a> {
    table: &'a Table,
    /// Tensors needed later, in the pass under way: those marked with its number.
    needed: Vec<u32>,
    pass: u32,
    /// Resident bytes while each run of the last list runs.
    pub heights: Vec<u64>,
}

impl<'a> PeakSimulator<'a> {
    pub fn new(table: &'a Table) -> Self {
        Self { table, needed: vec![0; table.tensors], pass: 0, heights: Vec::new() }
    }

    /// Measures a list. A tensor stays from its latest making to its last reading before the next one.
    pub fn measure(&mut self, runs: &[u32]) -> Level {
        self.heights.clear();
        self.heights.resize(runs.len(), 0);
        let mut level = Level { peak: 0, at: 0, nanoseconds: 0 };
        self.pass_back(runs, 0, |simulator, at, high| {
            simulator.heights[at] = high;
            if high >= level.peak {
                (level.peak, level.at) = (high, at);
            }
            level.nanoseconds += simulator.table.nanoseconds[runs[at] as usize];
        });
        level.peak = level.peak.max(self.table.base);
        level
    }

    /// The tensors that stay resident over a run without being read or written by it.
    pub fn across(&mut self, runs: &[u32], at: usize, into: &mut Vec<u32>) {
        self.pass_back(runs, at + 1, |_, _, _| ());
        let table = self.table;
        let call = runs[at] as usize;
        into.clear();
        let own = |t: &u32| table.inputs.row(call).contains(t) || table.outputs.row(call).contains(t);
        let needed = (0..table.tensors as u32).filter(|&t| self.needed[t as usize] == self.pass);
        into.extend(needed.filter(|t| table.bytes[*t as usize] > 0 && !own(t)));
    }

    /// Goes from the end back to a run; what is needed before it is then marked.
    fn pass_back(&mut self, runs: &[u32], from: usize, mut see: impl FnMut(&mut Self, usize, u64)) {
        let table = self.table;
        self.pass = self.pass.wrapping_add(1);
        if self.pass == 0 {
            self.needed.fill(0);
            self.pass = 1;
        }
        let pass = self.pass;
        let mut live = table.base;
        for &tensor in &table.keep {
            self.needed[tensor as usize] = pass;
            live += table.bytes[tensor as usize];
        }
        for at in (from..runs.len()).rev() {
            let call = runs[at] as usize;
            let mut high = live + table.workspace[call];
            for &tensor in table.outputs.row(call) {
                let bytes = table.bytes[tensor as usize];
                let mark = &mut self.needed[tensor as usize];
                if *mark == pass {
                    *mark = 0;
                    live -= bytes;
                } else {
                    high += bytes;
                }
            }
            let in_place = table.in_place.row(call);
            let mut taken = 0_u64;
            for &tensor in table.inputs.row(call) {
                let mark = &mut self.needed[tensor as usize];
                if *mark != pass {
                    *mark = pass;
                    let bytes = table.bytes[tensor as usize];
                    live += bytes;
                    high += bytes;
                    if in_place.contains(&tensor) && take(table, call, bytes, &mut taken) {
                        high -= bytes;
                    }
                }
            }
            see(self, at, high);
        }
    }
}

/// Takes an output of a call for an input of the same size, if one of its first 64 is left.
pub(super) fn take(table: &Table, call: usize, bytes: u64, taken: &mut u64) -> bool {
    let mut outputs = table.outputs.row(call).iter().take(64).enumerate();
    let free = outputs.find(|(i, t)| *taken & (1 << i) == 0 && table.bytes[**t as usize] == bytes);
    free.is_some_and(|(i, _)| {
        *taken |= 1 << i;
        true
    })
}
