//! An elementwise step in pieces, with states that pass through from the spill file and back.

use crate::call::{self, Call, Operands};
use crate::isa::Context;
use crate::spill::{SpillError, SpillQueue};
use crate::target::CpuTarget;
use plimsoll_graph::{Graph, NodeId, ValueId};
use plimsoll_plan::{BufferId, ChunkTypes, ExecuteError};

/// Places of operands are kept on the stack.
const MOST_OPERANDS: usize = ChunkTypes::MOST_OPERANDS;

/// Pieces of a state that have a place at one time: one is computed on while the other is moved.
const SLOTS: usize = 2;

/// A node made ready to run in pieces.
pub(crate) struct Stream {
    whole: Box<dyn Call>,
    /// The last piece, if it is shorter.
    rest: Option<Box<dyn Call>>,
    elements: usize,
    piece: usize,
    inputs: Vec<Operand>,
    outputs: Vec<Operand>,
    passing: Vec<Passing>,
    kernel_bytes: usize,
}

/// Where an operand of a piece lies.
#[derive(Clone, Copy)]
enum Operand {
    /// In the next buffer, so many bytes further with every element; scalars stay.
    Buffer(usize),
    /// With the state that passes through at this index.
    Passing(usize),
}

/// A state that passes through.
struct Passing {
    /// Where it lies in the file.
    offset: u64,
    /// Bytes of an element.
    each: usize,
    /// Where its first slot starts, after the kernel's scratch.
    slot: usize,
}

impl Stream {
    /// Makes a node ready; `offsets` says where the state that a value is lies in the file.
    pub fn new(
        graph: &Graph,
        id: NodeId,
        reads: &[Option<BufferId>],
        writes: &[Option<BufferId>],
        piece: usize,
        target: &CpuTarget,
        offsets: impl Fn(ValueId) -> Result<u64, ExecuteError>,
    ) -> Result<Self, ExecuteError> {
        let node = graph.node(id);
        let failed = |reason: &str| ExecuteError::Step {
            layer: node.layer.to_string(),
            op: node.op.name(),
            reason: reason.to_string(),
        };
        let elements = ChunkTypes::elements(graph, node).ok_or_else(|| failed("it cannot run in pieces"))?;
        let find = |elements: usize| {
            let call = ChunkTypes::new(graph, node, elements).and_then(|t| call::find(&t.query(&node.op)));
            call.ok_or_else(|| failed("this executor has no kernel for a piece of it"))
        };
        let whole = find(piece.min(elements))?;
        let rest = if elements.is_multiple_of(piece) { None } else { Some(find(elements % piece)?) };
        let mut passing = Vec::new();
        let mut slot = 0;
        let mut inputs = Vec::new();
        let each = |value: ValueId| {
            let ty = graph.ty(value);
            if ty.shape.is_empty() { 0 } else { ty.dtype.bytes() }
        };
        for (&value, buffer) in node.inputs.iter().zip(reads) {
            inputs.push(match buffer {
                Some(_) => Operand::Buffer(each(value)),
                None => {
                    passing.push(Passing { offset: offsets(value)?, each: each(value), slot });
                    slot += SLOTS * piece * each(value);
                    Operand::Passing(passing.len() - 1)
                }
            });
        }
        // A new version takes the old one's place.
        let old = |value: ValueId| graph.states.iter().find(|s| s.output == Some(value)).map(|s| s.input);
        let nth = |value: ValueId| {
            let unplaced = node.inputs.iter().zip(reads).filter(|(_, b)| b.is_none());
            unplaced.map(|(v, _)| *v).position(|v| Some(v) == old(value))
        };
        let mut outputs = Vec::new();
        for (&value, buffer) in node.outputs.iter().zip(writes) {
            outputs.push(match buffer {
                Some(_) => Operand::Buffer(each(value)),
                None => Operand::Passing(nth(value).ok_or_else(|| failed("a result has no place"))?),
            });
        }
        let kernel_bytes = whole.workspace(target.isa, target.threads).next_multiple_of(64);
        Ok(Self { whole, rest, elements, piece, inputs, outputs, passing, kernel_bytes })
    }

    /// Scratch: the kernel's, then the slots.
    pub fn workspace_bytes(&self) -> usize {
        let slots = self.passing.iter().map(|p| SLOTS * self.piece * p.each);
        self.kernel_bytes + slots.sum::<usize>()
    }

    /// Runs all pieces; every transfer is over afterwards.
    ///
    /// # Safety
    /// The operands that have buffers are the node's, in its order, each valid for its type and apart from the others but
    /// for what the target allows in place; the workspace has [`Stream::workspace_bytes`] bytes that nothing else uses.
    pub unsafe fn run(
        &self,
        ctx: Context<'_>,
        queue: &SpillQueue,
        reads: &[*const u8],
        writes: &[*mut u8],
        workspace: *mut u8,
    ) -> Result<(), SpillError> {
        let pieces = self.elements.div_ceil(self.piece);
        let length = |at: usize| self.piece.min(self.elements - at * self.piece);
        let slot = |passing: &Passing, at: usize| {
            let start = self.kernel_bytes + passing.slot + at % SLOTS * self.piece * passing.each;
            workspace.wrapping_add(start)
        };
        let in_file = |p: &Passing, at: usize| p.offset + (at * self.piece * p.each) as u64;
        // The last load of each slot's piece.
        let mut loaded = [None; SLOTS];
        let mut last = None;
        let load = |at: usize, loaded: &mut [Option<_>; SLOTS]| {
            for p in &self.passing {
                // SAFETY: the slot is in the workspace; the queue keeps this behind the store of the piece before, and
                // nothing touches it until the wait below.
                let ticket = unsafe { queue.load(in_file(p, at), slot(p, at), length(at) * p.each) };
                loaded[at % SLOTS] = Some(ticket);
            }
        };
        (0..pieces.min(SLOTS)).for_each(|at| load(at, &mut loaded));
        for at in 0..pieces {
            if let Some(Err(error)) = loaded[at % SLOTS].map(|ticket| queue.wait(ticket)) {
                // The other slot may still be moving.
                loaded.into_iter().chain([last]).flatten().for_each(|ticket| drop(queue.wait(ticket)));
                return Err(error);
            }
            let start = at * self.piece;
            let mut inputs = [std::ptr::null(); MOST_OPERANDS];
            let mut outputs = [std::ptr::null_mut(); MOST_OPERANDS];
            let mut buffers = reads.iter();
            for (place, operand) in inputs.iter_mut().zip(&self.inputs) {
                *place = match *operand {
                    Operand::Buffer(each) => {
                        buffers.next().map_or(std::ptr::null(), |b| b.wrapping_add(start * each))
                    }
                    Operand::Passing(i) => slot(&self.passing[i], at).cast_const(),
                };
            }
            let mut buffers = writes.iter();
            for (place, operand) in outputs.iter_mut().zip(&self.outputs) {
                *place = match *operand {
                    Operand::Buffer(each) => {
                        buffers.next().map_or(std::ptr::null_mut(), |b| b.wrapping_add(start * each))
                    }
                    Operand::Passing(i) => slot(&self.passing[i], at),
                };
            }
            let call =
                if length(at) < self.piece { self.rest.as_ref().unwrap_or(&self.whole) } else { &self.whole };
            let operands = Operands {
                reads: &inputs[..self.inputs.len()],
                writes: &outputs[..self.outputs.len()],
                workspace,
                workspace_bytes: self.kernel_bytes,
            };
            // SAFETY: the caller's promise, for a part of each operand; a new version goes over the old one, element by
            // element. Elementwise kernels do not fail.
            let ran = unsafe { call.run(ctx, &operands) };
            debug_assert_eq!(ran, Ok(()), "an elementwise kernel failed");
            for p in &self.passing {
                // SAFETY: what writes the slot next is the load behind this in the queue.
                last = Some(unsafe { queue.store(in_file(p, at), slot(p, at), length(at) * p.each) });
            }
            if at + SLOTS < pieces {
                load(at + SLOTS, &mut loaded);
            }
        }
        last.map_or(Ok(()), |ticket| queue.wait(ticket))
    }
}
