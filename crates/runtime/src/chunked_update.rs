//! A chunked update: an elementwise node runs on a chunk of its operands at a time, while offloaded states are loaded and
//! stored chunk by chunk (double buffering).

use super::device::{Device, Operands};
use super::queues::{Place, Ticket, Transfers};
use plimsoll_graph::{Graph, NodeId, ValueId};
use plimsoll_plan::{BufferId, ChunkTypes, Direction, ExecuteError};

/// Addresses of operands are kept on the stack.
const MOST_OPERANDS: usize = ChunkTypes::MOST_OPERANDS;

/// Chunks of a state in memory at a time: the kernel works on one while the other is transferred.
const SLOTS: usize = 2;

/// The last requests for the states of an update.
type Tickets = [Option<Ticket>; MOST_OPERANDS];

const NO_TICKETS: Tickets = [None; MOST_OPERANDS];

/// A node that runs in chunks.
pub struct ChunkedUpdate<C> {
    full: C,
    /// For the last chunk, if it is shorter.
    remainder: Option<C>,
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
    home: Place,
    element_bytes: usize,
    /// Where its first slot starts, after the kernel's scratch.
    slot: usize,
}

impl<C> ChunkedUpdate<C> {
    /// Prepares a node; `home` is where the state that a value is lives.
    pub fn new<D: Device<Call = C>>(
        graph: &Graph,
        id: NodeId,
        reads: &[Option<BufferId>],
        writes: &[Option<BufferId>],
        chunk: usize,
        device: &D,
        home: impl Fn(ValueId) -> Result<Place, ExecuteError>,
    ) -> Result<Self, ExecuteError> {
        let node = graph.node(id);
        let failed = |reason: &str| ExecuteError::Step {
            layer: node.layer.to_string(),
            op: node.op.name(),
            reason: reason.to_string(),
        };
        let elements = ChunkTypes::elements(graph, node).ok_or_else(|| failed("it cannot run in chunks"))?;
        let find = |elements: usize| {
            let call = ChunkTypes::new(graph, node, elements).and_then(|t| device.find(&t.query(&node.op)));
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
                    states.push(OffloadedState { home: home(value)?, element_bytes, slot });
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
        let kernel_bytes = device.workspace_bytes(&full).next_multiple_of(64);
        Ok(Self { full, remainder, elements, chunk, inputs, outputs, states, kernel_bytes })
    }

    /// Scratch: the kernel's, then the slots.
    pub fn workspace_bytes(&self) -> usize {
        self.kernel_bytes + self.slots_bytes()
    }

    fn slots_bytes(&self) -> usize {
        self.states.iter().map(|state| SLOTS * self.chunk * state.element_bytes).sum()
    }

    /// With the slots at the end of a workspace of so many bytes, where `verify_hazards` takes them to be.
    pub fn in_workspace(self, bytes: usize) -> Self {
        let kernel_bytes = bytes.saturating_sub(self.slots_bytes());
        Self { kernel_bytes, ..self }
    }

    /// Runs all chunks; every transfer has completed afterwards.
    ///
    /// # Safety
    /// The operands that have buffers are the node's, in its order, each valid for its type; they overlap only where the
    /// target allows in place. The workspace has [`ChunkedUpdate::workspace_bytes`] bytes that nothing else uses.
    pub unsafe fn run<D: Device<Call = C>>(
        &self,
        device: &D,
        transfers: &Transfers,
        reads: &[*const u8],
        writes: &[*mut u8],
        workspace: *mut u8,
    ) -> Result<(), ExecuteError> {
        let chunks = self.elements.div_ceil(self.chunk);
        // The last load into each slot, and the last store, of every state.
        let mut loaded = [NO_TICKETS; SLOTS];
        let mut stored = NO_TICKETS;
        let mut outcome = Ok(());
        for at in 0..chunks.min(SLOTS) {
            let slot = &mut loaded[at % SLOTS];
            // SAFETY: the workspace is this call's alone; nothing touches the slot until the wait below.
            outcome = outcome.and(unsafe { self.transfer(Direction::Load, transfers, at, workspace, slot) });
        }
        for at in 0..chunks {
            outcome = outcome.and_then(|()| self.wait(transfers, &loaded[at % SLOTS]));
            if outcome.is_err() {
                break;
            }
            // SAFETY: the caller's promise; the chunk's states are in their slots.
            outcome = unsafe { self.compute(device, at, reads, writes, workspace) };
            if outcome.is_err() {
                break;
            }
            // SAFETY: the next write to the slot is a load that the queue orders after this store.
            outcome = unsafe { self.transfer(Direction::Store, transfers, at, workspace, &mut stored) };
            if at + SLOTS < chunks {
                let slot = &mut loaded[at % SLOTS];
                let next = at + SLOTS;
                // SAFETY: as above; the queue orders this load after the store from the same slot.
                outcome =
                    outcome.and(unsafe { self.transfer(Direction::Load, transfers, next, workspace, slot) });
            }
        }
        // After a failure, the other slot may still be in transfer.
        let waited = loaded.iter().chain([&stored]).map(|tickets| self.wait(transfers, tickets));
        waited.fold(outcome, Result::and)
    }

    /// Elements of a chunk.
    fn length(&self, at: usize) -> usize {
        self.chunk.min(self.elements - at * self.chunk)
    }

    /// The slot of a chunk of a state.
    fn slot(&self, state: &OffloadedState, at: usize, workspace: *mut u8) -> *mut u8 {
        let start = self.kernel_bytes + state.slot + at % SLOTS * self.chunk * state.element_bytes;
        workspace.wrapping_add(start)
    }

    /// The place of a chunk of a state in its tier, and its bytes.
    fn range(&self, state: &OffloadedState, at: usize) -> (Place, usize) {
        let offset = state.home.offset + (at * self.chunk * state.element_bytes) as u64;
        (Place { offset, ..state.home }, self.length(at) * state.element_bytes)
    }

    /// Starts the loads or stores of a chunk.
    ///
    /// # Safety
    /// Until the tickets are waited for, nothing touches the chunk's slot but kernels that read it while it is stored, and a
    /// later load.
    unsafe fn transfer(
        &self,
        direction: Direction,
        transfers: &Transfers,
        at: usize,
        workspace: *mut u8,
        tickets: &mut Tickets,
    ) -> Result<(), ExecuteError> {
        for (state, ticket) in self.states.iter().zip(tickets) {
            let (place, bytes) = self.range(state, at);
            let slot = self.slot(state, at, workspace);
            // SAFETY: the slot is in the workspace; the rest is the caller's promise.
            *ticket = Some(unsafe { transfers.start(direction, place, slot, bytes)? });
        }
        Ok(())
    }

    /// Waits for all of the tickets, also after one has failed.
    fn wait(&self, transfers: &Transfers, tickets: &Tickets) -> Result<(), ExecuteError> {
        let mut outcome = Ok(());
        for (state, ticket) in self.states.iter().zip(tickets) {
            if let Some(ticket) = *ticket {
                outcome = outcome.and(transfers.wait(state.home.tier, ticket));
            }
        }
        outcome
    }

    /// Runs the kernel on a chunk.
    ///
    /// # Safety
    /// As for [`ChunkedUpdate::run`]; the chunk's states are in their slots.
    unsafe fn compute<D: Device<Call = C>>(
        &self,
        device: &D,
        at: usize,
        reads: &[*const u8],
        writes: &[*mut u8],
        workspace: *mut u8,
    ) -> Result<(), ExecuteError> {
        let start = at * self.chunk;
        let mut inputs = [std::ptr::null(); MOST_OPERANDS];
        let mut outputs = [std::ptr::null_mut(); MOST_OPERANDS];
        let mut buffers = reads.iter();
        for (address, operand) in inputs.iter_mut().zip(&self.inputs) {
            *address = match *operand {
                Operand::Buffer(bytes) => {
                    buffers.next().map_or(std::ptr::null(), |b| b.wrapping_add(start * bytes))
                }
                Operand::State(i) => self.slot(&self.states[i], at, workspace).cast_const(),
            };
        }
        let mut buffers = writes.iter();
        for (address, operand) in outputs.iter_mut().zip(&self.outputs) {
            *address = match *operand {
                Operand::Buffer(bytes) => {
                    buffers.next().map_or(std::ptr::null_mut(), |b| b.wrapping_add(start * bytes))
                }
                Operand::State(i) => self.slot(&self.states[i], at, workspace),
            };
        }
        let shorter = self.remainder.as_ref().filter(|_| self.length(at) < self.chunk);
        let operands = Operands {
            reads: &inputs[..self.inputs.len()],
            writes: &outputs[..self.outputs.len()],
            workspace,
            workspace_bytes: self.kernel_bytes,
        };
        // SAFETY: the caller's promise, for a chunk of each operand; an elementwise kernel may write a state's new version in
        // place.
        let ran = unsafe { device.run(shorter.unwrap_or(&self.full), &operands) };
        ran.map_err(|reason| ExecuteError::Step { layer: String::new(), op: "chunked update", reason })
    }
}
