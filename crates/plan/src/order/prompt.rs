//! Updates of spilled states right after their gradient.
//!
//! Loading what an update needs takes memory, so the orders that look at single tasks put it off to the end, with every
//! gradient waiting. Taken together, an update with its loads and stores is over at once.

use crate::park::profile;
use crate::work::{Deed, Home, TaskId, Work};

/// An update with what it alone loads before and stores after.
struct Group {
    /// In the order they run in.
    tasks: Vec<TaskId>,
    /// The last task that must come before.
    anchor: TaskId,
}

/// The order with every update that reads spilled states as early as it can be, unless that makes the peak higher.
pub(super) fn prompt(work: &Work<'_>, before: &[Vec<TaskId>], order: Vec<TaskId>) -> Vec<TaskId> {
    let loads = |task: TaskId| matches!(work.tasks[task].deed, Deed::Load(_));
    if !order.iter().any(|&task| loads(task)) {
        return order;
    }
    let mut position = vec![0; work.tasks.len()];
    order.iter().enumerate().for_each(|(at, &task)| position[task] = at);
    let live = profile(work, &order);
    let peak = live.iter().copied().max().unwrap_or(0);
    let mut moved = vec![false; work.tasks.len()];
    let mut after: Vec<Vec<Group>> = (0..work.tasks.len()).map(|_| Vec::new()).collect();
    for &task in &order {
        let Some(group) = group(work, before, &position, task) else { continue };
        let at = position[group.anchor];
        // Its loads, and results that go over nothing.
        let taken = group.tasks.iter().flat_map(|&t| &work.tasks[t].writes);
        let taken: usize =
            taken.filter(|&&i| work.items[i].home == Home::Own).map(|&i| work.items[i].size).sum();
        let fits = live[at] + taken <= peak && live.get(at + 1).is_none_or(|next| next + taken <= peak);
        let tail = work.tasks[group.anchor].tail;
        if fits && group.tasks.iter().all(|&t| work.tasks[t].tail == tail) {
            group.tasks.iter().for_each(|&t| moved[t] = true);
            after[group.anchor].push(group);
        }
    }
    let mut prompt = Vec::with_capacity(order.len());
    let mut pending: Vec<TaskId> = Vec::new();
    for &task in order.iter().filter(|&&task| !moved[task]) {
        pending.push(task);
        // An update may wait for another.
        while let Some(next) = pending.pop() {
            prompt.push(next);
            pending.extend(after[next].drain(..).flat_map(|group| group.tasks).rev());
        }
    }
    prompt
}

/// The group of an update, if the task is one.
fn group(work: &Work<'_>, before: &[Vec<TaskId>], position: &[usize], update: TaskId) -> Option<Group> {
    let own_load = |&task: &TaskId| {
        let writes = &work.tasks[task].writes;
        matches!(work.tasks[task].deed, Deed::Load(_))
            && writes.iter().all(|&i| work.items[i].readers == [update])
    };
    let (own, others): (Vec<TaskId>, Vec<TaskId>) = before[update].iter().partition(|task| own_load(task));
    if own.is_empty() || !matches!(work.tasks[update].deed, Deed::Run(_)) {
        return None;
    }
    let anchor = others.into_iter().max_by_key(|&task| position[task])?;
    let stores = |&task: &TaskId| {
        let only =
            before[task].iter().all(|t| *t == update || own.contains(t) || position[*t] <= position[anchor]);
        matches!(work.tasks[task].deed, Deed::Store(_)) && only
    };
    let stored: Vec<TaskId> = work.tasks[update].after.iter().copied().filter(stores).collect();
    Some(Group { tasks: own.iter().copied().chain([update]).chain(stored).collect(), anchor })
}
