//! How a whole run fits: the number of micro-batches, and the techniques that each number may use.

use super::{Score, better};
use crate::{
    Budget, Entry, Fingerprint, HostBudget, Infeasible, PlanError, PlanSet, SearchCache, Target, Tiers,
    VerifyError, sheet, verify,
};
use plimsoll_graph::Graph;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// Writing wears a disk out, and a link may be slower than it says: offload that is not needed to fit has to save at least this
/// fraction (1/32) of a step.
const WORTH_OFFLOADING: u64 = 32;

/// A plan that is being searched for, for reports of progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanningProgress {
    /// Its number, from 1, among those that a [`Chooser`] tried.
    pub tried: usize,
    /// The line of the computing space; 0 where the lowest peak is searched for.
    pub line_bytes: usize,
    /// Micro-batches of the training step.
    pub micro_batches: usize,
    /// What it may do to stay under the line, in words.
    pub technique: &'static str,
}

/// A run to plan, as the chooser sees it: graphs for any number of micro-batches, and what lies outside the arena.
pub trait Candidates {
    /// Why there are no graphs.
    type Error: From<PlanError> + From<VerifyError>;

    /// The target of the plans.
    fn target(&self) -> &dyn Target;
    /// The tiers that may hold offloaded states and values.
    fn tiers(&self) -> Tiers;
    /// Numbers of micro-batches to try, the fewest first; at least one number.
    fn micro_batches(&self) -> Vec<usize>;
    /// The graphs of every batch type, by name, with training steps in so many micro-batches.
    fn graphs(&self, micro_batches: usize) -> Result<Vec<(String, Graph)>, Self::Error>;
    /// What lies in host memory outside the arena beside the plans themselves.
    fn outside(&self, micro_batches: usize, graphs: &[(String, Arc<Graph>)]) -> Vec<Entry>;
    /// Heap of the program beside that of the plans; `None` if the heap is not accounted for.
    fn heap_bytes(&self) -> Option<usize>;
    /// Whether the error says that the batch cannot be split.
    fn is_unsplittable(error: &Self::Error) -> bool;
    /// The part of the error that says by how much a plan misses the line.
    fn infeasible(error: &Self::Error) -> Option<&Infeasible>;

    /// Called before each plan is searched for.
    fn progress(&self, progress: &PlanningProgress) {
        let _ = progress;
    }

    /// Plans with the lowest peak that a budget asks for. A run with a plan cache looks there first.
    fn plan_lowest(
        &self,
        batches: &Batches,
        budget: &Budget,
        search_cache: &SearchCache,
    ) -> Result<PlanSet, PlanError> {
        search_cache.plan_lowest(batches.graphs(), self.target(), budget)
    }
}

/// The graphs of every batch type, by name.
pub struct Batches {
    graphs: Vec<(String, Arc<Graph>)>,
    fingerprint: OnceCell<Fingerprint>,
}

impl Batches {
    /// The graphs.
    pub fn graphs(&self) -> &[(String, Arc<Graph>)] {
        &self.graphs
    }

    /// What their plans on a target depend on; computed once.
    pub fn fingerprint(&self, target: &dyn Target) -> Fingerprint {
        *self.fingerprint.get_or_init(|| Fingerprint::new(&self.graphs, target))
    }
}

/// What plans of a run may do to stay under the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunTechniques {
    /// Every task runs once and every state is resident.
    Plain,
    /// Tasks may run twice.
    Rematerialize,
    /// Tasks may run twice, and states and values may be offloaded, unless the plan then takes longer than this.
    Offload { time_limit_ns: u64 },
}

impl RunTechniques {
    fn in_words(self) -> &'static str {
        match self {
            Self::Plain => "everything in memory",
            Self::Rematerialize => "recomputing",
            Self::Offload { .. } => "recomputing and offloading",
        }
    }
}

/// Chooses how a run fits under a line, and keeps what does not depend on the line.
#[derive(Default)]
pub struct Chooser {
    /// The line of the computing space.
    pub line_bytes: usize,
    /// The line of host memory, where the computing space is a device's.
    host_line_bytes: usize,
    /// Whether plans are as low as possible, rather than just under the line.
    lowest: bool,
    /// Predicted time of a step without a line, and bytes of all states; known once anything is planned.
    unlimited_ns: u64,
    state_bytes: usize,
    /// Plans tried so far.
    tried: usize,
    /// Whether what was found is kept for other lines.
    keep: bool,
    /// By the number of micro-batches: graphs, and plans without any technique.
    batches: BTreeMap<usize, Rc<Batches>>,
    plain: BTreeMap<usize, Rc<PlanSet>>,
    search_cache: SearchCache,
}

impl Chooser {
    /// For plans under one line: only the latest search is kept, for its next search limit.
    pub fn new(line_bytes: usize, host_line_bytes: usize) -> Self {
        Self { line_bytes, host_line_bytes, search_cache: SearchCache::with_capacity(1), ..Self::default() }
    }

    /// For plans under many lines, set by [`Chooser::line_bytes`].
    pub fn reusable(host_line_bytes: usize) -> Self {
        Self { keep: true, host_line_bytes, search_cache: SearchCache::unbounded(), ..Self::default() }
    }

    /// Predicted time of a step without a line; 0 before anything is planned.
    pub fn unlimited_ns(&self) -> u64 {
        self.unlimited_ns
    }

    /// The fastest plans found under the line; every plan set is verified.
    pub fn choose<C: Candidates>(&mut self, run: &C) -> Result<PlanSet, C::Error> {
        let found = self.fastest(run);
        if !is_infeasible::<C>(&found) || self.line_bytes == 0 {
            return found;
        }
        // Plans with the lowest peak sometimes fit where those searched for at the line do not.
        self.lowest = true;
        let lowest = self.fastest(run);
        self.lowest = false;
        better_of::<C>(found, lowest)
    }

    /// The limit that searches are given.
    fn search_limit(&self) -> usize {
        if self.lowest { 0 } else { self.line_bytes }
    }

    fn fastest<C: Candidates>(&mut self, run: &C) -> Result<PlanSet, C::Error> {
        let counts = run.micro_batches();
        let mut best = self.plan(run, counts[0], RunTechniques::Plain);
        let mut tried = 1;
        for &count in &counts[1..] {
            if !is_infeasible::<C>(&best) {
                break;
            }
            match self.plan(run, count, RunTechniques::Plain) {
                Err(error) if C::is_unsplittable(&error) => break,
                other => best = other,
            }
            tried += 1;
        }
        let fits = !is_infeasible::<C>(&best);
        if tried == 1 && fits {
            return best;
        }
        // Fewer micro-batches with rematerialization may be faster, or the only ones that fit. What is tried under one line is
        // tried under every higher line, too, unless the run fits there without.
        let last = if fits { tried - 2 } else { tried - 1 };
        let mut again = vec![0, (counts.len() / 2).min(last), last];
        again.dedup();
        let offloads = !run.tiers().is_empty();
        // Rematerialization does not help where the states alone exceed the line. A line of 0 asks for the lowest peak.
        let line = self.search_limit();
        let states_exceed = offloads && line > 0 && self.state_bytes > line;
        if !states_exceed {
            let others = again.iter().map(|&at| self.plan(run, counts[at], RunTechniques::Rematerialize));
            best = others.fold(best, better_of::<C>);
        }
        let saved_ns = self.unlimited_ns / WORTH_OFFLOADING;
        let is_fast = |plans: &PlanSet| step_ns(plans) <= self.unlimited_ns + saved_ns;
        if !offloads || best.as_ref().is_ok_and(is_fast) {
            return best;
        }
        // From the smallest micro-batches to larger ones that offload more, while that is faster; and the whole batch, which
        // needs no accumulators.
        let mut slower = 0;
        for (at, &count) in counts[..tried].iter().enumerate().rev() {
            if at > 0 && slower > 1 {
                continue;
            }
            let time_limit_ns = match &best {
                Ok(plans) if plans.tier_bytes.sum() > 0 => step_ns(plans),
                Ok(plans) => step_ns(plans).saturating_sub(saved_ns),
                Err(_) => u64::MAX,
            };
            let offloaded = self.plan(run, count, RunTechniques::Offload { time_limit_ns });
            let faster = offloaded.as_ref().is_ok_and(|plans| step_ns(plans) < time_limit_ns);
            slower = if faster { 0 } else { slower + 1 };
            best = match (best, offloaded) {
                (Ok(_), Ok(offloaded)) if faster => Ok(offloaded),
                (Ok(best), Ok(_)) => Ok(best),
                (best, offloaded) => better_of::<C>(best, offloaded),
            };
        }
        best
    }

    /// The verified plans in so many micro-batches, or by how much they miss the line.
    fn plan<C: Candidates>(
        &mut self,
        run: &C,
        micro_batches: usize,
        techniques: RunTechniques,
    ) -> Result<PlanSet, C::Error> {
        self.tried += 1;
        let (tried, line_bytes) = (self.tried, self.search_limit());
        run.progress(&PlanningProgress {
            tried,
            line_bytes,
            micro_batches,
            technique: techniques.in_words(),
        });
        let mut plans = match techniques {
            // The same under every line.
            RunTechniques::Plain => self.plan_plain(run, micro_batches)?,
            RunTechniques::Rematerialize | RunTechniques::Offload { .. } => {
                self.plan_lowest(run, micro_batches, techniques)?
            }
        };
        plans.sheet.line_bytes = self.line_bytes;
        if let Some(host) = &mut plans.sheet.host {
            host.line_bytes = self.host_line_bytes;
        }
        plans.sheet.check_line()?;
        verify(&plans)?;
        Ok(plans)
    }

    /// The plans without any technique. The first ones tell the time of a step without a line.
    fn plan_plain<C: Candidates>(&mut self, run: &C, micro_batches: usize) -> Result<PlanSet, C::Error> {
        if let Some(known) = self.plain.get(&micro_batches) {
            return Ok(known.as_ref().clone());
        }
        let plans = self.plan_lowest(run, micro_batches, RunTechniques::Plain)?;
        if self.unlimited_ns == 0 {
            self.unlimited_ns = step_ns(&plans);
            self.state_bytes = plans.states.iter().map(|s| s.ty.bytes()).sum();
        }
        if self.keep {
            self.plain.insert(micro_batches, Rc::new(plans.clone()));
        }
        Ok(plans)
    }

    fn batches<C: Candidates>(&mut self, run: &C, micro_batches: usize) -> Result<Rc<Batches>, C::Error> {
        if let Some(known) = self.batches.get(&micro_batches) {
            return Ok(known.clone());
        }
        let graphs = run.graphs(micro_batches)?;
        let graphs = graphs.into_iter().map(|(name, graph)| (name, Arc::new(graph))).collect();
        let made = Rc::new(Batches { graphs, fingerprint: OnceCell::new() });
        if self.keep {
            self.batches.insert(micro_batches, made.clone());
        }
        Ok(made)
    }

    /// The plans in so many micro-batches, under the line if the techniques allow it, with everything outside the arena in
    /// the load sheet.
    fn plan_lowest<C: Candidates>(
        &mut self,
        run: &C,
        micro_batches: usize,
        techniques: RunTechniques,
    ) -> Result<PlanSet, C::Error> {
        let batches = self.batches(run, micro_batches)?;
        let (tiers, limit) = (run.tiers(), self.search_limit());
        let device = tiers.host.is_some();
        let in_host = run.outside(micro_batches, batches.graphs());
        let techniques = self.within_room(run, &batches, &in_host, techniques);
        let plain = techniques == RunTechniques::Plain;
        // Heap and page tables depend on the plan: they are reserved first, and counted once the plan is known.
        // Rematerialized runs and transfers add to the plan, seldom as much as an eighth.
        let mut reserved = run.heap_bytes().map_or(0, |heap| {
            let bytes = sheet::graphs_heap_bytes(batches.graphs());
            heap + bytes + if plain { 0 } else { bytes / 8 }
        });
        let (offload, time_limit_ns) = match techniques {
            RunTechniques::Plain | RunTechniques::Rematerialize => (false, u64::MAX),
            RunTechniques::Offload { time_limit_ns } => (true, time_limit_ns),
        };
        loop {
            let host_bytes = in_host.iter().fold(reserved, |sum, e| sum.saturating_add(e.bytes));
            let host_limit = if device { self.host_line_bytes } else { limit };
            // The arena of the computing space, or that of what is offloaded to host memory.
            let host_arena = sheet::largest_arena(host_limit.saturating_sub(host_bytes));
            let host_line = host_arena.saturating_add(host_bytes - reserved);
            let budget = if device {
                let host = HostBudget { line_bytes: host_line, outside: in_host.clone() };
                Budget { host, ..Budget::new(limit, run.target().outside()) }
            } else {
                Budget::new(host_line, in_host.clone())
            };
            let line_bytes = if plain { usize::MAX } else { budget.line_bytes };
            let budget =
                Budget { line_bytes, rematerialize: !plain, tiers, offload, time_limit_ns, ..budget };
            let mut plans = run.plan_lowest(&batches, &budget, &self.search_cache)?;
            let in_host_arena = if device { plans.tier_bytes.host as usize } else { plans.arena_bytes };
            let page_tables = sheet::page_tables(in_host_arena);
            if let Some(heap) = run.heap_bytes() {
                let bytes = heap + sheet::plans_heap_bytes(&plans);
                let (total, _) = plans.sheet.host_total_and_line();
                let total = total + bytes + page_tables.bytes;
                // An arena that missed the limit with less reserved misses it with more, too.
                let retry = in_host_arena <= host_arena && total > host_limit;
                if bytes > reserved && retry && !plain {
                    reserved = bytes + bytes / 16;
                    continue;
                }
                plans.sheet.add_outside(sheet::heap_cap(bytes, &plans.plans));
            }
            plans.sheet.add_outside(page_tables);
            if let Some(heap) = run.heap_bytes() {
                let before = in_host.iter().fold(heap, |sum, e| sum.saturating_add(e.bytes));
                let (total, _) = plans.sheet.host_total_and_line();
                let run_bytes = total.saturating_sub(before);
                let planning = sheet::planning_bytes(batches.graphs(), !plain).saturating_sub(run_bytes);
                if planning > 0 {
                    plans.sheet.add_outside(sheet::planning(planning));
                }
            }
            return Ok(plans);
        }
    }

    /// The techniques, or none where a search for them might itself pass the line. A line of 0 asks for the lowest peak.
    fn within_room<C: Candidates>(
        &self,
        run: &C,
        batches: &Batches,
        outside: &[Entry],
        techniques: RunTechniques,
    ) -> RunTechniques {
        let line = if run.tiers().host.is_some() { self.host_line_bytes } else { self.line_bytes };
        let Some(heap) = run.heap_bytes().filter(|_| line > 0) else { return techniques };
        let planning = sheet::planning_bytes(batches.graphs(), true);
        let needed = outside.iter().fold(heap.saturating_add(planning), |sum, e| sum.saturating_add(e.bytes));
        if needed <= line { techniques } else { RunTechniques::Plain }
    }
}

/// Predicted time of a step of the first plan, the training step's.
fn step_ns(plans: &PlanSet) -> u64 {
    plans.plans.first().map_or(0, |p| p.nanoseconds)
}

fn is_infeasible<C: Candidates>(result: &Result<PlanSet, C::Error>) -> bool {
    result.as_ref().is_err_and(|error| C::infeasible(error).is_some())
}

/// The faster of two plans; of two that do not fit, the one that misses the line by less. Any other failure is returned.
fn better_of<C: Candidates>(
    first: Result<PlanSet, C::Error>,
    second: Result<PlanSet, C::Error>,
) -> Result<PlanSet, C::Error> {
    let failed = |result: &Result<PlanSet, C::Error>| result.is_err() && !is_infeasible::<C>(result);
    if failed(&first) || failed(&second) {
        return if failed(&first) { first } else { second };
    }
    better(first, second, |result| match result {
        Ok(plans) => Score::new(0, 0, step_ns(plans)),
        Err(error) => Score::new(C::infeasible(error).map_or(0, |short| short.missing_bytes), 0, 0),
    })
}
