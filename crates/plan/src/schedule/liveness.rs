//! How live bytes rise and fall while tasks run, to the byte, without making any buffer.
//!
//! The search for an order asks this thousands of times. `lifetimes.rs` makes the same choices of what goes over
//! what, because both ask [`Liveness::reuses`].

use crate::lower::{Home, Task, TaskGraph, TaskId, TensorId};

/// What may happen to an item's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    /// States and running sums: there from beginning to end.
    Fixed,
    /// Inputs: there from the beginning until read for the last time, but never written over in place.
    Input,
    /// Values: made and freed.
    Value,
}

/// What running a task would do to the live bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Effect {
    /// Bytes added while it runs.
    pub during: usize,
    /// Bytes more, or less, once it has run.
    pub after: isize,
}

/// The live bytes at a moment between tasks.
pub(crate) struct Liveness<'a> {
    task_graph: &'a TaskGraph<'a>,
    rooms: Vec<Room>,
    /// The items that each task reads, each once.
    reads: Vec<Vec<TensorId>>,
    /// Readers of each item.
    readers: Vec<u32>,
    /// Readers still to come, by item.
    remaining: Vec<u32>,
    /// Live bytes now, states and running sums included.
    pub live: usize,
    /// Inputs that nothing reads are gone after the first task: what will be, and what is before it.
    idle: usize,
    idle_at_first: usize,
    /// Inputs stay while the body may run again.
    inputs_stay: bool,
    scratch: Vec<(usize, TensorId)>,
}

impl<'a> Liveness<'a> {
    /// Before the first task.
    pub fn new(task_graph: &'a TaskGraph<'a>) -> Self {
        let room = |tensor: TensorId| match task_graph.base(tensor) {
            Home::State(_) | Home::Accumulator(_) => Room::Fixed,
            Home::Input(_) => Room::Input,
            Home::Own | Home::InPlace(_) => Room::Value,
        };
        let rooms: Vec<Room> = (0..task_graph.tensors.len()).map(room).collect();
        let mut liveness = Self {
            task_graph,
            rooms,
            reads: distinct_reads(task_graph),
            readers: task_graph.tensors.iter().map(|i| i.readers.len() as u32).collect(),
            remaining: Vec::new(),
            live: 0,
            idle: 0,
            idle_at_first: 0,
            inputs_stay: task_graph.repeats(),
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
        self.inputs_stay = self.task_graph.repeats();
        self.idle = if self.inputs_stay { 0 } else { self.done_inputs() };
        self.idle_at_first = self.idle;
    }

    /// Goes on from before another task, whose reads and all after it do not count as done: with so many live bytes,
    /// before the first of all or not, and in the body or not.
    pub fn resume(&mut self, live: usize, first: bool, in_body: bool) {
        self.live = live;
        self.idle = if first { self.idle_at_first } else { 0 };
        self.inputs_stay = in_body && self.task_graph.repeats();
    }

    /// Which outputs of a task go over which of its inputs, as (output, item): inputs of the same bytes that die here
    /// and that the kernel reads only where it may be overwritten.
    pub fn reuses(&self, task: TaskId, into: &mut Vec<(usize, TensorId)>) {
        into.clear();
        let task = &self.task_graph.tasks[task];
        for &(output, input) in &task.in_place {
            let (new, old) = (task.writes[output], task.reads[input]);
            let tensor = &self.task_graph.tensors[old];
            let fits = self.task_graph.tensors[new].home == Home::Own
                && self.rooms[old] == Room::Value
                && self.remaining[old] == 1
                && !tensor.pinned
                && tensor.bytes > 0
                && tensor.bytes == self.task_graph.tensors[new].bytes
                && !into.iter().any(|&(o, i)| o == output || i == old)
                && (task.reads.iter().enumerate())
                    .all(|(p, &i)| i != old || task.in_place.contains(&(output, p)));
            if fits {
                into.push((output, old));
            }
        }
    }

    /// What running a task now would do.
    pub fn effect(&mut self, task: TaskId) -> Effect {
        let mut reuses = std::mem::take(&mut self.scratch);
        self.reuses(task, &mut reuses);
        let effect = self.effect_with(task, &reuses);
        self.scratch = reuses;
        effect
    }

    /// Runs a task; returns the live bytes while it does.
    pub fn run(&mut self, task: TaskId) -> usize {
        let effect = self.effect(task);
        let height = self.live + effect.during;
        self.live = self.live_after(effect);
        self.idle = 0;
        self.mark_read(task);
        height
    }

    /// Counts a task's reads as done, without its effect on the live bytes: those after a set of tasks do not depend
    /// on the order they ran in.
    pub fn mark_read(&mut self, task: TaskId) {
        for &tensor in &self.reads[task] {
            self.remaining[tensor] -= 1;
        }
    }

    /// Takes [`Liveness::mark_read`] back.
    pub fn unmark_read(&mut self, task: TaskId) {
        for &tensor in &self.reads[task] {
            self.remaining[tensor] += 1;
        }
    }

    /// Live bytes once a task with this effect has run.
    pub fn live_after(&self, effect: Effect) -> usize {
        (self.live as isize + effect.after) as usize - self.idle
    }

    /// The last micro-batch has run: inputs that only the body read are gone.
    pub fn end_body(&mut self) {
        if std::mem::take(&mut self.inputs_stay) {
            self.live -= self.done_inputs();
        }
    }

    fn done_inputs(&self) -> usize {
        let tensors = self.task_graph.tensors.iter().enumerate();
        let done = tensors
            .filter(|&(i, tensor)| self.rooms[i] == Room::Input && self.remaining[i] == 0 && !tensor.pinned);
        done.map(|(_, tensor)| tensor.size).sum()
    }

    fn effect_with(&self, task: TaskId, reuses: &[(usize, TensorId)]) -> Effect {
        let (task, reads) = (&self.task_graph.tasks[task], &self.reads[task]);
        let tensors = &self.task_graph.tensors;
        let handed_on = |tensor: TensorId| {
            reuses.iter().any(|r| r.1 == tensor)
                || task.writes.iter().any(|&w| tensors[w].home == Home::InPlace(tensor))
        };
        let mut made = 0;
        let mut freed = 0;
        for (output, &tensor) in task.writes.iter().enumerate() {
            if tensors[tensor].home == Home::Own && !reuses.iter().any(|r| r.0 == output) {
                made += tensors[tensor].size;
            }
            if self.rooms[tensor] == Room::Value
                && tensors[tensor].readers.is_empty()
                && !tensors[tensor].pinned
            {
                freed += tensors[tensor].size;
            }
        }
        for &tensor in reads {
            let dies = match self.rooms[tensor] {
                Room::Fixed => false,
                Room::Input => !self.inputs_stay,
                Room::Value => true,
            };
            if dies && self.remaining[tensor] == 1 && !tensors[tensor].pinned && !handed_on(tensor) {
                freed += tensors[tensor].size;
            }
        }
        let workspace = task.workspace.next_multiple_of(self.task_graph.alignment);
        Effect { during: made + workspace, after: made as isize - freed as isize }
    }
}

/// The items that each task reads, each once.
pub(crate) fn distinct_reads(task_graph: &TaskGraph<'_>) -> Vec<Vec<TensorId>> {
    let mut last_reader = vec![None; task_graph.tensors.len()];
    let once = |(id, task): (TaskId, &Task)| {
        let is_new = |tensor: &TensorId| last_reader[*tensor].replace(id) != Some(id);
        task.reads.iter().copied().filter(is_new).collect()
    };
    task_graph.tasks.iter().enumerate().map(once).collect()
}
