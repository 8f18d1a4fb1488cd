//! From an order to steps and buffers: which buffer each tensor lies in, and the lifetime of each buffer.

use crate::lower::CHUNK_ELEMENTS;
use crate::lower::{Home, TaskGraph, TaskId, TaskKind, TensorId};
use crate::offload::body;
use crate::schedule::Liveness;
use crate::{Action, Buffer, BufferId, BufferKind, Offloaded, Step};
use plimsoll_graph::ValueId;

/// Steps and buffers of one plan, before the buffers have offsets.
pub(crate) struct UnplacedPlan {
    /// The steps.
    pub steps: Vec<Step>,
    /// The buffers, all at offset 0.
    pub buffers: Vec<Buffer>,
    /// The buffers of the graph's outputs after the last step.
    pub outputs: Vec<BufferId>,
}

/// Simulates the order once. `states[i]` is the index of the graph's state `i` in the plan set.
pub(crate) fn unplaced_plan(task_graph: &TaskGraph<'_>, order: &[TaskId], states: &[usize]) -> UnplacedPlan {
    let mut lifetimes = Lifetimes { buffers: Vec::new(), place: vec![None; task_graph.tensors.len()] };
    for (id, tensor) in task_graph.tensors.iter().enumerate() {
        let (kind, micro_stride) = match tensor.home {
            Home::State(i) => (BufferKind::State(states.get(i).copied().unwrap_or(i)), 0),
            Home::Accumulator(i) => (BufferKind::Accumulator(i), 0),
            Home::Input(i) => {
                let moves_on = task_graph.graph.inputs[i].batched && task_graph.has_micro_batches();
                (BufferKind::Input(i), if moves_on { task_graph.graph.ty(tensor.value).bytes() } else { 0 })
            }
            Home::Own | Home::InPlace(_) => continue,
        };
        let buffer = lifetimes.add(kind, Some(tensor.value), tensor.bytes, 0);
        lifetimes.buffers[buffer.index()].micro_stride = micro_stride;
        lifetimes.place[id] = Some(buffer);
    }
    let in_set = |what| match what {
        Offloaded::State(i) => Offloaded::State(states[i]),
        Offloaded::Value(i) => Offloaded::Value(i),
    };
    let mut liveness = Liveness::new(task_graph);
    let mut overwrites = Vec::new();
    let mut steps = Vec::with_capacity(order.len());
    for (step, &id) in order.iter().enumerate() {
        let task = &task_graph.tasks[id];
        liveness.in_place(id, &mut overwrites);
        liveness.run(id);
        let reads: Vec<BufferId> = task.reads.iter().map(|&i| lifetimes.touch(i, step)).collect();
        for (output, &tensor) in task.writes.iter().enumerate() {
            let over = match task_graph.tensors[tensor].home {
                Home::InPlace(under) => Some(under),
                _ => overwrites.iter().find(|r| r.0 == output).map(|r| r.1),
            };
            let (value, bytes) = (task_graph.tensors[tensor].value, task_graph.tensors[tensor].bytes);
            let buffer = over.and_then(|under| lifetimes.place[under]);
            lifetimes.place[tensor] =
                Some(buffer.unwrap_or_else(|| lifetimes.add(BufferKind::Value, Some(value), bytes, step)));
        }
        let writes: Vec<BufferId> = task.writes.iter().map(|&i| lifetimes.touch(i, step)).collect();
        let workspace =
            (task.workspace > 0).then(|| lifetimes.add(BufferKind::Workspace, None, task.workspace, step));
        let action = match task.kind {
            TaskKind::Run(node) => Action::Run { node, reads, writes, workspace },
            TaskKind::ChunkedUpdate(node) => {
                let (mut reads, mut writes) = (reads.into_iter(), writes.into_iter());
                let taken = task_graph.graph.node(node);
                Action::ChunkedUpdate {
                    node,
                    reads: taken
                        .reads()
                        .map(|v| if task_graph.is_chunked(v) { None } else { reads.next() })
                        .collect(),
                    writes: (taken.outputs.iter())
                        .map(|&v| if task_graph.is_chunked(v) { None } else { writes.next() })
                        .collect(),
                    workspace: workspace.unwrap_or(BufferId(0)),
                    chunk_elements: CHUNK_ELEMENTS,
                }
            }
            TaskKind::Copy(value) => Action::Copy { value, from: reads[0], to: writes[0] },
            TaskKind::Load(what, tier) => Action::Load { what: in_set(what), tier, to: writes[0] },
            TaskKind::Store(what, tier) => Action::Store { what: in_set(what), tier, from: reads[0] },
        };
        steps.push(Step { action, optimizer_step: task.optimizer_step });
    }
    let end = steps.len().saturating_sub(1);
    let body_end = body(&steps).saturating_sub(1);
    for buffer in &mut lifetimes.buffers {
        match buffer.kind {
            BufferKind::State(_) | BufferKind::Accumulator(_) => buffer.last = end,
            // The next micro-batch reads it, too.
            BufferKind::Input(_) if task_graph.has_micro_batches() => buffer.last = buffer.last.max(body_end),
            _ => {}
        }
    }
    let outputs: Vec<BufferId> = task_graph.outputs.iter().map(|&i| lifetimes.touch(i, end)).collect();
    UnplacedPlan { steps, buffers: lifetimes.buffers, outputs }
}

struct Lifetimes {
    buffers: Vec<Buffer>,
    /// The buffer of each tensor.
    place: Vec<Option<BufferId>>,
}

impl Lifetimes {
    fn add(&mut self, kind: BufferKind, value: Option<ValueId>, bytes: usize, step: usize) -> BufferId {
        self.buffers.push(Buffer { kind, value, offset: 0, bytes, first: step, last: step, micro_stride: 0 });
        BufferId(self.buffers.len() as u32 - 1)
    }

    /// The buffer of a tensor that is used in a step; extends its lifetime.
    fn touch(&mut self, tensor: TensorId, step: usize) -> BufferId {
        let buffer = self.place[tensor].unwrap_or(BufferId(0));
        if let Some(buffer) = self.buffers.get_mut(buffer.index()) {
            buffer.last = buffer.last.max(step);
        }
        buffer
    }
}
