//! The order of the tasks: a few deterministic schedules, each measured exactly, the best one improved at its peak.
//!
//! Training graphs leave little freedom in the large (forward, then backward) and much in the small: how early an
//! update frees its gradient, how late a constant is made, which of two branches goes first. No single rule wins
//! everywhere, and measuring is cheap, so the rules compete.

use crate::tide::Tide;
use crate::work::{Home, TaskId, Work};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

/// Orders that the improvement at the peak may try; each is measured in a time linear in the tasks.
const TRIES: usize = 400;

/// How many ready tasks a greedy schedule looks at, nearest in the program first.
const WINDOW: usize = 64;

/// Which ready task goes next.
#[derive(Clone, Copy, Debug)]
enum Pick {
    /// The first in the program.
    Program,
    /// One that frees at least what it makes, if there is one; else the first in the program.
    Eager,
    /// The one that leaves the fewest bytes live.
    Leanest,
    /// The one that needs the fewest bytes while it runs, among those that free nothing.
    Smallest,
}

/// The tasks in the order they run in, those of the body first.
pub(crate) fn order(work: &Work<'_>) -> Vec<TaskId> {
    let mut tide = Tide::new(work);
    let waits = waits(work);
    // Ties go to the earlier candidate: the program's own order first.
    let candidates = [Pick::Program, Pick::Eager, Pick::Leanest, Pick::Smallest]
        .map(|pick| schedule(work, &mut tide, &waits, pick))
        .into_iter()
        .chain([on_demand(work)]);
    let measured = candidates.map(|order| (measure(&mut tide, work, &order), order));
    let Some((cost, best)) = measured.min_by_key(|(cost, _)| cost.0) else { return Vec::new() };
    improve(work, &mut tide, best, cost)
}

/// Peak bytes of an order, and at how many tasks they are reached.
fn measure(tide: &mut Tide<'_>, work: &Work<'_>, order: &[TaskId]) -> (usize, usize) {
    tide.restart();
    let body = order.iter().take_while(|&&t| !work.tasks[t].tail).count();
    order[..body].iter().for_each(|&t| tide.run(t));
    tide.end_body();
    order[body..].iter().for_each(|&t| tide.run(t));
    (tide.peak, tide.at_peak)
}

/// For every task, how many must come before it.
fn waits(work: &Work<'_>) -> Vec<usize> {
    let mut waits = vec![0; work.tasks.len()];
    for task in &work.tasks {
        task.after.iter().for_each(|&t| waits[t] += 1);
    }
    waits
}

/// Runs ready tasks by a rule until none is left: the body's, then the tail's.
fn schedule(work: &Work<'_>, tide: &mut Tide<'_>, waits: &[usize], pick: Pick) -> Vec<TaskId> {
    tide.restart();
    let mut waits = waits.to_vec();
    let mut order = Vec::with_capacity(work.tasks.len());
    for tail in [false, true] {
        let here = |t: &TaskId| work.tasks[*t].tail == tail;
        let mut ready: BTreeSet<(usize, TaskId)> =
            (0..work.tasks.len()).filter(here).filter(|&t| waits[t] == 0).map(|t| (work.tasks[t].rank, t)).collect();
        while let Some(next) = choose(tide, &ready, pick) {
            ready.remove(&next);
            order.push(next.1);
            tide.run(next.1);
            for &later in &work.tasks[next.1].after {
                waits[later] -= 1;
                if waits[later] == 0 && here(&later) {
                    ready.insert((work.tasks[later].rank, later));
                }
            }
        }
        if !tail {
            tide.end_body();
        }
    }
    order
}

fn choose(tide: &mut Tide<'_>, ready: &BTreeSet<(usize, TaskId)>, pick: Pick) -> Option<(usize, TaskId)> {
    let window = ready.iter().copied().take(WINDOW);
    match pick {
        Pick::Program => ready.first().copied(),
        Pick::Leanest => window.min_by_key(|&(_, t)| tide.effect(t).after),
        Pick::Eager | Pick::Smallest => {
            let effects: Vec<_> = window.map(|next| (tide.effect(next.1), next)).collect();
            let frees = effects.iter().filter(|(e, _)| e.after <= 0).min_by_key(|(e, _)| e.after);
            let next = frees.or_else(|| match pick {
                Pick::Smallest => effects.iter().min_by_key(|(e, _)| e.during),
                _ => effects.first(),
            });
            next.map(|&(_, next)| next)
        }
    }
}

/// Each task only when something needs it: the tasks that nothing waits for, in program order, each after what it
/// needs and has not run yet.
fn on_demand(work: &Work<'_>) -> Vec<TaskId> {
    let mut before: Vec<Vec<TaskId>> = vec![Vec::new(); work.tasks.len()];
    for (id, task) in work.tasks.iter().enumerate() {
        task.after.iter().for_each(|&t| before[t].push(id));
    }
    let by_rank = |tasks: &mut Vec<TaskId>| tasks.sort_by_key(|&t| (work.tasks[t].rank, t));
    before.iter_mut().for_each(by_rank);
    let mut done = vec![false; work.tasks.len()];
    let mut order = Vec::with_capacity(work.tasks.len());
    for tail in [false, true] {
        let here = |t: TaskId| work.tasks[t].tail == tail;
        let last = |t: &TaskId| here(*t) && !work.tasks[*t].after.iter().any(|&a| here(a));
        let mut ends: Vec<TaskId> = (0..work.tasks.len()).filter(last).collect();
        by_rank(&mut ends);
        for end in ends {
            let mut stack = vec![(end, 0)];
            while let Some((task, next)) = stack.pop() {
                if done[task] {
                    continue;
                }
                match before[task].get(next) {
                    Some(&needed) => stack.extend([(task, next + 1), (needed, 0)]),
                    None => {
                        done[task] = true;
                        order.push(task);
                    }
                }
            }
        }
    }
    order
}

/// Moves tasks across the fullest moment as long as that lowers the peak, or makes it rarer.
fn improve(work: &Work<'_>, tide: &mut Tide<'_>, mut order: Vec<TaskId>, mut cost: (usize, usize)) -> Vec<TaskId> {
    let mut tries = 0;
    let mut improved = true;
    while std::mem::take(&mut improved) && tries < TRIES {
        for moved in moves(work, tide, &order, cost.0) {
            let candidate = apply(work, &order, &moved);
            let new = measure(tide, work, &candidate);
            tries += 1;
            if new < cost {
                (order, cost) = (candidate, new);
                improved = true;
                break;
            }
            if tries == TRIES {
                break;
            }
        }
    }
    order
}

/// A wish to run a task at another moment: right before the task that is now at `position`.
struct Move {
    task: TaskId,
    position: usize,
}

/// What could make the first fullest moment less full: making later what is only read later, and reading earlier,
/// for the last time, what is live across it. The largest items first.
fn moves(work: &Work<'_>, tide: &mut Tide<'_>, order: &[TaskId], peak: usize) -> Vec<Move> {
    let position = positions(order);
    let full = first_at(work, tide, order, peak);
    let task = &work.tasks[order[full]];
    let mut across: Vec<_> = (work.items.iter().enumerate())
        .filter(|(i, item)| {
            let made = item.writer.map_or(matches!(item.home, Home::Input(_)), |w| position[w] <= full);
            let read = item.readers.iter().any(|&r| position[r] > full);
            made && read && !item.pinned && item.bytes > 0 && !task.reads.contains(i)
        })
        .collect();
    across.sort_by_key(|(i, item)| (Reverse(item.size), *i));
    let mut moves = Vec::new();
    for (_, item) in across {
        let first_read = item.readers.iter().map(|&r| position[r]).min().unwrap_or(full);
        if let Some(writer) = item.writer
            && first_read > full
        {
            moves.push(Move { task: writer, position: first_read });
        }
        let last_read = item.readers.iter().copied().max_by_key(|&r| position[r]);
        if let Some(task) = last_read.filter(|&t| position[t] > full) {
            moves.push(Move { task, position: full });
        }
    }
    // The task at work may itself be the trouble: what it frees next time around may be freed first.
    moves.extend(order[full + 1..].iter().take(8).map(|&task| Move { task, position: full }));
    moves
}

fn positions(order: &[TaskId]) -> Vec<usize> {
    let mut position = vec![0; order.len()];
    order.iter().enumerate().for_each(|(at, &t)| position[t] = at);
    position
}

/// The first task that runs at the peak.
fn first_at(work: &Work<'_>, tide: &mut Tide<'_>, order: &[TaskId], peak: usize) -> usize {
    tide.restart();
    for (at, &task) in order.iter().enumerate() {
        if at > 0 && work.tasks[task].tail && !work.tasks[order[at - 1]].tail {
            tide.end_body();
        }
        tide.run(task);
        if tide.peak == peak {
            return at;
        }
    }
    0
}

/// The order nearest to a given one in which a task has moved: what it needs moves forward with it, or what needs it
/// moves back with it.
fn apply(work: &Work<'_>, order: &[TaskId], moved: &Move) -> Vec<TaskId> {
    let mut key: Vec<usize> = positions(order).into_iter().map(|p| 2 * p + 1).collect();
    key[moved.task] = 2 * moved.position;
    // A list schedule that takes the smallest key: it delays what must wait, and pulls nothing forward by itself.
    let mut needs = vec![Vec::new(); 0];
    if moved.position * 2 < positions(order)[moved.task] * 2 + 1 {
        needs = predecessors(work);
        let mut stack = vec![moved.task];
        while let Some(task) = stack.pop() {
            for &needed in &needs[task] {
                if key[needed] > 2 * moved.position {
                    key[needed] = 2 * moved.position;
                    stack.push(needed);
                }
            }
        }
    }
    drop(needs);
    let mut waits = waits(work);
    let position = positions(order);
    let entry = |t: TaskId| Reverse((work.tasks[t].tail, key[t], position[t], t));
    let mut ready: BinaryHeap<_> = (0..work.tasks.len()).filter(|&t| waits[t] == 0).map(entry).collect();
    let mut moved = Vec::with_capacity(order.len());
    while let Some(Reverse((_, _, _, task))) = ready.pop() {
        moved.push(task);
        for &later in &work.tasks[task].after {
            waits[later] -= 1;
            if waits[later] == 0 {
                ready.push(entry(later));
            }
        }
    }
    moved
}

fn predecessors(work: &Work<'_>) -> Vec<Vec<TaskId>> {
    let mut before = vec![Vec::new(); work.tasks.len()];
    for (id, task) in work.tasks.iter().enumerate() {
        task.after.iter().for_each(|&t| before[t].push(id));
    }
    before
}
