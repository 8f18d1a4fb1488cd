//! How live bytes rise and fall while tasks run, to the byte, without making any buffer.
//!
//! The search for an order asks this thousands of times. `lifetimes.rs` makes the same choices of what goes over
//! what, because both ask [`Tide::reuses`].

use crate::work::{Home, ItemId, Task, TaskId, Work};

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
pub(crate) struct Tide<'a> {
    work: &'a Work<'a>,
    rooms: Vec<Room>,
    /// The items that each task reads, each once.
    reads: Vec<Vec<ItemId>>,
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
    scratch: Vec<(usize, ItemId)>,
}

impl<'a> Tide<'a> {
    /// Before the first task.
    pub fn new(work: &'a Work<'a>) -> Self {
        let room = |item: ItemId| match work.base(item) {
            Home::State(_) | Home::Carry(_) => Room::Fixed,
            Home::Input(_) => Room::Input,
            Home::Own | Home::Over(_) => Room::Value,
        };
        let rooms: Vec<Room> = (0..work.items.len()).map(room).collect();
        let mut tide = Self {
            work,
            rooms,
            reads: distinct_reads(work),
            readers: work.items.iter().map(|i| i.readers.len() as u32).collect(),
            remaining: Vec::new(),
            live: 0,
            idle: 0,
            idle_at_first: 0,
            inputs_stay: work.repeats(),
            scratch: Vec::new(),
        };
        tide.restart();
        tide
    }

    /// Goes back to before the first task.
    pub fn restart(&mut self) {
        let items = &self.work.items;
        self.remaining.clone_from(&self.readers);
        let entering = |i: &&crate::work::Item| !matches!(i.home, Home::Own | Home::Over(_));
        self.live = items.iter().filter(entering).map(|i| i.size).sum();
        self.inputs_stay = self.work.repeats();
        self.idle = if self.inputs_stay { 0 } else { self.done_inputs() };
        self.idle_at_first = self.idle;
    }

    /// Goes on from before another task, whose reads and all after it do not count as done: with so many live bytes,
    /// before the first of all or not, and in the body or not.
    pub fn resume(&mut self, live: usize, first: bool, in_body: bool) {
        self.live = live;
        self.idle = if first { self.idle_at_first } else { 0 };
        self.inputs_stay = in_body && self.work.repeats();
    }

    /// Which outputs of a task go over which of its inputs, as (output, item): inputs of the same bytes that die here
    /// and that the kernel reads only where it may be overwritten.
    pub fn reuses(&self, task: TaskId, into: &mut Vec<(usize, ItemId)>) {
        into.clear();
        let task = &self.work.tasks[task];
        for &(output, input) in &task.in_place {
            let (new, old) = (task.writes[output], task.reads[input]);
            let item = &self.work.items[old];
            let fits = self.work.items[new].home == Home::Own
                && self.rooms[old] == Room::Value
                && self.remaining[old] == 1
                && !item.pinned
                && item.bytes > 0
                && item.bytes == self.work.items[new].bytes
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
        for &item in &self.reads[task] {
            self.remaining[item] -= 1;
        }
    }

    /// Takes [`Tide::mark_read`] back.
    pub fn unmark_read(&mut self, task: TaskId) {
        for &item in &self.reads[task] {
            self.remaining[item] += 1;
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
        let items = self.work.items.iter().enumerate();
        let done =
            items.filter(|&(i, item)| self.rooms[i] == Room::Input && self.remaining[i] == 0 && !item.pinned);
        done.map(|(_, item)| item.size).sum()
    }

    fn effect_with(&self, task: TaskId, reuses: &[(usize, ItemId)]) -> Effect {
        let (task, reads) = (&self.work.tasks[task], &self.reads[task]);
        let items = &self.work.items;
        let handed_on = |item: ItemId| {
            reuses.iter().any(|r| r.1 == item)
                || task.writes.iter().any(|&w| items[w].home == Home::Over(item))
        };
        let mut made = 0;
        let mut freed = 0;
        for (output, &item) in task.writes.iter().enumerate() {
            if items[item].home == Home::Own && !reuses.iter().any(|r| r.0 == output) {
                made += items[item].size;
            }
            if self.rooms[item] == Room::Value && items[item].readers.is_empty() && !items[item].pinned {
                freed += items[item].size;
            }
        }
        for &item in reads {
            let dies = match self.rooms[item] {
                Room::Fixed => false,
                Room::Input => !self.inputs_stay,
                Room::Value => true,
            };
            if dies && self.remaining[item] == 1 && !items[item].pinned && !handed_on(item) {
                freed += items[item].size;
            }
        }
        let workspace = task.workspace.next_multiple_of(self.work.alignment);
        Effect { during: made + workspace, after: made as isize - freed as isize }
    }
}

/// The items that each task reads, each once.
pub(crate) fn distinct_reads(work: &Work<'_>) -> Vec<Vec<ItemId>> {
    let mut last_reader = vec![None; work.items.len()];
    let once = |(id, task): (TaskId, &Task)| {
        let is_new = |item: &ItemId| last_reader[*item].replace(id) != Some(id);
        task.reads.iter().copied().filter(is_new).collect()
    };
    work.tasks.iter().enumerate().map(once).collect()
}
