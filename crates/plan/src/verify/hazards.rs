//! Checks that the waits of plans order every two accesses to the same bytes, one of them a write (happens-before).
//!
//! One compute thread runs the steps in order. Transfers run beside it, on queues: a transfer happens after the compute thread
//! has issued it, after the transfer before it in its queue, and after the transfers that it waits for; any of them may be late
//! without limit. The compute thread knows that a transfer is done only once it has waited for it, or for a later one that
//! knows. So what the compute thread did before is ordered with all that follows, and only an access by a transfer can be in a
//! race. What is known to be done is a vector clock: for each queue, the number of a transfer.
//!
//! A run is unrolled: the first micro-batch, one that stands for those in between, the last, and the optimizer step. A second run
//! follows. A chunked update loads, computes and stores as a whole here: that its chunks are double-buffered rests on the
//! runtime's queues, which order the transfers of a tier that touch the same bytes. More runs show nothing new: of the transfers of one step only the last one matters, because those before it in the queue
//! are done when it is. A run of another plan begins with nothing in flight: the executor waits for everything.

mod accesses;

use super::{At, VerifyError};
use crate::{Action, Direction, ExecutionPlan, PerTier, PlanSet, Tier, Waits};
use accesses::{Access, Accesses, Space, Touched};
use std::collections::BTreeMap;
use std::ops::Range;

/// The queue of a step's transfers to or from a tier. A chunked update makes some, too.
pub(crate) type QueueOf = fn(&Action, Tier, Direction) -> usize;

/// As the runtime has it: loads from host memory, stores to it, and the file have a queue each. The runtime orders more: a tier's
/// transfers with a hazard between them.
fn queue_of(_: &Action, tier: Tier, direction: Direction) -> usize {
    match (tier, direction) {
        (Tier::Host, Direction::Load) => 0,
        (Tier::Host, Direction::Store) => 1,
        (Tier::File, _) => 2,
    }
}

/// Transfer queues at most.
const QUEUES: usize = 3;

/// Checks that nothing touches bytes that a transfer in flight may write, and nothing writes bytes that one may read: in the arena and
/// in the tiers, in all micro-batches and in runs that follow one another. `waits` are those of each plan. The set has
/// passed [`verify`](crate::verify).
///
/// ```
/// use plimsoll_graph::{Builder, op::Unary};
/// use plimsoll_plan::{Budget, ExecutionPlan, NullTarget, VerifyError, plan, verify_hazards};
/// let mut b = Builder::new(2, 2);
/// let x = b.batch_input("x", "f32[2,3]".parse()?);
/// let y = b.unary(Unary::Relu, x)?;
/// b.output("y", y);
/// let budget = Budget::new(1 << 20, Vec::new());
/// let plans = plan(&[("predict".into(), b.finish()?)], &NullTarget::default(), &budget)?;
/// let waits: Vec<_> = plans.plans.iter().map(ExecutionPlan::waits).collect();
/// assert_eq!(verify_hazards(&plans, &waits), Ok(()));
/// assert!(matches!(verify_hazards(&plans, &[]), Err(VerifyError::Malformed { .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn verify_hazards(set: &PlanSet, waits: &[Waits]) -> Result<(), VerifyError> {
    check(set, waits, queue_of)
}

/// As [`verify_hazards`], with other queues.
pub(crate) fn check(set: &PlanSet, waits: &[Waits], queue_of: QueueOf) -> Result<(), VerifyError> {
    for (i, plan) in set.plans.iter().enumerate() {
        let waits = waits.get(i).filter(|waits| waits.steps.len() == plan.steps.len());
        let waits = waits.ok_or_else(|| VerifyError::Malformed {
            plan: plan.name.clone(),
            reason: "it does not have waits for each of its steps".to_string(),
        })?;
        if plan.steps.iter().all(|step| matches!(step.action, Action::Run { .. } | Action::Copy { .. })) {
            continue;
        }
        let mut checker = Checker {
            plan,
            waits,
            queue_of,
            accesses: Accesses::new(set, plan),
            compute: Clock::default(),
            queues: Default::default(),
            last_transfer: vec![None; plan.steps.len()],
            in_flight: Default::default(),
            done: Vec::new(),
        };
        checker.run()?;
        checker.run()?;
    }
    Ok(())
}

/// For each queue, up to which of its transfers, counted from 1, all are known to be done.
#[derive(Clone, Copy, Default)]
struct Clock([u32; QUEUES]);

impl Clock {
    fn join(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(mine, theirs)| *mine = (*mine).max(theirs));
    }

    /// A transfer that this knows of, but the other does not: its queue and number.
    fn beyond(&self, other: &Self) -> Option<(usize, u32)> {
        let mut queues = self.0.into_iter().zip(other.0).enumerate();
        queues.find_map(|(queue, (mine, theirs))| (mine > theirs).then_some((queue, mine)))
    }
}

/// A queue, as far as transfers have been issued.
#[derive(Default)]
struct Queue {
    /// The step of each transfer.
    steps: Vec<usize>,
    /// What is done once the last one is.
    clock: Clock,
}

/// For each queue, the last transfer that writes a range, and the last that reads it.
#[derive(Clone, Copy, Default)]
struct Transfers {
    writes: Clock,
    reads: Clock,
}

/// Ranges that do not overlap, by start: their ends and transfers.
type Ranges = BTreeMap<u64, (u64, Transfers)>;

struct Checker<'a> {
    plan: &'a ExecutionPlan,
    waits: &'a Waits,
    queue_of: QueueOf,
    accesses: Accesses<'a>,
    /// What the compute thread knows to be done.
    compute: Clock,
    queues: [Queue; QUEUES],
    /// For each step, what is done once its last transfer is.
    last_transfer: Vec<Option<Clock>>,
    /// What transfers touch in each space.
    in_flight: [Ranges; Space::COUNT],
    /// Ranges whose transfers are done, for use inside `check_access`.
    done: Vec<u64>,
}

impl Checker<'_> {
    /// A run, as the executor does it.
    fn run(&mut self) -> Result<(), VerifyError> {
        let plan = self.plan;
        self.compute.join(&self.after(&self.waits.entry));
        self.compute_accesses(None, &self.accesses.of_entry())?;
        let body = plan.steps.iter().rposition(|step| !step.optimizer_step).map_or(0, |last| last + 1);
        let count = plan.graph.micro_batches.max(1);
        for round in [0..1, 1..count - 1, (count - 1).max(1)..count] {
            if round.is_empty() {
                continue;
            }
            for (index, step) in plan.steps[..body].iter().enumerate() {
                match step.optimizer_step {
                    false => self.step(index, &round)?,
                    true if round.end == count => self.step(index, &(0..1))?,
                    true => {}
                }
            }
        }
        (body..plan.steps.len()).try_for_each(|index| self.step(index, &(0..1)))?;
        // The executor waits for all loads, so that outputs and states can be read.
        for (step, done) in plan.steps.iter().zip(&self.last_transfer) {
            if let (Action::Load { .. }, Some(done)) = (&step.action, done) {
                self.compute.join(done);
            }
        }
        Ok(())
    }

    /// What is done once the last transfers of steps are.
    fn after(&self, steps: &[u32]) -> Clock {
        let mut clock = Clock::default();
        let transfers = steps.iter().filter_map(|&step| self.last_transfer.get(step as usize)?.as_ref());
        transfers.for_each(|done| clock.join(done));
        clock
    }

    /// A step in any of these micro-batches.
    fn step(&mut self, index: usize, micro_batches: &Range<usize>) -> Result<(), VerifyError> {
        let action = &self.plan.steps[index].action;
        let waits = self.after(&self.waits.steps[index]);
        let Touched { loads, compute, stores } = self.accesses.of_step(action, micro_batches);
        match action {
            Action::Run { .. } | Action::Copy { .. } => {
                self.compute.join(&waits);
                self.compute_accesses(Some(index), &compute)
            }
            Action::Load { .. } => self.transfers(index, waits, Direction::Load, &loads).map(drop),
            Action::Store { .. } => self.transfers(index, waits, Direction::Store, &stores).map(drop),
            Action::ChunkedUpdate { .. } => {
                self.compute.join(&waits);
                // It waits for a load before it computes, and for its last store.
                self.compute = self.transfers(index, self.compute, Direction::Load, &loads)?;
                self.compute_accesses(Some(index), &compute)?;
                self.compute = self.transfers(index, self.compute, Direction::Store, &stores)?;
                Ok(())
            }
        }
    }

    fn compute_accesses(&mut self, step: Option<usize>, accesses: &[Access]) -> Result<(), VerifyError> {
        accesses.iter().try_for_each(|access| self.check_access(step, &self.compute.clone(), access))
    }

    /// Issues a step's transfers to or from each tier, which wait for others; what is done once they are.
    fn transfers(
        &mut self,
        step: usize,
        waits: Clock,
        direction: Direction,
        accesses: &PerTier<Vec<Access>>,
    ) -> Result<Clock, VerifyError> {
        let mut done = waits;
        for tier in Tier::ALL {
            if !accesses[tier].is_empty() {
                let queue = (self.queue_of)(&self.plan.steps[step].action, tier, direction);
                done.join(&self.transfer(step, queue, waits, &accesses[tier])?);
            }
        }
        Ok(done)
    }

    /// Issues a transfer that waits for others; what is done once it is.
    fn transfer(
        &mut self,
        step: usize,
        queue: usize,
        waits: Clock,
        accesses: &[Access],
    ) -> Result<Clock, VerifyError> {
        let mut clock = self.queues[queue].clock;
        clock.join(&self.compute);
        clock.join(&waits);
        accesses.iter().try_for_each(|access| self.check_access(Some(step), &clock, access))?;
        self.queues[queue].steps.push(step);
        clock.0[queue] = self.queues[queue].steps.len() as u32;
        self.queues[queue].clock = clock;
        self.last_transfer[step] = Some(clock);
        for access in accesses {
            record(&mut self.in_flight[access.space.index()], access, queue, clock.0[queue]);
        }
        Ok(clock)
    }

    /// Checks that an access, by something that knows these transfers to be done, meets no other transfer that it must not.
    fn check_access(
        &mut self,
        step: Option<usize>,
        known: &Clock,
        access: &Access,
    ) -> Result<(), VerifyError> {
        let Range { start, end } = access.bytes;
        let ranges = &mut self.in_flight[access.space.index()];
        let first = ranges.range(..=start).next_back().map_or(start, |(&first, _)| first);
        for (&from, (to, transfers)) in ranges.range(first..end.max(first)) {
            let unknown = transfers.writes.beyond(known);
            let unknown = unknown.or_else(|| transfers.reads.beyond(known).filter(|_| access.writes));
            if let Some((queue, number)) = unknown.filter(|_| *to > start) {
                let bytes = from.max(start)..(*to).min(end);
                let transfer = self.queues[queue].steps[number as usize - 1];
                return Err(self.race(step, access, bytes, transfer));
            }
            let in_flight = transfers.writes.beyond(&self.compute).or(transfers.reads.beyond(&self.compute));
            if in_flight.is_none() {
                self.done.push(from);
            }
        }
        for from in self.done.drain(..) {
            ranges.remove(&from);
        }
        Ok(())
    }

    fn race(&self, step: Option<usize>, access: &Access, bytes: Range<u64>, transfer: usize) -> VerifyError {
        let what = match step {
            Some(step) => At::step(self.plan, step).to_string(),
            None => format!("plan `{}`, copying inputs in and zeroing accumulators", self.plan.name),
        };
        let does = if access.writes { "writes" } else { "reads" };
        let transfer = At::step(self.plan, transfer).to_string();
        VerifyError::Race { what, does, bytes, space: access.space.name(), transfer }
    }
}

/// Adds a transfer to the ranges that it touches.
fn record(ranges: &mut Ranges, access: &Access, queue: usize, number: u32) {
    let Range { start, end } = access.bytes;
    if start >= end {
        return;
    }
    for at in [start, end] {
        let around = ranges.range_mut(..at).next_back().filter(|(_, (to, _))| *to > at);
        if let Some((_, (to, transfers))) = around {
            let upper = (std::mem::replace(to, at), *transfers);
            ranges.insert(at, upper);
        }
    }
    // The gaps between ranges become ranges.
    let mut gaps = Vec::new();
    let mut at = start;
    for (&from, (to, _)) in ranges.range(start..end) {
        gaps.extend((at < from).then_some((at, from)));
        at = *to;
    }
    gaps.extend((at < end).then_some((at, end)));
    ranges.extend(gaps.into_iter().map(|(from, to)| (from, (to, Transfers::default()))));
    for (_, (_, transfers)) in ranges.range_mut(start..end) {
        let clock = if access.writes { &mut transfers.writes } else { &mut transfers.reads };
        clock.0[queue] = number;
    }
}
