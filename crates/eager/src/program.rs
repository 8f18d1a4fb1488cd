//! A method on operands of some types, prepared once: kernels, the buffers that they read and write, and what dies where.

use crate::error::{Error, Result};
use crate::memory::{Memory, Site};
use crate::pool::Place;
use plimsoll_graph::op::InPlace;
use plimsoll_graph::{BatchMark, Builder, Graph, GraphError, Node, ValueId};
use plimsoll_plan::{KernelQuery, Unsupported};
use plimsoll_runtime::{KernelExecutor, Operands, SingleKernel};
use plimsoll_tensor::TensorType;
use plimsoll_transform::{Pass, optimize};
use std::sync::Arc;

/// How a tensor relates to the batch, and to which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    pub mark: BatchMark,
    pub examples: usize,
    pub block: usize,
}

impl Batch {
    /// Of a tensor that no batch is known of.
    pub const NONE: Self = Self { mark: BatchMark::input(false), examples: 1, block: 1 };
}

/// A program that computes a method's results.
pub(crate) struct Program {
    pub name: &'static str,
    /// The method as the builder made it, for tapes and traces.
    pub graph: Graph,
    pub outputs: Vec<ProgramOutput>,
    steps: Vec<Step>,
    /// The type of each slot. The first ones are the inputs.
    slots: Vec<Arc<TensorType>>,
    inputs: usize,
    /// Bytes of all slots that are not inputs, and of all scratch.
    own_bytes: usize,
}

pub(crate) struct ProgramOutput {
    pub slot: usize,
    pub ty: Arc<TensorType>,
    pub batch: Batch,
}

struct Step {
    op: &'static str,
    kernel: Box<dyn SingleKernel>,
    workspace: usize,
    reads: Vec<usize>,
    writes: Vec<Write>,
    /// Slots, but for inputs, that nothing reads any more.
    dead: Vec<usize>,
}

struct Write {
    slot: usize,
    bytes: usize,
    /// The slots that it may be written over, because they die here: the first that may be, and that no other output takes.
    over: Vec<usize>,
}

/// A slot of a running program.
#[derive(Clone, Copy)]
pub(crate) struct Slot {
    pub buffer: u32,
    /// The input whose buffer it is.
    pub input: Option<u32>,
    /// Whether that input may be written over.
    donated: bool,
}

/// What runs of programs need again and again, kept so that a run allocates nothing but its results.
#[derive(Default)]
pub(crate) struct Frame {
    /// `None`: not written yet, or dead.
    pub slots: Vec<Option<Slot>>,
    reads: Vec<*const u8>,
    writes: Vec<*mut u8>,
    /// Whether an input is not in memory, and whether one may be written over.
    away: bool,
    donated: bool,
}

// SAFETY: the addresses are those of the last kernel that ran, and are not followed any more.
unsafe impl Send for Frame {}

impl Frame {
    /// Begins a run.
    pub fn clear(&mut self) {
        self.slots.clear();
        (self.away, self.donated) = (false, false);
    }

    /// Adds an input, which stays in memory while the current op runs.
    pub fn push_input(&mut self, memory: &mut Memory, buffer: u32, donated: bool) {
        self.away |= !memory.touch(buffer);
        self.donated |= donated;
        let input = Some(self.slots.len() as u32);
        self.slots.push(Some(Slot { buffer, input, donated }));
    }
}

impl Program {
    /// Prepares what `build` adds to inputs of these types.
    pub fn new(
        executor: &dyn KernelExecutor,
        name: &'static str,
        inputs: &[(Arc<TensorType>, BatchMark)],
        (examples, block): (usize, usize),
        build: impl Fn(&mut Builder, &[ValueId]) -> Result<Vec<ValueId>, GraphError>,
    ) -> Result<Self> {
        let mut b = Builder::new(examples, block);
        let input = |(i, (ty, mark)): (usize, &(Arc<TensorType>, BatchMark))| {
            b.marked_input(&format!("x{i}"), (**ty).clone(), *mark)
        };
        let values: Vec<ValueId> = inputs.iter().enumerate().map(input).collect();
        let results = build(&mut b, &values)?;
        let batches: Vec<Batch> = (results.iter())
            .map(|&v| Batch { mark: b.batch_mark(v), examples, block })
            .map(|batch| if batch.mark == BatchMark::input(false) { Batch::NONE } else { batch })
            .collect();
        results.iter().enumerate().for_each(|(i, &v)| b.output(&format!("y{i}"), v));
        let graph = b.finish()?;
        let numerics = executor.target().numerics();
        let optimized = optimize(graph.clone(), &numerics, &[Pass::Save])?;
        let mut lowered = Lowered::new(&optimized, inputs);
        let marks = optimized.batch_marks_from(|i| inputs[i].1);
        for node in &optimized.nodes {
            lowered.add(executor, node, &KernelQuery::new(&optimized, &marks, node))?;
        }
        Ok(lowered.finish(name, graph, batches))
    }

    /// Runs it on the frame's slots, which are the inputs. Behind them are the results afterwards.
    pub fn run(&self, memory: &mut Memory, frame: &mut Frame, site: Site) -> Result<()> {
        frame.slots.resize(self.slots.len(), None);
        if let Err(error) = self.run_steps(memory, frame, site) {
            let own = frame.slots.iter().flatten().filter(|slot| slot.input.is_none());
            own.for_each(|slot| memory.release(slot.buffer));
            return Err(error);
        }
        Ok(())
    }

    fn run_steps(&self, memory: &mut Memory, frame: &mut Frame, site: Site) -> Result<()> {
        if frame.away {
            for slot in frame.slots[..self.inputs].iter().flatten() {
                memory.fetch(slot.buffer, self.name)?;
            }
        }
        // Where inputs are written over, there must be memory for all steps before the first begins.
        if self.steps.len() > 1 && frame.donated {
            memory.make_room(self.own_bytes, self.name)?;
        }
        for step in &self.steps {
            step.run(self, memory, frame, site)?;
        }
        Ok(())
    }

    /// Whether its outputs are all outputs of its one node.
    pub fn is_one_node(&self) -> bool {
        let outputs = self.graph.outputs.iter().map(|o| o.value);
        matches!(&self.graph.nodes[..], [node] if outputs.eq(node.outputs.iter().copied()))
    }
}

/// What becomes of the layers of nodes that are added to a builder.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layers {
    /// They are inside the builder's.
    Inside,
    /// All nodes are in the builder's.
    Replaced,
}

/// Adds the nodes of a graph to a builder; `values` has the builder's value for each of the graph's inputs and states, and gets
/// one for each of its others.
pub(crate) fn append(
    graph: &Graph,
    b: &mut Builder,
    values: &mut [Option<ValueId>],
    layers: Layers,
) -> Result<(), GraphError> {
    for node in &graph.nodes {
        let inputs: Vec<ValueId> = node.inputs.iter().filter_map(|v| values[v.index()]).collect();
        let layer = match layers {
            Layers::Inside if node.layer.is_empty() => b.layer().clone(),
            Layers::Inside if b.layer().is_empty() => node.layer.clone(),
            Layers::Inside => b.path(&node.layer).into(),
            Layers::Replaced => b.layer().clone(),
        };
        let outputs = b.within(layer, |b| b.node(node.op.clone(), &inputs))?;
        for (value, output) in node.outputs.iter().zip(outputs) {
            values[value.index()] = Some(output);
        }
    }
    Ok(())
}

impl Step {
    fn run(&self, program: &Program, memory: &mut Memory, frame: &mut Frame, site: Site) -> Result<()> {
        for (i, write) in self.writes.iter().enumerate() {
            let taken = |buffer: u32| {
                let before = self.writes[..i].iter().filter_map(|other| frame.slots[other.slot]);
                before.into_iter().any(|other| other.buffer == buffer)
            };
            // With one step, only inputs may be.
            let over: &[usize] = if frame.donated || program.steps.len() > 1 { &write.over } else { &[] };
            let over = over.iter().filter_map(|&slot| frame.slots[slot]);
            let over =
                over.into_iter().find(|slot| (slot.input.is_none() || slot.donated) && !taken(slot.buffer));
            let ty = &program.slots[write.slot];
            frame.slots[write.slot] = Some(match over {
                Some(slot) => {
                    memory.renew(slot.buffer, ty, site);
                    slot
                }
                None => {
                    let buffer = memory.allocate_bytes((ty, write.bytes), self.op, site)?;
                    Slot { buffer, input: None, donated: false }
                }
            });
        }
        let scratch = match self.workspace {
            0 => None,
            bytes => Some(memory.scratch(bytes, self.op, site)?),
        };
        // Only now are addresses final: allocating may offload and move buffers.
        let Frame { slots, reads, writes, .. } = frame;
        let address =
            |slot: usize| slots[slot].map_or(Place::NOWHERE.start, |slot| memory.address(slot.buffer));
        reads.clear();
        reads.extend(self.reads.iter().map(|&slot| address(slot).cast_const()));
        writes.clear();
        writes.extend(self.writes.iter().map(|write| address(write.slot)));
        let operands = Operands {
            reads,
            writes,
            workspace: scratch.map_or(std::ptr::null_mut(), |scratch| memory.address(scratch)),
            workspace_bytes: self.workspace,
        };
        // SAFETY: the buffers have the types of the node that the kernel was found for. An output shares an input's buffer only
        // where the target allows it. The memory is locked, so nothing else uses the buffers or runs a kernel.
        let ran = unsafe { self.kernel.run(&operands) };
        if let Some(scratch) = scratch {
            memory.release_scratch(scratch);
        }
        for &slot in &self.dead {
            if let Some(Slot { buffer, input: None, .. }) = frame.slots[slot].take() {
                let moved_on = self.writes.iter().filter_map(|write| frame.slots[write.slot]);
                if !moved_on.into_iter().any(|other| other.buffer == buffer) {
                    memory.release(buffer);
                }
            }
        }
        match ran {
            Ok(()) => Ok(()),
            Err(reason) => Err(Error::Kernel { op: self.op, reason }),
        }
    }
}

/// A program in the making.
struct Lowered<'g> {
    graph: &'g Graph,
    /// The slot of each value; views share one.
    slot_of: Vec<usize>,
    slots: Vec<Arc<TensorType>>,
    steps: Vec<Step>,
    /// For each step and output, the inputs that it may be written over, by operand.
    pairs: Vec<Vec<(usize, usize)>>,
    inputs: usize,
}

impl<'g> Lowered<'g> {
    fn new(graph: &'g Graph, inputs: &[(Arc<TensorType>, BatchMark)]) -> Self {
        let mut slot_of = vec![usize::MAX; graph.value_count()];
        graph.inputs.iter().enumerate().for_each(|(i, input)| slot_of[input.value.index()] = i);
        let slots = inputs.iter().map(|(ty, _)| ty.clone()).collect();
        Self { graph, slot_of, slots, steps: Vec::new(), pairs: Vec::new(), inputs: inputs.len() }
    }

    fn add(&mut self, executor: &dyn KernelExecutor, node: &Node, query: &KernelQuery<'_>) -> Result<()> {
        let reads: Vec<usize> = node.inputs.iter().map(|v| self.slot_of[v.index()]).collect();
        if node.op.is_view() {
            self.slot_of[node.outputs[0].index()] = reads[0];
            return Ok(());
        }
        let kernel = executor.kernel_device().single(query).ok_or_else(|| Unsupported {
            target: executor.target().name(),
            op: node.op.name(),
            types: query.inputs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        })?;
        let mut pairs = executor.target().kernel(query)?.in_place;
        // An operand that is read twice may be written over if all is elementwise.
        if node.op.properties().in_place != InPlace::Elementwise {
            let once = |slot: usize| reads.iter().filter(|&&other| other == slot).count() == 1;
            pairs.retain(|&(_, input)| once(reads[input]));
        }
        let mut writes = Vec::new();
        for value in &node.outputs {
            self.slot_of[value.index()] = self.slots.len();
            let ty = self.graph.ty(*value);
            writes.push(Write { slot: self.slots.len(), bytes: ty.bytes(), over: Vec::new() });
            self.slots.push(Arc::new(ty.clone()));
        }
        let workspace = kernel.workspace_bytes();
        self.steps.push(Step { op: node.op.name(), kernel, workspace, reads, writes, dead: Vec::new() });
        self.pairs.push(pairs);
        Ok(())
    }

    /// Decides where slots die, and what is written over them.
    fn finish(mut self, name: &'static str, graph: Graph, batches: Vec<Batch>) -> Program {
        let results: Vec<usize> =
            (self.graph.outputs.iter()).map(|o| self.slot_of[o.value.index()]).collect();
        let mut seen = vec![false; self.slots.len()];
        results.iter().for_each(|&slot| seen[slot] = true);
        for (step, pairs) in self.steps.iter_mut().zip(&self.pairs).rev() {
            for &slot in step.reads.iter().chain(step.writes.iter().map(|write| &write.slot)) {
                if !std::mem::replace(&mut seen[slot], true) {
                    step.dead.push(slot);
                }
            }
            for (output, write) in step.writes.iter_mut().enumerate() {
                let dying = pairs.iter().filter(|(o, _)| *o == output).map(|(_, input)| step.reads[*input]);
                write.over = dying.filter(|slot| step.dead.contains(slot)).collect();
            }
            step.dead.retain(|&slot| slot >= self.inputs);
        }
        let own: usize = self.slots[self.inputs..].iter().map(|ty| crate::pool::rounded(ty.bytes())).sum();
        let over = self.steps.iter().flat_map(|step| &step.writes).filter(|write| !write.over.is_empty());
        let over: usize = over.map(|write| crate::pool::rounded(self.slots[write.slot].bytes())).sum();
        let scratch = self.steps.iter().map(|step| step.workspace).max().unwrap_or(0);
        let outputs = (results.iter().zip(&self.graph.outputs).zip(batches))
            .map(|((&slot, output), batch)| {
                let ty = self.graph.ty(output.value);
                let ty =
                    if *self.slots[slot] == *ty { self.slots[slot].clone() } else { Arc::new(ty.clone()) };
                if slot >= self.inputs {
                    // A view has as many bytes, under the shape that the caller sees.
                    self.slots[slot] = ty.clone();
                }
                ProgramOutput { slot, ty, batch }
            })
            .collect();
        Program {
            name,
            graph,
            outputs,
            steps: self.steps,
            slots: self.slots,
            inputs: self.inputs,
            own_bytes: own.saturating_sub(over) + scratch,
        }
    }
}
