//! The order of the tasks: several deterministic rules compete, and the best result is improved at its peak.
//!
//! Training graphs leave little freedom in the large (forward, then backward) and much in the small: how early an
//! update frees its gradient, how late a constant is computed, which of two branches goes first. No single rule wins
//! everywhere, and evaluating is cheap, so the rules compete. Around the peak the order is then made optimal, a window
//! of tasks at a time, and single tasks are moved across the peak from further away.

mod early_update;
pub(crate) mod evaluation;
mod window;

use crate::lower::{Home, TaskGraph, TaskId, TensorId};
use evaluation::{Cost, OrderEvaluation};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

/// Evaluations that the improvement of one order may use.
const TRIES: usize = 100;

/// How many ready tasks a greedy rule looks at, nearest in the program first.
const WINDOW: usize = 64;

/// Which ready task runs next.
#[derive(Clone, Copy, Debug)]
enum Pick {
    /// The first in the program.
    Program,
    /// One that frees at least what it allocates, if there is one; else the first in the program.
    Eager,
    /// One that frees at least what it allocates, if there is one; else the one that needs the fewest bytes.
    Smallest,
    /// The one that leaves the fewest bytes live.
    Leanest,
}

/// The tasks in execution order, those of the micro-batches first.
pub(crate) fn order(task_graph: &TaskGraph<'_>) -> Vec<TaskId> {
    let mut search = Search::new(task_graph);
    let mut candidates = vec![search.schedule(Pick::Program)];
    // A body of several micro-batches is in the order in which devices work at the same time: a rule that took a value early would wait for it.
    if task_graph.graph.unrolled == 1 {
        let picks = [Pick::Eager, Pick::Smallest, Pick::Leanest];
        candidates.extend(picks.into_iter().map(|pick| search.schedule(pick)));
        candidates.push(search.on_demand());
    }
    let is_new = |at: &usize| !candidates[..*at].contains(&candidates[*at]);
    let distinct: Vec<usize> = (0..candidates.len()).filter(is_new).collect();
    // Ties go to the earlier candidate: the program's own order first.
    let measured = distinct.into_iter().map(|at| search.improve(std::mem::take(&mut candidates[at])));
    let best = measured.min_by_key(|(_, cost)| cost.peak).map(|(order, _)| order).unwrap_or_default();
    early_update::early_updates(task_graph, &search.before, best)
}

/// The largest sum of live bytes, states included, in an order.
pub(crate) fn peak(task_graph: &TaskGraph<'_>, order: &[TaskId]) -> usize {
    OrderEvaluation::new(task_graph).evaluate(order.to_vec()).peak
}

/// Moves a task right before the task that is now at `position`.
struct Move {
    task: TaskId,
    position: usize,
}

struct Search<'a> {
    task_graph: &'a TaskGraph<'a>,
    evaluation: OrderEvaluation<'a>,
    /// The tasks that each task depends on.
    before: Vec<Vec<TaskId>>,
}

impl<'a> Search<'a> {
    fn new(task_graph: &'a TaskGraph<'a>) -> Self {
        let mut before = vec![Vec::new(); task_graph.tasks.len()];
        for (id, task) in task_graph.tasks.iter().enumerate() {
            task.after.iter().for_each(|&t| before[t].push(id));
        }
        before
            .iter_mut()
            .for_each(|tasks: &mut Vec<TaskId>| tasks.sort_by_key(|&t| (task_graph.tasks[t].rank, t)));
        Self { task_graph, evaluation: OrderEvaluation::new(task_graph), before }
    }

    /// Schedules ready tasks by a rule: those of the micro-batches, then the optimizer step.
    fn schedule(&mut self, pick: Pick) -> Vec<TaskId> {
        let task_graph = self.task_graph;
        self.evaluation.liveness.restart();
        let mut waits: Vec<usize> = self.before.iter().map(Vec::len).collect();
        let mut order = Vec::with_capacity(task_graph.tasks.len());
        for optimizer_step in [false, true] {
            let here = |t: TaskId| task_graph.tasks[t].optimizer_step == optimizer_step;
            let first = (0..task_graph.tasks.len()).filter(|&t| here(t) && waits[t] == 0);
            let mut ready: BTreeSet<(usize, TaskId)> = first.map(|t| (task_graph.tasks[t].rank, t)).collect();
            while let Some(next) = self.choose(&ready, pick) {
                ready.remove(&next);
                order.push(next.1);
                self.evaluation.liveness.run(next.1);
                for &later in &task_graph.tasks[next.1].after {
                    waits[later] -= 1;
                    if waits[later] == 0 && here(later) {
                        ready.insert((task_graph.tasks[later].rank, later));
                    }
                }
            }
            if !optimizer_step {
                self.evaluation.liveness.end_micro_batches();
            }
        }
        order
    }

    fn choose(&mut self, ready: &BTreeSet<(usize, TaskId)>, pick: Pick) -> Option<(usize, TaskId)> {
        if let Pick::Program = pick {
            return ready.first().copied();
        }
        let window = ready.iter().take(WINDOW);
        let effects: Vec<_> = window.map(|&next| (self.evaluation.liveness.effect(next.1), next)).collect();
        let leanest = effects.iter().min_by_key(|(effect, _)| effect.after);
        let frees = leanest.filter(|(effect, _)| effect.after <= 0);
        let next = match pick {
            Pick::Program | Pick::Eager => frees.or(effects.first()),
            Pick::Smallest => frees.or(effects.iter().min_by_key(|(effect, _)| effect.during)),
            Pick::Leanest => leanest,
        };
        next.map(|&(_, next)| next)
    }

    /// Schedules each task only when another depends on it: the tasks without dependents in program order, each behind what it
    /// depends on.
    fn on_demand(&self) -> Vec<TaskId> {
        let task_graph = self.task_graph;
        let mut done = vec![false; task_graph.tasks.len()];
        let mut order = Vec::with_capacity(task_graph.tasks.len());
        for optimizer_step in [false, true] {
            let here = |t: TaskId| task_graph.tasks[t].optimizer_step == optimizer_step;
            let is_last = |t: &TaskId| here(*t) && !task_graph.tasks[*t].after.iter().any(|&a| here(a));
            let mut ends: Vec<TaskId> = (0..task_graph.tasks.len()).filter(is_last).collect();
            ends.sort_by_key(|&t| (task_graph.tasks[t].rank, t));
            for end in ends {
                let mut stack = vec![(end, 0)];
                while let Some((task, next)) = stack.pop() {
                    if done[task] {
                        continue;
                    }
                    if let Some(&needed) = self.before[task].get(next) {
                        stack.extend([(task, next + 1), (needed, 0)]);
                    } else {
                        done[task] = true;
                        order.push(task);
                    }
                }
            }
        }
        order
    }

    /// Permutes the tasks around the peak, and moves tasks across it, as long as that lowers the peak or makes it rarer.
    fn improve(&mut self, order: Vec<TaskId>) -> (Vec<TaskId>, Cost) {
        let mut cost = self.evaluation.evaluate(order);
        let mut tries = 0;
        'again: while tries < TRIES {
            let peak_position = self.evaluation.peak_position();
            for back in window::STARTS {
                let Some((start, tasks)) =
                    window::around(&mut self.evaluation, &self.before, peak_position, back)
                else {
                    continue;
                };
                tries += 1;
                if let Some(new) = self.evaluation.if_cheaper(start, &tasks) {
                    self.evaluation.permute(start, &tasks);
                    cost = new;
                    continue 'again;
                }
            }
            let position = positions(&self.evaluation.order);
            for moved_task in self.moves(&position, peak_position) {
                tries += 1;
                let (start, tasks) = self.moved(&position, &moved_task);
                if let Some(new) = self.evaluation.if_cheaper(start, &tasks) {
                    self.evaluation.permute(start, &tasks);
                    cost = new;
                    continue 'again;
                }
                if tries >= TRIES {
                    break;
                }
            }
            break;
        }
        (std::mem::take(&mut self.evaluation.order), cost)
    }

    /// Moves that could lower the live bytes at a position: computing later what is only read later, and reading earlier, for the
    /// last time, what is live across it. The largest tensors first.
    fn moves(&self, position: &[usize], peak_position: usize) -> Vec<Move> {
        let order = &self.evaluation.order;
        let Some(&peak_task) = order.get(peak_position) else { return Vec::new() };
        let in_use: BTreeSet<TensorId> = self.task_graph.tasks[peak_task].reads.iter().copied().collect();
        let tensors = self.task_graph.tensors.iter().enumerate();
        let mut across: Vec<_> = tensors
            .filter(|(i, tensor)| {
                let made = tensor
                    .writer
                    .map_or(matches!(tensor.home, Home::Input(_)), |w| position[w] < peak_position);
                let read_later = tensor.readers.iter().any(|&r| position[r] > peak_position);
                made && read_later && !tensor.pinned && !in_use.contains(i)
            })
            .collect();
        across.sort_by_key(|(i, tensor)| (Reverse(tensor.size), *i));
        let mut moves = Vec::new();
        for (_, tensor) in across {
            let first_read = tensor.readers.iter().map(|&r| position[r]).min().unwrap_or(peak_position);
            if let Some(task) = tensor.writer.filter(|_| first_read > peak_position) {
                moves.push(Move { task, position: first_read });
            }
            if let Some(task) = tensor.readers.iter().copied().max_by_key(|&r| position[r]) {
                moves.push(Move { task, position: peak_position });
            }
        }
        // The task at the peak may itself come too early: others that could free something go first.
        moves.extend(
            order[peak_position + 1..].iter().take(8).map(|&task| Move { task, position: peak_position }),
        );
        moves
    }

    /// The nearest order in which a task has moved: where it starts to differ, and the tasks from there on up to where it no longer
    /// does. Dependencies of the task move forward with it; dependents move back with it.
    fn moved(&self, position: &[usize], moved_task: &Move) -> (usize, Vec<TaskId>) {
        let order = &self.evaluation.order;
        let from = position[moved_task.task];
        let target = 2 * moved_task.position;
        // Positions outside this range do not change.
        let (low, high) = if moved_task.position <= from {
            (moved_task.position, from + 1)
        } else {
            (from, moved_task.position)
        };
        let at = |t: TaskId| position[t].wrapping_sub(low);
        let inside = |t: &TaskId| at(*t) < high - low;
        let mut key: Vec<usize> = (low..high).map(|p| 2 * p + 1).collect();
        key[from - low] = target;
        let mut stack = if moved_task.position <= from { vec![moved_task.task] } else { Vec::new() };
        while let Some(task) = stack.pop() {
            for &needed in self.before[task].iter().filter(|t| inside(t)) {
                if std::mem::replace(&mut key[at(needed)], target) > target {
                    stack.push(needed);
                }
            }
        }
        let tasks = &self.task_graph.tasks;
        let entry = |t: TaskId| Reverse((tasks[t].optimizer_step, key[at(t)], position[t], t));
        let needs = |&t: &TaskId| self.before[t].iter().filter(|t| inside(t)).count();
        let mut waits: Vec<usize> = order[low..high].iter().map(needs).collect();
        let first = order[low..high].iter().copied().filter(|&t| waits[at(t)] == 0);
        let mut ready: BinaryHeap<_> = first.map(entry).collect();
        let mut moved = Vec::with_capacity(high - low);
        while let Some(Reverse((_, _, _, task))) = ready.pop() {
            moved.push(task);
            for &later in tasks[task].after.iter().filter(|t| inside(t)) {
                waits[at(later)] -= 1;
                if waits[at(later)] == 0 {
                    ready.push(entry(later));
                }
            }
        }
        (low, moved)
    }
}

/// The position of each task in an order.
fn positions(order: &[TaskId]) -> Vec<usize> {
    let mut position = vec![0; order.len()];
    order.iter().enumerate().for_each(|(at, &t)| position[t] = at);
    position
}
