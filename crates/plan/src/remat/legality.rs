//! Runs that a rematerialized list may not contain.

use crate::Offloaded;
use crate::lower::{Home, TaskGraph, TaskId, TaskKind};

/// Tasks that must not run again as a list has them: runs that would read something that is gone (the old version of what
/// was written over, or, after the last micro-batch, what belongs to one), or rather the repeats that such a run is for.
pub(crate) fn illegal_runs(task_graph: &TaskGraph<'_>, list: &[TaskId]) -> Vec<TaskId> {
    let mut gone = vec![false; task_graph.tensors.len()];
    let mut stored = vec![false; task_graph.graph.states.len()];
    let mut ran = vec![false; task_graph.tasks.len()];
    let mut in_optimizer_step = false;
    // Runs: whether each is a repeat, whether it comes too late, and the runs that read what it makes.
    let mut again = Vec::with_capacity(list.len());
    let mut too_late = Vec::new();
    let mut readers: Vec<Vec<usize>> = vec![Vec::new(); list.len()];
    let mut made_by: Vec<Option<usize>> = vec![None; task_graph.tensors.len()];
    for (run, &id) in list.iter().enumerate() {
        let task = &task_graph.tasks[id];
        again.push(std::mem::replace(&mut ran[id], true));
        in_optimizer_step |= task.optimizer_step;
        let late = match task.kind {
            TaskKind::Load(Offloaded::State(state)) => stored[state],
            // What waits in the file is the last micro-batch's, as everything in the tail is.
            TaskKind::Load(Offloaded::Value(_)) => false,
            _ => {
                task.reads.iter().any(|&i| gone[i])
                    || (task_graph.repeats() && in_optimizer_step && !task.optimizer_step)
            }
        };
        if again[run] && late {
            too_late.push(run);
        }
        if let TaskKind::Store(Offloaded::State(state)) = task.kind {
            stored[state] = true;
        }
        task.reads.iter().filter_map(|&i| made_by[i]).for_each(|maker| readers[maker].push(run));
        for &tensor in &task.writes {
            made_by[tensor] = Some(run);
            if let Home::InPlace(old) = task_graph.tensors[tensor].home {
                gone[old] = true;
            }
        }
    }
    let blamed = |&run: &usize| {
        let for_repeats = !readers[run].is_empty() && readers[run].iter().all(|&reader| again[reader]);
        if for_repeats { readers[run].clone() } else { vec![run] }
    };
    let mut found: Vec<TaskId> = too_late.iter().flat_map(blamed).map(|run| list[run]).collect();
    found.sort_unstable();
    found.dedup();
    found
}
