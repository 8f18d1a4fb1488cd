//! Recomputation: which tasks of a plan run again so that its arena stays inside a room.
//!
//! The search (`search.rs`) works on calls and tensors; this translates an ordered [`Work`] for it, and its answer back
//! into a `Work` of its own, in which a task that runs twice is two tasks. What goes over a place that is not its own (a
//! state's new version, a running sum) runs once, and nothing that reads the old version may run again afterwards.

use crate::Spilled;
use crate::search::{Call, Ladder, Problem, Schedule};
use crate::searches::Searches;
use crate::tide::distinct_reads;
use crate::work::{Deed, Home, Item, ItemId, TaskId, Work};
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
    pub fn new(work: &Work<'_>, order: &[TaskId], once: &[bool]) -> Self {
        let (finals, reads) = (finals(work), distinct_reads(work));
        let mut problem = Problem::default();
        let mut fixed = 0;
        let mut batch = Vec::new();
        let mut tensor_of: Vec<Option<usize>> = vec![None; work.items.len()];
        for (id, item) in work.items.iter().enumerate() {
            match work.base(id) {
                Home::State(_) => continue,
                Home::Carry(_) => fixed += if item.home == work.base(id) { item.size } else { 0 },
                Home::Input(_) if work.repeats() => fixed += item.size,
                home => {
                    tensor_of[id] = Some(problem.tensors.len());
                    if matches!(home, Home::Input(_)) {
                        batch.push(problem.tensors.len());
                    }
                    if item.pinned {
                        problem.keep.push(problem.tensors.len());
                    }
                    problem.tensors.push(item.size as u64);
                }
            }
        }
        let mut tasks = vec![None];
        problem.calls.push(Call { outputs: batch, once: true, ..Call::default() });
        for &id in order {
            let task = &work.tasks[id];
            let times = if task.tail { 1 } else { work.graph.micro_batches as u64 };
            let inputs = reads[id].iter().filter_map(|&i| tensor_of[i]);
            // What is handed out at the end could not be made again by then: states have changed.
            let stays = |i: ItemId| work.items[i].home != Home::Own || work.items[i].pinned || finals[i];
            problem.calls.push(Call {
                nanoseconds: task.nanoseconds.saturating_mul(times),
                inputs: inputs.collect(),
                outputs: task.writes.iter().filter_map(|&i| tensor_of[i]).collect(),
                in_place: overwritten(work, id).into_iter().filter_map(|i| tensor_of[i]).collect(),
                workspace: task.workspace.next_multiple_of(work.alignment) as u64,
                once: once[id]
                    || matches!(task.deed, Deed::Copy(_) | Deed::Store(_) | Deed::Stream(_))
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
pub(crate) struct Repeats<'w, 'g> {
    work: &'w Work<'g>,
    order: &'w [TaskId],
    /// Tasks that turned out not to be repeatable.
    once: Vec<bool>,
    /// The work as the search sees it, with its answers so far.
    asked: Option<(Translated, Rc<RefCell<Ladder>>)>,
    searches: &'w Searches,
}

impl<'w, 'g> Repeats<'w, 'g> {
    pub fn new(work: &'w Work<'g>, order: &'w [TaskId], searches: &'w Searches) -> Self {
        Self { work, order, once: vec![false; work.tasks.len()], asked: None, searches }
    }

    /// The tasks in order with the repeats that bring live bytes above the states lowest, and how low that is.
    pub fn lowest(&mut self) -> Option<(usize, Vec<TaskId>)> {
        let (low, lists) = self.allowed(|translated, ladder| {
            let schedule = ladder.lowest();
            Some((translated.fixed.saturating_add(schedule.peak_bytes as usize), vec![schedule]))
        })?;
        Some((low, lists.into_iter().next()?))
    }

    /// The tasks in order, with the repeats that keep live bytes above the states under a line, if any are found.
    pub fn under(&mut self, line: usize) -> Option<Vec<TaskId>> {
        let ((), lists) = self.allowed(|translated, ladder| {
            let room = line.checked_sub(translated.fixed)?;
            Some(((), vec![ladder.solve(room as u64).ok()?]))
        })?;
        lists.into_iter().next()
    }

    /// The tasks in order with the repeats for fixed lines, those that are not over a line, from the highest.
    pub fn rungs_under(&mut self, line: usize) -> Vec<Vec<TaskId>> {
        let found = self.allowed(|translated, ladder| {
            let room = line.checked_sub(translated.fixed)?;
            Some(((), ladder.rungs_under(room as u64)))
        });
        found.map_or_else(Vec::new, |((), lists)| lists)
    }

    /// Searches until no task runs again where it may not.
    fn allowed<T>(
        &mut self,
        search: impl Fn(&Translated, &mut Ladder) -> Option<(T, Vec<Schedule>)>,
    ) -> Option<(T, Vec<Vec<TaskId>>)> {
        loop {
            let (translated, ladder) = match self.asked.take() {
                Some(asked) => asked,
                None => {
                    let translated = Translated::new(self.work, self.order, &self.once);
                    let ladder = self.searches.ladder(&translated.problem)?;
                    (translated, ladder)
                }
            };
            let found = search(&translated, &mut ladder.borrow_mut());
            let Some((figure, schedules)) = found else {
                self.asked = Some((translated, ladder));
                return None;
            };
            let tasks = |schedule: Schedule| translated.tasks(schedule.runs.iter().map(|run| run.call));
            let lists: Vec<Vec<TaskId>> = schedules.into_iter().map(tasks).collect();
            let misplaced: Vec<TaskId> = lists.iter().flat_map(|list| misplaced(self.work, list)).collect();
            if misplaced.is_empty() {
                self.asked = Some((translated, ladder));
                return Some((figure, lists));
            }
            misplaced.into_iter().for_each(|task| self.once[task] = true);
        }
    }
}

/// Items that a state ends as.
fn finals(work: &Work<'_>) -> Vec<bool> {
    let mut finals = vec![false; work.items.len()];
    let roots = work.graph.states.iter().filter_map(|s| s.output).map(|v| work.roots[v.index()]);
    let nodes = roots.filter(|&root| matches!(work.graph.origin(root), Origin::Node { .. }));
    nodes.filter_map(|root| work.item(root)).for_each(|item| finals[item] = true);
    finals
}

/// Inputs that an output of a task may go over, or has to.
fn overwritten(work: &Work<'_>, task: TaskId) -> Vec<ItemId> {
    let task = &work.tasks[task];
    let mut found: Vec<ItemId> = Vec::new();
    for &(output, input) in &task.in_place {
        let (new, old) = (task.writes[output], task.reads[input]);
        let everywhere =
            task.reads.iter().enumerate().all(|(p, &i)| i != old || task.in_place.contains(&(output, p)));
        let fits = work.items[new].home == Home::Own
            && !matches!(work.base(old), Home::Input(_))
            && work.items[old].bytes == work.items[new].bytes;
        if everywhere && fits && !found.contains(&old) {
            found.push(old);
        }
    }
    let forced = task.writes.iter().filter_map(|&new| match work.items[new].home {
        Home::Over(old) if !found.contains(&old) => Some(old),
        _ => None,
    });
    let forced: Vec<ItemId> = forced.collect();
    found.extend(forced);
    found
}

/// Tasks that must not run again as a list has them: runs that would read something that is gone (the old version of what
/// was written over, or, after the last micro-batch, what belongs to one), or rather the repeats that such a run is for.
pub(crate) fn misplaced(work: &Work<'_>, list: &[TaskId]) -> Vec<TaskId> {
    let mut gone = vec![false; work.items.len()];
    let mut stored = vec![false; work.graph.states.len()];
    let mut ran = vec![false; work.tasks.len()];
    let mut in_tail = false;
    // Runs: whether each is a repeat, whether it comes too late, and the runs that read what it makes.
    let mut again = Vec::with_capacity(list.len());
    let mut too_late = Vec::new();
    let mut readers: Vec<Vec<usize>> = vec![Vec::new(); list.len()];
    let mut made_by: Vec<Option<usize>> = vec![None; work.items.len()];
    for (run, &id) in list.iter().enumerate() {
        let task = &work.tasks[id];
        again.push(std::mem::replace(&mut ran[id], true));
        in_tail |= task.tail;
        let late = match task.deed {
            Deed::Load(Spilled::State(state)) => stored[state],
            // What waits in the file is the last micro-batch's, as everything in the tail is.
            Deed::Load(Spilled::Value(_)) => false,
            _ => task.reads.iter().any(|&i| gone[i]) || (work.repeats() && in_tail && !task.tail),
        };
        if again[run] && late {
            too_late.push(run);
        }
        if let Deed::Store(Spilled::State(state)) = task.deed {
            stored[state] = true;
        }
        task.reads.iter().filter_map(|&i| made_by[i]).for_each(|maker| readers[maker].push(run));
        for &item in &task.writes {
            made_by[item] = Some(run);
            if let Home::Over(old) = work.items[item].home {
                gone[old] = true;
            }
        }
    }
    let blamed = |&run: &usize| {
        let for_repeats = !readers[run].is_empty() && readers[run].iter().all(|&reader| again[reader]);
        if for_repeats { readers[run].clone() } else { vec![run] }
    };
    let mut found: Vec<TaskId> = too_late.iter().flat_map(blamed).map(|run| list[run]).collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// Where the tail of a list begins: what its first task reads from the file is loaded there, too.
fn tail_start(work: &Work<'_>, list: &[Turn]) -> usize {
    let in_tail = |turn: &Turn| matches!(turn, Turn::Run(id) if work.tasks[*id].tail);
    let loads = |turn: &Turn| match turn {
        Turn::Run(id) => matches!(work.tasks[*id].deed, Deed::Load(_)),
        Turn::Fetch(_) => true,
        Turn::Park(_) => false,
    };
    let mut start = list.iter().position(in_tail).unwrap_or(list.len());
    while start < list.len() && start > 0 && loads(&list[start - 1]) {
        start -= 1;
    }
    start
}

/// One entry of a list that is unrolled.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Turn {
    /// A task runs.
    Run(TaskId),
    /// An item goes to the spill file.
    Park(ItemId),
    /// It comes back into a place of its own.
    Fetch(ItemId),
}

/// The work in which each entry of a list is a task of its own, in the list's order: a task that runs again makes new
/// items, and what reads an item reads its latest making.
pub(crate) fn unrolled<'a>(work: &Work<'a>, list: &[Turn]) -> Work<'a> {
    let mut new = work.empty();
    new.parked = work.parked.clone();
    let mut slot = vec![0; work.items.len()];
    let mut latest: Vec<ItemId> = vec![0; work.items.len()];
    let add = |new: &mut Work<'a>, item: &Item, home: Home| {
        new.items.push(Item { home, pinned: false, readers: Vec::new(), writer: None, ..item.clone() });
        new.items.len() - 1
    };
    for (id, item) in work.items.iter().enumerate() {
        if !matches!(item.home, Home::Own | Home::Over(_)) {
            latest[id] = add(&mut new, item, item.home);
        }
    }
    let tail = tail_start(work, list);
    for (turn, &entry) in list.iter().enumerate() {
        let (at, in_tail) = (new.tasks.len(), turn >= tail);
        let id = match entry {
            Turn::Run(id) => id,
            Turn::Park(item) => {
                slot[item] = new.parked.len();
                new.parked.push(work.items[item].value);
                let nanoseconds = work.disk.writing(work.items[item].bytes);
                let deed = Deed::Store(Spilled::Value(slot[item]));
                new.add_transfer(deed, &[latest[item]], &[], nanoseconds, in_tail, at);
                continue;
            }
            Turn::Fetch(item) => {
                latest[item] = add(&mut new, &work.items[item], Home::Own);
                new.items[latest[item]].writer = Some(at);
                let nanoseconds = work.disk.reading(work.items[item].bytes);
                let deed = Deed::Load(Spilled::Value(slot[item]));
                new.add_transfer(deed, &[], &[latest[item]], nanoseconds, in_tail, at);
                continue;
            }
        };
        let task = &work.tasks[id];
        let reads: Vec<ItemId> = task.reads.iter().map(|&i| latest[i]).collect();
        for &item in &reads {
            if new.items[item].readers.last() != Some(&at) {
                new.items[item].readers.push(at);
            }
        }
        for &item in &task.writes {
            let home = match work.items[item].home {
                Home::Over(old) => Home::Over(latest[old]),
                home => home,
            };
            latest[item] = add(&mut new, &work.items[item], home);
            new.items[latest[item]].writer = Some(at);
        }
        let writes = task.writes.iter().map(|&i| latest[i]).collect();
        new.tasks.push(crate::work::Task { reads, writes, after: Vec::new(), tail: in_tail, ..task.clone() });
    }
    new.item_of = work.item_of.iter().map(|item| item.map(|i| latest[i])).collect();
    new.outputs = work.outputs.iter().map(|&i| latest[i]).collect();
    for at in 0..new.outputs.len() {
        let item = new.outputs[at];
        new.items[item].pinned = true;
    }
    new
}
