//! From a plan set to a view.

use crate::view::VERSION;
use crate::{Kind, PlanView, SpaceView, Steps, Tensors, Transfers, View};
use plimsoll_graph::op::Exchange;
use plimsoll_graph::{Graph, NodeId, Op, Origin, Role, ValueId};
use plimsoll_plan::sheet::{BATCH_BUFFERS, BATCHES_AHEAD, INPUT_STACKS, batch_type_in_words, op_in_words};
use plimsoll_plan::{
    Action, BufferId, BufferKind, Entry, ExecutionPlan, LoadSheet, Offloaded, PlanSet, Queue, StateHome,
    StatePlacement, StepTime,
};
use plimsoll_transform::LOSS;
use std::collections::HashMap;

/// Entries of the data pipeline, by name. The rest of them are in `plimsoll_plan::sheet`.
const PIPELINE: [&str; 6] = ["data set", "input workers", "decoders", "shuffle buffer", "cache", "batches"];

/// Describes the plans of a set, whose steps run at these times ([`PlanSet::step_times`]), one list for each plan.
///
/// ```
/// use plimsoll_graph::{Builder, op::Unary};
/// use plimsoll_plan::{Budget, NullTarget, Tiers, plan};
/// let mut b = Builder::new(2, 2);
/// let x = b.batch_input("x", "f32[2,3]".parse()?);
/// let y = b.unary(Unary::Exp, x)?;
/// b.output("y", y);
/// let batches = [("predict × 2".into(), b.finish()?)];
/// let target = NullTarget::default();
/// let plans = plan(&batches, &target, &Budget::new(usize::MAX, Vec::new()))?;
/// let times = plans.step_times(0, &target, &Tiers::default())?;
/// let view = plimsoll_report::describe("an exponential", &plans, &[times]);
/// let held = view.plans[0].held_bytes().into_iter().max();
/// assert_eq!(held, Some(view.plans[0].peak_bytes - view.plans[0].gap_bytes));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn describe(title: &str, plans: &PlanSet, times: &[Vec<StepTime>]) -> View {
    describe_under(title, &plans.sheet, plans, times)
}

/// As [`describe`], with another account than that of the set: a device's own, where the set's is that of its process.
pub fn describe_under(title: &str, sheet: &LoadSheet, plans: &PlanSet, times: &[Vec<StepTime>]) -> View {
    let times = |plan: usize| times.get(plan).map_or(&[][..], Vec::as_slice);
    let views = plans.plans.iter().enumerate().map(|(i, plan)| plan_view(plan, plans, times(i)));
    View { plans: views.collect(), ..account(title, sheet) }
}

/// The view of an account alone, without plans: [`View::add_device`] adds those of several devices or processes.
pub fn account(title: &str, sheet: &LoadSheet) -> View {
    View {
        version: VERSION,
        title: title.to_string(),
        target: sheet.target.clone(),
        kinds: Kind::ALL.map(|kind| kind.name().to_string()).into(),
        spaces: spaces(sheet),
        file: sheet.offloaded.clone(),
        plans: Vec::new(),
        notes: sheet.price().into_iter().chain(sheet.notes.iter().cloned()).collect(),
        unlimited_ns: sheet.unlimited_ns,
        curve: Vec::new(),
        alternatives: Vec::new(),
        measured: None,
    }
}

fn spaces(sheet: &LoadSheet) -> Vec<SpaceView> {
    let line = |bytes: usize| (bytes != usize::MAX).then_some(bytes as u64);
    let is_pipeline =
        |name: &str| [BATCH_BUFFERS, BATCHES_AHEAD, INPUT_STACKS].contains(&name) || PIPELINE.contains(&name);
    let pipeline = |outside: &[Entry]| -> u64 {
        outside.iter().filter(|entry| is_pipeline(&entry.name)).map(|entry| entry.bytes as u64).sum()
    };
    let first = SpaceView {
        name: if sheet.host.is_some() { "device memory" } else { "memory" }.to_string(),
        line_bytes: line(sheet.line_bytes),
        total_bytes: sheet.total_bytes as u64,
        arena_bytes: sheet.arena_bytes as u64,
        arena: sheet.arena.clone(),
        outside: sheet.outside.iter().filter(|entry| entry.bytes > 0).cloned().collect(),
        pipeline_bytes: pipeline(&sheet.outside),
    };
    let host = sheet.host.as_ref().map(|host| SpaceView {
        name: "host memory".to_string(),
        line_bytes: line(host.line_bytes),
        total_bytes: host.total_bytes as u64,
        arena_bytes: host.arena_bytes as u64,
        arena: Vec::new(),
        outside: host.outside.iter().filter(|entry| entry.bytes > 0).cloned().collect(),
        pipeline_bytes: pipeline(&host.outside),
    });
    std::iter::once(first).chain(host).collect()
}

fn plan_view(plan: &ExecutionPlan, set: &PlanSet, times: &[StepTime]) -> PlanView {
    let mut build = Builder::new(plan, set);
    build.fixed();
    for (at, step) in plan.steps.iter().enumerate() {
        build.step(at, &step.action, times.get(at).copied().unwrap_or_default());
    }
    build.finish()
}

/// A tensor while it is built.
struct Segment {
    kind: Kind,
    layer: u32,
    what: u32,
    buffer: usize,
    first: usize,
    last: Option<usize>,
}

/// Follows the steps of a plan.
struct Builder<'p> {
    plan: &'p ExecutionPlan,
    set: &'p PlanSet,
    /// The node of the loss: what comes after it is backward.
    forward_end: Option<NodeId>,
    layers: Names,
    words: Names,
    steps: Steps,
    transfers: Transfers,
    segments: Vec<Segment>,
    /// The segment that is in each buffer now.
    current: Vec<Option<usize>>,
    ran: Vec<bool>,
    /// The first node that reads each state.
    readers: HashMap<&'p str, NodeId>,
}

/// Names, each once.
#[derive(Default)]
struct Names {
    numbers: HashMap<String, u32>,
    names: Vec<String>,
}

impl Names {
    fn number(&mut self, name: String) -> u32 {
        if let Some(&number) = self.numbers.get(&name) {
            return number;
        }
        let number = self.names.len() as u32;
        self.names.push(name.clone());
        self.numbers.insert(name, number);
        number
    }
}

impl<'p> Builder<'p> {
    fn new(plan: &'p ExecutionPlan, set: &'p PlanSet) -> Self {
        let loss = loss_node(&plan.graph);
        // Without states that are written there is no backward.
        let trains = plan.graph.states.iter().any(|s| s.role == Role::Parameter && s.output.is_some());
        let mut readers = HashMap::new();
        for id in plan.graph.node_ids() {
            for &value in &plan.graph.node(id).inputs {
                if let Origin::State(i) = plan.graph.origin(value) {
                    readers.entry(plan.graph.states[i].name.as_str()).or_insert(id);
                }
            }
        }
        Self {
            plan,
            set,
            forward_end: loss.filter(|_| trains),
            layers: Names::default(),
            words: Names::default(),
            steps: Steps::default(),
            transfers: Transfers::default(),
            segments: Vec::new(),
            current: vec![None; plan.buffers.len()],
            ran: vec![false; plan.graph.nodes.len()],
            readers,
        }
    }

    /// States, inputs and accumulators, which keep their buffers.
    fn fixed(&mut self) {
        for (i, buffer) in self.plan.buffers.iter().enumerate() {
            let ty = buffer.value.map(|value| self.plan.graph.ty(value).to_string()).unwrap_or_default();
            let (kind, layer, what) = match buffer.kind {
                BufferKind::State(state) => match self.set.states.get(state) {
                    Some(state) => (role_kind(state.role), self.state_layer(state), state_words(state)),
                    None => continue,
                },
                BufferKind::Input(input) => {
                    let times = match buffer.micro_stride {
                        0 => String::new(),
                        _ => format!("{} × ", self.plan.graph.micro_batches),
                    };
                    let input = self.plan.graph.inputs[input].label();
                    (Kind::Batch, String::new(), format!("input {input} {times}{ty}"))
                }
                BufferKind::Accumulator(_) => {
                    let layer = buffer.value.map(|v| self.value_layer(v)).unwrap_or_default();
                    (Kind::Gradient, layer, format!("gradient accumulator {ty}"))
                }
                BufferKind::Value | BufferKind::Workspace => continue,
            };
            self.current[i] = Some(self.segments.len());
            let (layer, what) = (self.layers.number(layer), self.words.number(what));
            self.segments.push(Segment { kind, layer, what, buffer: i, first: buffer.first, last: None });
        }
    }

    /// The layer of a state: that of the first node that reads it, or its own name.
    fn state_layer(&self, state: &StatePlacement) -> String {
        match self.readers.get(state.name.as_str()) {
            Some(&node) => self.plan.graph.node(node).layer.to_string(),
            None => state.name.rsplit_once('/').map_or(state.name.as_str(), |(layer, _)| layer).to_string(),
        }
    }

    fn value_layer(&self, value: ValueId) -> String {
        let graph = &self.plan.graph;
        graph.producer(value).map_or_else(String::new, |node| graph.node(node).layer.to_string())
    }

    /// Whether a node belongs to backward or the update.
    fn is_backward(&self, node: NodeId) -> bool {
        self.forward_end.is_some_and(|end| node > end)
    }

    /// A tensor begins in a buffer, and ends what was there.
    fn begin(&mut self, at: usize, buffer: BufferId, kind: Kind, layer: u32, what: String) {
        let index = buffer.index();
        if matches!(
            self.plan.buffers[index].kind,
            BufferKind::State(_) | BufferKind::Input(_) | BufferKind::Accumulator(_)
        ) {
            return;
        }
        let what = self.words.number(what);
        if let Some(before) = self.current[index] {
            let before = &mut self.segments[before];
            if before.first == at {
                // Two values of one step: the later one gives the name.
                (before.kind, before.layer, before.what) = (kind, layer, what);
                return;
            }
            before.last = Some(at - 1);
        }
        self.current[index] = Some(self.segments.len());
        self.segments.push(Segment { kind, layer, what, buffer: index, first: at, last: None });
    }

    fn kind_of(&mut self, buffer: BufferId) -> Option<&mut Kind> {
        let segment = self.current[buffer.index()]?;
        Some(&mut self.segments[segment].kind)
    }

    fn step(&mut self, at: usize, action: &Action, time: StepTime) {
        let graph = &self.plan.graph;
        let mut again = false;
        let (layer, what) = match action {
            Action::Run { node: id, reads, writes, workspace } => {
                let node = graph.node(*id);
                again = std::mem::replace(&mut self.ran[id.index()], true);
                let layer = self.layers.number(node.layer.to_string());
                let op = op_in_words(node.op.name());
                let backward = self.is_backward(*id);
                if backward {
                    for &buffer in reads {
                        if let Some(kind @ Kind::Working) = self.kind_of(buffer) {
                            *kind = Kind::Saved;
                        }
                    }
                }
                let kind = match (again, backward) {
                    (true, _) => Kind::Rematerialized,
                    (false, true) => Kind::Gradient,
                    (false, false) => Kind::Working,
                };
                for (&buffer, &value) in writes.iter().zip(&node.outputs) {
                    let is_view = node.op.is_view() && self.current[buffer.index()].is_some();
                    if !is_view {
                        self.begin(at, buffer, kind, layer, format!("{op} {}", graph.ty(value)));
                    }
                }
                if let Some(buffer) = workspace {
                    self.begin(at, *buffer, Kind::Workspace, layer, format!("workspace of {op}"));
                }
                (layer, op)
            }
            Action::ChunkedUpdate { node: id, writes, workspace, .. } => {
                let node = graph.node(*id);
                again = std::mem::replace(&mut self.ran[id.index()], true);
                let layer = self.layers.number(node.layer.to_string());
                let op = op_in_words(node.op.name());
                for (buffer, &value) in writes.iter().zip(&node.outputs) {
                    if let Some(buffer) = buffer {
                        self.begin(at, *buffer, Kind::Working, layer, format!("{op} {}", graph.ty(value)));
                    }
                }
                self.begin(at, *workspace, Kind::Workspace, layer, format!("chunks of {op}"));
                (layer, format!("{op}, in chunks"))
            }
            Action::Copy { value, to, .. } => {
                let layer = self.value_layer(*value);
                let layer = self.layers.number(layer);
                self.begin(at, *to, Kind::Working, layer, format!("copy {}", graph.ty(*value)));
                (layer, "copy".to_string())
            }
            Action::Load { what, to, .. } => {
                let (layer, what) = self.moved(*what);
                let layer = self.layers.number(layer);
                self.begin(at, *to, Kind::Offloaded, layer, what.clone());
                self.transfer(at, action, *to, false);
                (layer, format!("load of {what}"))
            }
            Action::Store { what, from, .. } => {
                let (layer, what) = self.moved(*what);
                let layer = self.layers.number(layer);
                if let Some(kind @ (Kind::Working | Kind::Saved)) = self.kind_of(*from) {
                    *kind = Kind::Offloaded;
                }
                self.transfer(at, action, *from, true);
                (layer, format!("store of {what}"))
            }
        };
        self.steps.layer.push(layer);
        let what = self.words.number(what);
        self.steps.what.push(what);
        self.steps.again.push(again.into());
        self.steps.start_ns.push(time.start_ns);
        self.steps.end_ns.push(time.end_ns.max(time.start_ns));
    }

    fn transfer(&mut self, at: usize, action: &Action, buffer: BufferId, store: bool) {
        let Some(queue) = action.queue() else { return };
        self.transfers.step.push(at as u32);
        self.transfers.queue.push(queue_number(queue));
        self.transfers.store.push(store.into());
        self.transfers.bytes.push(self.plan.buffers[buffer.index()].bytes as u64);
    }

    /// The layer of what a transfer moves, and what it is.
    fn moved(&self, what: Offloaded) -> (String, String) {
        match what {
            Offloaded::State(i) => match self.set.states.get(i) {
                Some(state) => (self.state_layer(state), state_words(state)),
                None => Default::default(),
            },
            Offloaded::Value(i) => {
                let value = self.plan.offloaded[i].value;
                let graph = &self.plan.graph;
                let op =
                    graph.producer(value).map_or(String::new(), |n| op_in_words(graph.node(n).op.name()));
                (self.value_layer(value), format!("{op} {}", graph.ty(value)))
            }
        }
    }

    fn finish(mut self) -> PlanView {
        let plan = self.plan;
        let end = plan.steps.len().saturating_sub(1);
        let aligned = |bytes: usize| bytes.next_multiple_of(self.set.alignment.max(1)) as u64;
        let mut tensors = Tensors::default();
        let mut push = |kind: Kind, layer: u32, what: u32, offset: usize, bytes: usize, life: [usize; 2]| {
            tensors.kind.push(kind as u8);
            tensors.layer.push(layer);
            tensors.what.push(what);
            tensors.offset.push(offset as u64);
            tensors.bytes.push(bytes as u64);
            tensors.footprint.push(aligned(bytes));
            tensors.first.push(life[0] as u32);
            tensors.last.push(life[1].min(end) as u32);
        };
        let segments = self.segments.iter().filter(|s| plan.buffers[s.buffer].bytes > 0);
        for segment in segments {
            let buffer = &plan.buffers[segment.buffer];
            let life = [segment.first, segment.last.unwrap_or(buffer.last)];
            push(segment.kind, segment.layer, segment.what, buffer.offset, buffer.bytes, life);
        }
        // States of other batch types stay where they are.
        let mut of_plan = vec![false; self.set.states.len()];
        for buffer in &plan.buffers {
            if let BufferKind::State(i) = buffer.kind {
                of_plan[i] = true;
            }
        }
        let mut others = Vec::new();
        for (i, state) in self.set.states.iter().enumerate() {
            let StateHome::Arena(offset) = state.home else { continue };
            if state.ty.bytes() > 0 && !of_plan[i] {
                others.push((
                    role_kind(state.role),
                    self.state_layer(state),
                    state_words(state),
                    offset,
                    state.ty.bytes(),
                ));
            }
        }
        for (kind, layer, what, offset, bytes) in others {
            let (layer, what) = (self.layers.number(layer), self.words.number(what));
            push(kind, layer, what, offset, bytes, [0, end]);
        }
        let mut view = PlanView {
            name: plan.name.clone(),
            title: batch_type_in_words(&plan.name),
            space: 0,
            micro_batches: plan.graph.micro_batches as u64,
            peak_bytes: plan.peak_bytes as u64,
            gap_bytes: 0,
            peak_step: 0,
            nanoseconds: plan.nanoseconds,
            layers: self.layers.names,
            words: self.words.names,
            steps: self.steps,
            tensors,
            transfers: self.transfers,
            measured_ns: Vec::new(),
        };
        let held = view.held_bytes();
        let most = held.iter().copied().max().unwrap_or(0);
        let is_peak = |step: usize| held.get(step) == Some(&most);
        let first = || (0..held.len()).find(|&step| is_peak(step)).unwrap_or(0);
        view.peak_step = Some(plan.peak_step).filter(|&step| is_peak(step)).unwrap_or_else(first) as u32;
        view.gap_bytes = view.peak_bytes.saturating_sub(most);
        view
    }
}

/// The node that computes the loss. One of several devices has the whole loss only when all sums are shared, at the end of the step: there it
/// is where the sum of the losses is received.
fn loss_node(graph: &Graph) -> Option<NodeId> {
    let loss = graph.output(LOSS)?;
    let producer = graph.producer(loss)?;
    let node = graph.node(producer);
    let Op::Exchange(Exchange::Share { chains, .. }) = &node.op else { return Some(producer) };
    let of_loss = node.outputs.iter().position(|&value| value == loss).and_then(|at| chains.get(at))?;
    let receives = |id: &NodeId| match &graph.node(*id).op {
        Op::Exchange(Exchange::Receive { chain, .. } | Exchange::Take { chain, .. }) => chain == of_loss,
        _ => false,
    };
    graph.node_ids().find(receives)
}

fn role_kind(role: Role) -> Kind {
    match role {
        Role::Parameter => Kind::Parameter,
        Role::Moment | Role::Mask => Kind::Optimizer,
        Role::Statistic | Role::Average => Kind::Statistic,
    }
}

fn state_words(state: &StatePlacement) -> String {
    format!("{} {}", state.name, state.ty)
}

fn queue_number(queue: Queue) -> u8 {
    match queue {
        Queue::HostLoads => 0,
        Queue::HostStores => 1,
        Queue::File => 2,
    }
}
