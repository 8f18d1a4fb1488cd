//! Unrolls a list of runs and transfers into a task graph in which each entry is a task of its own.

use crate::lower::{Home, TaskGraph, TaskId, TaskKind, Tensor, TensorId};
use crate::{Direction, Offloaded, Tier};

/// Where the optimizer step of a list starts: loads for its first task belong to it, too.
fn optimizer_step_start(task_graph: &TaskGraph<'_>, list: &[ListEntry]) -> usize {
    let in_optimizer_step =
        |turn: &ListEntry| matches!(turn, ListEntry::Run(id) if task_graph.tasks[*id].optimizer_step);
    let loads = |turn: &ListEntry| match turn {
        ListEntry::Run(id) => matches!(task_graph.tasks[*id].kind, TaskKind::Load(..)),
        ListEntry::Reload(_) => true,
        ListEntry::Offload(..) => false,
    };
    let mut start = list.iter().position(in_optimizer_step).unwrap_or(list.len());
    while start < list.len() && start > 0 && loads(&list[start - 1]) {
        start -= 1;
    }
    start
}

/// One entry of a list to unroll.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ListEntry {
    /// A task runs.
    Run(TaskId),
    /// Stores a tensor to a tier.
    Offload(TensorId, Tier),
    /// Loads it again, from where it was stored last, into memory of its own.
    Reload(TensorId),
}

/// The task graph in which each entry of a list is a task, in the list's order. A rematerialized task writes new tensors, and
/// readers read the latest version.
pub(crate) fn unroll<'a>(task_graph: &TaskGraph<'a>, list: &[ListEntry]) -> TaskGraph<'a> {
    let mut new = task_graph.empty();
    new.offloaded = task_graph.offloaded.clone();
    let mut slot = vec![0; task_graph.tensors.len()];
    let mut latest: Vec<TensorId> = vec![0; task_graph.tensors.len()];
    let add = |new: &mut TaskGraph<'a>, tensor: &Tensor, home: Home| {
        new.tensors.push(Tensor { home, pinned: false, readers: Vec::new(), writer: None, ..tensor.clone() });
        new.tensors.len() - 1
    };
    for (id, tensor) in task_graph.tensors.iter().enumerate() {
        if !matches!(tensor.home, Home::Own | Home::InPlace(_)) {
            latest[id] = add(&mut new, tensor, tensor.home);
        }
    }
    let optimizer_step = optimizer_step_start(task_graph, list);
    for (turn, &entry) in list.iter().enumerate() {
        let (at, in_optimizer_step) = (new.tasks.len(), turn >= optimizer_step);
        let id = match entry {
            ListEntry::Run(id) => id,
            ListEntry::Offload(tensor, tier) => {
                slot[tensor] = new.offloaded.len();
                new.offloaded.push((task_graph.tensors[tensor].value, tier));
                let bytes = task_graph.tensors[tensor].bytes;
                let nanoseconds = task_graph.tiers.ns(tier, Direction::Store, bytes);
                let kind = TaskKind::Store(Offloaded::Value(slot[tensor]), tier);
                new.add_transfer(kind, &[latest[tensor]], &[], nanoseconds, in_optimizer_step, at);
                continue;
            }
            ListEntry::Reload(tensor) => {
                latest[tensor] = add(&mut new, &task_graph.tensors[tensor], Home::Own);
                new.tensors[latest[tensor]].writer = Some(at);
                let (_, tier) = new.offloaded[slot[tensor]];
                let bytes = task_graph.tensors[tensor].bytes;
                let nanoseconds = task_graph.tiers.ns(tier, Direction::Load, bytes);
                let kind = TaskKind::Load(Offloaded::Value(slot[tensor]), tier);
                new.add_transfer(kind, &[], &[latest[tensor]], nanoseconds, in_optimizer_step, at);
                continue;
            }
        };
        let task = &task_graph.tasks[id];
        let reads: Vec<TensorId> = task.reads.iter().map(|&i| latest[i]).collect();
        for &tensor in &reads {
            if new.tensors[tensor].readers.last() != Some(&at) {
                new.tensors[tensor].readers.push(at);
            }
        }
        for &tensor in &task.writes {
            let home = match task_graph.tensors[tensor].home {
                Home::InPlace(old) => Home::InPlace(latest[old]),
                home => home,
            };
            latest[tensor] = add(&mut new, &task_graph.tensors[tensor], home);
            new.tensors[latest[tensor]].writer = Some(at);
        }
        let writes = task.writes.iter().map(|&i| latest[i]).collect();
        new.tasks.push(super::Task {
            reads,
            writes,
            after: Vec::new(),
            optimizer_step: in_optimizer_step,
            ..task.clone()
        });
    }
    new.tensor_of = task_graph.tensor_of.iter().map(|tensor| tensor.map(|i| latest[i])).collect();
    new.outputs = task_graph.outputs.iter().map(|&i| latest[i]).collect();
    for at in 0..new.outputs.len() {
        let tensor = new.outputs[at];
        new.tensors[tensor].pinned = true;
    }
    new
}
