//! Races by definition: every event of a sequence of runs, and the transitive closure of what happens before what.

use crate::verify::hazards::QueueOf;
use crate::{
    Action, BufferId, BufferKind, Direction, ExecutionPlan, Offloaded, PlanSet, StateHome, Step, Tier, Waits,
};
use plimsoll_graph::NodeId;
use std::ops::Range;

/// What an event waits for, beside the event before it.
#[derive(Clone, Copy)]
enum WaitsFor {
    Nothing,
    /// All transfers so far.
    Everything,
    Entry,
    Step(usize),
    /// The last load of every step of the plan.
    Loads,
    Event(usize),
}

/// Bytes of the arena or of a tier, and whether they are written.
type Access = (Option<Tier>, Range<usize>, bool);

struct Event {
    plan: usize,
    /// The queue of a transfer; `None` on the compute thread.
    queue: Option<usize>,
    waits_for: WaitsFor,
    /// The step whose last transfer this becomes.
    ticket: Option<usize>,
    accesses: Vec<Access>,
}

/// The events of a sequence of runs, and the pairs of them that must be ordered.
pub struct Oracle<'a> {
    set: &'a PlanSet,
    events: Vec<Event>,
    conflicts: Vec<(usize, usize)>,
}

impl<'a> Oracle<'a> {
    pub fn new(set: &'a PlanSet, runs: &[usize], queue_of: QueueOf) -> Self {
        let mut oracle = Self { set, events: Vec::new(), conflicts: Vec::new() };
        let mut last = None;
        for &plan in runs {
            oracle.run(plan, last == Some(plan), queue_of);
            last = Some(plan);
        }
        let conflict = |a: &Event, b: &Event| {
            let pairs = a.accesses.iter().flat_map(|x| b.accesses.iter().map(move |y| (x, y)));
            pairs.into_iter().any(|((space, x, writes), (other, y, rewrites))| {
                space == other && (*writes || *rewrites) && x.start.max(y.start) < x.end.min(y.end)
            })
        };
        let pairs = (0..oracle.events.len()).flat_map(|b| (0..b).map(move |a| (a, b)));
        let conflicts = pairs.filter(|&(a, b)| {
            let (a, b) = (&oracle.events[a], &oracle.events[b]);
            (a.queue.is_some() || b.queue.is_some()) && conflict(a, b)
        });
        oracle.conflicts = conflicts.collect();
        oracle
    }

    /// Whether two accesses are not ordered.
    pub fn races(&self, waits: &[Waits]) -> bool {
        let words = self.events.len().div_ceil(64);
        // For each event, all that happen before it.
        let mut before: Vec<Vec<u64>> = Vec::with_capacity(self.events.len());
        let most = self.set.plans.iter().map(|plan| plan.steps.len()).max().unwrap_or(0);
        let mut tickets = vec![None; most];
        let (mut thread, mut queues) = (None, [None; 3]);
        for (at, event) in self.events.iter().enumerate() {
            let waits = &waits[event.plan];
            let of_steps = |steps: &[u32]| steps.iter().filter_map(|&step| tickets[step as usize]).collect();
            let mut earlier: Vec<usize> = match event.waits_for {
                WaitsFor::Nothing => Vec::new(),
                WaitsFor::Everything => (0..at).collect(),
                WaitsFor::Entry => of_steps(&waits.entry),
                WaitsFor::Step(step) => of_steps(&waits.steps[step]),
                WaitsFor::Loads => {
                    let steps = self.set.plans[event.plan].steps.iter().enumerate();
                    let loads = steps.filter(|(_, step)| matches!(step.action, Action::Load { .. }));
                    of_steps(&loads.map(|(step, _)| step as u32).collect::<Vec<_>>())
                }
                WaitsFor::Event(event) => vec![event],
            };
            earlier.extend(thread);
            earlier.extend(event.queue.and_then(|queue| queues[queue]));
            let mut all = vec![0; words];
            for event in earlier {
                all.iter_mut().zip(&before[event]).for_each(|(mine, theirs)| *mine |= theirs);
                all[event / 64] |= 1 << (event % 64);
            }
            before.push(all);
            match event.queue {
                Some(queue) => queues[queue] = Some(at),
                None => thread = Some(at),
            }
            if let Some(step) = event.ticket {
                tickets[step] = Some(at);
            }
        }
        self.conflicts.iter().any(|&(a, b)| before[b][a / 64] >> (a % 64) & 1 == 0)
    }

    /// Appends an event; its number.
    fn push(
        &mut self,
        plan: usize,
        queue: Option<usize>,
        waits_for: WaitsFor,
        accesses: Vec<Access>,
    ) -> usize {
        self.events.push(Event { plan, queue, waits_for, ticket: None, accesses });
        self.events.len() - 1
    }

    /// Inputs and accumulators, every micro-batch, the optimizer step, and the wait for loads.
    fn run(&mut self, index: usize, same: bool, queue_of: QueueOf) {
        let plan = &self.set.plans[index];
        let entering = plan
            .buffers
            .iter()
            .filter(|b| matches!(b.kind, BufferKind::Input(_) | BufferKind::Accumulator(_)))
            .map(|b| (None, b.offset..b.offset + b.bytes, true));
        let waits_for = if same { WaitsFor::Entry } else { WaitsFor::Everything };
        self.push(index, None, waits_for, entering.collect());
        let after_body = |at: usize| plan.steps[at..].iter().all(|step: &Step| step.optimizer_step);
        for micro_batch in 0..plan.graph.micro_batches {
            let last = micro_batch + 1 == plan.graph.micro_batches;
            for (at, step) in plan.steps.iter().enumerate() {
                if step.optimizer_step && (!last || after_body(at)) {
                    continue;
                }
                let micro_batch = if step.optimizer_step { 0 } else { micro_batch };
                self.step(index, at, micro_batch, queue_of);
            }
        }
        for at in (0..plan.steps.len()).filter(|&at| after_body(at)) {
            self.step(index, at, 0, queue_of);
        }
        self.push(index, None, WaitsFor::Loads, Vec::new());
    }

    fn step(&mut self, plan: usize, at: usize, micro_batch: usize, queue_of: QueueOf) {
        let set = self.set;
        let own = &set.plans[plan];
        let place = |id: &BufferId, writes| {
            let b = &own.buffers[id.index()];
            let slice = b.offset + micro_batch * b.micro_stride;
            (None, slice..slice + if b.micro_stride > 0 { b.micro_stride } else { b.bytes }, writes)
        };
        let action = &own.steps[at].action;
        let (queue, accesses) = match action {
            Action::Run { reads, writes, workspace, .. } => {
                let written = writes.iter().chain(workspace).map(|b| place(b, true));
                (None, reads.iter().map(|b| place(b, false)).chain(written).collect())
            }
            Action::Copy { from, to, .. } => (None, vec![place(from, false), place(to, true)]),
            Action::Load { what, tier, to } => {
                let (_, bytes) = in_tier(set, own, *what);
                let queue = queue_of(action, *tier, Direction::Load);
                (Some(queue), vec![(Some(*tier), bytes, false), place(to, true)])
            }
            Action::Store { what, tier, from } => {
                let (_, bytes) = in_tier(set, own, *what);
                let queue = queue_of(action, *tier, Direction::Store);
                (Some(queue), vec![(Some(*tier), bytes, true), place(from, false)])
            }
            Action::ChunkedUpdate { node, reads, writes, workspace, chunk_elements } => {
                let scratch = place(workspace, true).1;
                return self.chunks((plan, at), *node, (reads, writes), scratch, *chunk_elements, queue_of);
            }
        };
        let event = self.push(plan, queue, WaitsFor::Step(at), accesses);
        self.events[event].ticket = queue.map(|_| at);
    }

    /// The loads, kernels and stores of a chunked update, chunk by chunk, two of them in memory.
    fn chunks(
        &mut self,
        (plan, at): (usize, usize),
        node: NodeId,
        (reads, writes): (&[Option<BufferId>], &[Option<BufferId>]),
        scratch: Range<usize>,
        chunk: usize,
        queue_of: QueueOf,
    ) {
        let set = self.set;
        let own = &set.plans[plan];
        let node = own.graph.node(node);
        let elements = own.graph.ty(node.outputs[0]).shape.elements();
        let part = |i: usize, bytes: usize| i * chunk * bytes..((i + 1) * chunk).min(elements) * bytes;
        let size = |value| own.graph.ty(value).dtype.bytes();
        let action = &own.steps[at].action;
        // Tier, offset there, offset of the first slot, and bytes of an element of each state.
        let mut states = Vec::new();
        let mut slot = scratch.end;
        for (&value, _) in node.inputs.iter().zip(reads).filter(|(_, buffer)| buffer.is_none()).rev() {
            let state = own.graph.states.iter().find(|s| s.input == value).unwrap();
            let index = set.states.iter().position(|s| s.name == state.name).unwrap();
            slot -= 2 * chunk * size(value);
            let (tier, range) = in_tier(set, own, Offloaded::State(index));
            states.push((tier, range.start, slot, size(value)));
        }
        let kernel_scratch = scratch.start..slot;
        let operands = |i: usize| {
            let all = node.inputs.iter().zip(reads).map(|operand| (operand, false));
            let all = all.chain(node.outputs.iter().zip(writes).map(|operand| (operand, true)));
            let mut touched = vec![(None, kernel_scratch.clone(), true)];
            for ((&value, buffer), written) in all {
                let Some(buffer) = buffer.map(|b| own.buffers[b.index()].offset) else { continue };
                let scalar = own.graph.ty(value).shape.is_empty();
                let bytes = if scalar { 0..size(value) } else { part(i, size(value)) };
                touched.push((None, buffer + bytes.start..buffer + bytes.end, written));
            }
            touched
        };
        let in_slot = |i: usize, slot: usize, bytes: usize| {
            let start = slot + i % 2 * chunk * bytes;
            start..start + part(i, bytes).len()
        };
        let on_disk = |i: usize, start: usize, bytes: usize| {
            let range = part(i, bytes);
            start + range.start..(start + range.end).next_multiple_of(4096)
        };
        let chunks = elements.div_ceil(chunk);
        // The loads of each chunk, and the stores, by state. A load waits for the store from the same slot: a tier orders its own
        // transfers.
        let mut loaded = vec![Vec::new(); chunks];
        let mut stored = vec![Vec::new(); chunks];
        let load = |this: &mut Self, i: usize, stored: &[Vec<usize>]| {
            let mut events = Vec::new();
            for (state, &(tier, start, slot, bytes)) in states.iter().enumerate() {
                let moved = vec![
                    (Some(tier), on_disk(i, start, bytes), false),
                    (None, in_slot(i, slot, bytes), true),
                ];
                let queue = queue_of(action, tier, Direction::Load);
                let waits = i.checked_sub(2).map_or(WaitsFor::Nothing, |i| WaitsFor::Event(stored[i][state]));
                events.push(this.push(plan, Some(queue), waits, moved));
            }
            events
        };
        self.push(plan, None, WaitsFor::Step(at), Vec::new());
        for (i, events) in loaded.iter_mut().enumerate().take(2) {
            *events = load(self, i, &stored);
        }
        for i in 0..chunks {
            for &event in &loaded[i] {
                self.push(plan, None, WaitsFor::Event(event), Vec::new());
            }
            let mut touched = operands(i);
            touched.extend(states.iter().map(|&(_, _, slot, bytes)| (None, in_slot(i, slot, bytes), true)));
            self.push(plan, None, WaitsFor::Nothing, touched);
            for &(tier, start, slot, bytes) in &states {
                let moved = vec![
                    (Some(tier), on_disk(i, start, bytes), true),
                    (None, in_slot(i, slot, bytes), false),
                ];
                let queue = queue_of(action, tier, Direction::Store);
                let event = self.push(plan, Some(queue), WaitsFor::Nothing, moved);
                stored[i].push(event);
            }
            if i + 2 < chunks {
                loaded[i + 2] = load(self, i + 2, &stored);
            }
        }
        for &event in &stored[chunks - 1] {
            self.push(plan, None, WaitsFor::Event(event), Vec::new());
        }
    }
}

/// The tier of a state or value, and its pages there.
fn in_tier(set: &PlanSet, plan: &ExecutionPlan, what: Offloaded) -> (Tier, Range<usize>) {
    let (tier, start, bytes) = match what {
        Offloaded::State(i) => match set.states[i].home {
            StateHome::Offloaded { tier, offset } => (tier, offset, set.states[i].ty.bytes()),
            StateHome::Arena(_) => panic!("a transfer of a state in the arena"),
        },
        Offloaded::Value(i) => {
            let offloaded = &plan.offloaded[i];
            (offloaded.tier, offloaded.offset, plan.graph.ty(offloaded.value).bytes())
        }
    };
    (tier, start as usize..(start as usize + bytes).next_multiple_of(4096))
}
