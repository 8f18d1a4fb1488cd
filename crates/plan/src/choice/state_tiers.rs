//! Which states live in the arena, which in a tier, and which of those are updated in chunks.

use super::one_graph::plan_graph;
use super::{Score, StateRule, Techniques, better};
#[cfg(test)]
use crate::Link;
use crate::lower::{StateLayout, TaskGraph, TaskId, find_states};
use crate::placement::Layout;
use crate::schedule::order;
use crate::{
    Budget, ExecutionPlan, PerTier, PlanError, PlanSet, SearchCache, SharedGraph, StateHome, StatePlacement,
    TIER_ALIGNMENT, Target, Tier, Tiers, offload, sheet,
};
use plimsoll_graph::{Graph, Role};
use std::cmp::Reverse;
use std::sync::Arc;

/// Smaller tensors are not offloaded: each would save little and cost a request.
const LEAST_OFFLOADED: usize = 64 << 10;

/// No state is updated in chunks.
const NO_CHUNKS: usize = usize::MAX;

/// A plan is slow if it takes more than 1/20 longer than the plan without a line.
pub(super) const SLOW: u64 = 20;

/// Rematerialization is tried beside offload only where it could pay: it is assumed to remove at most 11/12 of the time that
/// offload adds. For whole batches of gpt2 under low lines of a GPU it removes 10/11.
const REMAT_GAIN: u64 = 12;

/// What all attempts to plan a set of graphs share.
pub(super) struct Planner<'a> {
    /// Names and graphs of the batch types; plans share the graphs.
    batches: Vec<(&'a str, Arc<Graph>)>,
    target: &'a dyn Target,
    /// All states, not placed yet.
    states: Vec<StatePlacement>,
    alignment: usize,
    tiers: Tiers,
    /// What each tier may hold.
    capacity: PerTier<u64>,
    search_cache: &'a SearchCache,
}

/// Plans of every batch type above the same states.
struct Candidate {
    plans: Vec<ExecutionPlan>,
    state_layout: StateLayout,
    /// How many states are offloaded, of those in the order tried, and with which techniques it was found.
    offloaded: usize,
    techniques: Techniques,
}

impl Candidate {
    /// Predicted time of a step of the first batch type.
    fn nanoseconds(&self) -> u64 {
        self.plans.first().map_or(0, |p| p.nanoseconds)
    }

    fn score(&self, arena_limit: usize) -> Score {
        let peak = self.plans.iter().map(|p| p.peak_bytes).max().unwrap_or(0);
        Score::new(peak, arena_limit, self.nanoseconds())
    }
}

impl<'a> Planner<'a> {
    pub fn new(
        batches: &'a [(String, impl SharedGraph)],
        target: &'a dyn Target,
        budget: &Budget,
        search_cache: &'a SearchCache,
    ) -> Result<Self, PlanError> {
        let states = find_states(batches.iter().map(|(name, graph)| (name.as_str(), graph.borrow())))?;
        let batches = batches.iter().map(|(name, graph)| (name.as_str(), graph.shared())).collect();
        let alignment = target.alignment().max(1);
        let (tiers, capacity) = (budget.tiers, PerTier::from_fn(|tier| budget.tier_capacity(tier)));
        Ok(Self { batches, target, states, alignment, tiers, capacity, search_cache })
    }

    /// The fastest plans found under a budget, else those with the lowest peak.
    pub fn plan_under(&self, budget: &Budget) -> Result<PlanSet, PlanError> {
        let arena_limit = budget.arena_bytes();
        let resident = Techniques {
            rematerialize: budget.rematerialize && !budget.offload,
            offload_values_from: None,
            chunk_from_bytes: NO_CHUNKS,
            state_rule: StateRule::Fastest,
            quick: false,
        };
        let mut best = self.plan(&[], arena_limit, resident)?;
        if budget.offload && !best.score(arena_limit).fits() {
            let (arena_limit, order) =
                (arena_limit.saturating_sub(budget.staging_bytes()), self.offload_order());
            best = self.with_offload(&order, arena_limit, budget, best)?;
            if best.techniques.quick {
                let techniques = Techniques { quick: false, ..best.techniques };
                let thorough = self.plan(&order[..best.offloaded], arena_limit, techniques)?;
                best = better(best, thorough, |candidate| candidate.score(arena_limit));
            }
        }
        Ok(self.finish(best, budget))
    }

    /// Plans with these states offloaded; techniques are used by graphs that do not fit without.
    fn plan(
        &self,
        offloaded: &[usize],
        arena_limit: usize,
        techniques: Techniques,
    ) -> Result<Candidate, PlanError> {
        let state_layout = self.state_layout(offloaded, techniques);
        let plans = self.batches.iter().map(|(name, graph)| {
            let search_cache = self.search_cache;
            let layout = Layout { name, graph, state_layout: &state_layout, arena_limit, search_cache };
            plan_graph(&layout, self.target, &self.tiers, techniques)
        });
        let plans = plans.collect::<Result<_, _>>()?;
        Ok(Candidate { plans, state_layout, offloaded: offloaded.len(), techniques })
    }

    /// The set of finished plans, with their load sheet.
    fn finish(&self, candidate: Candidate, budget: &Budget) -> PlanSet {
        let Candidate { plans, state_layout: StateLayout { states, mut tier_bytes, .. }, .. } = candidate;
        // Only one plan runs at a time: all share the part of a tier above the states.
        for plan in &plans {
            for offloaded in &plan.offloaded {
                let bytes = plan.graph.ty(offloaded.value).bytes() as u64;
                let end = &mut tier_bytes[offloaded.tier];
                *end = (offloaded.offset + bytes).next_multiple_of(TIER_ALIGNMENT).max(*end);
            }
        }
        plan_set(self.target, plans, states, tier_bytes, budget)
    }

    /// Offloads as few states as make the plans fit, and values beside them; rematerializes too where that is not enough, or
    /// slow; chunks updates where nothing else fits. `resident` is the plan without offload, kept if nothing has a lower peak. These
    /// are many attempts, so all are quick: the caller searches again, thoroughly, with what is best.
    fn with_offload(
        &self,
        order: &[usize],
        arena_limit: usize,
        budget: &Budget,
        resident: Candidate,
    ) -> Result<Candidate, PlanError> {
        // Each further offloaded state lowers the arena, but for fragmentation: bisect for the fewest.
        let (mut fewest, mut high) = (0, order.len());
        while fewest < high {
            let middle = fewest.midpoint(high);
            let fits = self.least_arena(&order[..middle], arena_limit)? <= arena_limit;
            if fits { high = middle } else { fewest = middle + 1 }
        }
        let half = fewest.midpoint(order.len());
        let mut counts = vec![fewest, fewest.midpoint(half), half, order.len()];
        counts.dedup();
        let unlimited_ns = resident.nanoseconds();
        let fast_ns = (unlimited_ns / SLOW * (SLOW + 1)).min(budget.time_limit_ns);
        let score = |candidate: &Candidate| candidate.score(arena_limit);
        let fits_within = |candidate: &Candidate, nanoseconds: u64| {
            score(candidate).fits() && candidate.nanoseconds() <= nanoseconds
        };
        // A plan that fits without rematerialization and takes longer than this is not brought under the time limit by it.
        let added_ns = budget.time_limit_ns.saturating_sub(unlimited_ns);
        let hopeless_ns = unlimited_ns.saturating_add(added_ns.saturating_mul(REMAT_GAIN));
        let mut hopeless = true;
        let mut best = resident;
        let rules = self.state_rules();
        for rematerialize in [false, true] {
            for (&count, &state_rule) in counts.iter().flat_map(|count| rules.iter().map(move |r| (count, r)))
            {
                if fits_within(&best, fast_ns) {
                    return Ok(best);
                }
                if rematerialize && (!budget.rematerialize || hopeless) {
                    continue;
                }
                let techniques = Techniques {
                    rematerialize,
                    offload_values_from: Some(LEAST_OFFLOADED),
                    chunk_from_bytes: NO_CHUNKS,
                    state_rule,
                    quick: true,
                };
                let found = self.plan(&order[..count], arena_limit, techniques)?;
                let limit_ns = if score(&found).fits() { hopeless_ns } else { budget.time_limit_ns };
                hopeless &= found.nanoseconds() > limit_ns;
                best = better(best, found, score);
            }
        }
        let tolerable = |best: &Candidate| fits_within(best, fast_ns / 2 * 3);
        if hopeless || tolerable(&best) {
            return Ok(best);
        }
        // Rematerialization makes room for states that offload alone would have to move in every step. Where it pays is not known
        // before: moments move once in a step, parameters twice.
        let fewer =
            if budget.rematerialize && score(&best).fits() { self.eighths(order) } else { Vec::new() };
        for count in fewer {
            let techniques = Techniques {
                rematerialize: true,
                offload_values_from: Some(LEAST_OFFLOADED),
                chunk_from_bytes: NO_CHUNKS,
                state_rule: StateRule::Fastest,
                quick: true,
            };
            let found = self.plan(&order[..count], arena_limit, techniques)?;
            let fits = score(&found).fits();
            best = better(best, found, score);
            if !fits {
                break;
            }
        }
        if tolerable(&best) {
            return Ok(best);
        }
        // Chunked updates wait for the links: they come last, and only for the largest states if that is enough.
        let chunked = |chunk_from_bytes| {
            let techniques = Techniques {
                rematerialize: budget.rematerialize,
                offload_values_from: Some(LEAST_OFFLOADED),
                chunk_from_bytes,
                state_rule: StateRule::Fastest,
                quick: true,
            };
            self.plan(order, arena_limit, techniques)
        };
        best = better(best, chunked(0)?, score);
        if score(&best).fits() {
            let largest = self.states.iter().map(|s| s.ty.bytes()).max().unwrap_or(0);
            best = better(best, chunked(largest / 2)?, score);
        }
        Ok(best)
    }

    /// The smallest arena, fragmentation aside, with these states and as many values as needed offloaded.
    fn least_arena(&self, offloaded: &[usize], arena_limit: usize) -> Result<usize, PlanError> {
        let techniques = Techniques {
            rematerialize: false,
            offload_values_from: Some(LEAST_OFFLOADED),
            chunk_from_bytes: NO_CHUNKS,
            state_rule: StateRule::Fastest,
            quick: true,
        };
        let state_layout = self.state_layout(offloaded, techniques);
        let mut most = 0;
        for (name, graph) in &self.batches {
            let (_, state_tiers) = state_layout.of(graph);
            let task_graph = TaskGraph::new(name, graph, self.target, &state_tiers, &self.tiers)?;
            let order = self.search_cache.order(&task_graph);
            let limit = arena_limit.saturating_sub(state_layout.end);
            let idle = offload::idle_intervals(&task_graph, &order, LEAST_OFFLOADED);
            let chosen = offload::fewest_to_fit(&task_graph, &order, &idle, limit);
            let offloaded = offload::with_offloaded(&task_graph, &order, &chosen, state_layout.room);
            let all: Vec<TaskId> = (0..offloaded.tasks.len()).collect();
            let live = order::peak(&offloaded, &all) - offloaded.resident_bytes();
            most = most.max(state_layout.end + live);
        }
        Ok(most)
    }

    /// The states worth offloading. Optimizer state comes first, since a step uses it once; then the largest.
    fn offload_order(&self) -> Vec<usize> {
        let large = |&i: &usize| self.states[i].ty.bytes() >= LEAST_OFFLOADED;
        let mut order: Vec<usize> = (0..self.states.len()).filter(large).collect();
        order.sort_by_key(|&i| (self.states[i].role != Role::Moment, Reverse(self.states[i].ty.bytes()), i));
        order
    }

    /// How many states of the order have at most seven eighths of its bytes, six eighths, and so on.
    fn eighths(&self, order: &[usize]) -> Vec<usize> {
        let mut sums: Vec<u64> = Vec::with_capacity(order.len());
        for &i in order {
            sums.push(sums.last().unwrap_or(&0) + self.states[i].ty.bytes() as u64);
        }
        let all = sums.last().copied().unwrap_or(0);
        (1..8).rev().map(|eighth| sums.partition_point(|&sum| sum <= all / 8 * eighth)).collect()
    }

    /// The rules worth trying: where host memory holds all states, none of them has to go to the file.
    fn state_rules(&self) -> &'static [StateRule] {
        let all: u64 =
            self.states.iter().map(|s| (s.ty.bytes() as u64).next_multiple_of(TIER_ALIGNMENT)).sum();
        let both = self.capacity.host > 0 && self.capacity.file > 0 && self.capacity.host < all;
        if both { &[StateRule::Fastest, StateRule::Slowest] } else { &[StateRule::Fastest] }
    }

    /// A tier for each of these states, as far as there is room, and the room that is left for values.
    fn assign_states(&self, offloaded: &[usize], rule: StateRule) -> (Vec<Option<Tier>>, PerTier<u64>) {
        let mut room = self.capacity;
        let mut tier_of = vec![None; self.states.len()];
        let mut tiers: Vec<Tier> = self.tiers.present().map(|(tier, _)| tier).collect();
        if rule == StateRule::Slowest {
            tiers.reverse();
        }
        for &i in offloaded {
            let bytes = (self.states[i].ty.bytes() as u64).next_multiple_of(TIER_ALIGNMENT);
            if let Some(&tier) = tiers.iter().find(|&&tier| bytes <= room[tier]) {
                room[tier] -= bytes;
                tier_of[i] = Some(tier);
            }
        }
        (tier_of, room)
    }

    /// Packs resident states at the bottom of the arena and offloaded ones in their tiers, in the order they appear in.
    fn state_layout(&self, offloaded: &[usize], techniques: Techniques) -> StateLayout {
        let (tier_of, room) = self.assign_states(offloaded, techniques.state_rule);
        let mut states = self.states.to_vec();
        let (mut end, mut tier_bytes) = (0_usize, PerTier::<u64>::default());
        for (state, tier) in states.iter_mut().zip(tier_of) {
            let bytes = state.ty.bytes();
            if let Some(tier) = tier {
                state.home = StateHome::Offloaded { tier, offset: tier_bytes[tier] };
                tier_bytes[tier] += (bytes as u64).next_multiple_of(TIER_ALIGNMENT);
            } else {
                state.home = StateHome::Arena(end);
                end += bytes.next_multiple_of(self.alignment);
            }
        }
        StateLayout { states, end, tier_bytes, room, chunk_from_bytes: techniques.chunk_from_bytes }
    }
}

/// Plans with their states placed, and their load sheet.
pub(crate) fn plan_set(
    target: &dyn Target,
    plans: Vec<ExecutionPlan>,
    states: Vec<StatePlacement>,
    tier_bytes: PerTier<u64>,
    budget: &Budget,
) -> PlanSet {
    let arena_bytes = plans.iter().map(|p| p.peak_bytes).max().unwrap_or(0);
    let (name, alignment) = (target.name(), target.alignment().max(1));
    let sheet = sheet::load_sheet(name.clone(), &plans, &states, arena_bytes, tier_bytes, budget);
    let numerics = target.numerics();
    PlanSet { target: name, numerics, plans, states, alignment, arena_bytes, tier_bytes, sheet }
}

/// A disk for [`plan_offloaded`].
#[cfg(test)]
pub(crate) const TEST_DISK: Link = Link {
    load_ns_per_mib: 300_000,
    store_ns_per_mib: 500_000,
    latency_ns: 70,
    single_request_ns: 5,
    request_cpu_ns: 3,
};

/// Plans graphs with those states offloaded whose bit is set, and values of any size where the limit asks for it.
#[cfg(test)]
pub(crate) fn plan_offloaded(
    batches: &[(String, Graph)],
    target: &dyn Target,
    tiers: Tiers,
    offloaded: u64,
    arena_limit: usize,
    rematerialize: bool,
    chunk_from_bytes: usize,
) -> Result<PlanSet, PlanError> {
    let search_cache = SearchCache::default();
    let budget = Budget::new(usize::MAX, Vec::new()).offload_to(tiers);
    let planner = Planner::new(batches, target, &budget, &search_cache)?;
    let some: Vec<usize> = (0..planner.states.len()).filter(|&i| offloaded >> i & 1 == 1).collect();
    let state_rule = if offloaded & 1 == 0 { StateRule::Fastest } else { StateRule::Slowest };
    let techniques = Techniques {
        rematerialize,
        offload_values_from: Some(1),
        chunk_from_bytes,
        state_rule,
        quick: false,
    };
    let found = planner.plan(&some, arena_limit, techniques)?;
    Ok(planner.finish(found, &budget))
}
