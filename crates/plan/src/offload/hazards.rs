//! The execution order of steps over micro-batches, and the hazards between steps and transfers in flight.

use crate::{Action, Buffer, BufferId, BufferKind, Direction, ExecutionPlan, Offloaded, Queue, Step, Tier};
use std::ops::Range;

/// The end of the steps of the micro-batches: everything behind it belongs to the optimizer step.
pub(crate) fn body(steps: &[Step]) -> usize {
    steps.iter().rposition(|step| !step.optimizer_step).map_or(0, |last| last + 1)
}

/// Which transfers must be done before what, by the numbers of their steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waits {
    /// Before inputs are copied in and accumulators are zeroed: transfers of the previous run.
    pub entry: Vec<u32>,
    /// Before each step. Before a transfer these are transfers of other queues: its queue waits for those of its own tier while
    /// computing goes on, and computing waits for those of another. A transfer with a higher number than the step is that of
    /// the previous micro-batch, or of the previous run; it may be in flight until then.
    pub steps: Vec<Vec<u32>>,
}

/// A step waits for a load in flight if it reads (RAW) or writes (WAW) the loaded bytes, and for a store in flight if it writes
/// the stored bytes (WAR). The first such step waits, which covers all later ones. A queue runs its transfers in order; it waits
/// for transfers of other queues that touch the same bytes of the arena or of a tier, unless both only read them.
pub(crate) fn waits(steps: &[Step], buffers: &[Buffer]) -> Waits {
    let mut waits: Vec<Vec<u32>> = vec![Vec::new(); steps.len()];
    let place = |id: BufferId| range(&buffers[id.index()]);
    let entering: Vec<Range<usize>> = buffers
        .iter()
        .filter(|b| matches!(b.kind, BufferKind::Input(_) | BufferKind::Accumulator(_)))
        .map(range)
        .collect();
    let meets_entering = |(at, step): (usize, &Step)| {
        let place = place(transfer(step)?.buffer);
        entering.iter().any(|e| overlap(e, &place)).then_some(at as u32)
    };
    let entry: Vec<u32> = steps.iter().enumerate().filter_map(meets_entering).collect();
    if !steps.iter().any(|step| transfer(step).is_some()) {
        return Waits { entry, steps: waits };
    }
    let (mut read, mut written) = (Vec::new(), Vec::new());
    let mut pending: Vec<InFlight> = Vec::new();
    // Between micro-batches the optimizer step does not run; after the last one it does.
    for skips_optimizer_step in [true, false] {
        pending.clear();
        for again in [false, true] {
            for (at, step) in steps.iter().enumerate() {
                if again && pending.is_empty() {
                    break;
                }
                let mut add = |number: u32| {
                    if !waits[at].contains(&number) {
                        waits[at].push(number);
                    }
                };
                if let Some(moved) = transfer(step) {
                    let issued = InFlight { number: at as u32, place: place(moved.buffer), moved };
                    // The transfer is issued again: waiting for the new one covers both.
                    pending.retain(|other| other.number != issued.number);
                    // Computing does not wait: others still have to.
                    pending.iter().filter(|other| issued.meets(other)).for_each(|other| add(other.number));
                    if !again {
                        pending.push(issued);
                    }
                    continue;
                }
                if pending.is_empty() || (skips_optimizer_step && step.optimizer_step) {
                    continue;
                }
                touched(step, &mut read, &mut written);
                let meets =
                    |taken: &Range<usize>, ids: &[BufferId]| ids.iter().any(|&id| overlap(taken, &place(id)));
                pending.retain(|other| {
                    let loads = other.moved.direction == Direction::Load;
                    let blocks = meets(&other.place, &written) || (loads && meets(&other.place, &read));
                    if blocks {
                        add(other.number);
                    }
                    !blocks
                });
            }
        }
    }
    Waits { entry, steps: waits }
}

/// A transfer that may be in flight.
struct InFlight {
    number: u32,
    /// Its bytes of the arena.
    place: Range<usize>,
    moved: Transfer,
}

impl InFlight {
    /// Whether two transfers of different queues touch the same bytes, and not both only read them.
    fn meets(&self, other: &Self) -> bool {
        let (one, two) = (self.moved, other.moved);
        if one.queue() == two.queue() {
            return false;
        }
        let loads = |moved: Transfer| moved.direction == Direction::Load;
        let in_arena = overlap(&self.place, &other.place) && (loads(one) || loads(two));
        let in_tier = one.tier == two.tier && one.what == two.what && !(loads(one) && loads(two));
        in_arena || in_tier
    }
}

fn range(buffer: &Buffer) -> Range<usize> {
    buffer.offset..buffer.offset + buffer.bytes
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

/// What a transfer moves, between which buffer and which tier.
#[derive(Clone, Copy)]
pub(crate) struct Transfer {
    pub buffer: BufferId,
    pub direction: Direction,
    pub tier: Tier,
    what: Offloaded,
}

impl Transfer {
    pub fn queue(self) -> Queue {
        self.tier.queue(self.direction)
    }
}

/// The transfer of a step, if it is one.
pub(crate) fn transfer(step: &Step) -> Option<Transfer> {
    match step.action {
        Action::Load { what, tier, to } => {
            Some(Transfer { buffer: to, direction: Direction::Load, tier, what })
        }
        Action::Store { what, tier, from } => {
            Some(Transfer { buffer: from, direction: Direction::Store, tier, what })
        }
        Action::Run { .. } | Action::ChunkedUpdate { .. } | Action::Copy { .. } => None,
    }
}

/// The buffers that a step other than a transfer reads, and those that it writes, workspace included.
fn touched(step: &Step, read: &mut Vec<BufferId>, written: &mut Vec<BufferId>) {
    read.clear();
    written.clear();
    match &step.action {
        Action::Run { reads, writes, workspace, .. } => {
            read.extend(reads);
            written.extend(writes.iter().chain(workspace));
        }
        Action::ChunkedUpdate { reads, writes, workspace, .. } => {
            read.extend(reads.iter().flatten());
            written.extend(writes.iter().flatten().chain([workspace]));
        }
        Action::Copy { from, to, .. } => {
            read.push(*from);
            written.push(*to);
        }
        Action::Load { .. } | Action::Store { .. } => {}
    }
}

impl ExecutionPlan {
    /// The steps of a run in execution order, each with its micro-batch (0 in the optimizer step).
    ///
    /// ```
    /// use plimsoll_graph::{Builder, op::Unary};
    /// use plimsoll_plan::{Budget, NullTarget, plan};
    /// let mut b = Builder::new(2, 2);
    /// let x = b.batch_input("x", "f32[2,3]".parse()?);
    /// let y = b.unary(Unary::Exp, x)?;
    /// b.output("y", y);
    /// let batches = [("predict".into(), b.finish()?)];
    /// let plans = plan(&batches, &NullTarget::default(), &Budget::new(usize::MAX, Vec::new()))?;
    /// assert_eq!(plans.plans[0].execution_order().collect::<Vec<_>>(), [(0, 0)]);
    /// assert!(plans.plans[0].waits().entry.is_empty()); // nothing is offloaded
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn execution_order(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let (body, last) = (body(&self.steps), self.graph.micro_batches.saturating_sub(1));
        let in_body = (0..=last).flat_map(move |m| (0..body).map(move |step| (step, m)));
        let optimizer_step = (body..self.steps.len()).map(|step| (step, 0));
        let in_body = in_body.filter(move |&(step, m)| m == last || !self.steps[step].optimizer_step);
        let micro_batch =
            |(step, m): (usize, usize)| (step, if self.steps[step].optimizer_step { 0 } else { m });
        in_body.map(micro_batch).chain(optimizer_step)
    }

    /// What waits for which transfers. Those of one queue have to be done in the order in which they are issued.
    pub fn waits(&self) -> Waits {
        waits(&self.steps, &self.buffers)
    }
}
