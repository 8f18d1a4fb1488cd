//! A chunked update: an elementwise node runs on a chunk of its operands at a time, while offloaded states are loaded and
//! stored chunk by chunk (double buffering).

use super::spill::SpillError;
use super::transfer::TransferQueue;
use crate::dispatch::{self, Call, CpuTarget, Operands};
use crate::isa::Context;
use plimsoll_graph::{Graph, NodeId, ValueId};
use plimsoll_plan::{BufferId, ChunkTypes, ExecuteError};

/// Addresses of operands are kept on the stack.
const MOST_OPERANDS: usize = ChunkTypes::MOST_OPERANDS;

/// Chunks of a state in memory at a time: the kernel works on one while the other is transferred.
const SLOTS: usize = 2;

/// A node that runs in chunks.
pub struct ChunkedUpdate {
    full: Box<dyn Call>,
    /// For the last chunk, if it is shorter.
    remainder: Option<Box<dyn Call>>,
    elements: usize,
    chunk: usize,
    inputs: Vec<Operand>,
    outputs: Vec<Operand>,
    states: Vec<OffloadedState>,
    kernel_bytes: usize,
}

/// Where an operand of a chunk is.
#[derive(Clone, Copy)]
enum Operand {
    /// In the next buffer, so many bytes further with every element; zero for scalars.
    Buffer(usize),
    /// In a slot of the state at this index.
    State(usize),
}

/// A state that is loaded and stored chunk by chunk.
struct OffloadedState {
    /// Its offset in the spill file.
    offset: u64,
    element_bytes: usize,
    /// Where its first slot starts, after the kernel's scratch.
    slot: usize,
}

impl ChunkedUpdate {
    /// Prepares a node; `offsets` is the offset in the spill file of the state that a value is.
    pub fn new(
        graph: &Graph,
        id: NodeId,
        reads: &[Option<BufferId>],
        writes: &[Option<BufferId>],
        chunk: usize,
        target: &CpuTarget,
        offsets: impl Fn(ValueId) -> Result<u64, ExecuteError>,
    ) -> Result<Self, ExecuteError> {
        let node = graph.node(id);
        let failed = |reason: &str| ExecuteError::Step {
            layer: node.layer.to_string(),
            op: node.op.name(),
            reason: reason.to_string(),
        };
        let elements = ChunkTypes::elements(graph, node).ok_or_else(|| failed("it cannot run in chunks"))?;
        let find = |elements: usize| {
            let call =
                ChunkTypes::new(graph, node, elements).and_then(|t| dispatch::find(&t.query(&node.op)));
            call.ok_or_else(|| failed("this executor has no kernel for a chunk of it"))
        };
        let full = find(chunk.min(elements))?;
        let remainder = if elements.is_multiple_of(chunk) { None } else { Some(find(elements % chunk)?) };
        let mut states = Vec::new();
        let mut slot = 0;
        let mut inputs = Vec::new();
        let element_bytes = |value: ValueId| {
            let ty = graph.ty(value);
            if ty.shape.is_empty() { 0 } else { ty.dtype.bytes() }
        };
        for (&value, buffer) in node.inputs.iter().zip(reads) {
            inputs.push(match buffer {
                Some(_) => Operand::Buffer(element_bytes(value)),
                None => {
                    let element_bytes = element_bytes(value);
                    states.push(OffloadedState { offset: offsets(value)?, element_bytes, slot });
                    slot += SLOTS * chunk * element_bytes;
                    Operand::State(states.len() - 1)
                }
            });
        }
        // A state's new version is computed in place.
        let old = |value: ValueId| graph.states.iter().find(|s| s.output == Some(value)).map(|s| s.input);
        let nth = |value: ValueId| {
            let unplaced = node.inputs.iter().zip(reads).filter(|(_, b)| b.is_none());
            unplaced.map(|(v, _)| *v).position(|v| Some(v) == old(value))
        };
        let mut outputs = Vec::new();
        for (&value, buffer) in node.outputs.iter().zip(writes) {
            outputs.push(match buffer {
                Some(_) => Operand::Buffer(element_bytes(value)),
                None => Operand::State(nth(value).ok_or_else(|| failed("a result has no buffer"))?),
            });
        }
        let kernel_bytes = full.workspace(target.isa, target.threads).next_multiple_of(64);
        Ok(Self { full, remainder, elements, chunk, inputs, outputs, states, kernel_bytes })
    }

    /// Scratch: the kernel's, then the slots.
    pub fn workspace_bytes(&self) -> usize {
        let slots = self.states.iter().map(|state| SLOTS * self.chunk * state.element_bytes);
        self.kernel_bytes + slots.sum::<usize>()
    }

    /// Runs all chunks; every transfer has completed afterwards.
    ///
    /// # Safety
    /// The operands that have buffers are the node's, in its order, each valid for its type; they overlap only where the
    /// target allows in place. The workspace has [`ChunkedUpdate::workspace_bytes`] bytes that nothing else uses.
    pub unsafe fn run(
        &self,
        ctx: Context<'_>,
        queue: &TransferQueue,
        reads: &[*const u8],
        writes: &[*mut u8],
        workspace: *mut u8,
    ) -> Result<(), SpillError> {
        let chunks = self.elements.div_ceil(self.chunk);
        let length = |at: usize| self.chunk.min(self.elements - at * self.chunk);
        let slot = |state: &OffloadedState, at: usize| {
            let start = self.kernel_bytes + state.slot + at % SLOTS * self.chunk * state.element_bytes;
            workspace.wrapping_add(start)
        };
        let in_file =
            |state: &OffloadedState, at: usize| state.offset + (at * self.chunk * state.element_bytes) as u64;
        // The last load into each slot.
        let mut loaded = [None; SLOTS];
        let mut last = None;
        let load = |at: usize, loaded: &mut [Option<_>; SLOTS]| {
            for state in &self.states {
                let bytes = length(at) * state.element_bytes;
                // SAFETY: the slot is in the workspace; the queue orders this load after the store from the same slot,
                // and nothing touches the slot until the wait below.
                let ticket = unsafe { queue.load(in_file(state, at), slot(state, at), bytes) };
                loaded[at % SLOTS] = Some(ticket);
            }
        };
        (0..chunks.min(SLOTS)).for_each(|at| load(at, &mut loaded));
        for at in 0..chunks {
            if let Some(Err(error)) = loaded[at % SLOTS].map(|ticket| queue.wait(ticket)) {
                // The other slot may still be in transfer.
                loaded.into_iter().chain([last]).flatten().for_each(|ticket| drop(queue.wait(ticket)));
                return Err(error);
            }
            let start = at * self.chunk;
            let mut inputs = [std::ptr::null(); MOST_OPERANDS];
            let mut outputs = [std::ptr::null_mut(); MOST_OPERANDS];
            let mut buffers = reads.iter();
            for (address, operand) in inputs.iter_mut().zip(&self.inputs) {
                *address = match *operand {
                    Operand::Buffer(bytes) => {
                        buffers.next().map_or(std::ptr::null(), |b| b.wrapping_add(start * bytes))
                    }
                    Operand::State(i) => slot(&self.states[i], at).cast_const(),
                };
            }
            let mut buffers = writes.iter();
            for (address, operand) in outputs.iter_mut().zip(&self.outputs) {
                *address = match *operand {
                    Operand::Buffer(bytes) => {
                        buffers.next().map_or(std::ptr::null_mut(), |b| b.wrapping_add(start * bytes))
                    }
                    Operand::State(i) => slot(&self.states[i], at),
                };
            }
            let shorter = self.remainder.as_ref().filter(|_| length(at) < self.chunk);
            let call = shorter.unwrap_or(&self.full);
            let operands = Operands {
                reads: &inputs[..self.inputs.len()],
                writes: &outputs[..self.outputs.len()],
                workspace,
                workspace_bytes: self.kernel_bytes,
            };
            // SAFETY: the caller's promise, for a chunk of each operand; an elementwise kernel may write a state's new
            // version in place. Elementwise kernels do not fail.
            let ran = unsafe { call.run(ctx, &operands) };
            debug_assert_eq!(ran, Ok(()), "an elementwise kernel failed");
            for state in &self.states {
                let bytes = length(at) * state.element_bytes;
                // SAFETY: the next write to the slot is a load that the queue orders after this store.
                last = Some(unsafe { queue.store(in_file(state, at), slot(state, at), bytes) });
            }
            if at + SLOTS < chunks {
                load(at + SLOTS, &mut loaded);
            }
        }
        last.map_or(Ok(()), |ticket| queue.wait(ticket))
    }
}
