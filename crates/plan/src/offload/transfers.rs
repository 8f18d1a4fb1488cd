//! When transfers run beside the kernels: loads start early and stores finish late, as far as memory allows.

use super::{body, live_profile};
use crate::lower::{TaskGraph, TaskId, TaskKind};
use crate::placement::{above_states, live_range};
use crate::schedule::UnplacedPlan;
use crate::{Action, Buffer, BufferKind, Direction, Queue};
use std::ops::Range;

/// Transfers get 5/4 of their predicted time before anything waits for them.
const MARGIN: u64 = 5;

/// The order in which each load starts early enough to be done when it is needed, as far as live bytes above the states
/// stay under a limit. Loads keep their order among each other.
pub(crate) fn hoist_loads(task_graph: &TaskGraph<'_>, order: &[TaskId], limit: usize) -> Vec<TaskId> {
    let mut live = live_profile(task_graph, order);
    let wanted = prefetch_distances(task_graph, order);
    let mut order = order.to_vec();
    let mut first = 0;
    for at in 0..order.len() {
        let task = order[at];
        let TaskKind::Load(what, tier) = task_graph.tasks[task].kind else { continue };
        let bytes = task_graph.tensors[task_graph.tasks[task].writes[0]].size;
        let mut hidden = 0;
        let mut to = at;
        while to > first && hidden < wanted[at] {
            let earlier = &task_graph.tasks[order[to - 1]];
            let stored_there = earlier.kind == TaskKind::Store(what, tier);
            // A load for the optimizer step may move into the micro-batches; a load for every micro-batch may not leave them.
            let leaves_body = earlier.optimizer_step && !task_graph.tasks[task].optimizer_step;
            if live[to - 1] + bytes > limit || leaves_body || stored_there {
                break;
            }
            hidden += earlier.compute_ns();
            to -= 1;
        }
        order[to..=at].rotate_right(1);
        let own = if to > 0 { live[to - 1] } else { 0 };
        live[to..=at].rotate_right(1);
        live[to] = own + bytes;
        live[to + 1..=at].iter_mut().for_each(|l| *l += bytes);
        first = to + 1;
    }
    order
}

/// How much computing should lie between the start of each load and its reader. A queue serves one load after the other, so a
/// load also starts early enough for those behind it.
fn prefetch_distances(task_graph: &TaskGraph<'_>, order: &[TaskId]) -> Vec<u64> {
    let mut wanted = vec![0; order.len()];
    // How long before the current task the next load of each queue has to start.
    let mut starts = [0_u64; Queue::COUNT];
    for (at, &id) in order.iter().enumerate().rev() {
        let task = &task_graph.tasks[id];
        if let TaskKind::Load(_, tier) = task.kind {
            let start = &mut starts[tier.queue(Direction::Load).index()];
            *start = task_graph.latency(id).max(*start) + task.nanoseconds.saturating_mul(MARGIN) / 4;
            wanted[at] = *start;
        } else {
            starts.iter_mut().for_each(|start| *start = start.saturating_sub(task.compute_ns()));
        }
    }
    wanted
}

/// Extends the lifetimes of stored buffers until the store should be done, as far as live bytes stay under a limit.
pub(crate) fn extend_stores(
    task_graph: &TaskGraph<'_>,
    order: &[TaskId],
    unplaced: &mut UnplacedPlan,
    limit: usize,
) {
    let mut live = vec![0_usize; order.len()];
    for buffer in unplaced.buffers.iter().filter(|b| !matches!(b.kind, BufferKind::State(_))) {
        let size = live_range(task_graph, buffer).size;
        live[buffer.first..=buffer.last].iter_mut().for_each(|l| *l += size);
    }
    for (at, step) in unplaced.steps.iter().enumerate() {
        let Action::Store { from, .. } = step.action else { continue };
        let buffer = &mut unplaced.buffers[from.index()];
        let size = live_range(task_graph, buffer).size;
        let transfer_ns = task_graph.tasks[order[at]].nanoseconds.saturating_mul(MARGIN) / 4;
        let wanted = transfer_ns + task_graph.latency(order[at]);
        let mut hidden = 0;
        while buffer.last + 1 < order.len() && hidden < wanted && live[buffer.last + 1] + size <= limit {
            buffer.last += 1;
            live[buffer.last] += size;
            hidden += task_graph.tasks[order[buffer.last]].compute_ns();
        }
    }
}

/// Avoids write-after-read stalls on stores that are still in flight when a micro-batch or the run ends: moves their buffers
/// to offsets that the next one writes late, if there are such below `most`.
pub(crate) fn avoid_store_stalls(
    task_graph: &TaskGraph<'_>,
    order: &[TaskId],
    unplaced: &UnplacedPlan,
    offsets: &mut [usize],
    most: usize,
) {
    let above: Vec<usize> = above_states(unplaced).collect();
    let buffers: Vec<&Buffer> = above.iter().map(|&i| &unplaced.buffers[i]).collect();
    let body = body(&unplaced.steps);
    // The last stores first: they finish last.
    let in_flight = unplaced.steps.iter().enumerate().rev().filter_map(|(at, step)| {
        let Action::Store { from, .. } = step.action else { return None };
        let end = if step.optimizer_step { unplaced.steps.len() } else { body };
        let at_the_end = unplaced.buffers[from.index()].last + 1 >= end;
        Some((at, above.binary_search(&from.index()).ok()?)).filter(|_| at_the_end)
    });
    let in_flight: Vec<(usize, usize)> = in_flight.collect();
    // After this time all of them are done.
    let transfer_ns = |id: TaskId| task_graph.tasks[id].nanoseconds + task_graph.latency(id);
    let done = in_flight.iter().map(|&(at, _)| transfer_ns(order[at])).sum::<u64>();
    let mut now = 0_u64;
    let mut starts = vec![u64::MAX; order.len()];
    for (start, &task) in starts.iter_mut().zip(order) {
        if now >= done {
            break;
        }
        *start = now;
        now += task_graph.tasks[task].compute_ns();
    }
    let early: Vec<usize> = (0..buffers.len()).filter(|&i| starts[buffers[i].first] < done).collect();
    let most = most / task_graph.alignment * task_graph.alignment;
    for (_, moved) in in_flight {
        let own = buffers[moved];
        let size = live_range(task_graph, own).size;
        let range = |i: usize| offsets[i]..offsets[i] + live_range(task_graph, buffers[i]).size;
        // When the bytes from an offset on are written again.
        let written = |offset: usize| {
            let meets = |i: &usize| *i != moved && range(*i).start < offset + size && offset < range(*i).end;
            early.iter().copied().filter(meets).map(|i| starts[buffers[i].first]).min().unwrap_or(done)
        };
        let mut best = (written(offsets[moved]), offsets[moved]);
        let live_beside = |i: &usize| {
            let other = buffers[*i];
            *i != moved && other.first <= own.last && own.first <= other.last
        };
        let mut taken: Vec<Range<usize>> = (0..buffers.len()).filter(live_beside).map(range).collect();
        taken.sort_unstable_by_key(|range| range.start);
        let mut free = 0;
        for Range { start, end } in taken.into_iter().chain(std::iter::once(most..most)) {
            if best.0 >= done {
                break;
            }
            if let Some(highest) = start.checked_sub(size).filter(|&highest| highest >= free) {
                let ends = early.iter().map(|&i| range(i).end).filter(|end| (free..=highest).contains(end));
                let found = ends.chain([free, highest]).map(|offset| (written(offset), offset));
                best = found.fold(best, |best, found| if found.0 > best.0 { found } else { best });
            }
            free = free.max(end);
        }
        offsets[moved] = best.1;
    }
}
