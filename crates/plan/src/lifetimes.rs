//! From an order to steps and buffers: which buffer each item lies in, and from when to when it is taken.

use crate::rounds::body;
use crate::stream::PIECE;
use crate::tide::Tide;
use crate::work::{Deed, Home, ItemId, TaskId, Work};
use crate::{Action, Buffer, BufferId, BufferKind, Spilled, Step};
use plimsoll_graph::ValueId;

/// Steps and buffers of one plan, before the buffers have their place.
pub(crate) struct Timetable {
    /// The steps.
    pub steps: Vec<Step>,
    /// The buffers, all at offset 0.
    pub buffers: Vec<Buffer>,
    /// Where the graph's outputs lie after the last step.
    pub outputs: Vec<BufferId>,
}

/// Runs the order once on paper. `states[i]` is where the graph's state `i` stands in the plan set.
pub(crate) fn timetable(work: &Work<'_>, order: &[TaskId], states: &[usize]) -> Timetable {
    let mut table = Table { buffers: Vec::new(), place: vec![None; work.items.len()] };
    for (id, item) in work.items.iter().enumerate() {
        let (kind, micro_stride) = match item.home {
            Home::State(i) => (BufferKind::State(states.get(i).copied().unwrap_or(i)), 0),
            Home::Carry(i) => (BufferKind::Carry(i), 0),
            Home::Input(i) => {
                let moves_on = work.graph.inputs[i].batched && work.repeats();
                (BufferKind::Input(i), if moves_on { work.graph.ty(item.value).bytes() } else { 0 })
            }
            Home::Own | Home::Over(_) => continue,
        };
        let buffer = table.add(kind, Some(item.value), item.bytes, 0);
        table.buffers[buffer.index()].micro_stride = micro_stride;
        table.place[id] = Some(buffer);
    }
    let in_set = |what| match what {
        Spilled::State(i) => Spilled::State(states[i]),
        Spilled::Value(i) => Spilled::Value(i),
    };
    let mut tide = Tide::new(work);
    let mut reuses = Vec::new();
    let mut steps = Vec::with_capacity(order.len());
    for (step, &id) in order.iter().enumerate() {
        let task = &work.tasks[id];
        tide.reuses(id, &mut reuses);
        tide.run(id);
        let reads: Vec<BufferId> = task.reads.iter().map(|&i| table.touch(i, step)).collect();
        for (output, &item) in task.writes.iter().enumerate() {
            let over = match work.items[item].home {
                Home::Over(under) => Some(under),
                _ => reuses.iter().find(|r| r.0 == output).map(|r| r.1),
            };
            let (value, bytes) = (work.items[item].value, work.items[item].bytes);
            let buffer = over.and_then(|under| table.place[under]);
            table.place[item] =
                Some(buffer.unwrap_or_else(|| table.add(BufferKind::Value, Some(value), bytes, step)));
        }
        let writes: Vec<BufferId> = task.writes.iter().map(|&i| table.touch(i, step)).collect();
        let workspace =
            (task.workspace > 0).then(|| table.add(BufferKind::Workspace, None, task.workspace, step));
        let action = match task.deed {
            Deed::Run(node) => Action::Run { node, reads, writes, workspace },
            Deed::Stream(node) => {
                let (mut reads, mut writes) = (reads.into_iter(), writes.into_iter());
                let taken = work.graph.node(node);
                Action::Stream {
                    node,
                    reads: taken.reads().map(|v| if work.passes(v) { None } else { reads.next() }).collect(),
                    writes: (taken.outputs.iter())
                        .map(|&v| if work.passes(v) { None } else { writes.next() })
                        .collect(),
                    workspace: workspace.unwrap_or(BufferId(0)),
                    piece: PIECE,
                }
            }
            Deed::Copy(value) => Action::Copy { value, from: reads[0], to: writes[0] },
            Deed::Load(what) => Action::Load { what: in_set(what), to: writes[0] },
            Deed::Store(what) => Action::Store { what: in_set(what), from: reads[0] },
        };
        steps.push(Step { action, tail: task.tail });
    }
    let end = steps.len().saturating_sub(1);
    let body_end = body(&steps).saturating_sub(1);
    for buffer in &mut table.buffers {
        match buffer.kind {
            BufferKind::State(_) | BufferKind::Carry(_) => buffer.last = end,
            // The next micro-batch reads it again.
            BufferKind::Input(_) if work.repeats() => buffer.last = buffer.last.max(body_end),
            _ => {}
        }
    }
    let outputs: Vec<BufferId> = work.outputs.iter().map(|&i| table.touch(i, end)).collect();
    Timetable { steps, buffers: table.buffers, outputs }
}

struct Table {
    buffers: Vec<Buffer>,
    /// The buffer each item lies in.
    place: Vec<Option<BufferId>>,
}

impl Table {
    fn add(&mut self, kind: BufferKind, value: Option<ValueId>, bytes: usize, step: usize) -> BufferId {
        self.buffers.push(Buffer { kind, value, offset: 0, bytes, first: step, last: step, micro_stride: 0 });
        BufferId(self.buffers.len() as u32 - 1)
    }

    /// The buffer of an item that is used in a step.
    fn touch(&mut self, item: ItemId, step: usize) -> BufferId {
        let buffer = self.place[item].unwrap_or(BufferId(0));
        if let Some(buffer) = self.buffers.get_mut(buffer.index()) {
            buffer.last = buffer.last.max(step);
        }
        buffer
    }
}
