//! Rematerialization of a task graph: which tasks run more than once so that live bytes stay under a limit.
//!
//! The search works on calls and tensors. This translates an ordered [`TaskGraph`] into a problem, and schedules back
//! into lists of tasks. A task that updates a state or an accumulator in place runs once, and nothing that reads the
//! old version may run after it.

use super::illegal_runs;
use crate::cache::SearchCache;
use crate::lower::{Home, TaskGraph, TaskId, TaskKind, TensorId};
use crate::remat::{Call, Frontier, Problem, Schedule};
use crate::schedule::distinct_reads;
use plimsoll_graph::Origin;
use std::cell::RefCell;
use std::rc::Rc;

/// An ordered task graph as a problem.
pub(crate) struct Translated {
    /// The step.
    pub problem: Problem,
    /// Bytes that are live throughout and are no tensors of the problem: accumulators, and with micro-batches the
    /// batch. States are not counted.
    pub fixed_bytes: usize,
    /// The task of each call; the call that produces the batch has none.
    tasks: Vec<Option<TaskId>>,
}

impl Translated {
    /// Translates a task graph in an order; the tasks in `once` are not rematerialized.
    pub fn new(task_graph: &TaskGraph<'_>, order: &[TaskId], once: &[bool]) -> Self {
        let (new_versions, reads) = (new_versions(task_graph), distinct_reads(task_graph));
        let mut problem = Problem::default();
        let mut fixed_bytes = 0;
        let mut batch = Vec::new();
        let mut tensor_of: Vec<Option<usize>> = vec![None; task_graph.tensors.len()];
        for (id, tensor) in task_graph.tensors.iter().enumerate() {
            match task_graph.base(id) {
                Home::State(_) => continue,
                Home::Accumulator(_) => {
                    fixed_bytes += if tensor.home == task_graph.base(id) { tensor.size } else { 0 }
                }
                Home::Input(_) if task_graph.has_micro_batches() => fixed_bytes += tensor.size,
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
            // Outputs of the step cannot be rematerialized at its end: states have changed by then.
            let stays = |i: TensorId| {
                task_graph.tensors[i].home != Home::Own || task_graph.tensors[i].pinned || new_versions[i]
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
                        TaskKind::Copy(_) | TaskKind::Store(..) | TaskKind::ChunkedUpdate(_)
                    )
                    || task.writes.iter().any(|&i| stays(i)),
            });
            tasks.push(Some(id));
        }
        Self { problem, fixed_bytes, tasks }
    }

    /// The tasks that a schedule runs.
    fn tasks(&self, schedule: &Schedule) -> Vec<TaskId> {
        schedule.runs.iter().filter_map(|run| self.tasks.get(run.call).copied().flatten()).collect()
    }
}

/// The search for rematerialized runs of one task graph. What is found under one line is used for the next.
pub(crate) struct Rematerialization<'w, 'g> {
    task_graph: &'w TaskGraph<'g>,
    order: &'w [TaskId],
    /// Tasks that turned out not to be rematerializable.
    once: Vec<bool>,
    /// The problem without those, and its solutions so far.
    translated: Option<(Translated, Rc<RefCell<Frontier>>)>,
    search_cache: &'w SearchCache,
    quick: bool,
}

impl<'w, 'g> Rematerialization<'w, 'g> {
    pub fn new(
        task_graph: &'w TaskGraph<'g>,
        order: &'w [TaskId],
        search_cache: &'w SearchCache,
        quick: bool,
    ) -> Self {
        let once = vec![false; task_graph.tasks.len()];
        Self { task_graph, order, once, translated: None, search_cache, quick }
    }

    /// The task list with the lowest peak above the states, and that peak.
    pub fn lowest(&mut self) -> Option<(usize, Vec<TaskId>)> {
        let (peak, lists) = self.search_legal(|translated, frontier| {
            let schedule = frontier.lowest();
            Some((translated.fixed_bytes.saturating_add(schedule.peak_bytes as usize), vec![schedule]))
        })?;
        Some((peak, lists.into_iter().next()?))
    }

    /// The fastest task list found with live bytes above the states under a line.
    pub fn under(&mut self, line: usize) -> Option<Vec<TaskId>> {
        let ((), lists) = self.search_legal(|translated, frontier| {
            let line = line.checked_sub(translated.fixed_bytes)?;
            Some(((), vec![frontier.under(line as u64)?]))
        })?;
        lists.into_iter().next()
    }

    /// The task lists of the frontier's points that are not over a line, from the highest.
    pub fn points_under(&mut self, line: usize) -> Vec<Vec<TaskId>> {
        let found = self.search_legal(|translated, frontier| {
            let line = line.checked_sub(translated.fixed_bytes)?;
            Some(((), frontier.points_under(line as u64)))
        });
        found.map_or_else(Vec::new, |((), lists)| lists)
    }

    /// Searches, and forbids tasks to be rematerialized, until no list has an illegal run.
    fn search_legal<T>(
        &mut self,
        search: impl Fn(&Translated, &mut Frontier) -> Option<(T, Vec<Schedule>)>,
    ) -> Option<(T, Vec<Vec<TaskId>>)> {
        loop {
            let (translated, frontier) = match self.translated.take() {
                Some(translated) => translated,
                None => {
                    let translated = Translated::new(self.task_graph, self.order, &self.once);
                    let frontier = self.search_cache.frontier(&translated.problem, self.quick)?;
                    (translated, frontier)
                }
            };
            let found = search(&translated, &mut frontier.borrow_mut());
            let Some((figure, schedules)) = found else {
                self.translated = Some((translated, frontier));
                return None;
            };
            let lists: Vec<Vec<TaskId>> = schedules.iter().map(|s| translated.tasks(s)).collect();
            let illegal: Vec<TaskId> =
                lists.iter().flat_map(|list| illegal_runs(self.task_graph, list)).collect();
            if illegal.is_empty() {
                self.translated = Some((translated, frontier));
                return Some((figure, lists));
            }
            illegal.into_iter().for_each(|task| self.once[task] = true);
        }
    }
}

/// Which tensors are a state's new version: what a node computes, and what is loaded again after it was offloaded.
fn new_versions(task_graph: &TaskGraph<'_>) -> Vec<bool> {
    let graph = task_graph.graph;
    let mut is_new_version = vec![false; graph.value_count()];
    let roots = graph.states.iter().filter_map(|s| s.output).map(|v| task_graph.roots[v.index()]);
    let computed = roots.filter(|&root| matches!(graph.origin(root), Origin::Node { .. }));
    computed.for_each(|root| is_new_version[root.index()] = true);
    task_graph.tensors.iter().map(|tensor| is_new_version[tensor.value.index()]).collect()
}

/// Inputs that an output of a task may, or must, be written over.
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
