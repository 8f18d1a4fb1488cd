//! From an ordered task graph to a finished plan: buffers with lifetimes, transfers scheduled, offsets.

use crate::cache::SearchCache;
use crate::lower::{StateLayout, TaskGraph, TaskId};
use crate::offload::{avoid_store_stalls, extend_stores, hoist_loads};
use crate::placement::{LiveRange, lower_bound};
use crate::predict::predicted;
use crate::schedule::{UnplacedPlan, unplaced_plan};
use crate::{Buffer, BufferKind, ExecutionPlan, OffloadedValue, StateHome, TIER_ALIGNMENT, Tier};
use plimsoll_graph::{Graph, ValueId};
use std::sync::Arc;

/// What every layout of one graph shares.
pub(crate) struct Layout<'a> {
    /// The batch type, and its graph.
    pub name: &'a str,
    pub graph: &'a Arc<Graph>,
    pub state_layout: &'a StateLayout,
    /// Bytes the arena may have.
    pub arena_limit: usize,
    pub search_cache: &'a SearchCache,
}

impl Layout<'_> {
    /// The plan of tasks in an order, with the lowest placement found.
    pub fn place_lowest(&self, task_graph: &TaskGraph<'_>, order: &[TaskId]) -> ExecutionPlan {
        let (states, _) = self.state_layout.of(task_graph.graph);
        let unplaced = unplaced_plan(task_graph, order, &states);
        let offsets = self.offsets(task_graph, &unplaced, 0, usize::MAX).unwrap_or_default();
        self.finish(task_graph, order, unplaced, &offsets)
    }

    /// As [`Layout::place_lowest`], but only as low as the limit asks. Loads start early and stores finish late, as far as the
    /// limit allows.
    pub fn place_within_limit(&self, task_graph: &TaskGraph<'_>, order: &[TaskId]) -> ExecutionPlan {
        self.place_below(task_graph, order, usize::MAX)
            .unwrap_or_else(|| self.place_lowest(task_graph, order))
    }

    /// As [`Layout::place_within_limit`], unless the peak is higher than both the limit and `most`.
    pub fn place_below(
        &self,
        task_graph: &TaskGraph<'_>,
        order: &[TaskId],
        most: usize,
    ) -> Option<ExecutionPlan> {
        let (states, _) = self.state_layout.of(task_graph.graph);
        let enough = self.arena_limit.saturating_sub(self.state_layout.end);
        if task_graph.tasks.iter().any(|t| t.kind.is_transfer()) {
            // Transfers in flight leave an eighth of the limit to fragmentation.
            let limit = enough - enough / 8;
            let early = hoist_loads(task_graph, order, limit);
            let mut unplaced = unplaced_plan(task_graph, &early, &states);
            extend_stores(task_graph, &early, &mut unplaced, limit);
            if let Some(mut offsets) = self.offsets(task_graph, &unplaced, enough, enough) {
                avoid_store_stalls(task_graph, &early, &unplaced, &mut offsets, enough);
                let found = self.finish(task_graph, &early, unplaced, &offsets);
                if found.peak_bytes <= self.arena_limit {
                    return Some(found);
                }
            }
        }
        let most = most.saturating_sub(self.state_layout.end).max(enough);
        let unplaced = unplaced_plan(task_graph, order, &states);
        let offsets = self.offsets(task_graph, &unplaced, enough, most)?;
        Some(self.finish(task_graph, order, unplaced, &offsets))
    }

    /// Where the offloaded values lie in their tiers, one after the other above the states.
    fn tier_offsets(&self, task_graph: &TaskGraph<'_>) -> Vec<OffloadedValue> {
        let mut ends = self.state_layout.tier_bytes;
        let place = |&(value, tier): &(ValueId, Tier)| {
            let offloaded = OffloadedValue { value, tier, offset: ends[tier] };
            ends[tier] += (task_graph.graph.ty(value).bytes() as u64).next_multiple_of(TIER_ALIGNMENT);
            offloaded
        };
        task_graph.offloaded.iter().map(place).collect()
    }

    /// Offsets above the states for the other buffers, in a placement that ends below `most`.
    fn offsets(
        &self,
        task_graph: &TaskGraph<'_>,
        unplaced: &UnplacedPlan,
        enough: usize,
        most: usize,
    ) -> Option<Vec<usize>> {
        let live_ranges: Vec<LiveRange> =
            above_states(unplaced).map(|i| live_range(task_graph, &unplaced.buffers[i])).collect();
        self.search_cache.place(&live_ranges, enough, most)
    }

    fn finish(
        &self,
        task_graph: &TaskGraph<'_>,
        order: &[TaskId],
        mut unplaced: UnplacedPlan,
        offsets: &[usize],
    ) -> ExecutionPlan {
        let above: Vec<usize> = above_states(&unplaced).collect();
        let live_ranges: Vec<LiveRange> =
            above.iter().map(|&i| live_range(task_graph, &unplaced.buffers[i])).collect();
        let (live_above, peak_step) = lower_bound(&live_ranges);
        for (&i, offset) in above.iter().zip(offsets) {
            unplaced.buffers[i].offset = self.state_layout.end + offset;
        }
        for buffer in &mut unplaced.buffers {
            if let BufferKind::State(i) = buffer.kind
                && let StateHome::Arena(offset) = self.state_layout.states[i].home
            {
                buffer.offset = offset;
            }
        }
        let UnplacedPlan { steps, buffers, outputs } = unplaced;
        let times: Vec<u64> = order.iter().map(|&task| task_graph.tasks[task].nanoseconds).collect();
        let end = buffers.iter().map(|b| b.offset + b.bytes).fold(self.state_layout.end, usize::max);
        let micro_batches = task_graph.graph.micro_batches;
        ExecutionPlan {
            name: self.name.to_string(),
            graph: self.graph.clone(),
            nanoseconds: predicted(&steps, &buffers, micro_batches, &times, &task_graph.tiers),
            steps,
            buffers,
            outputs,
            offloaded: self.tier_offsets(task_graph),
            peak_bytes: end.next_multiple_of(task_graph.alignment),
            live_bytes: self.state_layout.end + live_above,
            peak_step,
        }
    }
}

/// The buffers that are not states.
pub(crate) fn above_states(unplaced: &UnplacedPlan) -> impl Iterator<Item = usize> {
    let state = |i: &usize| matches!(unplaced.buffers[*i].kind, BufferKind::State(_));
    (0..unplaced.buffers.len()).filter(move |i| !state(i))
}

/// The size and lifetime of a buffer.
pub(crate) fn live_range(task_graph: &TaskGraph<'_>, buffer: &Buffer) -> LiveRange {
    let size = buffer.bytes.next_multiple_of(task_graph.alignment);
    LiveRange { size, first: buffer.first, last: buffer.last }
}
