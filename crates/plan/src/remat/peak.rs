//! Liveness of a run list, to the byte, by one backward pass.
//!
//! A tensor is live from the run that produces it to the last run that reads it before it is produced again.

use super::in_place::match_in_place;
use super::table::Table;
use super::{Run, Schedule};

/// Peak and time of a run list.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Measured {
    /// The largest sum of live bytes.
    pub peak: u64,
    /// The time of all runs.
    pub nanoseconds: u64,
    /// Live bytes while each run runs.
    pub live_bytes: Vec<u64>,
}

/// What one run of a list holds and frees.
pub(super) struct RunLiveness<'s> {
    pub position: usize,
    /// Live bytes before it runs.
    pub live_before: u64,
    /// Live bytes while it runs, workspace included.
    pub live_bytes: u64,
    /// Outputs that nothing reads before they are produced again.
    unread: &'s [u32],
    /// Inputs that are dead afterwards.
    dead: &'s [u32],
    /// Pairs (output, dead input) that share their bytes, and those bytes.
    in_place: &'s [(u32, u32)],
    pub reused_bytes: u64,
}

/// Simulates run lists of one problem.
pub(super) struct PeakSimulator<'a> {
    table: &'a Table,
    /// Tensors live before the run last visited: those marked with the number of the current pass.
    live: Vec<u32>,
    pass: u32,
}

impl<'a> PeakSimulator<'a> {
    pub fn new(table: &'a Table) -> Self {
        Self { table, live: vec![0; table.tensors], pass: 0 }
    }

    /// Peak, time and live bytes of a list.
    pub fn measure(&mut self, runs: &[u32]) -> Measured {
        let table = self.table;
        let mut measured =
            Measured { peak: table.pinned_bytes, nanoseconds: 0, live_bytes: vec![0; runs.len()] };
        self.backward(runs, |run| {
            measured.live_bytes[run.position] = run.live_bytes;
            measured.peak = measured.peak.max(run.live_bytes);
            measured.nanoseconds += table.nanoseconds[runs[run.position] as usize];
        });
        measured
    }

    /// A list as a schedule: every tensor is dropped as soon as it is dead, or its bytes are reused in place.
    pub fn schedule(&mut self, runs: &[u32]) -> Schedule {
        let table = self.table;
        let mut schedule =
            Schedule { runs: Vec::with_capacity(runs.len()), peak_bytes: table.pinned_bytes, nanoseconds: 0 };
        self.backward(runs, |run| {
            let call = runs[run.position] as usize;
            let dropped = |input: &&u32| run.in_place.iter().all(|pair| pair.1 != **input);
            let drops = run.unread.iter().chain(run.dead.iter().filter(dropped));
            schedule.runs.push(Run {
                call,
                in_place: run.in_place.iter().map(|&(o, i)| (o as usize, i as usize)).collect(),
                drops: drops.map(|&t| t as usize).collect(),
            });
            schedule.peak_bytes = schedule.peak_bytes.max(run.live_bytes);
            schedule.nanoseconds += table.nanoseconds[call];
        });
        schedule.runs.reverse();
        schedule
    }

    /// Visits the runs from the last back.
    pub fn backward(&mut self, runs: &[u32], mut visit: impl FnMut(&RunLiveness<'_>)) {
        let table = self.table;
        self.pass = self.pass.wrapping_add(1);
        if self.pass == 0 {
            self.live.fill(0);
            self.pass = 1;
        }
        let pass = self.pass;
        let (mut unread, mut dead, mut in_place) = (Vec::new(), Vec::new(), Vec::new());
        // Live bytes between the run visited last and the one to visit next.
        let mut between = table.bytes_at_end();
        table.keep.iter().for_each(|&tensor| self.live[tensor as usize] = pass);
        for position in (0..runs.len()).rev() {
            let call = runs[position] as usize;
            let mut live_bytes = between + table.workspace[call];
            unread.clear();
            for &tensor in table.outputs.row(call) {
                let bytes = table.bytes[tensor as usize];
                let mark = &mut self.live[tensor as usize];
                if *mark == pass {
                    *mark = 0;
                    between -= bytes;
                } else {
                    live_bytes += bytes;
                    unread.push(tensor);
                }
            }
            dead.clear();
            for &tensor in table.inputs.row(call) {
                let mark = &mut self.live[tensor as usize];
                if *mark != pass {
                    *mark = pass;
                    let bytes = table.bytes[tensor as usize];
                    between += bytes;
                    live_bytes += bytes;
                    dead.push(tensor);
                }
            }
            let allowed = table.in_place.row(call);
            let inputs = dead.iter().copied().filter(|input| allowed.contains(input));
            let reused_bytes = match_in_place(table, call, inputs, |_| true, &mut in_place);
            visit(&RunLiveness {
                position,
                live_before: between,
                live_bytes: live_bytes - reused_bytes,
                unread: &unread,
                dead: &dead,
                in_place: &in_place,
                reused_bytes,
            });
        }
    }
}
