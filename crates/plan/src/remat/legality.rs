//! Rematerialized runs that would read a value that is gone.

use crate::Offloaded;
use crate::lower::{Home, TaskGraph, TaskId, TaskKind};

/// Tasks that must not be rematerialized as a list has them: a run would read the old version of what was updated in
/// place, a state already stored, or, in the optimizer step, a value of a micro-batch. Where only rematerialized runs
/// read what such a run produces, their tasks are named instead.
pub(crate) fn illegal_runs(task_graph: &TaskGraph<'_>, list: &[TaskId]) -> Vec<TaskId> {
    let mut overwritten = vec![false; task_graph.tensors.len()];
    let mut stored = vec![false; task_graph.graph.states.len()];
    let mut ran = vec![false; task_graph.tasks.len()];
    let mut in_optimizer_step = false;
    // By run: whether it is rematerialized, and the runs that read what it produces.
    let mut rematerialized = Vec::with_capacity(list.len());
    let mut readers: Vec<Vec<usize>> = vec![Vec::new(); list.len()];
    let mut too_late = Vec::new();
    let mut produced_by: Vec<Option<usize>> = vec![None; task_graph.tensors.len()];
    for (run, &id) in list.iter().enumerate() {
        let task = &task_graph.tasks[id];
        rematerialized.push(std::mem::replace(&mut ran[id], true));
        in_optimizer_step |= task.optimizer_step;
        let late = match task.kind {
            TaskKind::Load(Offloaded::State(state), _) => stored[state],
            // The tier holds the last micro-batch's value, which is the one that the optimizer step reads.
            TaskKind::Load(Offloaded::Value(_), _) => false,
            _ => {
                task.reads.iter().any(|&i| overwritten[i])
                    || (task_graph.has_micro_batches() && in_optimizer_step && !task.optimizer_step)
            }
        };
        if rematerialized[run] && late {
            too_late.push(run);
        }
        if let TaskKind::Store(Offloaded::State(state), _) = task.kind {
            stored[state] = true;
        }
        task.reads.iter().filter_map(|&i| produced_by[i]).for_each(|producer| readers[producer].push(run));
        for &tensor in &task.writes {
            produced_by[tensor] = Some(run);
            if let Home::InPlace(old) = task_graph.tensors[tensor].home {
                overwritten[old] = true;
            }
        }
    }
    let blamed = |&run: &usize| {
        let read_by_rematerialized =
            !readers[run].is_empty() && readers[run].iter().all(|&reader| rematerialized[reader]);
        if read_by_rematerialized { readers[run].clone() } else { vec![run] }
    };
    let mut illegal: Vec<TaskId> = too_late.iter().flat_map(blamed).map(|run| list[run]).collect();
    illegal.sort_unstable();
    illegal.dedup();
    illegal
}
