//! One graph under an arena limit: as it is, with offloaded values, with rematerialization, or with both.

use super::state_tiers::SLOW;
use super::{Score, Techniques, better};
use crate::lower::{ListEntry, StateTier, TaskGraph, TaskId, unroll};
use crate::offload::{IdleInterval, fewest_to_fit, idle_intervals, most_expensive, with_offloaded};
use crate::placement::Layout;
use crate::remat::Rematerialization;
use crate::{ExecutionPlan, PlanError, Target, Tiers};

/// Attempts at most to meet a limit in spite of fragmentation, each with a lower search limit.
const ATTEMPTS: usize = 3;

/// Where placing the lowest list leaves more fragmentation than this part of its peak, a list for a limit as much higher is
/// tried too: it has far fewer rematerialized runs, and often less fragmentation.
const ABOVE_LOWEST: usize = 128;

/// Plans one graph in its best order if that fits, else with the techniques that make it fit, else with the lowest peak found.
pub(super) fn plan_graph(
    layout: &Layout<'_>,
    target: &dyn Target,
    tiers: &Tiers,
    techniques: Techniques,
) -> Result<ExecutionPlan, PlanError> {
    let (limit, graph) = (layout.arena_limit, layout.graph.as_ref());
    let (_, state_tiers) = layout.state_layout.of(graph);
    let task_graph = TaskGraph::new(layout.name, graph, target, &state_tiers, tiers)?;
    let order = layout.search_cache.order(&task_graph);
    let plain = if state_tiers.iter().any(|&tier| tier != StateTier::Arena) {
        layout.place_within_limit(&task_graph, &order)
    } else {
        layout.place_lowest(&task_graph, &order)
    };
    if plain.peak_bytes <= limit {
        return Ok(plain);
    }
    let score = |p: &ExecutionPlan| Score::new(p.peak_bytes, limit, p.nanoseconds);
    let fast_ns = plain.nanoseconds / SLOW * (SLOW + 1);
    let is_fast = |p: &ExecutionPlan| score(p).fits() && p.nanoseconds <= fast_ns;
    let mut best = plain;
    let idle = techniques.offload_values_from;
    let idle = idle.map_or(Vec::new(), |least_bytes| idle_intervals(&task_graph, &order, least_bytes));
    let room = layout.state_layout.room;
    let mut search_limit = limit.saturating_sub(layout.state_layout.end);
    let mut fewest: Vec<IdleInterval> = Vec::new();
    for _ in 0..if idle.is_empty() { 0 } else { ATTEMPTS } {
        fewest = fewest_to_fit(&task_graph, &order, &idle, search_limit);
        let offloaded = with_offloaded(&task_graph, &order, &fewest, room);
        let found = layout.place_within_limit(&offloaded, &all(&offloaded));
        let peak = found.peak_bytes;
        best = better(best, found, score);
        if peak <= limit {
            break;
        }
        search_limit = lowered(search_limit, limit, peak);
    }
    if !techniques.rematerialize || is_fast(&best) {
        return Ok(best);
    }
    let with_both = |best: ExecutionPlan, intervals: &[IdleInterval]| {
        let offloaded = with_offloaded(&task_graph, &order, intervals, room);
        // Rematerialization only adds to this time.
        if score(&best).fits() && best.nanoseconds <= offloaded.least_nanoseconds() {
            return best;
        }
        better(best, rematerialized(layout, &offloaded, &all(&offloaded), techniques.quick).0, score)
    };
    if !idle.is_empty() {
        // Nothing has a lower peak than offloading everything that can be.
        best = with_both(best, &idle);
        if !score(&best).fits() {
            return Ok(best);
        }
    }
    let (found, list) = rematerialized(layout, &task_graph, &order, techniques.quick);
    best = better(best, found, score);
    if !idle.is_empty() && best.nanoseconds > fast_ns {
        // Beside the computing the links move what is most expensive to rematerialize.
        best = with_both(best, &most_expensive(&idle, &list, &task_graph, fast_ns / 2));
        best = with_both(best, &fewest);
    }
    Ok(best)
}

/// The tasks of a task graph whose numbers are its order.
fn all(task_graph: &TaskGraph<'_>) -> Vec<TaskId> {
    (0..task_graph.tasks.len()).collect()
}

/// A search limit lowered in proportion to the fragmentation that it led to.
fn lowered(search_limit: usize, limit: usize, peak: usize) -> usize {
    (search_limit as u128 * limit as u128 / peak.max(1) as u128) as usize
}

/// The plan with the rematerialized runs that make it fit, else with the lowest peak found, and its tasks in order.
fn rematerialized(
    layout: &Layout<'_>,
    task_graph: &TaskGraph<'_>,
    order: &[TaskId],
    quick: bool,
) -> (ExecutionPlan, Vec<TaskId>) {
    let arena_limit = layout.arena_limit;
    let listed = |list: &[TaskId]| {
        let entries: Vec<ListEntry> = list.iter().map(|&task| ListEntry::Run(task)).collect();
        (unroll(task_graph, &entries), (0..list.len()).collect::<Vec<_>>())
    };
    let plan = |list: &[TaskId]| {
        let (task_graph, order) = listed(list);
        layout.place_within_limit(&task_graph, &order)
    };
    let mut search = Rematerialization::new(task_graph, order, layout.search_cache, quick);
    let Some((least, list)) = search.lowest() else { return (plan(order), order.to_vec()) };
    let score = |p: &(ExecutionPlan, Vec<TaskId>)| Score::new(p.0.peak_bytes, arena_limit, p.0.nanoseconds);
    let mut best = (plan(&list), list);
    let (fragmentation, above) = (best.0.peak_bytes - best.0.live_bytes, least / ABOVE_LOWEST);
    let limit = arena_limit.saturating_sub(layout.state_layout.end);
    let mut search_limit = limit;
    let mut fits_lowered = false;
    for attempt in 1..=ATTEMPTS {
        let list = if search_limit > least { search.under(search_limit) } else { None };
        let Some(list) = list else { break };
        let found = plan(&list);
        let (peak, live) = (found.peak_bytes, found.live_bytes);
        best = better(best, (found, list), score);
        if peak <= arena_limit && search_limit == limit {
            return best;
        }
        if peak <= arena_limit {
            fits_lowered = true;
            break;
        }
        // Lower by the fragmentation, then by twice as much.
        search_limit =
            lowered(search_limit, arena_limit, peak).min(limit.saturating_sub(attempt * (peak - live)));
    }
    // A plan with a higher peak than both the best and the limit is of no use.
    let fits = |list: Vec<TaskId>, best: &mut (ExecutionPlan, Vec<TaskId>)| {
        let (task_graph, order) = listed(&list);
        let Some(found) = layout.place_below(&task_graph, &order, best.0.peak_bytes) else { return false };
        let fits = found.peak_bytes <= arena_limit;
        let found = (found, list);
        if score(&found) < score(best) {
            *best = found;
        }
        fits
    };
    // Fragmentation differs from list to list: one for a higher limit than the last search limit may fit, and be faster.
    let points = search.points_under(limit);
    let last = points.len();
    let point = points.into_iter().position(|list| fits(list, &mut best));
    if fragmentation > above
        && !fits_lowered
        && point.is_none_or(|at| at + 1 == last)
        && let Some(list) = search.under(least + above)
    {
        fits(list, &mut best);
    }
    best
}
