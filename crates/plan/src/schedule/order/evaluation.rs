//! An order and its heights, in which a change is measured where it changes something.
//!
//! Live bytes after a set of tasks do not depend on the order they ran in: where tasks change places among each other, no
//! height before or after them changes.

use crate::lower::{TaskGraph, TaskId};
use crate::schedule::Liveness;

/// How good an order is: first its peak, then at how many tasks that is reached.
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

    /// Of the tasks of both.
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

/// An order with its heights.
pub(crate) struct OrderEvaluation<'a> {
    task_graph: &'a TaskGraph<'a>,
    /// Goes along the order; its reads are counted up to the task at `at`.
    pub liveness: Liveness<'a>,
    at: usize,
    pub order: Vec<TaskId>,
    /// Where the tail begins.
    body: usize,
    /// Live bytes before each task.
    live: Vec<usize>,
    /// Live bytes while each task runs.
    heights: Vec<usize>,
    /// By position: what the tasks before it cost, with what is live before the first, and those from it on.
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
            heights: Vec::new(),
            before: Vec::new(),
            after: Vec::new(),
        }
    }

    /// Takes an order up.
    pub fn follow(&mut self, order: Vec<TaskId>) -> Cost {
        let count = order.len();
        self.body = order.iter().take_while(|&&task| !self.task_graph.tasks[task].optimizer_step).count();
        self.order = order;
        self.liveness.restart();
        self.at = 0;
        (self.live, self.heights) = (vec![0; count], vec![0; count]);
        let start = Cost { peak: self.liveness.live, tasks_at_peak: 0 };
        self.before = vec![start; count + 1];
        self.after = vec![Cost::NOTHING; count + 1];
        self.run(0, count);
        self.cost()
    }

    /// What the order costs.
    pub fn cost(&self) -> Cost {
        self.before.last().copied().unwrap_or(Cost::NOTHING)
    }

    /// The first task that runs at the peak; the first of all where that is reached before.
    pub fn fullest(&self) -> usize {
        let peak = self.cost().peak;
        let before = self.before.first().is_some_and(|start| start.peak == peak);
        let first = self.heights.iter().position(|&height| height == peak);
        first.filter(|_| !before).unwrap_or(0)
    }

    /// The part of the order that may change places with a task: the body or the tail.
    pub fn part_of(&self, position: usize) -> std::ops::Range<usize> {
        if position < self.body { 0..self.body } else { self.body..self.order.len() }
    }

    /// Brings the tide to before the task at a position.
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

    /// What the order costs with the tasks from a position on in another order, if that is less.
    pub fn less(&mut self, position: usize, tasks: &[TaskId]) -> Option<Cost> {
        let now = self.cost();
        let mut cost = self.before[position].and(self.after[position + tasks.len()]);
        self.seek(position);
        let mut ran = 0;
        while ran < tasks.len() && cost < now {
            if position + ran == self.body {
                self.liveness.end_body();
            }
            cost = cost.and(Cost::of_one(self.liveness.run(tasks[ran])));
            ran += 1;
        }
        tasks[..ran].iter().for_each(|&task| self.liveness.unmark_read(task));
        (cost < now).then_some(cost)
    }

    /// Lets the tasks from a position on run in another order.
    pub fn change(&mut self, position: usize, tasks: &[TaskId]) {
        self.seek(position);
        let end = position + tasks.len();
        self.order[position..end].copy_from_slice(tasks);
        self.run(position, end);
    }

    /// Runs tasks from where the tide is, and notes their heights.
    fn run(&mut self, position: usize, end: usize) {
        for at in position..end {
            if at == self.body {
                self.liveness.end_body();
            }
            self.live[at] = self.liveness.live;
            self.heights[at] = self.liveness.run(self.order[at]);
        }
        self.at = end;
        for at in position..self.order.len() {
            self.before[at + 1] = self.before[at].and(Cost::of_one(self.heights[at]));
        }
        for at in (0..end).rev() {
            self.after[at] = self.after[at + 1].and(Cost::of_one(self.heights[at]));
        }
    }
}
