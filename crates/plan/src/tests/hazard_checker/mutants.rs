//! Plans and waits with one thing wrong.

use super::{Oracle, check, is_transfer, offloaded, queues, sequence, waits_of};
use crate::{Action, BufferId, ExecutionPlan, PlanSet, Waits, verify};
use std::collections::BTreeMap;
use std::ops::Range;

/// Mutants of one kind.
#[derive(Default)]
struct Count {
    all: usize,
    /// Those with a race.
    races: usize,
    /// Those that are refused for a race or by `verify`.
    refused: usize,
}

/// How many mutants of each kind there are.
type Counts = BTreeMap<&'static str, Count>;

/// Checks one mutant: the checker must see a race exactly if there is one.
fn judge(counts: &mut Counts, kind: &'static str, set: &PlanSet, waits: &[Waits], races: bool) {
    let found = check(set, waits, queues);
    assert_eq!(found.is_err(), races, "{kind}: {found:?}\n{waits:?}\n{:#?}", set.plans[0].steps);
    let count = counts.entry(kind).or_default();
    count.all += 1;
    count.races += usize::from(races);
    count.refused += usize::from(races || verify(set).is_err());
}

#[test]
fn every_wait_that_is_dropped_or_moved_is_missed_where_it_is_needed() {
    let mut counts = Counts::new();
    for set in offloaded(0..60) {
        let oracle = Oracle::new(&set, sequence(&set), queues);
        let whole = waits_of(&set);
        let mut try_one = |kind, plan: usize, mutate: &dyn Fn(&mut Waits)| {
            let mut waits = whole.clone();
            mutate(&mut waits[plan]);
            judge(&mut counts, kind, &set, &waits, oracle.races(&waits));
        };
        for (plan, waits) in whole.iter().enumerate() {
            for i in 0..waits.entry.len() {
                try_one("entry wait dropped", plan, &|w| {
                    w.entry.remove(i);
                });
            }
            let waiting: Vec<usize> =
                (0..waits.steps.len()).filter(|&s| !waits.steps[s].is_empty()).collect();
            for &step in &waiting {
                for i in 0..waits.steps[step].len() {
                    try_one("wait dropped", plan, &|w| {
                        w.steps[step].remove(i);
                    });
                    if step + 1 < waits.steps.len() {
                        try_one("wait moved one step later", plan, &|w| {
                            let moved = w.steps[step].remove(i);
                            w.steps[step + 1].push(moved);
                        });
                    }
                }
            }
            for pair in waiting.windows(2) {
                try_one("waits swapped", plan, &|w| w.steps.swap(pair[0], pair[1]));
            }
        }
    }
    for (kind, Count { all, races, .. }) in &counts {
        println!("{kind}: {all}, of which {races} are a race, all found");
        assert!(*races > 20, "{kind}: {races} of {all}");
    }
    assert_eq!(counts.len(), 4);
}

/// A plan with the step at `from` moved to before the step at `to`, and its waits with the same transfers.
fn moved(plan: &ExecutionPlan, waits: &Waits, from: usize, to: usize) -> (ExecutionPlan, Waits) {
    let (mut plan, mut waits) = (plan.clone(), waits.clone());
    let renumber = |step: usize| match step {
        _ if step == from => to,
        _ if (to..from).contains(&step) => step + 1,
        _ => step,
    };
    plan.steps[to..=from].rotate_right(1);
    waits.steps[to..=from].rotate_right(1);
    let lists = waits.steps.iter_mut().chain([&mut waits.entry]);
    lists.flatten().for_each(|step| *step = renumber(*step as usize) as u32);
    for buffer in &mut plan.buffers {
        let ends = [renumber(buffer.first), renumber(buffer.last)];
        // A state, an input and what lives to the end stay so.
        let keep_first = buffer.first == 0;
        let keep_last = buffer.last + 1 == plan.steps.len();
        buffer.first = if keep_first { 0 } else { ends[0].min(ends[1]) };
        buffer.last = if keep_last { buffer.last } else { ends[0].max(ends[1]) };
    }
    (plan, waits)
}

fn bytes(plan: &ExecutionPlan, id: BufferId) -> Range<usize> {
    let buffer = &plan.buffers[id.index()];
    buffer.offset..buffer.offset + buffer.bytes
}

/// The last step before `end` that touches some of these bytes; the last that writes them, if `only_writes`.
fn last_touch(plan: &ExecutionPlan, end: usize, ranges: &[Range<usize>], only_writes: bool) -> Option<usize> {
    let meets = |id: &BufferId| {
        let other = bytes(plan, *id);
        ranges.iter().any(|range| range.start.max(other.start) < range.end.min(other.end))
    };
    (0..end).rev().find(|&step| match &plan.steps[step].action {
        Action::Run { reads, writes, workspace, .. } => {
            writes.iter().chain(workspace).any(meets) || (!only_writes && reads.iter().any(meets))
        }
        Action::ChunkedUpdate { writes, workspace, .. } => {
            writes.iter().flatten().chain([workspace]).any(meets)
        }
        Action::Copy { from, to, .. } => meets(to) || (!only_writes && meets(from)),
        Action::Load { to, .. } => meets(to),
        Action::Store { from, .. } => !only_writes && meets(from),
    })
}

#[test]
fn transfers_and_updates_that_start_too_early_are_refused() {
    let mut counts = Counts::new();
    for set in offloaded(0..200) {
        let whole = waits_of(&set);
        for (index, plan) in set.plans.iter().enumerate() {
            let mut try_one = |kind, from: usize, to: Option<usize>| {
                let Some(to) = to else { return };
                let (mut set, mut waits) = (set.clone(), whole.clone());
                (set.plans[index], waits[index]) = moved(plan, &whole[index], from, to);
                let races = Oracle::new(&set, sequence(&set), queues).races(&waits);
                judge(&mut counts, kind, &set, &waits, races);
            };
            for (at, step) in plan.steps.iter().enumerate() {
                match &step.action {
                    Action::Load { to, .. } => {
                        let touch = last_touch(plan, at, &[bytes(plan, *to)], false);
                        try_one("load before the last step that uses its bytes", at, touch);
                    }
                    Action::Store { from, .. } => {
                        let write = last_touch(plan, at, &[bytes(plan, *from)], true);
                        try_one("store before the step that writes its bytes", at, write);
                    }
                    Action::ChunkedUpdate { reads, .. } => {
                        let read: Vec<_> = reads.iter().flatten().map(|&id| bytes(plan, id)).collect();
                        try_one("chunked update before its operand", at, last_touch(plan, at, &read, true));
                    }
                    Action::Run { .. } | Action::Copy { .. } => {}
                }
            }
            let transfers: Vec<usize> =
                (0..plan.steps.len()).filter(|&s| is_transfer(&plan.steps[s].action)).collect();
            for pair in transfers.windows(2) {
                try_one("transfer before the transfer before it", pair[1], Some(pair[0]));
            }
        }
    }
    for (kind, Count { all, races, refused }) in &counts {
        println!("{kind}: {all}, of which {races} are a race, all found; {refused} are refused");
        // What cannot be right is refused; two transfers may be independent.
        assert!(*refused == *all || *kind == "transfer before the transfer before it", "{kind}");
        assert!(*refused > 20, "{kind}: {refused} of {all}");
    }
    assert!(counts["load before the last step that uses its bytes"].races > 500);
    assert_eq!(counts.len(), 4);
}
