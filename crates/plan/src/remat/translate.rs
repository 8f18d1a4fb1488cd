//! Recomputation: which tasks of a plan run again so that its arena stays inside a room.
//!
//! The search (`search.rs`) works on calls and tensors; this translates an ordered [`TaskGraph`] for it, and its answer back
//! into a `TaskGraph` of its own, in which a task that runs twice is two tasks. What goes over a place that is not its own (a
//! state's new version, a running sum) runs once, and nothing that reads the old version may run again afterwards.

use super::illegal_runs;
use crate::cache::SearchCache;
use crate::lower::{Home, TaskGraph, TaskId, TaskKind, TensorId};
use crate::remat::{Call, Frontier, Problem, Schedule};
use crate::schedule::distinct_reads;
use plimsoll_graph::Origin;
use std::cell::RefCell;
use std::rc::Rc;

/// An ordered work as the search sees it.
pub(crate) struct Translated {
    /// The step.
    pub problem: Problem,
    /// Bytes that are there all the time and are no tensors of the problem: running sums, and the batch where the body
    /// repeats. States are not counted.
    pub fixed: usize,
    /// The task of each call; the call that brings the batch in has none.
    tasks: Vec<Option<TaskId>>,
}

impl Translated {
    /// Translates a work in an order; the tasks in `once` do not run again.
    pub fn new(task_graph: &TaskGraph<'_>, order: &[TaskId], once: &[bool]) -> Self {
        let (finals, reads) = (finals(task_graph), distinct_reads(task_graph));
        let mut problem = Problem::default();
        let mut fixed = 0;
        let mut batch = Vec::new();
        let mut tensor_of: Vec<Option<usize>> = vec![None; task_graph.tensors.len()];
        for (id, tensor) in task_graph.tensors.iter().enumerate() {
            match task_graph.base(id) {
                Home::State(_) => continue,
                Home::Accumulator(_) => {
                    fixed += if tensor.home == task_graph.base(id) { tensor.size } else { 0 }
                }
                Home::Input(_) if task_graph.repeats() => fixed += tensor.size,
                home => {
                    tensor_of[id] = Some(problem.tensors.len());
                    if matches!(home, Home::Input(_)) {
                        batch.push(problem.tensors.len());
                    }
                    if tensor.pinned {
                        problem.keep.push(problem.tensors.len());
                    }
                    problem.tensors.push(tensor.size as u64);
                }
            }
        }
        let mut tasks = vec![None];
        problem.calls.push(Call { outputs: batch, once: true, ..Call::default() });
        for &id in order {
            let task = &task_graph.tasks[id];
            let times = if task.optimizer_step { 1 } else { task_graph.graph.micro_batches as u64 };
            let inputs = reads[id].iter().filter_map(|&i| tensor_of[i]);
            // What is handed out at the end could not be made again by then: states have changed.
            let stays = |i: TensorId| {
                task_graph.tensors[i].home != Home::Own || task_graph.tensors[i].pinned || finals[i]
            };
            problem.calls.push(Call {
                nanoseconds: task.nanoseconds.saturating_mul(times),
                inputs: inputs.collect(),
                outputs: task.writes.iter().filter_map(|&i| tensor_of[i]).collect(),
                in_place: overwritten(task_graph, id).into_iter().filter_map(|i| tensor_of[i]).collect(),
                workspace: task.workspace.next_multiple_of(task_graph.alignment) as u64,
                once: once[id]
                    || matches!(
                        task.kind,
                        TaskKind::Copy(_) | TaskKind::Store(_) | TaskKind::ChunkedUpdate(_)
                    )
                    || task.writes.iter().any(|&i| stays(i)),
            });
            tasks.push(Some(id));
        }
        Self { problem, fixed, tasks }
    }

    /// The tasks that a list of calls runs.
    pub fn tasks(&self, calls: impl Iterator<Item = usize>) -> Vec<TaskId> {
        calls.filter_map(|call| self.tasks.get(call).copied().flatten()).collect()
    }
}

/// The search for what runs again in one work. What is found under one line is used for the next.
pub(crate) struct Rematerialization<'w, 'g> {
    task_graph: &'w TaskGraph<'g>,
    order: &'w [TaskId],
    /// Tasks that turned out not to be repeatable.
    once: Vec<bool>,
    /// The work as the search sees it, with its answers so far.
    asked: Option<(Translated, Rc<RefCell<Frontier>>)>,
    search_cache: &'w SearchCache,
}

impl<'w, 'g> Rematerialization<'w, 'g> {
    pub fn new(task_graph: &'w TaskGraph<'g>, order: &'w [TaskId], search_cache: &'w SearchCache) -> Self {
        Self { task_graph, order, once: vec![false; task_graph.tasks.len()], asked: None, search_cache }
    }

    /// The tasks in order with the repeats that bring live bytes above the states lowest, and how low that is.
    pub fn lowest(&mut self) -> Option<(usize, Vec<TaskId>)> {
        let (low, lists) = self.allowed(|translated, frontier| {
            let schedule = frontier.lowest();
            Some((translated.fixed.saturating_add(schedule.peak_bytes as usize), vec![schedule]))
        })?;
        Some((low, lists.into_iter().next()?))
    }

    /// The tasks in order, with the repeats that keep live bytes above the states under a line, if any are found.
    pub fn under(&mut self, line: usize) -> Option<Vec<TaskId>> {
        let ((), lists) = self.allowed(|translated, frontier| {
            let room = line.checked_sub(translated.fixed)?;
            Some(((), vec![frontier.solve(room as u64).ok()?]))
        })?;
        lists.into_iter().next()
    }

    /// The tasks in order with the repeats for fixed lines, those that are not over a line, from the highest.
    pub fn points_under(&mut self, line: usize) -> Vec<Vec<TaskId>> {
        let found = self.allowed(|translated, frontier| {
            let room = line.checked_sub(translated.fixed)?;
            Some(((), frontier.points_under(room as u64)))
        });
        found.map_or_else(Vec::new, |((), lists)| lists)
    }

    /// Searches until no task runs again where it may not.
    fn allowed<T>(
        &mut self,
        search: impl Fn(&Translated, &mut Frontier) -> Option<(T, Vec<Schedule>)>,
    ) -> Option<(T, Vec<Vec<TaskId>>)> {
        loop {
            let (translated, frontier) = match self.asked.take() {
                Some(asked) => asked,
                None => {
                    let translated = Translated::new(self.task_graph, self.order, &self.once);
                    let frontier = self.search_cache.frontier(&translated.problem)?;
                    (translated, frontier)
                }
            };
            let found = search(&translated, &mut frontier.borrow_mut());
            let Some((figure, schedules)) = found else {
                self.asked = Some((translated, frontier));
                return None;
            };
            let tasks = |schedule: Schedule| translated.tasks(schedule.runs.iter().map(|run| run.call));
            let lists: Vec<Vec<TaskId>> = schedules.into_iter().map(tasks).collect();
            let illegal: Vec<TaskId> =
                lists.iter().flat_map(|list| illegal_runs(self.task_graph, list)).collect();
            if illegal.is_empty() {
                self.asked = Some((translated, frontier));
                return Some((figure, lists));
            }
            illegal.into_iter().for_each(|task| self.once[task] = true);
        }
    }
}

/// Items that a state ends as.
fn finals(task_graph: &TaskGraph<'_>) -> Vec<bool> {
    let mut finals = vec![false; task_graph.tensors.len()];
    let roots = task_graph.graph.states.iter().filter_map(|s| s.output).map(|v| task_graph.roots[v.index()]);
    let nodes = roots.filter(|&root| matches!(task_graph.graph.origin(root), Origin::Node { .. }));
    nodes.filter_map(|root| task_graph.tensor(root)).for_each(|tensor| finals[tensor] = true);
    finals
}

/// Inputs that an output of a task may go over, or has to.
fn overwritten(task_graph: &TaskGraph<'_>, task: TaskId) -> Vec<TensorId> {
    let task = &task_graph.tasks[task];
    let mut found: Vec<TensorId> = Vec::new();
    for &(output, input) in &task.in_place {
        let old = task.reads[input];
        let is_input = matches!(task_graph.base(old), Home::Input(_));
        if !is_input && !found.contains(&old) && task_graph.may_overwrite(task, output, input) {
            found.push(old);
        }
    }
    let forced = task.writes.iter().filter_map(|&new| match task_graph.tensors[new].home {
        Home::InPlace(old) if !found.contains(&old) => Some(old),
        _ => None,
    });
    let forced: Vec<TensorId> = forced.collect();
    found.extend(forced);
    found
}
