//! Moves updates of offloaded states right behind their gradients.
//!
//! Loading what an update needs takes memory, so rules that look at single tasks delay it to the end, with every gradient live.
//! Taken together, an update with its loads and stores frees memory at once.

use crate::lower::{Home, TaskGraph, TaskId, TaskKind};
use crate::offload::live_profile;

/// An update with the loads that only it reads and the stores of its results.
struct Group {
    /// In execution order.
    tasks: Vec<TaskId>,
    /// The last task that it depends on.
    anchor: TaskId,
}

/// The order with every update of offloaded states as early as possible, unless that raises the peak.
pub(super) fn early_updates(
    task_graph: &TaskGraph<'_>,
    before: &[Vec<TaskId>],
    order: Vec<TaskId>,
) -> Vec<TaskId> {
    let loads = |task: TaskId| matches!(task_graph.tasks[task].kind, TaskKind::Load(..));
    if !order.iter().any(|&task| loads(task)) {
        return order;
    }
    let mut position = vec![0; task_graph.tasks.len()];
    order.iter().enumerate().for_each(|(at, &task)| position[task] = at);
    let live = live_profile(task_graph, &order);
    let peak = live.iter().copied().max().unwrap_or(0);
    let mut moved = vec![false; task_graph.tasks.len()];
    let mut after: Vec<Vec<Group>> = (0..task_graph.tasks.len()).map(|_| Vec::new()).collect();
    for &task in &order {
        let Some(group) = group(task_graph, before, &position, task) else { continue };
        let at = position[group.anchor];
        // Its loads, and results that are not written in place.
        let taken = group.tasks.iter().flat_map(|&t| &task_graph.tasks[t].writes);
        let taken: usize = taken
            .filter(|&&i| task_graph.tensors[i].home == Home::Own)
            .map(|&i| task_graph.tensors[i].size)
            .sum();
        let fits = live[at] + taken <= peak && live.get(at + 1).is_none_or(|next| next + taken <= peak);
        let optimizer_step = task_graph.tasks[group.anchor].optimizer_step;
        if fits && group.tasks.iter().all(|&t| task_graph.tasks[t].optimizer_step == optimizer_step) {
            group.tasks.iter().for_each(|&t| moved[t] = true);
            after[group.anchor].push(group);
        }
    }
    let mut early_updates = Vec::with_capacity(order.len());
    let mut pending: Vec<TaskId> = Vec::new();
    for &task in order.iter().filter(|&&task| !moved[task]) {
        pending.push(task);
        // An update may depend on another.
        while let Some(next) = pending.pop() {
            early_updates.push(next);
            pending.extend(after[next].drain(..).flat_map(|group| group.tasks).rev());
        }
    }
    early_updates
}

/// The group of a task, if it is such an update.
fn group(
    task_graph: &TaskGraph<'_>,
    before: &[Vec<TaskId>],
    position: &[usize],
    update: TaskId,
) -> Option<Group> {
    let own_load = |&task: &TaskId| {
        let writes = &task_graph.tasks[task].writes;
        matches!(task_graph.tasks[task].kind, TaskKind::Load(..))
            && writes.iter().all(|&i| task_graph.tensors[i].readers == [update])
    };
    let (own, others): (Vec<TaskId>, Vec<TaskId>) = before[update].iter().partition(|task| own_load(task));
    if own.is_empty() || !matches!(task_graph.tasks[update].kind, TaskKind::Run(_)) {
        return None;
    }
    let anchor = others.into_iter().max_by_key(|&task| position[task])?;
    let stores = |&task: &TaskId| {
        let only =
            before[task].iter().all(|t| *t == update || own.contains(t) || position[*t] <= position[anchor]);
        matches!(task_graph.tasks[task].kind, TaskKind::Store(..)) && only
    };
    let stored: Vec<TaskId> = task_graph.tasks[update].after.iter().copied().filter(stores).collect();
    Some(Group { tasks: own.iter().copied().chain([update]).chain(stored).collect(), anchor })
}
