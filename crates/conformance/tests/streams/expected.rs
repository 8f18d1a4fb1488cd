//! What a run of a plan asks of the device, from the plan alone: kernels with the addresses of their operands, copies and transfers.

use super::order::Access;
use super::program::Addresses;
use plimsoll_cuda::{Launch, Operand, Parameter, Pointer, find};
use plimsoll_graph::ValueId;
use plimsoll_plan::{
    Action, Buffer, BufferId, ChunkTypes, Direction, ExecutionPlan, KernelQuery, Offloaded, PlanSet,
    StateHome, Tier,
};
use std::collections::VecDeque;

/// One thing that is asked for.
#[derive(Debug)]
pub enum Item {
    /// The launches of a step.
    Launches(Launches),
    /// A copy inside the arena, or between it and the host tier.
    Copy { from: u64, to: u64, bytes: u64 },
    /// A transfer between the arena and the file.
    File(FileTransfer),
}

/// The launches of a step, or of a chunk of one, and what they use in all.
#[derive(Debug)]
pub struct Launches {
    pub what: String,
    pub left: VecDeque<OneLaunch>,
    pub accesses: Vec<Access>,
}

#[derive(Debug)]
pub struct OneLaunch {
    /// None of a product.
    pub blocks: Option<[u32; 3]>,
    /// None for those outside the arena.
    pub pointers: Vec<Option<u64>>,
}

#[derive(Debug)]
pub struct FileTransfer {
    pub direction: Direction,
    pub memory: u64,
    pub bytes: u64,
}

/// A set of plans in memory.
pub struct Placed<'a> {
    pub plans: &'a PlanSet,
    /// Where the arena and the host tier start.
    pub arena: u64,
    pub tier: u64,
}

/// The addresses of a step's operands.
struct Operands {
    reads: Vec<u64>,
    writes: Vec<u64>,
    workspace: u64,
}

impl Placed<'_> {
    /// All that a run of a plan asks for, in order, once its inputs are there.
    pub fn run(&self, plan: usize) -> VecDeque<Item> {
        let plan = &self.plans.plans[plan];
        let mut items = VecDeque::new();
        for (step, micro_batch) in plan.execution_order() {
            let what = format!("step {step} of `{}`, micro-batch {micro_batch}", plan.name);
            let slice = |id: &BufferId| self.slice(&plan.buffers[id.index()], micro_batch);
            match &plan.steps[step].action {
                Action::Run { node, reads, writes, workspace } => {
                    let marks = plan.graph.batch_marks();
                    let query = KernelQuery::new(&plan.graph, &marks, plan.graph.node(*node));
                    let reads: Vec<_> = reads.iter().map(slice).collect();
                    let writes: Vec<_> = writes.iter().map(slice).collect();
                    let workspace = workspace.as_ref().map_or(self.arena..self.arena, slice);
                    let starts = |ranges: &[Addresses]| ranges.iter().map(|range| range.start).collect();
                    let operands = Operands {
                        reads: starts(&reads),
                        writes: starts(&writes),
                        workspace: workspace.start,
                    };
                    let accesses = accesses(reads, writes.into_iter().chain([workspace]));
                    items.push_back(launches(what, &query, &operands, accesses));
                }
                Action::Copy { from, to, .. } => {
                    let (from, to) = (slice(from), slice(to));
                    // A value that is where it is to be.
                    if from != to {
                        items.push_back(copy(from.start, to.start, from.end - from.start));
                    }
                }
                Action::Load { what, tier, to } => {
                    items.push_back(self.transfer(
                        Direction::Load,
                        *tier,
                        self.place(plan, *what),
                        slice(to),
                    ));
                }
                Action::Store { what, tier, from } => {
                    items.push_back(self.transfer(
                        Direction::Store,
                        *tier,
                        self.place(plan, *what),
                        slice(from),
                    ));
                }
                Action::ChunkedUpdate { .. } => self.chunks(&mut items, plan, step, &what),
            }
        }
        items
    }

    /// The part of a buffer that a micro-batch uses.
    fn slice(&self, buffer: &Buffer, micro_batch: usize) -> Addresses {
        let bytes = if buffer.micro_stride > 0 { buffer.micro_stride } else { buffer.bytes };
        let start = self.arena + (buffer.offset + micro_batch * buffer.micro_stride) as u64;
        start..start + bytes as u64
    }

    /// Where something offloaded is in its tier.
    fn place(&self, plan: &ExecutionPlan, what: Offloaded) -> u64 {
        match what {
            Offloaded::Value(i) => plan.offloaded[i].offset,
            Offloaded::State(i) => match self.plans.states[i].home {
                StateHome::Offloaded { offset, .. } => offset,
                StateHome::Arena(_) => panic!("a transfer of a state in the arena"),
            },
        }
    }

    fn transfer(&self, direction: Direction, tier: Tier, offset: u64, memory: Addresses) -> Item {
        let bytes = memory.end - memory.start;
        match (tier, direction) {
            (Tier::Host, Direction::Load) => copy(self.tier + offset, memory.start, bytes),
            (Tier::Host, Direction::Store) => copy(memory.start, self.tier + offset, bytes),
            (Tier::File, _) => Item::File(FileTransfer { direction, memory: memory.start, bytes }),
        }
    }

    /// The loads, kernels and stores of a chunked update: two chunks of each offloaded state are in the workspace, behind the kernel's
    /// scratch.
    fn chunks(&self, items: &mut VecDeque<Item>, plan: &ExecutionPlan, step: usize, what: &str) {
        let Action::ChunkedUpdate { node, reads, writes, workspace, chunk_elements } =
            &plan.steps[step].action
        else {
            return;
        };
        let (graph, node, chunk) = (&plan.graph, plan.graph.node(*node), *chunk_elements);
        let elements = graph.ty(node.outputs[0]).shape.elements();
        let size = |value: ValueId| graph.ty(value).dtype.bytes();
        let workspace = self.slice(&plan.buffers[workspace.index()], 0);
        // The value, tier, offset there, and first slot of each state.
        let mut states = Vec::new();
        let mut slot = workspace.end;
        for (&value, _) in node.inputs.iter().zip(reads).filter(|(_, buffer)| buffer.is_none()).rev() {
            let own = graph.states.iter().find(|state| state.input == value).expect("an offloaded state");
            let placed =
                self.plans.states.iter().find(|state| state.name == own.name).expect("a state of the set");
            let StateHome::Offloaded { tier, offset } = placed.home else {
                panic!("{what}: a state in the arena")
            };
            slot -= (2 * chunk * size(value)) as u64;
            states.push((own, tier, offset, slot));
        }
        states.reverse();
        let length = |at: usize| chunk.min(elements - at * chunk);
        let transfers = |items: &mut VecDeque<Item>, direction, at: usize| {
            for &(state, tier, offset, slot) in &states {
                let bytes = size(state.input);
                let memory = slot + (at % 2 * chunk * bytes) as u64;
                let memory = memory..memory + (length(at) * bytes) as u64;
                items.push_back(self.transfer(direction, tier, offset + (at * chunk * bytes) as u64, memory));
            }
        };
        let kernel = |items: &mut VecDeque<Item>, at: usize| {
            let operand = |value: ValueId, buffer: Option<BufferId>| {
                let bytes = size(value);
                let (start, length) = match buffer {
                    Some(id) if graph.ty(value).shape.is_empty() => {
                        (self.slice(&plan.buffers[id.index()], 0).start, 1)
                    }
                    Some(id) => {
                        let start = self.slice(&plan.buffers[id.index()], 0).start;
                        (start + (at * chunk * bytes) as u64, length(at))
                    }
                    None => {
                        let own = |state: &plimsoll_graph::State| {
                            state.input == value || state.output == Some(value)
                        };
                        let state = states.iter().find(|(state, ..)| own(state)).expect("an offloaded state");
                        (state.3 + (at % 2 * chunk * bytes) as u64, length(at))
                    }
                };
                start..start + (length * bytes) as u64
            };
            let ranges = |values: &[ValueId], buffers: &[Option<BufferId>]| -> Vec<Addresses> {
                values.iter().zip(buffers).map(|(&value, &buffer)| operand(value, buffer)).collect()
            };
            let (reads, writes) = (ranges(&node.inputs, reads), ranges(&node.outputs, writes));
            let starts = |ranges: &[Addresses]| ranges.iter().map(|range| range.start).collect();
            let operands =
                Operands { reads: starts(&reads), writes: starts(&writes), workspace: workspace.start };
            let types = ChunkTypes::new(graph, node, length(at)).expect("a node that runs in chunks");
            let accesses = accesses(reads, writes.into_iter().chain(Some(workspace.start..slot)));
            items.push_back(launches(
                format!("{what}, chunk {at}"),
                &types.query(&node.op),
                &operands,
                accesses,
            ));
        };
        let chunks = elements.div_ceil(chunk);
        (0..chunks.min(2)).for_each(|at| transfers(items, Direction::Load, at));
        for at in 0..chunks {
            kernel(items, at);
            transfers(items, Direction::Store, at);
            if at + 2 < chunks {
                transfers(items, Direction::Load, at + 2);
            }
        }
    }
}

fn copy(from: u64, to: u64, bytes: u64) -> Item {
    Item::Copy { from, to, bytes }
}

/// Accesses of ranges that are not empty.
pub fn accesses(
    reads: impl IntoIterator<Item = Addresses>,
    writes: impl IntoIterator<Item = Addresses>,
) -> Vec<Access> {
    let reads = reads.into_iter().map(|range| Access { range, writes: false });
    let writes = writes.into_iter().map(|range| Access { range, writes: true });
    reads.chain(writes).filter(|access| !access.range.is_empty()).collect()
}

fn launches(what: String, query: &KernelQuery<'_>, operands: &Operands, accesses: Vec<Access>) -> Item {
    let address = |pointer: Pointer| {
        let start = match pointer.operand {
            Operand::Read(i) => operands.reads[i],
            Operand::Write(i) => operands.writes[i],
            Operand::Workspace => operands.workspace,
            Operand::Fault => return None,
        };
        Some(start + pointer.offset as u64)
    };
    let call = find(query).unwrap_or_else(|| panic!("{what}: no kernel"));
    let launch = |launch: &Launch| match launch {
        Launch::Kernel(kernel) => {
            let pointer = |parameter: &Parameter| match *parameter {
                Parameter::Pointer(pointer) => Some(address(pointer)),
                Parameter::Integer(_) | Parameter::Float(_) => None,
            };
            let pointers = kernel.parameters.iter().filter_map(pointer).collect();
            OneLaunch { blocks: Some(kernel.blocks), pointers }
        }
        Launch::Product(product) => {
            let matrices = [product.a, product.b, product.c].map(|matrix| matrix.start);
            let pointers = matrices.into_iter().chain(product.bias).map(address).collect();
            OneLaunch { blocks: None, pointers }
        }
    };
    let left = call.launches.iter().map(launch).collect();
    Item::Launches(Launches { what, left, accesses })
}
