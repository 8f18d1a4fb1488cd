//! Which values are offloaded between two of their uses.
//!
//! A value that is stored once it is computed, and loaded again shortly before its next reader, takes memory only around its uses,
//! and time only where the link is slower than the computing between them. An offloaded state that has not changed need not be
//! stored: it is loaded twice.

use crate::lower::{Home, TaskGraph, TaskId, TaskKind, TensorId};
use crate::lower::{ListEntry, unroll};
use crate::schedule::Liveness;
use crate::{Direction, Offloaded, PerTier, TIER_ALIGNMENT, Tier};

/// The longest interval in which a tensor is idle: positions in an order of the uses around it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdleInterval {
    pub tensor: TensorId,
    pub before: usize,
    pub after: usize,
    pub bytes: usize,
    /// The task that loads it, if it can be loaded a second time: an offloaded state that has no new version by then.
    pub load: Option<TaskId>,
}

/// The longest idle interval of every tensor of at least so many bytes that may be offloaded.
pub(crate) fn idle_intervals(
    task_graph: &TaskGraph<'_>,
    order: &[TaskId],
    least_bytes: usize,
) -> Vec<IdleInterval> {
    let mut position = vec![0; task_graph.tasks.len()];
    let mut now = 0_u64;
    // When the task at each position ends.
    let mut ends = Vec::with_capacity(order.len());
    for (at, &task) in order.iter().enumerate() {
        position[task] = at;
        now += task_graph.tasks[task].nanoseconds;
        ends.push(now);
    }
    let mut changed = vec![usize::MAX; task_graph.graph.states.len()];
    for (at, &task) in order.iter().enumerate() {
        if let TaskKind::Store(Offloaded::State(i), _) = task_graph.tasks[task].kind {
            changed[i] = at;
        }
    }
    let loads = |writer: TaskId, until: usize| match task_graph.tasks[writer].kind {
        TaskKind::Load(Offloaded::State(i), _) => until < changed[i],
        _ => false,
    };
    let mut intervals = Vec::new();
    let mut uses = Vec::new();
    for (id, tensor) in task_graph.tensors.iter().enumerate() {
        let Some(writer) = tensor.writer else { continue };
        if tensor.home != Home::Own || tensor.pinned || tensor.bytes < least_bytes {
            continue;
        }
        uses.clear();
        uses.push(position[writer]);
        uses.extend(tensor.readers.iter().map(|&reader| position[reader]));
        uses.sort_unstable();
        let idle = |w: &[usize]| ends[w[1] - 1].saturating_sub(ends[w[0]]);
        let longest = uses.windows(2).filter(|w| w[1] > w[0] + 1).max_by_key(|w| idle(w));
        intervals.extend(longest.map(|w| IdleInterval {
            tensor: id,
            before: w[0],
            after: w[1],
            bytes: tensor.size,
            load: Some(writer).filter(|&writer| loads(writer, w[1])),
        }));
    }
    intervals
}

/// A small set of intervals that brings live bytes above the states under a limit; if none does, all that lower the peak.
pub(crate) fn fewest_to_fit(
    task_graph: &TaskGraph<'_>,
    order: &[TaskId],
    intervals: &[IdleInterval],
    limit: usize,
) -> Vec<IdleInterval> {
    let mut live = live_profile(task_graph, order);
    let mut left: Vec<IdleInterval> = intervals.to_vec();
    let mut chosen = Vec::new();
    let mut over = vec![0_usize; live.len() + 1];
    while let Some(peak_position) = (0..live.len()).max_by_key(|&at| live[at]).filter(|&at| live[at] > limit)
    {
        for at in 0..live.len() {
            over[at + 1] = over[at] + usize::from(live[at] > limit);
        }
        let helps =
            |interval: &IdleInterval| interval.before < peak_position && peak_position < interval.after;
        let over_limit = |interval: &IdleInterval| over[interval.after] - over[interval.before + 1];
        let best = (0..left.len())
            .filter(|&i| helps(&left[i]))
            .max_by_key(|&i| (over_limit(&left[i]), left[i].bytes, std::cmp::Reverse(i)));
        let Some(best) = best else { break };
        let interval = left.swap_remove(best);
        live[interval.before + 1..interval.after]
            .iter_mut()
            .for_each(|l| *l = l.saturating_sub(interval.bytes));
        chosen.push(interval);
    }
    without_superfluous(chosen, live, limit)
}

/// The chosen intervals but for those that later ones made superfluous, given the live bytes that they leave: the bytes of these fit under
/// the limit again. What moves most bytes is dropped first.
fn without_superfluous(
    mut chosen: Vec<IdleInterval>,
    mut live: Vec<usize>,
    limit: usize,
) -> Vec<IdleInterval> {
    let moved =
        |interval: &IdleInterval| if interval.load.is_some() { interval.bytes } else { 2 * interval.bytes };
    let mut by_cost: Vec<usize> = (0..chosen.len()).collect();
    by_cost.sort_by_key(|&i| std::cmp::Reverse(moved(&chosen[i])));
    let mut superfluous = vec![false; chosen.len()];
    for i in by_cost {
        let IdleInterval { before, after, bytes, .. } = chosen[i];
        let idle = &mut live[before + 1..after];
        if idle.iter().all(|l| l.saturating_add(bytes) <= limit) {
            idle.iter_mut().for_each(|l| *l += bytes);
            superfluous[i] = true;
        }
    }
    let mut superfluous = superfluous.iter();
    chosen.retain(|_| superfluous.next() == Some(&false));
    chosen
}

/// The intervals whose tensors a list spends most time on rematerializing, as many as the fastest link can move in a time.
pub(crate) fn most_expensive(
    intervals: &[IdleInterval],
    list: &[TaskId],
    task_graph: &TaskGraph<'_>,
    nanoseconds: u64,
) -> Vec<IdleInterval> {
    let mut runs = vec![0_u64; task_graph.tasks.len()];
    list.iter().for_each(|&task| runs[task] += 1);
    // Time for each byte.
    let waste = |interval: &IdleInterval| {
        let again = |maker: TaskId| (runs[maker].max(1) - 1) * task_graph.tasks[maker].nanoseconds;
        (u128::from(task_graph.tensors[interval.tensor].writer.map_or(0, again)) << 32)
            / interval.bytes.max(1) as u128
    };
    let mut expensive: Vec<IdleInterval> =
        intervals.iter().copied().filter(|interval| waste(interval) > 0).collect();
    expensive.sort_by_key(|interval| std::cmp::Reverse(waste(interval)));
    let link = task_graph.tiers.present().next().map(|(_, spec)| spec.link).unwrap_or_default();
    let mut moved = 0;
    expensive.retain(|interval| {
        let store = if interval.load.is_some() { 0 } else { link.ns(Direction::Store, interval.bytes) };
        let time = link.ns(Direction::Load, interval.bytes) + store;
        let fits = moved + time <= nanoseconds;
        moved += if fits { time } else { 0 };
        fits
    });
    expensive
}

/// A tier for the tensor of every interval that has to be stored, as far as there is room: those that are needed again soonest go
/// to the fastest tier.
fn assign_tiers(
    task_graph: &TaskGraph<'_>,
    order: &[TaskId],
    intervals: &[IdleInterval],
    mut room: PerTier<u64>,
) -> Vec<Option<Tier>> {
    let mut tier_of = vec![None; task_graph.tensors.len()];
    let mut ends = Vec::with_capacity(order.len());
    ends.extend(order.iter().scan(0_u64, |now, &task| {
        *now += task_graph.tasks[task].compute_ns();
        Some(*now)
    }));
    let mut stored: Vec<&IdleInterval> = intervals.iter().filter(|i| i.load.is_none()).collect();
    stored.sort_by_key(|i| (ends[i.after - 1].saturating_sub(ends[i.before]), i.tensor));
    for interval in stored {
        let bytes = (task_graph.tensors[interval.tensor].bytes as u64).next_multiple_of(TIER_ALIGNMENT);
        let found = task_graph.tiers.present().map(|(tier, _)| tier).find(|&tier| bytes <= room[tier]);
        if let Some(tier) = found {
            room[tier] -= bytes;
            tier_of[interval.tensor] = Some(tier);
        }
    }
    tier_of
}

/// The task graph, as a list in this order, in which the tensors of these intervals are offloaded, as far as the tiers have
/// room for values.
pub(crate) fn with_offloaded<'a>(
    task_graph: &TaskGraph<'a>,
    order: &[TaskId],
    intervals: &[IdleInterval],
    room: PerTier<u64>,
) -> TaskGraph<'a> {
    let mut entries = Vec::with_capacity(order.len() + 2 * intervals.len());
    let mut reloads: Vec<Vec<IdleInterval>> = vec![Vec::new(); order.len()];
    let tier_of = assign_tiers(task_graph, order, intervals, room);
    for interval in intervals.iter().filter(|i| i.load.is_some() || tier_of[i.tensor].is_some()) {
        reloads[interval.after].push(*interval);
    }
    for (at, &task) in order.iter().enumerate() {
        entries.extend(
            reloads[at]
                .iter()
                .map(|interval| interval.load.map_or(ListEntry::Reload(interval.tensor), ListEntry::Run)),
        );
        entries.push(ListEntry::Run(task));
        let made = task_graph.tasks[task].writes.iter();
        entries.extend(made.filter_map(|&tensor| Some(ListEntry::Offload(tensor, tier_of[tensor]?))));
    }
    unroll(task_graph, &entries)
}

/// Live bytes above the states while each task of an order runs.
pub(crate) fn live_profile(task_graph: &TaskGraph<'_>, order: &[TaskId]) -> Vec<usize> {
    let mut liveness = Liveness::new(task_graph);
    let resident = task_graph.resident_bytes();
    let mut in_optimizer_step = false;
    let mut live = Vec::with_capacity(order.len());
    for &task in order {
        if task_graph.tasks[task].optimizer_step && !std::mem::replace(&mut in_optimizer_step, true) {
            liveness.end_micro_batches();
        }
        live.push(liveness.run(task) - resident);
    }
    live
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(tensor: usize, before: usize, after: usize, bytes: usize) -> IdleInterval {
        IdleInterval { tensor, before, after, bytes, load: None }
    }

    #[test]
    fn what_later_intervals_made_superfluous_is_dropped() {
        // The first covers the most, and the two others cover what it does.
        let chosen = vec![interval(0, 0, 7, 10), interval(1, 0, 4, 10), interval(2, 3, 7, 10)];
        let tensors = |chosen: Vec<IdleInterval>| chosen.iter().map(|i| i.tensor).collect::<Vec<_>>();
        assert_eq!(tensors(without_superfluous(chosen.clone(), vec![80; 8], 90)), [1, 2]);
        assert_eq!(tensors(without_superfluous(chosen.clone(), vec![80; 8], 89)), [0, 1, 2]);
        assert_eq!(tensors(without_superfluous(chosen.clone(), vec![80; 8], 100)), [] as [usize; 0]);
        // A state that is loaded twice is not stored, so it moves less.
        let loaded = IdleInterval { load: Some(0), ..chosen[0] };
        let chosen = vec![loaded, chosen[1], chosen[2]];
        assert_eq!(tensors(without_superfluous(chosen, vec![80; 8], 90)), [0]);
    }
}
