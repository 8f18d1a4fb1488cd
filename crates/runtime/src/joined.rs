//! Kernels that follow each other and do not depend on each other, as one call: a launch takes a device longer than a small kernel.
//!
//! A joined call runs in the place of its first step. The others come forward to it past kernels alone, none of which touches what
//! they write or writes what they touch. So all hazards with transfers are as the plan has them: a step that waits for one is
//! the first that others may come forward to.

use super::device::Device;
use super::lower::{Command, LoweredStep, Region};
use std::ops::Range;

/// How a step runs where others may run with it.
pub enum Join<C> {
    /// By itself.
    Alone,
    /// With later ones.
    First(Box<JoinedSteps<C>>),
    /// With an earlier one: when its turn comes, it has run.
    Later,
}

impl<C> Join<C> {
    /// What runs in the step's place, if others run with it.
    pub fn joined(&self) -> Option<&JoinedSteps<C>> {
        match self {
            Self::First(joined) => Some(joined),
            Self::Alone | Self::Later => None,
        }
    }
}

/// Several steps as one call.
pub struct JoinedSteps<C> {
    pub call: C,
    pub reads: Vec<Region>,
    pub writes: Vec<Region>,
}

/// Joins what can be joined of steps, each of which is of the micro-batches or of the optimizer step.
pub fn join<D: Device>(
    steps: &mut [LoweredStep<D::Call>],
    optimizer_step: impl Fn(usize) -> bool,
    micro_batches: usize,
    device: &D,
) {
    let mut start = 0;
    while start < steps.len() {
        let allowed = |at: usize, step: &LoweredStep<D::Call>| {
            optimizer_step(start + at) == optimizer_step(start) && kind(step, device).is_some()
        };
        let end = start + independent(&steps[start..], allowed, micro_batches);
        for first in start..end {
            if let Join::Alone = steps[first].join {
                join_with(steps, first, end, device);
            }
        }
        start = end.max(start + 1);
    }
}

/// Joins a step with all of its kind up to `end`.
fn join_with<D: Device>(steps: &mut [LoweredStep<D::Call>], first: usize, end: usize, device: &D) {
    let own = kind(&steps[first], device);
    let members: Vec<usize> =
        (first..end).filter(|&at| own.is_some() && kind(&steps[at], device) == own).collect();
    if members.len() < 2 {
        return;
    }
    let calls = members.iter().filter_map(|&at| match &steps[at].command {
        Command::Kernel(call) => Some((call, [steps[at].reads().len(), steps[at].writes().len()])),
        _ => None,
    });
    let Some(call) = device.join(&calls.collect::<Vec<_>>()) else { return };
    let reads = members.iter().flat_map(|&at| steps[at].reads().iter().copied()).collect();
    let writes = members.iter().flat_map(|&at| steps[at].writes().iter().copied()).collect();
    members.iter().for_each(|&at| steps[at].join = Join::Later);
    steps[first].join = Join::First(Box::new(JoinedSteps { call, reads, writes }));
}

/// What a step's call has in common with those that it may be joined with.
fn kind<'s, D: Device>(step: &'s LoweredStep<D::Call>, device: &D) -> Option<&'s str> {
    match &step.command {
        Command::Kernel(call) if step.workspace.bytes == 0 && !step.rematerialized => device.joins(call),
        _ => None,
    }
}

/// How many steps from the first on are allowed, wait for nothing but the first, and depend on none before them.
fn independent<C>(
    steps: &[LoweredStep<C>],
    allowed: impl Fn(usize, &LoweredStep<C>) -> bool,
    micro_batches: usize,
) -> usize {
    let ranges = |regions: &[Region]| -> Vec<Range<usize>> {
        // In every micro-batch.
        let range = |r: &Region| r.offset..r.offset + r.bytes + r.stride * micro_batches.saturating_sub(1);
        regions.iter().map(range).collect()
    };
    let meet = |a: &[Range<usize>], b: &[Range<usize>]| {
        a.iter().any(|a| b.iter().any(|b| a.start < b.end && b.start < a.end))
    };
    let (mut read, mut written) = (Vec::new(), Vec::new());
    for (at, step) in steps.iter().enumerate() {
        let (reads, writes) = (ranges(step.reads()), ranges(step.writes()));
        let waits = at > 0 && !step.waits.is_empty();
        let depends = meet(&writes, &read) || meet(&writes, &written) || meet(&reads, &written);
        if waits || depends || !allowed(at, step) {
            return at;
        }
        read.extend(reads);
        written.extend(writes);
    }
    steps.len()
}

#[cfg(test)]
mod tests;
