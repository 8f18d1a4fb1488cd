//! An order with its live bytes, evaluated incrementally.
//!
//! Live bytes after a set of tasks do not depend on the order they ran in. So a permutation of neighbouring tasks changes nothing
//! before or after them.

use crate::lower::{TaskGraph, TaskId};
use crate::schedule::Liveness;

/// The cost of an order: first its peak, then the number of tasks at the peak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cost {
    pub peak: usize,
    pub tasks_at_peak: usize,
}

impl Cost {
    /// Before any task.
    const NOTHING: Self = Self { peak: 0, tasks_at_peak: 0 };

    fn of_one(height: usize) -> Self {
        Self { peak: height, tasks_at_peak: 1 }
    }

    /// Of both together.
    fn and(self, other: Self) -> Self {
        if self.peak == other.peak {
            Self { peak: self.peak, tasks_at_peak: self.tasks_at_peak + other.tasks_at_peak }
        } else if self.peak > other.peak {
            self
        } else {
            other
        }
    }
}

/// An order with its live bytes.
pub(crate) struct OrderEvaluation<'a> {
    task_graph: &'a TaskGraph<'a>,
    /// Simulates the order; reads are counted up to the task at `at`.
    pub liveness: Liveness<'a>,
    at: usize,
    pub order: Vec<TaskId>,
    /// Where the optimizer step starts.
    body: usize,
    /// Live bytes before each task.
    live: Vec<usize>,
    /// Live bytes while each task runs.
    live_running: Vec<usize>,
    /// By position: the cost of the tasks before it, and of those from it on.
    before: Vec<Cost>,
    after: Vec<Cost>,
}

impl<'a> OrderEvaluation<'a> {
    pub fn new(task_graph: &'a TaskGraph<'a>) -> Self {
        Self {
            task_graph,
            liveness: Liveness::new(task_graph),
            at: 0,
            order: Vec::new(),
            body: 0,
            live: Vec::new(),
            live_running: Vec::new(),
            before: Vec::new(),
            after: Vec::new(),
        }
    }

    /// Evaluates an order.
    pub fn evaluate(&mut self, order: Vec<TaskId>) -> Cost {
        let count = order.len();
        self.body = order.iter().take_while(|&&task| !self.task_graph.tasks[task].optimizer_step).count();
        self.order = order;
        self.liveness.restart();
        self.at = 0;
        (self.live, self.live_running) = (vec![0; count], vec![0; count]);
        let start = Cost { peak: self.liveness.live, tasks_at_peak: 0 };
        self.before = vec![start; count + 1];
        self.after = vec![Cost::NOTHING; count + 1];
        self.run(0, count);
        self.cost()
    }

    /// The cost of the order.
    pub fn cost(&self) -> Cost {
        self.before.last().copied().unwrap_or(Cost::NOTHING)
    }

    /// The first task at the peak; the first of all if the peak is reached before any task.
    pub fn peak_position(&self) -> usize {
        let peak = self.cost().peak;
        let before = self.before.first().is_some_and(|start| start.peak == peak);
        let first = self.live_running.iter().position(|&height| height == peak);
        first.filter(|_| !before).unwrap_or(0)
    }

    /// The range of positions that a task may move in: the micro-batches, or the optimizer step.
    pub fn phase_of(&self, position: usize) -> std::ops::Range<usize> {
        if position < self.body { 0..self.body } else { self.body..self.order.len() }
    }

    /// Brings the simulation to before the task at a position.
    pub fn seek(&mut self, position: usize) {
        while self.at < position {
            self.liveness.mark_read(self.order[self.at]);
            self.at += 1;
        }
        while self.at > position {
            self.at -= 1;
            self.liveness.unmark_read(self.order[self.at]);
        }
        self.liveness.resume(self.live[position], position == 0, position < self.body);
    }

    /// The cost with the tasks from a position on permuted, if that is less.
    pub fn if_cheaper(&mut self, position: usize, tasks: &[TaskId]) -> Option<Cost> {
        let now = self.cost();
        let mut cost = self.before[position].and(self.after[position + tasks.len()]);
        self.seek(position);
        let mut ran = 0;
        while ran < tasks.len() && cost < now {
            if position + ran == self.body {
                self.liveness.end_micro_batches();
            }
            cost = cost.and(Cost::of_one(self.liveness.run(tasks[ran])));
            ran += 1;
        }
        tasks[..ran].iter().for_each(|&task| self.liveness.unmark_read(task));
        (cost < now).then_some(cost)
    }

    /// Permutes the tasks from a position on.
    pub fn permute(&mut self, position: usize, tasks: &[TaskId]) {
        self.seek(position);
        let end = position + tasks.len();
        self.order[position..end].copy_from_slice(tasks);
        self.run(position, end);
    }

    /// Simulates tasks from the current position on, and records their live bytes.
    fn run(&mut self, position: usize, end: usize) {
        for at in position..end {
            if at == self.body {
                self.liveness.end_micro_batches();
            }
            self.live[at] = self.liveness.live;
            self.live_running[at] = self.liveness.run(self.order[at]);
        }
        self.at = end;
        for at in position..self.order.len() {
            self.before[at + 1] = self.before[at].and(Cost::of_one(self.live_running[at]));
        }
        for at in (0..end).rev() {
            self.after[at] = self.after[at + 1].and(Cost::of_one(self.live_running[at]));
        }
    }
}
