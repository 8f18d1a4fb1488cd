//! Graphs, target and line in; plans and their load sheet out.

use crate::layout::Layout;
use crate::park::Gap;
use crate::repeat::{Repeats, Turn, unrolled};
use crate::searches::Searches;
use crate::work::{InFile, TaskId, Work};
use crate::{
    Entry, ExecutionPlan, PlanError, PlanSet, SPILL_ALIGNMENT, StateHome, StatePlacement, Target, account,
    order, park,
};
use plimsoll_graph::{Graph, Role};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How often a plan whose places have gaps is searched again under another aim.
const AIMS: usize = 3;

/// Where the lowest list has larger gaps than this part of it, one for a line as much higher is tried: it has far fewer
/// repeats, and often no gaps.
const ABOVE_LOWEST: usize = 128;

/// What the plans may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The line: arena and everything outside it together stay under it.
    pub line_bytes: usize,
    /// What lies outside the arena: code, stacks, heap, the data pipeline.
    pub outside: Vec<Entry>,
    /// Whether steps may run again to stay under the line.
    pub recompute: bool,
    /// Where states may lie that do not fit.
    pub spill: Option<Disk>,
    /// Plans that spill and take longer than this are not looked for: a better one is known.
    pub worth_ns: u64,
}

/// The disk that states may be spilled to, in whole numbers so that plans stay pure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// Time to read a MiB.
    pub read_ns_per_mib: u64,
    /// Time to write a MiB.
    pub write_ns_per_mib: u64,
    /// Time until a request is done, beside that of its bytes; others go on meanwhile.
    pub latency_ns: u64,
    /// More of that for a request of a MiB or more, and in proportion for less: by itself it does not get all of the speed.
    pub alone_ns: u64,
    /// Time of the processor that a request takes for every MiB that it has begun: computing does without.
    pub asking_ns: u64,
    /// Memory outside the arena that moving bytes needs.
    pub staging_bytes: usize,
}

impl Disk {
    /// Nanoseconds until a request for so many bytes is done, beside that of the bytes.
    pub(crate) fn latency(&self, bytes: usize) -> u64 {
        let first = bytes.min(1 << 20) as u128;
        self.latency_ns.saturating_add(((first * u128::from(self.alone_ns)) >> 20) as u64)
    }

    /// Nanoseconds of computing that a request for so many bytes takes.
    pub(crate) fn asking(&self, bytes: usize) -> u64 {
        self.asking_ns.saturating_mul(bytes.div_ceil(1 << 20) as u64)
    }

    /// Nanoseconds to read so many bytes.
    pub(crate) fn reading(&self, bytes: usize) -> u64 {
        ((bytes as u128 * u128::from(self.read_ns_per_mib)) >> 20) as u64
    }

    /// Nanoseconds to write so many bytes.
    pub(crate) fn writing(&self, bytes: usize) -> u64 {
        ((bytes as u128 * u128::from(self.write_ns_per_mib)) >> 20) as u64
    }
}

impl Budget {
    /// A budget without recomputation and spilling.
    pub fn new(line_bytes: usize, outside: Vec<Entry>) -> Self {
        Self { line_bytes, outside, recompute: false, spill: None, worth_ns: u64::MAX }
    }

    /// What is left for the arena.
    pub fn arena_bytes(&self) -> usize {
        self.outside.iter().fold(self.line_bytes, |left, entry| left.saturating_sub(entry.bytes))
    }
}

/// Plans every batch type of a model into one arena under a line. States are matched by name across the graphs and
/// lie at the same offsets in every plan.
///
/// A pure function: the same graphs, target and budget give the same plans, on any machine. Nothing is allocated of
/// what is planned.
///
/// ```
/// use plimsoll_graph::{Builder, op::Unary};
/// use plimsoll_plan::{Budget, NullTarget, PlanError, plan, verify};
/// let mut b = Builder::new(32, 8);
/// let x = b.batch_input("x", "f32[32,100]".parse()?);
/// let y = b.unary(Unary::Relu, x)?;
/// let y = b.unary(Unary::Exp, y)?;
/// b.output("y", y);
/// let graph = b.finish()?;
///
/// let budget = |line_bytes| Budget::new(line_bytes, Vec::new());
/// let plans = plan(&[("predict".into(), graph.clone())], &NullTarget::default(), &budget(1 << 20))?;
/// assert_eq!(plans.arena_bytes, 2 * 12_800); // the second op goes over the first one's result
/// verify(&plans)?;
///
/// let Err(PlanError::Infeasible(short)) = plan(&[("predict".into(), graph)], &NullTarget::default(), &budget(20_000))
/// else { panic!("it does not fit") };
/// assert_eq!(short.missing_bytes, 5_600);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn plan(batches: &[(String, Graph)], target: &dyn Target, budget: &Budget) -> Result<PlanSet, PlanError> {
    let plans = plan_toward(batches, target, budget)?;
    plans.sheet.check_line()?;
    Ok(plans)
}

/// As [`plan`], but plans that do not fit are given too, as low as they go: for callers who count more under the line
/// once a plan is known, and check it then.
pub fn plan_toward(
    batches: &[(String, Graph)],
    target: &dyn Target,
    budget: &Budget,
) -> Result<PlanSet, PlanError> {
    plan_remembering(batches, target, budget, &Searches::default())
}

/// As [`plan_toward`], with what other plans found.
pub(crate) fn plan_remembering(
    batches: &[(String, Graph)],
    target: &dyn Target,
    budget: &Budget,
    searches: &Searches,
) -> Result<PlanSet, PlanError> {
    let alignment = target.alignment().max(1);
    let states = find_states(batches)?;
    let disk = budget.spill.unwrap_or_default();
    let graphs = shared(batches);
    let shelf = Shelf { batches, graphs, target, states: &states, alignment, disk, searches };
    let room = budget.arena_bytes();
    let repeat = budget.recompute && budget.spill.is_none();
    let mut best = shelf.plan(&[], room, Means { repeat, park: None, pieces_from: WHOLE })?;
    if let Some(disk) = budget.spill
        && best.peak() > room
    {
        best = shelf.spill(room.saturating_sub(disk.staging_bytes), budget, best)?;
    }
    Ok(shelf.set(best, budget))
}

/// What is smaller than this is not spilled: it would save little and cost a request each.
const LEAST_SPILLED: usize = 64 << 10;

/// States of any size come and go as a whole.
const WHOLE: usize = usize::MAX;

/// A plan that takes a part in so many longer than one without a line is slow: other means are tried.
const SLOW: u64 = 20;

/// Steps that run again are hoped to leave a part in so many of the time that spilling costs without them.
const HOPED: u64 = 3;

/// Everything that does not change between attempts to plan.
struct Shelf<'a> {
    batches: &'a [(String, Graph)],
    /// Their graphs, for plans to share.
    graphs: Vec<Arc<Graph>>,
    target: &'a dyn Target,
    /// All states, none of them placed yet.
    states: &'a [StatePlacement],
    alignment: usize,
    disk: Disk,
    searches: &'a Searches,
}

/// Plans of every batch type above the same states.
struct Planned {
    plans: Vec<ExecutionPlan>,
    floor: Floor,
}

impl Planned {
    fn peak(&self) -> usize {
        self.plans.iter().map(|p| p.peak_bytes).max().unwrap_or(0)
    }

    /// Predicted time of a step of the first batch type.
    fn nanoseconds(&self) -> u64 {
        self.plans.first().map_or(0, |p| p.nanoseconds)
    }
}

impl Shelf<'_> {
    /// Plans with these states in the spill file, and the means where a plan does not fit the room.
    fn plan(&self, spilled: &[usize], room: usize, means: Means) -> Result<Planned, PlanError> {
        let floor = self.floor(spilled, means.pieces_from);
        let plans = self.batches.iter().zip(&self.graphs);
        let plans = plans.map(|((name, _), graph)| {
            let layout = Layout { name, graph, floor: &floor, room, searches: self.searches };
            plan_one(&layout, self.target, self.disk, means)
        });
        Ok(Planned { plans: plans.collect::<Result<_, _>>()?, floor })
    }

    /// The set of finished plans, with their account.
    fn set(&self, planned: Planned, budget: &Budget) -> PlanSet {
        let Planned { plans, floor: Floor { states, spill_bytes, .. } } = planned;
        // Plans take turns in the part above the states.
        let ends = plans.iter().filter_map(|p| {
            let last = p.spilled.last()?;
            Some((last.offset + p.graph.ty(last.value).bytes() as u64).next_multiple_of(SPILL_ALIGNMENT))
        });
        let spill_bytes = ends.max().unwrap_or(0).max(spill_bytes);
        finished(self.target, plans, states, spill_bytes, budget)
    }

    /// Spills as few states as make the plans fit the room, and values beside them; where that is not enough, or slow, steps
    /// run again too. `whole` is the plan without either, for when nothing is lower.
    fn spill(&self, room: usize, budget: &Budget, whole: Planned) -> Result<Planned, PlanError> {
        let order = self.spill_order();
        // More states in the file never need more of the arena, but for gaps.
        let (mut fewest, mut high) = (0, order.len());
        while fewest < high {
            let middle = fewest.midpoint(high);
            if self.live(&order[..middle], room)? <= room { high = middle } else { fewest = middle + 1 }
        }
        let half = fewest.midpoint(order.len());
        let mut counts = vec![fewest, fewest.midpoint(half), half, order.len()];
        counts.dedup();
        let quick = (whole.nanoseconds() / SLOW * (SLOW + 1)).min(budget.worth_ns);
        let park = Some(LEAST_SPILLED);
        let key = |planned: &Planned| (planned.peak().saturating_sub(room), planned.nanoseconds());
        let better = |a: Planned, b: Planned| if key(&b) < key(&a) { b } else { a };
        let unlimited = whole.nanoseconds();
        // What a plan that fits without steps that run again may take, for one with them to be of use.
        let most = unlimited.saturating_add(budget.worth_ns.saturating_sub(unlimited).saturating_mul(HOPED));
        let mut late = true;
        let mut best = whole;
        for repeat in [false, true] {
            for &count in &counts {
                if best.peak() <= room && best.nanoseconds() <= quick {
                    return Ok(best);
                }
                if repeat && (!budget.recompute || late) {
                    continue;
                }
                let planned = self.plan(&order[..count], room, Means { repeat, park, pieces_from: WHOLE })?;
                let fits = planned.peak() <= room;
                late &= planned.nanoseconds() > if fits { most } else { budget.worth_ns };
                best = better(best, planned);
            }
        }
        if late || best.peak() <= room && best.nanoseconds() <= quick / 2 * 3 {
            return Ok(best);
        }
        // Pieces wait for the disk, so they are for where nothing else does; only the largest states, if that is enough.
        let in_pieces =
            |pieces_from| self.plan(&order, room, Means { repeat: budget.recompute, park, pieces_from });
        best = better(best, in_pieces(0)?);
        if best.peak() <= room {
            let largest = self.states.iter().map(|s| s.ty.bytes()).max().unwrap_or(0);
            best = better(best, in_pieces(largest / 2)?);
        }
        Ok(best)
    }

    /// The smallest arena above a room, but for gaps, with these states in the file and values waiting there.
    fn live(&self, spilled: &[usize], room: usize) -> Result<usize, PlanError> {
        let floor = self.floor(spilled, WHOLE);
        let mut most = 0;
        for (name, graph) in self.batches {
            let (_, in_file) = floor.of(graph);
            let work = Work::new(name, graph, self.target, &in_file, self.disk)?;
            let order = self.searches.order(&work);
            let line = room.saturating_sub(floor.end);
            let gaps = park::enough(&work, &order, &park::gaps(&work, &order, LEAST_SPILLED), line);
            let parked = park::parked(&work, &order, &gaps);
            let all: Vec<TaskId> = (0..parked.tasks.len()).collect();
            most = most.max(floor.end + order::peak(&parked, &all) - parked.resident_bytes());
        }
        Ok(most)
    }

    /// The states worth spilling: what is used once in a step first, then what is used often; the largest first.
    fn spill_order(&self) -> Vec<usize> {
        let large = |&i: &usize| self.states[i].ty.bytes() >= LEAST_SPILLED;
        let mut order: Vec<usize> = (0..self.states.len()).filter(large).collect();
        order.sort_by_key(|&i| (self.states[i].role != Role::Moment, Reverse(self.states[i].ty.bytes()), i));
        order
    }

    /// Packs the states at the bottom of the arena, in the order they first appear, and the spilled ones in the file.
    fn floor(&self, spilled: &[usize], pieces_from: usize) -> Floor {
        let mut states = self.states.to_vec();
        let (mut end, mut spill_bytes) = (0_usize, 0_u64);
        for (i, state) in states.iter_mut().enumerate() {
            let bytes = state.ty.bytes();
            if spilled.contains(&i) {
                state.home = StateHome::File(spill_bytes);
                spill_bytes += (bytes as u64).next_multiple_of(SPILL_ALIGNMENT);
            } else {
                state.home = StateHome::Arena(end);
                end += bytes.next_multiple_of(self.alignment);
            }
        }
        Floor { states, end, spill_bytes, pieces_from }
    }
}

fn shared(batches: &[(String, Graph)]) -> Vec<Arc<Graph>> {
    batches.iter().map(|(_, graph)| Arc::new(graph.clone())).collect()
}

/// Plans with their states placed, and their account.
pub(crate) fn finished(
    target: &dyn Target,
    plans: Vec<ExecutionPlan>,
    states: Vec<StatePlacement>,
    spill_bytes: u64,
    budget: &Budget,
) -> PlanSet {
    let arena_bytes = plans.iter().map(|p| p.peak_bytes).max().unwrap_or(0);
    let mut outside = budget.outside.clone();
    if spill_bytes > 0 {
        let staging_bytes = budget.spill.unwrap_or_default().staging_bytes;
        outside.push(Entry::new("spill staging", staging_bytes, "between memory and the disk"));
    }
    let (name, alignment) = (target.name(), target.alignment().max(1));
    let sheet = account::load_sheet(name.clone(), &plans, &states, arena_bytes, &outside, budget.line_bytes);
    PlanSet { target: name, plans, states, alignment, arena_bytes, spill_bytes, sheet }
}

/// The states of all graphs, in the order they first appear, matched by name.
pub(crate) fn find_states(batches: &[(String, Graph)]) -> Result<Vec<StatePlacement>, PlanError> {
    let mut states: Vec<StatePlacement> = Vec::new();
    let mut index = BTreeMap::new();
    let mut total = 0_usize;
    for (plan, graph) in batches {
        graph.check().map_err(|source| PlanError::Graph { plan: plan.clone(), source })?;
        for state in &graph.states {
            let ty = graph.ty(state.input).clone();
            if let Some(&(i, first_plan)) = index.get(&state.name) {
                let known: &StatePlacement = &states[i];
                if known.ty != ty {
                    return Err(PlanError::States {
                        name: state.name.clone(),
                        first: known.ty.to_string(),
                        first_plan: String::clone(first_plan),
                        second: ty.to_string(),
                        second_plan: plan.clone(),
                    });
                }
                continue;
            }
            index.insert(&state.name, (states.len(), plan));
            total = total.saturating_add(ty.bytes()).saturating_add(SPILL_ALIGNMENT as usize);
            if total > 1 << 62 {
                return Err(PlanError::TooLarge { plan: plan.clone(), ty });
            }
            let (name, role, init) = (state.name.clone(), state.role, state.init);
            states.push(StatePlacement { name, ty, role, init, home: StateHome::Arena(0) });
        }
    }
    Ok(states)
}

/// Where everything above the states of one plan set goes.
pub(crate) struct Floor {
    /// The states.
    pub states: Vec<StatePlacement>,
    /// Where the states end.
    pub end: usize,
    /// The states' part of the spill file.
    pub spill_bytes: u64,
    /// Spilled states of at least so many bytes pass through their updates in pieces.
    pub pieces_from: usize,
}

impl Floor {
    /// Where a graph's states stand among all, and whether each lies in the spill file.
    pub fn of(&self, graph: &Graph) -> (Vec<usize>, Vec<InFile>) {
        let index: BTreeMap<&str, usize> =
            self.states.iter().enumerate().map(|(i, s)| (s.name.as_str(), i)).collect();
        let states = graph.states.iter().filter_map(|s| index.get(s.name.as_str()).copied());
        let states: Vec<usize> = states.collect();
        let in_file = |&i: &usize| match self.states[i].home {
            StateHome::Arena(_) => InFile::No,
            StateHome::File(_) if self.states[i].ty.bytes() >= self.pieces_from => InFile::Pieces,
            StateHome::File(_) => InFile::Whole,
        };
        let in_file = states.iter().map(in_file).collect();
        (states, in_file)
    }
}

/// What may be done to fit a room.
#[derive(Clone, Copy)]
struct Means {
    /// Steps run again.
    repeat: bool,
    /// Values of at least so many bytes wait in the spill file.
    park: Option<usize>,
    /// Spilled states of at least so many bytes pass through their updates in pieces.
    pieces_from: usize,
}

/// Plans one graph: in its best order if that fits the room, else with values in the file or repeats that make it fit, else
/// as low as it goes.
fn plan_one(
    layout: &Layout<'_>,
    target: &dyn Target,
    disk: Disk,
    means: Means,
) -> Result<ExecutionPlan, PlanError> {
    let (room, graph) = (layout.room, layout.graph.as_ref());
    let (_, spilled) = layout.floor.of(graph);
    let work = Work::new(layout.name, graph, target, &spilled, disk)?;
    let order = layout.searches.order(&work);
    let plain = if spilled.iter().any(|&home| home != InFile::No) {
        layout.lay_out_inside(&work, &order)
    } else {
        layout.lay_out(&work, &order)
    };
    if plain.peak_bytes <= room {
        return Ok(plain);
    }
    let better = |a: ExecutionPlan, b: ExecutionPlan| {
        let key = |p: &ExecutionPlan| (p.peak_bytes.saturating_sub(room), p.nanoseconds);
        if key(&b) < key(&a) { b } else { a }
    };
    let quick = plain.nanoseconds / SLOW * (SLOW + 1);
    let mut best = plain;
    let gaps = means.park.map_or(Vec::new(), |least| park::gaps(&work, &order, least));
    let mut aim = room.saturating_sub(layout.floor.end);
    let mut enough: Vec<Gap> = Vec::new();
    for _ in 0..if gaps.is_empty() { 0 } else { AIMS } {
        enough = park::enough(&work, &order, &gaps, aim);
        let parked = park::parked(&work, &order, &enough);
        let found = layout.lay_out_inside(&parked, &(0..parked.tasks.len()).collect::<Vec<_>>());
        let peak = found.peak_bytes;
        best = better(best, found);
        if peak <= room {
            break;
        }
        aim = lowered(aim, room, peak);
    }
    if !means.repeat || (best.peak_bytes <= room && best.nanoseconds <= quick) {
        return Ok(best);
    }
    let with = |best: ExecutionPlan, gaps: &[Gap]| {
        let parked = park::parked(&work, &order, gaps);
        // Steps that run again only add to that.
        if best.peak_bytes <= room && best.nanoseconds <= parked.least_nanoseconds() {
            return best;
        }
        better(best, repeated(layout, &parked, &(0..parked.tasks.len()).collect::<Vec<_>>()).0)
    };
    if !gaps.is_empty() {
        // Where everything that can wait does, nothing is lower.
        best = with(best, &gaps);
        if best.peak_bytes > room {
            return Ok(best);
        }
    }
    let (found, list) = repeated(layout, &work, &order);
    best = better(best, found);
    if !gaps.is_empty() && best.nanoseconds > quick {
        // Beside the computing the disk moves what is dearest to make again.
        best = with(best, &park::dearest(&gaps, &list, &work, quick / 2));
        best = with(best, &enough);
    }
    Ok(best)
}

/// Places have gaps between them: an aim as much lower as they are high.
fn lowered(aim: usize, room: usize, peak: usize) -> usize {
    (aim as u128 * room as u128 / peak.max(1) as u128) as usize
}

/// The plan of a work with the repeats that make it fit its room, else as low as it goes, and its tasks in order.
fn repeated(layout: &Layout<'_>, work: &Work<'_>, order: &[TaskId]) -> (ExecutionPlan, Vec<TaskId>) {
    let room = layout.room;
    let listed = |list: &[TaskId]| {
        let turns: Vec<Turn> = list.iter().map(|&task| Turn::Run(task)).collect();
        (unrolled(work, &turns), (0..list.len()).collect::<Vec<_>>())
    };
    let plan = |list: &[TaskId]| {
        let (work, order) = listed(list);
        layout.lay_out_inside(&work, &order)
    };
    let mut repeats = Repeats::new(work, order, layout.searches);
    let Some((least, list)) = repeats.lowest() else { return (plan(order), order.to_vec()) };
    let key = |p: &ExecutionPlan| (p.peak_bytes.saturating_sub(room), p.nanoseconds);
    let better = |best: &mut (ExecutionPlan, Vec<TaskId>), found: ExecutionPlan, list: Vec<TaskId>| {
        if key(&found) < key(&best.0) {
            *best = (found, list);
        }
    };
    let mut best = (plan(&list), list);
    let (gaps, above) = (best.0.peak_bytes - best.0.live_bytes, least / ABOVE_LOWEST);
    let line = room.saturating_sub(layout.floor.end);
    let mut aim = line;
    let mut aimed = false;
    for attempt in 1..=AIMS {
        let list = if aim > least { repeats.under(aim) } else { None };
        let Some(list) = list else { break };
        let found = plan(&list);
        let (peak, live) = (found.peak_bytes, found.live_bytes);
        better(&mut best, found, list);
        if peak <= room && aim == line {
            return best;
        }
        if peak <= room {
            aimed = true;
            break;
        }
        // As much lower as the gaps are high, then twice as much.
        aim = lowered(aim, room, peak).min(line.saturating_sub(attempt * (peak - live)));
    }
    // What is higher than the best and the room is of no use.
    let mut fits = |list: Vec<TaskId>| {
        let (work, order) = listed(&list);
        let found = layout.lay_out_below(&work, &order, best.0.peak_bytes);
        let fits = found.as_ref().is_some_and(|p| p.peak_bytes <= room);
        if let Some(found) = found {
            better(&mut best, found, list);
        }
        fits
    };
    // Gaps differ from list to list: one for a line above the last aim may fit, and be faster.
    let rungs = repeats.rungs_under(line);
    let last = rungs.len();
    let rung = rungs.into_iter().position(&mut fits);
    if gaps > above
        && !aimed
        && rung.is_none_or(|at| at + 1 == last)
        && let Some(list) = repeats.under(least + above)
    {
        fits(list);
    }
    best
}

/// A disk for [`plan_spilled`].
#[cfg(test)]
pub(crate) const TRIED: Disk = Disk {
    read_ns_per_mib: 300_000,
    write_ns_per_mib: 500_000,
    latency_ns: 70,
    alone_ns: 5,
    asking_ns: 3,
    staging_bytes: 0,
};

/// Plans graphs with those states in the spill file whose bit is set, and values of any size where the room asks for it.
#[cfg(test)]
pub(crate) fn plan_spilled(
    batches: &[(String, Graph)],
    target: &dyn Target,
    disk: Disk,
    spilled: u64,
    room: usize,
    repeat: bool,
    pieces_from: usize,
) -> Result<PlanSet, PlanError> {
    let (states, alignment) = (find_states(batches)?, target.alignment());
    let searches = &Searches::default();
    let graphs = shared(batches);
    let shelf = Shelf { batches, graphs, target, states: &states, alignment, disk, searches };
    let some: Vec<usize> = (0..states.len()).filter(|&i| spilled >> i & 1 == 1).collect();
    Ok(shelf.set(
        shelf.plan(&some, room, Means { repeat, park: Some(1), pieces_from })?,
        &Budget::new(usize::MAX, Vec::new()),
    ))
}
