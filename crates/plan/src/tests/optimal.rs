//! Orders and placements against optimal ones, found by exhaustive search.

use super::{Choices, random_graph};
use crate::lower::StateTier;
use crate::lower::{TaskGraph, TaskId};
use crate::placement::{LiveRange, lower_bound, place};
use crate::schedule::Liveness;
use crate::schedule::order::order;
use crate::{NullTarget, Tiers};
use std::ops::RangeInclusive;

/// The peak of an order.
fn peak(task_graph: &TaskGraph<'_>, order: &[TaskId]) -> usize {
    let mut liveness = Liveness::new(task_graph);
    let body = order.iter().take_while(|&&t| !task_graph.tasks[t].optimizer_step).count();
    let start = liveness.live;
    let in_body = order[..body].iter().fold(start, |peak, &t| peak.max(liveness.run(t)));
    liveness.end_micro_batches();
    order[body..].iter().fold(in_body, |peak, &t| peak.max(liveness.run(t)))
}

/// The smallest peak of all orders, by dynamic programming over sets of tasks: live bytes after a set do not depend on
/// the order within it.
fn smallest_peak(task_graph: &TaskGraph<'_>) -> usize {
    let count = task_graph.tasks.len();
    let mut needs = vec![0_usize; count];
    let body: usize = (0..count).filter(|&t| !task_graph.tasks[t].optimizer_step).map(|t| 1 << t).sum();
    (0..count).filter(|&t| task_graph.tasks[t].optimizer_step).for_each(|t| needs[t] = body);
    for (id, task) in task_graph.tasks.iter().enumerate() {
        task.after.iter().for_each(|&t| needs[t] |= 1 << id);
    }
    // By set of tasks done: the lowest peak of all orders of the set, and one such order.
    let mut best: Vec<Option<(usize, Vec<TaskId>)>> = vec![None; 1 << count];
    best[0] = Some((0, Vec::new()));
    for done in 0..best.len() {
        let Some((peak, order)) = best[done].take() else { continue };
        if done + 1 == best.len() {
            return peak;
        }
        for task in (0..count).filter(|&t| done & (1 << t) == 0 && needs[t] & !done == 0) {
            let mut longer = order.clone();
            longer.push(task);
            let peak = peak.max(live_bytes_at_end(task_graph, &longer));
            let known = &mut best[done | 1 << task];
            if known.as_ref().is_none_or(|(known, _)| peak < *known) {
                *known = Some((peak, longer));
            }
        }
    }
    0
}

/// Live bytes while the last task of an order runs.
fn live_bytes_at_end(task_graph: &TaskGraph<'_>, order: &[TaskId]) -> usize {
    let mut liveness = Liveness::new(task_graph);
    let (last, before) = order.split_last().unwrap();
    for &task in before {
        liveness.run(task);
    }
    liveness.run(*last)
}

/// Tries every order that respects dependencies, and measures it whole.
fn try_all(task_graph: &TaskGraph<'_>, order: &mut Vec<TaskId>, best: &mut usize) {
    if order.len() == task_graph.tasks.len() {
        *best = peak(task_graph, order).min(*best);
        return;
    }
    let left: Vec<TaskId> = (0..task_graph.tasks.len()).filter(|t| !order.contains(t)).collect();
    let body_left = left.iter().any(|&t| !task_graph.tasks[t].optimizer_step);
    for &task in &left {
        let waits = left.iter().any(|&t| task_graph.tasks[t].after.contains(&task));
        if !(waits || body_left && task_graph.tasks[task].optimizer_step) {
            order.push(task);
            try_all(task_graph, order, best);
            order.pop();
        }
    }
}

/// (peak found, smallest peak) of random graphs with so many tasks.
fn compare(
    tasks: RangeInclusive<usize>,
    seeds: u64,
    micro_batches: usize,
    smallest: impl Fn(&TaskGraph<'_>) -> usize,
) -> Vec<(usize, usize)> {
    let mut pairs = Vec::new();
    for seed in 0..seeds {
        let graph = random_graph(seed, 4 * tasks.end(), micro_batches);
        let offloaded = vec![StateTier::Arena; graph.states.len()];
        let task_graph =
            TaskGraph::new("test", &graph, &NullTarget::default(), &offloaded, &Tiers::default()).unwrap();
        if tasks.contains(&task_graph.tasks.len()) {
            let pair = (peak(&task_graph, &order(&task_graph)), smallest(&task_graph));
            assert!(pair.0 >= pair.1, "seed {seed}: lower than the optimum");
            pairs.push(pair);
        }
    }
    pairs
}

#[test]
fn orders_of_up_to_nine_tasks_are_optimal() {
    let all = |task_graph: &TaskGraph<'_>| {
        let mut best = usize::MAX;
        try_all(task_graph, &mut Vec::new(), &mut best);
        best
    };
    for micro_batches in [1, 2] {
        let pairs = compare(3..=9, 600, micro_batches, all);
        assert!(pairs.len() > 100, "{}", pairs.len());
        let worse = pairs.iter().filter(|(found, best)| found > best).count();
        assert_eq!(worse, 0, "of {}", pairs.len());
    }
}

#[test]
fn orders_of_up_to_fourteen_tasks_are_nearly_optimal() {
    let pairs = compare(10..=14, 2_500, 1, smallest_peak);
    assert!(pairs.len() > 200, "{}", pairs.len());
    let exact = pairs.iter().filter(|(found, best)| found == best).count();
    let worst = pairs.iter().map(|&(found, best)| found as f64 / best as f64).fold(1.0, f64::max);
    assert!(exact * 100 >= pairs.len() * 95, "{exact} of {} exact, worst {worst}", pairs.len());
    assert!(worst <= 1.12, "{exact} of {} exact, worst {worst}", pairs.len());
}

/// The lowest placement: lowest fit produces it for some order of the live ranges.
fn lowest(live_ranges: &[LiveRange], placed: &mut Vec<(usize, usize)>, best: &mut usize) {
    if placed.len() == live_ranges.len() {
        let height = placed.iter().map(|&(id, offset)| offset + live_ranges[id].size).max().unwrap_or(0);
        *best = height.min(*best);
        return;
    }
    for id in (0..live_ranges.len()).filter(|id| !placed.iter().any(|p| p.0 == *id)).collect::<Vec<_>>() {
        let overlaps =
            |other: &LiveRange| other.first <= live_ranges[id].last && live_ranges[id].first <= other.last;
        let mut taken: Vec<(usize, usize)> =
            placed.iter().filter(|p| overlaps(&live_ranges[p.0])).map(|p| (p.1, p.0)).collect();
        taken.sort_unstable();
        let mut offset = 0;
        for (start, other) in taken {
            if start >= offset + live_ranges[id].size {
                break;
            }
            offset = offset.max(start + live_ranges[other].size);
        }
        placed.push((id, offset));
        lowest(live_ranges, placed, best);
        placed.pop();
    }
}

#[test]
fn placements_of_small_sets_are_optimal() {
    let (mut exact, mut worst, sets) = (0, 1.0_f64, 400);
    for seed in 0..sets {
        let mut c = Choices::new(seed);
        let live_ranges: Vec<LiveRange> = (0..7)
            .map(|_| {
                let first = c.below(8);
                LiveRange { size: 64 * (1 + c.below(9)), first, last: first + c.below(5) }
            })
            .collect();
        let mut best = usize::MAX;
        lowest(&live_ranges, &mut Vec::new(), &mut best);
        let offsets = place(&live_ranges, 0, usize::MAX).unwrap();
        let found = live_ranges.iter().zip(&offsets).map(|(b, o)| b.size + o).max().unwrap();
        assert!(found >= best && best >= lower_bound(&live_ranges).0);
        exact += usize::from(found == best);
        worst = worst.max(found as f64 / best as f64);
    }
    assert_eq!(exact, sets as usize, "worst {worst}");
}

#[test]
fn five_thousand_buffers_are_placed_within_three_percent_of_their_live_peak() {
    let mut c = Choices::new(3);
    // Shaped like a training step: forward allocates, backward frees, with short-lived values in between.
    let steps = 5_000;
    let live_ranges: Vec<LiveRange> = (0..steps)
        .map(|i| {
            let kept = i < steps / 2 && c.below(3) == 0;
            let last = if kept { steps - 1 - i } else { (i + c.below(6)).min(steps - 1) };
            LiveRange { size: 64 * (1 + c.below(4_000)), first: i, last }
        })
        .collect();
    let height = live_ranges
        .iter()
        .zip(place(&live_ranges, 0, usize::MAX).unwrap())
        .map(|(b, o)| b.size + o)
        .max()
        .unwrap();
    let (bound, _) = lower_bound(&live_ranges);
    assert!(height * 100 <= bound * 103, "{height} over {bound}");
}
