//! Liveness: exact live bytes while tasks run, without making any buffer.
//!
//! This is the one simulation of a task graph's memory. The order search queries it thousands of times through
//! `order/evaluation.rs`; offload takes its profile from it; `lifetimes.rs` makes the same in-place choices by
//! asking [`Liveness::in_place`].

use crate::lower::{Home, Task, TaskGraph, TaskId, TensorId};

/// When a tensor's bytes are live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lifetime {
    /// States and accumulators: always.
    Fixed,
    /// Inputs: from the start to their last reader; never overwritten in place.
    Input,
    /// Values: from their writer to their last reader.
    Value,
}

/// The effect of a task on live bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Effect {
    /// Bytes allocated while it runs.
    pub during: usize,
    /// Net bytes once it has run.
    pub after: isize,
}

/// Live bytes between two tasks of an order.
pub(crate) struct Liveness<'a> {
    task_graph: &'a TaskGraph<'a>,
    lifetimes: Vec<Lifetime>,
    /// The distinct tensors that each task reads.
    reads: Vec<Vec<TensorId>>,
    /// Number of readers by tensor.
    readers: Vec<u32>,
    /// Readers that have not run yet, by tensor.
    remaining: Vec<u32>,
    /// Live bytes now, states and accumulators included.
    pub live: usize,
    /// Bytes of inputs without readers, which are freed after the first task: pending now, and at the start.
    unread_inputs: usize,
    unread_inputs_at_start: usize,
    /// Whether inputs stay live because another micro-batch may read them.
    inputs_stay: bool,
    scratch: Vec<(usize, TensorId)>,
}

impl<'a> Liveness<'a> {
    /// Before the first task.
    pub fn new(task_graph: &'a TaskGraph<'a>) -> Self {
        let lifetime = |tensor: TensorId| match task_graph.base(tensor) {
            Home::State(_) | Home::Accumulator(_) => Lifetime::Fixed,
            Home::Input(_) => Lifetime::Input,
            Home::Own | Home::InPlace(_) => Lifetime::Value,
        };
        let lifetimes: Vec<Lifetime> = (0..task_graph.tensors.len()).map(lifetime).collect();
        let mut liveness = Self {
            task_graph,
            lifetimes,
            reads: distinct_reads(task_graph),
            readers: task_graph.tensors.iter().map(|i| i.readers.len() as u32).collect(),
            remaining: Vec::new(),
            live: 0,
            unread_inputs: 0,
            unread_inputs_at_start: 0,
            inputs_stay: task_graph.has_micro_batches(),
            scratch: Vec::new(),
        };
        liveness.restart();
        liveness
    }

    /// Goes back to before the first task.
    pub fn restart(&mut self) {
        let tensors = &self.task_graph.tensors;
        self.remaining.clone_from(&self.readers);
        let entering = |i: &&crate::lower::Tensor| !matches!(i.home, Home::Own | Home::InPlace(_));
        self.live = tensors.iter().filter(entering).map(|i| i.size).sum();
        self.inputs_stay = self.task_graph.has_micro_batches();
        self.unread_inputs = if self.inputs_stay { 0 } else { self.done_inputs() };
        self.unread_inputs_at_start = self.unread_inputs;
    }

    /// Resumes before another task, whose reads and all later ones are not counted as done: with so many live bytes, before the
    /// first task or not, and in the micro-batches or not.
    pub fn resume(&mut self, live: usize, first: bool, in_body: bool) {
        self.live = live;
        self.unread_inputs = if first { self.unread_inputs_at_start } else { 0 };
        self.inputs_stay = in_body && self.task_graph.has_micro_batches();
    }

    /// Which outputs of a task overwrite which of its inputs, as (output, tensor): inputs of the same bytes that die here and
    /// that the kernel may overwrite at every position it reads them.
    pub fn in_place(&self, task: TaskId, into: &mut Vec<(usize, TensorId)>) {
        into.clear();
        let task = &self.task_graph.tasks[task];
        for &(output, input) in &task.in_place {
            let old = task.reads[input];
            let tensor = &self.task_graph.tensors[old];
            let dies_here =
                self.lifetimes[old] == Lifetime::Value && self.remaining[old] == 1 && !tensor.pinned;
            if dies_here
                && tensor.bytes > 0
                && !into.iter().any(|&(o, i)| o == output || i == old)
                && self.task_graph.may_overwrite(task, output, input)
            {
                into.push((output, old));
            }
        }
    }

    /// The effect of running a task now.
    pub fn effect(&mut self, task: TaskId) -> Effect {
        let mut in_place = std::mem::take(&mut self.scratch);
        self.in_place(task, &mut in_place);
        let effect = self.effect_with(task, &in_place);
        self.scratch = in_place;
        effect
    }

    /// Runs a task; returns the live bytes while it does.
    pub fn run(&mut self, task: TaskId) -> usize {
        let effect = self.effect(task);
        let height = self.live + effect.during;
        self.live = self.live_after(effect);
        self.unread_inputs = 0;
        self.mark_read(task);
        height
    }

    /// Counts a task's reads as done, without its effect on live bytes: these do not depend on the order in which a set of tasks
    /// ran.
    pub fn mark_read(&mut self, task: TaskId) {
        for &tensor in &self.reads[task] {
            self.remaining[tensor] -= 1;
        }
    }

    /// Reverts [`Liveness::mark_read`].
    pub fn unmark_read(&mut self, task: TaskId) {
        for &tensor in &self.reads[task] {
            self.remaining[tensor] += 1;
        }
    }

    /// Live bytes once a task with this effect has run.
    pub fn live_after(&self, effect: Effect) -> usize {
        (self.live as isize + effect.after) as usize - self.unread_inputs
    }

    /// The last micro-batch has run: frees the inputs that the optimizer step does not read.
    pub fn end_micro_batches(&mut self) {
        if std::mem::take(&mut self.inputs_stay) {
            self.live -= self.done_inputs();
        }
    }

    fn done_inputs(&self) -> usize {
        let tensors = self.task_graph.tensors.iter().enumerate();
        let done = tensors.filter(|&(i, tensor)| {
            self.lifetimes[i] == Lifetime::Input && self.remaining[i] == 0 && !tensor.pinned
        });
        done.map(|(_, tensor)| tensor.size).sum()
    }

    fn effect_with(&self, task: TaskId, in_place: &[(usize, TensorId)]) -> Effect {
        let (task, reads) = (&self.task_graph.tasks[task], &self.reads[task]);
        let tensors = &self.task_graph.tensors;
        let overwritten = |tensor: TensorId| {
            in_place.iter().any(|r| r.1 == tensor)
                || task.writes.iter().any(|&w| tensors[w].home == Home::InPlace(tensor))
        };
        let mut made = 0;
        let mut freed = 0;
        for (output, &tensor) in task.writes.iter().enumerate() {
            if tensors[tensor].home == Home::Own && !in_place.iter().any(|r| r.0 == output) {
                made += tensors[tensor].size;
            }
            if self.lifetimes[tensor] == Lifetime::Value
                && tensors[tensor].readers.is_empty()
                && !tensors[tensor].pinned
            {
                freed += tensors[tensor].size;
            }
        }
        for &tensor in reads {
            let dies = match self.lifetimes[tensor] {
                Lifetime::Fixed => false,
                Lifetime::Input => !self.inputs_stay,
                Lifetime::Value => true,
            };
            if dies && self.remaining[tensor] == 1 && !tensors[tensor].pinned && !overwritten(tensor) {
                freed += tensors[tensor].size;
            }
        }
        let workspace = task.workspace.next_multiple_of(self.task_graph.alignment);
        Effect { during: made + workspace, after: made as isize - freed as isize }
    }
}

/// The distinct tensors that each task reads.
pub(crate) fn distinct_reads(task_graph: &TaskGraph<'_>) -> Vec<Vec<TensorId>> {
    let mut last_reader = vec![None; task_graph.tensors.len()];
    let once = |(id, task): (TaskId, &Task)| {
        let is_new = |tensor: &TensorId| last_reader[*tensor].replace(id) != Some(id);
        task.reads.iter().copied().filter(is_new).collect()
    };
    task_graph.tasks.iter().enumerate().map(once).collect()
}
