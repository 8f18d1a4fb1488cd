//! A list of runs with its heights, in which a change is measured where it changes something.

use super::peak::take;
use super::run_index::Index;
use super::table::Table;

/// A change to a list: runs that go in at a position, and others that go out, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Change {
    pub position: usize,
    pub insert: Vec<u32>,
    pub remove: Vec<usize>,
}

/// What a change does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Effect {
    /// Bytes over the line, summed over the runs: by how much they grow.
    pub excess: i64,
    /// The highest run among those it changes.
    pub high: u64,
    /// By how much the time grows.
    pub nanoseconds: i64,
}

/// A list of runs and how high it stands.
#[derive(Debug)]
pub(super) struct IncrementalPeak<'a> {
    table: &'a Table,
    pub line: u64,
    pub runs: Vec<u32>,
    pub index: Index,
    /// Resident bytes while each run runs.
    pub heights: Vec<i64>,
    /// Resident bytes before each run, and at the end.
    live: Vec<i64>,
    /// Bytes of inputs that outputs of each run take over.
    taken: Vec<i64>,
    pub nanoseconds: u64,
    /// Sums of excess are of bytes shifted by this.
    shift: u32,
    /// What has been done so far, roughly in nanoseconds.
    pub task_graph: u64,
    scratch: Scratch,
}

/// What is changed by the change looked at last, in positions of the list with what goes in and what goes out.
#[derive(Clone, Debug, Default)]
struct Scratch {
    tensors: Vec<u32>,
    /// By tensor of `tensors`: where its stays begin in `stays`.
    starts: Vec<usize>,
    /// Stays in the new list, from the making to the last reading.
    stays: Vec<(u32, u32)>,
    old: Vec<(u32, u32)>,
    events: Vec<Event>,
    /// Stays that come (with their bytes) and go (with their negative).
    differ: Vec<(u32, u32, i64)>,
    /// Runs whose taken-over bytes change: to how many.
    taken: Vec<(u32, i64)>,
    steps: Vec<(u32, i64)>,
}

/// A making or reading of a tensor: its position, and in the lowest bits whether it makes, and whether it is in the old
/// and the new list. One number, since sorting them is most of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event(u64);

const OLD: u64 = 1;
const NEW: u64 = 2;
const MAKING: u64 = 4;

impl Event {
    fn new(at: u32, making: bool, lists: u64) -> Self {
        Self(u64::from(at) << 3 | if making { MAKING } else { 0 } | lists)
    }

    fn at(self) -> u32 {
        (self.0 >> 3) as u32
    }

    fn is(self, bit: u64) -> bool {
        self.0 & bit != 0
    }
}

impl Clone for IncrementalPeak<'_> {
    fn clone(&self) -> Self {
        Self {
            runs: self.runs.clone(),
            index: self.index.clone(),
            heights: self.heights.clone(),
            live: self.live.clone(),
            taken: self.taken.clone(),
            scratch: Scratch::default(),
            ..*self
        }
    }

    fn clone_from(&mut self, other: &Self) {
        self.runs.clone_from(&other.runs);
        self.index.clone_from(&other.index);
        self.heights.clone_from(&other.heights);
        self.live.clone_from(&other.live);
        self.taken.clone_from(&other.taken);
        self.line = other.line;
        self.task_graph += 2 * other.runs.len() as u64;
        self.nanoseconds = other.nanoseconds;
    }
}

impl<'a> IncrementalPeak<'a> {
    pub fn new(table: &'a Table, runs: &[u32], line: u64) -> Self {
        let total = table.base.saturating_add(table.bytes.iter().sum());
        // Lists have fewer runs than 2^24, or their excess is rounded.
        let shift = 24_u32.saturating_sub(total.leading_zeros().saturating_sub(2));
        let mut incremental = Self {
            table,
            line,
            runs: Vec::new(),
            index: Index::new(table, &[]),
            heights: Vec::new(),
            live: vec![table.base as i64],
            taken: Vec::new(),
            nanoseconds: 0,
            shift,
            task_graph: 0,
            scratch: Scratch::default(),
        };
        incremental.fill(runs);
        incremental
    }

    fn fill(&mut self, runs: &[u32]) {
        let table = self.table;
        let count = runs.len();
        self.index = Index::new(table, runs);
        self.runs = runs.to_vec();
        let mut heights = vec![0; count + 1];
        let mut live = vec![0; count + 2];
        self.taken = vec![0; count];
        for &tensor in (0..table.calls).flat_map(|c| table.outputs.row(c)) {
            self.events_of(tensor, &Change::default());
            stays(&self.scratch.events, NEW, &mut self.scratch.old);
            let bytes = table.bytes[tensor as usize] as i64;
            for &(from, to) in &self.scratch.old {
                let (from, to) = (from as usize, to as usize);
                heights[from] += bytes;
                heights[to.min(count - 1) + 1] -= bytes;
                live[from + 1] += bytes;
                live[to + 1] -= bytes;
            }
        }
        for at in 0..count {
            heights[at + 1] += heights[at];
            live[at + 1] += live[at];
        }
        live.truncate(count + 1);
        heights.truncate(count);
        live.iter_mut().for_each(|l| *l += table.base as i64);
        for (at, &call) in runs.iter().enumerate() {
            let last = |incremental: &Self, t: u32| !incremental.index.stays(table, t, at + 1);
            self.taken[at] = taken_by(table, call, |t| last(self, t));
            heights[at] += table.base as i64 + table.workspace[call as usize] as i64 - self.taken[at];
        }
        self.heights = heights;
        self.live = live;
        self.nanoseconds = runs.iter().map(|&c| table.nanoseconds[c as usize]).sum();
    }

    /// The first of the highest runs, if it is over the line.
    pub fn fullest(&self) -> Option<usize> {
        let most = self.heights.iter().copied().max().filter(|&m| m > self.line as i64)?;
        self.heights.iter().position(|&h| h == most)
    }

    /// The largest sum of resident bytes at any moment.
    pub fn peak(&self) -> u64 {
        self.heights.iter().copied().max().map_or(0, |m| m as u64).max(self.table.base)
    }

    /// The excess of a height.
    fn over(&self, height: i64) -> i64 {
        (height - self.line as i64).max(0) >> self.shift
    }

    /// Tensors that stay resident over a run without being read or written by it, and when they are read next.
    pub fn across(&mut self, at: usize, into: &mut Vec<(u32, usize)>) {
        let table = self.table;
        let call = self.runs[at] as usize;
        self.task_graph += 4 * table.tensors as u64;
        into.clear();
        for (maker, outputs) in (0..table.calls).map(|c| (c as u32, table.outputs.row(c))) {
            if maker as usize == call || self.index.of(maker)[0] as usize > at {
                continue;
            }
            for &tensor in outputs.iter().filter(|&&t| table.bytes[t as usize] > 0) {
                if self.index.stays(table, tensor, at + 1) && !table.inputs.row(call).contains(&tensor) {
                    into.push((tensor, self.index.next_read(table, tensor, at + 1).min(self.runs.len())));
                }
            }
        }
    }

    /// What a change would do.
    pub fn effect(&mut self, change: &Change) -> Effect {
        self.compare(change);
        let table = self.table;
        let (position, count) = (change.position, change.insert.len());
        let total = self.runs.len() + count;
        let mut steps = std::mem::take(&mut self.scratch.steps);
        steps.clear();
        for &(from, to, bytes) in &self.scratch.differ {
            steps.push((from, bytes));
            steps.push(((to + 1).min(total as u32), -bytes));
        }
        for &(at, taken) in &self.scratch.taken {
            let before = self.old_taken(at as usize, change);
            steps.push((at, before - taken));
            steps.push((at + 1, taken - before));
        }
        steps.extend([(position as u32, 0), ((position + count) as u32, 0)]);
        steps.sort_unstable_by_key(|s| s.0);
        let mut effect = Effect { excess: 0, high: 0, nanoseconds: 0 };
        let mut high = 0;
        let mut delta = 0;
        let mut removed = change.remove.iter().peekable();
        for pair in 0..steps.len() {
            let (from, step) = steps[pair];
            delta += step;
            let until = steps.get(pair + 1).map_or(total, |s| s.0 as usize);
            let from = from as usize;
            if from >= until {
                continue;
            }
            if from >= position && from < position + count {
                for at in from..until {
                    let workspace = table.workspace[change.insert[at - position] as usize] as i64;
                    let height = self.live[position] + delta + workspace;
                    effect.excess += self.over(height);
                    high = high.max(height);
                }
                continue;
            }
            let back = if from >= position + count { count } else { 0 };
            let (from, until) = (from - back, until - back);
            while removed.next_if(|&&at| at < from).is_some() {}
            if delta == 0 {
                continue;
            }
            let mut start = from;
            while start < until {
                let end = removed.next_if(|&&at| at < until).map_or(until, |&at| at);
                self.task_graph += (end - start) as u64;
                for &height in &self.heights[start..end] {
                    effect.excess += self.over(height + delta) - self.over(height);
                    high = high.max(height + delta);
                }
                start = end + 1;
            }
        }
        for &at in &change.remove {
            effect.excess -= self.over(self.heights[at]);
            effect.nanoseconds -= table.nanoseconds[self.runs[at] as usize] as i64;
        }
        effect.nanoseconds +=
            change.insert.iter().map(|&c| table.nanoseconds[c as usize] as i64).sum::<i64>();
        effect.high = high as u64;
        self.scratch.steps = steps;
        effect
    }

    /// Makes a change.
    pub fn apply(&mut self, change: &Change) {
        self.compare(change);
        self.task_graph += ((change.insert.len() + change.remove.len()) * self.runs.len()) as u64;
        let table = self.table;
        let (position, count) = (change.position, change.insert.len());
        let base = self.live[position];
        let new = |&c: &u32| base + table.workspace[c as usize] as i64;
        self.heights.splice(position..position, change.insert.iter().map(new));
        self.live.splice(position..position, std::iter::repeat_n(base, count));
        self.taken.splice(position..position, std::iter::repeat_n(0, count));
        self.runs.splice(position..position, change.insert.iter().copied());
        change.insert.iter().enumerate().for_each(|(i, &c)| self.index.insert(c, position + i));
        for &(from, to, bytes) in &self.scratch.differ {
            let (from, to) = (from as usize, to as usize);
            let end = (to + 1).min(self.runs.len());
            self.heights[from..end].iter_mut().for_each(|h| *h += bytes);
            self.live[from + 1..=to].iter_mut().for_each(|l| *l += bytes);
        }
        for &(at, taken) in &self.scratch.taken {
            self.heights[at as usize] += self.taken[at as usize] - taken;
            self.taken[at as usize] = taken;
        }
        self.nanoseconds += change.insert.iter().map(|&c| table.nanoseconds[c as usize]).sum::<u64>();
        for &at in change.remove.iter().rev() {
            let at = if at >= position { at + count } else { at };
            let call = self.runs.remove(at);
            self.heights.remove(at);
            self.live.remove(at);
            self.taken.remove(at);
            self.index.remove(call, at);
            self.nanoseconds -= table.nanoseconds[call as usize];
        }
    }

    fn old_taken(&self, at: usize, change: &Change) -> i64 {
        let (position, count) = (change.position, change.insert.len());
        match at {
            _ if at < position => self.taken[at],
            _ if at < position + count => 0,
            _ => self.taken[at - count],
        }
    }

    /// Works out which stays a change makes and ends.
    fn compare(&mut self, change: &Change) {
        let table = self.table;
        let mut s = std::mem::take(&mut self.scratch);
        s.tensors.clear();
        let removed = change.remove.iter().map(|&at| self.runs[at]);
        for call in change.insert.iter().copied().chain(removed) {
            let rows = table.inputs.row(call as usize).iter().chain(table.outputs.row(call as usize));
            s.tensors.extend(rows.filter(|&&t| table.bytes[t as usize] > 0));
        }
        s.tensors.sort_unstable();
        s.tensors.dedup();
        s.starts.clear();
        s.stays.clear();
        s.differ.clear();
        s.taken.clear();
        let mut ends = std::mem::take(&mut s.steps);
        ends.clear();
        self.scratch = s;
        for i in 0..self.scratch.tensors.len() {
            let tensor = self.scratch.tensors[i];
            self.events_of(tensor, change);
            let s = &mut self.scratch;
            self.task_graph += 60 + 20 * s.events.len() as u64;
            stays(&s.events, OLD, &mut s.old);
            let from = s.stays.len();
            s.starts.push(from);
            stays_into(&s.events, NEW, &mut s.stays);
            let bytes = table.bytes[tensor as usize] as i64;
            let (mut a, mut b) = (0, from);
            while a < s.old.len() || b < s.stays.len() {
                let (old, new) = (s.old.get(a).copied(), s.stays.get(b).copied());
                if old == new {
                    (a, b) = (a + 1, b + 1);
                } else if new.is_none_or(|n| old.is_some_and(|o| o.0 <= n.0)) {
                    let (from, to) = old.unwrap_or_default();
                    s.differ.push((from, to, -bytes));
                    ends.push((to, 0));
                    a += 1;
                } else {
                    let (from, to) = new.unwrap_or_default();
                    s.differ.push((from, to, bytes));
                    ends.push((to, 0));
                    b += 1;
                }
            }
        }
        let (position, count) = (change.position, change.insert.len());
        ends.extend((position..position + count).map(|at| (at as u32, 0)));
        ends.sort_unstable();
        ends.dedup();
        let total = self.runs.len() + count;
        for &(at, _) in ends.iter().filter(|e| (e.0 as usize) < total) {
            let place = at as usize;
            let inside = place >= position && place < position + count;
            let old = if place >= position + count { place - count } else { place };
            let call = if inside { change.insert[place - position] } else { self.runs[old] };
            if table.in_place.row(call as usize).is_empty() || (!inside && change.remove.contains(&old)) {
                continue;
            }
            let taken = taken_by(table, call, |t| match self.scratch.tensors.binary_search(&t) {
                Ok(i) => {
                    let end = self.scratch.starts.get(i + 1).copied().unwrap_or(self.scratch.stays.len());
                    self.scratch.stays[self.scratch.starts[i]..end].iter().any(|stay| stay.1 == at)
                }
                Err(_) => !self.index.stays(table, t, old + 1),
            });
            if taken != self.old_taken(place, change) {
                self.scratch.taken.push((at, taken));
            }
        }
        self.scratch.steps = ends;
    }

    /// The makings and readings of a tensor before and after a change, in order.
    fn events_of(&mut self, tensor: u32, change: &Change) {
        let table = self.table;
        let (position, count) = (change.position as u32, change.insert.len() as u32);
        let maker = table.maker[tensor as usize];
        let readers = table.readers.row(tensor as usize);
        let events = &mut self.scratch.events;
        events.clear();
        for (i, &call) in [maker].iter().chain(readers).enumerate() {
            for &at in self.index.of(call) {
                let goes = change.remove.contains(&(at as usize));
                let at = if at >= position { at + count } else { at };
                events.push(Event::new(at, i == 0, if goes { OLD } else { OLD | NEW }));
            }
        }
        for (i, &call) in change.insert.iter().enumerate() {
            let making = call == maker;
            if making || readers.binary_search(&call).is_ok() {
                events.push(Event::new(position + i as u32, making, NEW));
            }
        }
        if table.kept[tensor as usize] {
            let at = self.runs.len() as u32 + count;
            events.push(Event::new(at, false, OLD | NEW));
        }
        events.sort_unstable();
    }
}

/// From each making to the last reading before the next, in one of the lists.
fn stays(events: &[Event], list: u64, into: &mut Vec<(u32, u32)>) {
    into.clear();
    stays_into(events, list, into);
}

fn stays_into(events: &[Event], list: u64, into: &mut Vec<(u32, u32)>) {
    for event in events.iter().filter(|e| e.is(list)) {
        match into.last_mut() {
            _ if event.is(MAKING) => into.push((event.at(), event.at())),
            Some(stay) => stay.1 = event.at(),
            None => {}
        }
    }
}

/// Bytes of inputs that outputs of a call take over, if some inputs are read for the last time.
fn taken_by(table: &Table, call: u32, last: impl Fn(u32) -> bool) -> i64 {
    let in_place = table.in_place.row(call as usize);
    if in_place.is_empty() {
        return 0;
    }
    let (mut taken, mut sum) = (0, 0);
    for &tensor in table.inputs.row(call as usize) {
        let bytes = table.bytes[tensor as usize];
        if in_place.contains(&tensor) && last(tensor) && take(table, call as usize, bytes, &mut taken) {
            sum += bytes as i64;
        }
    }
    sum
}
