//! How a whole run fits: the number of micro-batches, and the techniques that each number may use.

use super::candidates::PlanningProgress;
use super::state_tiers::SLOW;
use super::{Batches, Candidates, Score, better};
use crate::{Budget, HostBudget, LoadSheet, PlanSet, SearchCache, Space, sheet, verify};
use plimsoll_graph::{BatchRelation, Graph};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Writing wears a disk out, and a link may be slower than it says: offload that is not needed to fit has to save at least this
/// fraction (1/1024) of a step.
const WORTH_OFFLOADING: u64 = 1024;

/// Searches just below the lowest peak found lower it by a small part. Where more than this part (1/8) of it is above the line, they are
/// not tried for a plan that is only asked whether it fits.
const OUT_OF_REACH: usize = 8;

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
    /// The limit that searches are given, where it is not the line.
    limit: Option<usize>,
    /// Predicted time of a step without a line, and bytes of all states; known once anything is planned.
    unlimited_ns: u64,
    state_bytes: usize,
    /// Plans tried so far.
    tried: usize,
    /// Whether what was found is kept for other lines.
    keep: bool,
    /// Whether a line far below the lowest peak found is refused without a search for lower ones.
    only_fit: bool,
    /// By the number of micro-batches: graphs, and plans without any technique.
    batches: BTreeMap<usize, Rc<Batches>>,
    plain: BTreeMap<usize, Rc<PlanSet>>,
    /// By the number of micro-batches: the load sheets of those plans.
    plain_sheets: BTreeMap<usize, LoadSheet>,
    /// Plans chosen under other lines.
    chosen: Vec<PlanSet>,
    /// By the number of micro-batches: what the process holds at most while it searches for their plans.
    search_bytes: BTreeMap<usize, usize>,
    search_cache: SearchCache,
}

impl Chooser {
    /// For plans under one line: only the latest search is kept, for its next search limit.
    pub fn new(line_bytes: usize, host_line_bytes: usize) -> Self {
        Self { line_bytes, host_line_bytes, search_cache: SearchCache::with_capacity(1), ..Self::default() }
    }

    /// As [`Chooser::new`], to learn whether a run fits: a line that is out of reach is refused with the first lowest plan found, and what
    /// that needs is not the smallest line.
    pub fn only_fit(line_bytes: usize, host_line_bytes: usize) -> Self {
        Self { only_fit: true, ..Self::new(line_bytes, host_line_bytes) }
    }

    /// For plans under many lines, set by [`Chooser::line_bytes`].
    pub fn reusable(host_line_bytes: usize) -> Self {
        Self { keep: true, host_line_bytes, search_cache: SearchCache::unbounded(), ..Self::default() }
    }

    /// Predicted time of a step without a line; 0 before anything is planned.
    pub fn unlimited_ns(&self) -> u64 {
        self.unlimited_ns
    }

    /// The fastest plans found under the line; every plan set is verified. A line is refused with the smallest line that would
    /// do, as far as the refused one leaves room for the search: that one is planned, and the one a byte below it is not.
    pub fn choose<C: Candidates>(&mut self, run: &C) -> Result<PlanSet, C::Error> {
        let found = self.search(run)?;
        Ok(if self.keep { self.or_chosen(found) } else { found })
    }

    /// The faster of these plans and those chosen under lower lines, which fit under this one, too.
    fn or_chosen(&mut self, found: PlanSet) -> PlanSet {
        let fits = |plans: &&PlanSet| self.under_lines(plans.sheet.clone()).check_line().is_ok();
        let fastest = self.chosen.iter().filter(fits).min_by_key(|plans| step_ns(plans));
        if let Some(known) = fastest.filter(|known| step_ns(known) < step_ns(&found)) {
            return PlanSet { sheet: self.under_lines(known.sheet.clone()), ..known.clone() };
        }
        self.chosen.push(found.clone());
        found
    }

    /// The fastest plans found by searches at the line, else those with the lowest peak.
    fn search<C: Candidates>(&mut self, run: &C) -> Result<PlanSet, C::Error> {
        let mut found = self.fastest(run);
        if !is_infeasible::<C>(&found) {
            // What goes to host memory is chosen greedily: a search under a lower limit sometimes finds faster plans, and they fit
            // here, too.
            for limit in [self.line_bytes / 16 * 15, self.line_bytes / 8 * 7] {
                let is_slow = |plans: &PlanSet| step_ns(plans) > self.unlimited_ns / SLOW * (SLOW + 1);
                if run.tiers().host.is_some() && found.as_ref().is_ok_and(is_slow) {
                    found = better_of::<C>(found, self.under_limit(run, limit));
                }
            }
            return found;
        }
        // Plans with the lowest peak sometimes fit where those searched for at the line do not.
        let mut lowest = if self.line_bytes == 0 { found } else { self.under_limit(run, 0) };
        // A search just below what they need sometimes finds lower ones, with less fragmentation.
        while let Some(needed) = needed_bytes::<C>(&lowest) {
            if self.only_fit && needed.saturating_sub(self.line_bytes) > needed / OUT_OF_REACH {
                break;
            }
            let lower = self.under_limit(run, needed - 1);
            if is_infeasible::<C>(&lower) && needed_bytes::<C>(&lower).is_none_or(|lower| lower >= needed) {
                break;
            }
            lowest = lower;
        }
        lowest
    }

    /// The plans that searches under another limit than the line find.
    fn under_limit<C: Candidates>(&mut self, run: &C, limit: usize) -> Result<PlanSet, C::Error> {
        self.limit = Some(limit);
        let found = self.fastest(run);
        self.limit = None;
        found
    }

    /// The limit that searches are given.
    fn search_limit(&self) -> usize {
        self.limit.unwrap_or(self.line_bytes)
    }

    fn fastest<C: Candidates>(&mut self, run: &C) -> Result<PlanSet, C::Error> {
        let counts = run.micro_batches();
        let mut best = self.plan(run, counts[0], RunTechniques::Plain);
        let mut tried = 1;
        while is_infeasible::<C>(&best) && tried < counts.len() {
            match self.plan(run, counts[tried], RunTechniques::Plain) {
                Err(error) if C::is_unsplittable(&error) => break,
                other => best = better_of::<C>(best, other),
            }
            tried += 1;
        }
        let fits = !is_infeasible::<C>(&best);
        if fits {
            best = self.split_further(run, best, &counts[tried - 1..]);
        }
        if tried == 1 && fits {
            return best;
        }
        // Fewer micro-batches with rematerialization may be faster, or the only ones that fit. What is tried under one line is
        // tried under every higher line, too, unless the run fits there without.
        let last = if fits { tried - 2 } else { tried - 1 };
        let mut again = vec![0, (counts.len() / 2).min(last), last];
        again.dedup();
        again.retain(|&at| self.has_room(run, counts[at]));
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
            if at > 0 && slower > 1 || !self.has_room(run, count) {
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

    /// The faster of plans that fit, in the first of these numbers of micro-batches, and those in more of them: what a smaller
    /// micro-batch computes stays in caches. So plans under a higher line, which fits fewer micro-batches, are never slower.
    fn split_further<C: Candidates>(
        &mut self,
        run: &C,
        mut best: Result<PlanSet, C::Error>,
        counts: &[usize],
    ) -> Result<PlanSet, C::Error> {
        for pair in counts.windows(2) {
            let Ok(plans) = &best else { break };
            if !self.has_room(run, pair[0]) {
                break;
            }
            match self.plan(run, pair[1], RunTechniques::Plain) {
                Ok(split) if step_ns(&split) < step_ns(plans) => best = Ok(split),
                Err(error) if !C::is_unsplittable(&error) && C::infeasible(&error).is_none() => {
                    return Err(error);
                }
                Ok(_) | Err(_) => break,
            }
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
            RunTechniques::Plain => {
                let known = self.plain_sheets.get(&micro_batches);
                known.map_or(Ok(()), |sheet| self.under_lines(sheet.clone()).check_line())?;
                self.plan_plain(run, micro_batches)?
            }
            RunTechniques::Rematerialize | RunTechniques::Offload { .. } => {
                self.plan_lowest(run, micro_batches, techniques)?
            }
        };
        plans.sheet = self.under_lines(plans.sheet);
        plans.sheet.check_line()?;
        verify(&plans)?;
        Ok(plans)
    }

    /// A load sheet with the lines of this run.
    fn under_lines(&self, mut sheet: LoadSheet) -> LoadSheet {
        sheet.line_bytes = self.line_bytes;
        if let Some(host) = &mut sheet.host {
            host.line_bytes = self.host_line_bytes;
        }
        sheet
    }

    /// The plans without any technique. The fastest tell the time of a step without a line.
    fn plan_plain<C: Candidates>(&mut self, run: &C, micro_batches: usize) -> Result<PlanSet, C::Error> {
        if let Some(known) = self.plain.get(&micro_batches) {
            return Ok(known.as_ref().clone());
        }
        let plans = self.plan_lowest(run, micro_batches, RunTechniques::Plain)?;
        let fastest_ns = if self.unlimited_ns == 0 { u64::MAX } else { self.unlimited_ns };
        self.unlimited_ns = step_ns(&plans).min(fastest_ns);
        self.state_bytes = plans.states.iter().map(|s| s.ty.bytes()).sum();
        self.plain_sheets.insert(micro_batches, plans.sheet.clone());
        if self.keep {
            self.plain.insert(micro_batches, Rc::new(plans.clone()));
        }
        Ok(plans)
    }

    fn batches<C: Candidates>(&mut self, run: &C, micro_batches: usize) -> Result<Rc<Batches>, C::Error> {
        if let Some(known) = self.batches.get(&micro_batches) {
            return Ok(known.clone());
        }
        let made = Rc::new(Batches::new(run.graphs(micro_batches)?));
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
        let is_mixed = |graph: &Graph| graph.batch_relations().contains(&BatchRelation::Mixed);
        let splits =
            run.splits_mixed() || !batches.graphs().first().is_some_and(|(_, graph)| is_mixed(graph));
        if let Some(heap) = run.heap_bytes() {
            let planning = heap.saturating_add(sheet::planning_bytes(batches.graphs(), true, splits));
            let bytes = in_host.iter().fold(planning, |sum, e| sum.saturating_add(e.bytes));
            self.search_bytes.insert(micro_batches, bytes);
        }
        let plain = techniques == RunTechniques::Plain;
        // Heap and page tables depend on the plan: they are reserved first, and counted once the plan is known.
        // Rematerialized runs and transfers add to the plan, seldom as much as an eighth.
        let mut reserved = run.heap_bytes().map_or(0, |heap| {
            let bytes = sheet::graphs_heap_bytes(batches.graphs(), !plain);
            heap + bytes + if plain { 0 } else { bytes / 8 }
        });
        let (offload, time_limit_ns) = match techniques {
            RunTechniques::Plain | RunTechniques::Rematerialize => (false, u64::MAX),
            RunTechniques::Offload { time_limit_ns } => (true, time_limit_ns),
        };
        // The same for what a device takes of its own memory to reach that of the host: states are offloaded first.
        let bytes = |graph: &Graph| graph.states.iter().map(|state| graph.ty(state.input).bytes()).sum();
        let states: usize = batches.graphs().first().map_or(0, |(_, graph)| bytes(graph));
        let mut reserved_on_device = if offload { run.target().host_mapping_bytes(states as u64) } else { 0 };
        loop {
            let host_bytes = in_host.iter().fold(reserved, |sum, e| sum.saturating_add(e.bytes));
            let host_limit = if device { self.host_line_bytes } else { limit };
            // The arena of the computing space, or that of what is offloaded to host memory.
            let host_arena = sheet::largest_arena(host_limit.saturating_sub(host_bytes));
            let host_line = host_arena.saturating_add(host_bytes - reserved);
            let budget = if device {
                let host = HostBudget { line_bytes: host_line, outside: in_host.clone() };
                let mut outside = run.target().outside();
                outside.extend(sheet::host_mapping(reserved_on_device));
                Budget { host, ..Budget::new(limit, outside) }
            } else {
                Budget::new(host_line, in_host.clone())
            };
            let line_bytes = if plain { usize::MAX } else { budget.line_bytes };
            let budget =
                Budget { line_bytes, rematerialize: !plain, tiers, offload, time_limit_ns, ..budget };
            let mut plans = run.plan_lowest(&batches, &budget, &self.search_cache)?;
            let in_host_arena = if device { plans.tier_bytes.host as usize } else { plans.arena_bytes };
            let page_tables = sheet::page_tables(in_host_arena);
            let mapping = run.target().host_mapping_bytes(plans.tier_bytes.host);
            let total = plans.sheet.total_bytes;
            if !plain && total <= limit && total.saturating_sub(reserved_on_device) + mapping > limit {
                reserved_on_device = mapping + mapping / 8;
                continue;
            }
            plans.sheet.set_host_mapping(mapping);
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
                let planning = sheet::planning_bytes(batches.graphs(), !plain, splits);
                let planning = planning.saturating_sub(run_bytes);
                if planning > 0 {
                    plans.sheet.add_outside(sheet::planning(planning));
                }
            }
            return Ok(plans);
        }
    }

    /// Whether a search for plans in so many micro-batches stays under the line itself. A line of 0 asks for the lowest peak.
    fn has_room<C: Candidates>(&self, run: &C, micro_batches: usize) -> bool {
        let line = if run.tiers().host.is_some() { self.host_line_bytes } else { self.line_bytes };
        line == 0 || self.search_bytes.get(&micro_batches).is_none_or(|&bytes| bytes <= line)
    }
}

/// Predicted time of a step of the first plan, the training step's.
fn step_ns(plans: &PlanSet) -> u64 {
    plans.plans.first().map_or(0, |p| p.nanoseconds)
}

fn is_infeasible<C: Candidates>(result: &Result<PlanSet, C::Error>) -> bool {
    result.as_ref().is_err_and(|error| C::infeasible(error).is_some())
}

/// The bytes of the computing space that plans over its line need.
fn needed_bytes<C: Candidates>(result: &Result<PlanSet, C::Error>) -> Option<usize> {
    let short = C::infeasible(result.as_ref().err()?)?;
    (short.space == Space::Computing).then_some(short.needed_bytes)
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
