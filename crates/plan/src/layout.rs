//! Places for what runs in an order: steps, buffers, offsets, and transfers moved apart from what waits for them.

use crate::lifetimes::{Timetable, timetable};
use crate::park::profile;
use crate::placement::{Block, live_peak};
use crate::planner::Floor;
use crate::predict::predicted;
use crate::rounds::body;
use crate::searches::Searches;
use crate::work::{Deed, TaskId, Work};
use crate::{Action, Buffer, BufferKind, ExecutionPlan, SPILL_ALIGNMENT, SpilledValue, StateHome};
use plimsoll_graph::{Graph, ValueId};
use std::ops::Range;
use std::sync::Arc;

/// What every layout of one graph shares.
pub(crate) struct Layout<'a> {
    /// The batch type, and its graph.
    pub name: &'a str,
    pub graph: &'a Arc<Graph>,
    /// The states.
    pub floor: &'a Floor,
    /// Bytes the arena may have.
    pub room: usize,
    /// What was found before.
    pub searches: &'a Searches,
}

/// Loads start, and stores end, so much of their own time apart from what waits for them, in quarters.
const MARGIN: u64 = 5;

impl Layout<'_> {
    /// Steps, buffers and their places for tasks in an order, as low as they go.
    pub fn lay_out(&self, work: &Work<'_>, order: &[TaskId]) -> ExecutionPlan {
        let (states, _) = self.floor.of(work.graph);
        let table = timetable(work, order, &states);
        let offsets = self.offsets(work, &table, 0, usize::MAX).unwrap_or_default();
        self.place(work, order, table, &offsets)
    }

    /// As [`Layout::lay_out`], but only as low as the room asks; loads begin early and stores take their time as far as
    /// it allows.
    pub fn lay_out_inside(&self, work: &Work<'_>, order: &[TaskId]) -> ExecutionPlan {
        self.lay_out_below(work, order, usize::MAX).unwrap_or_else(|| self.lay_out(work, order))
    }

    /// As [`Layout::lay_out_inside`], unless that is higher than the room and so many bytes.
    pub fn lay_out_below(&self, work: &Work<'_>, order: &[TaskId], most: usize) -> Option<ExecutionPlan> {
        let (states, _) = self.floor.of(work.graph);
        let transfers = work.tasks.iter().any(|t| is_transfer(t.deed));
        let enough = self.room.saturating_sub(self.floor.end);
        if transfers {
            // Places have gaps: less room for waiting leaves some for them.
            let room = enough - enough / 8;
            let early = hoisted(work, order, room);
            let mut table = timetable(work, &early, &states);
            linger(work, &early, &mut table, room);
            if let Some(mut offsets) = self.offsets(work, &table, enough, enough) {
                clear_the_way(work, &early, &table, &mut offsets, enough);
                let found = self.place(work, &early, table, &offsets);
                if found.peak_bytes <= self.room {
                    return Some(found);
                }
            }
        }
        let most = most.saturating_sub(self.floor.end).max(enough);
        let table = timetable(work, order, &states);
        let offsets = self.offsets(work, &table, enough, most)?;
        Some(self.place(work, order, table, &offsets))
    }

    /// Where the spilled values lie, one after the other above the states.
    fn in_file(&self, work: &Work<'_>) -> Vec<SpilledValue> {
        let mut offset = self.floor.spill_bytes;
        let place = |&value: &ValueId| {
            let spilled = SpilledValue { value, offset };
            offset += (work.graph.ty(value).bytes() as u64).next_multiple_of(SPILL_ALIGNMENT);
            spilled
        };
        work.parked.iter().map(place).collect()
    }

    /// Offsets above the states for the other buffers of a timetable, in a placement that ends below `most`.
    fn offsets(&self, work: &Work<'_>, table: &Timetable, enough: usize, most: usize) -> Option<Vec<usize>> {
        let blocks: Vec<Block> = above(table).map(|i| block(work, &table.buffers[i])).collect();
        self.searches.place(&blocks, enough, most)
    }

    fn place(
        &self,
        work: &Work<'_>,
        order: &[TaskId],
        mut table: Timetable,
        offsets: &[usize],
    ) -> ExecutionPlan {
        let above: Vec<usize> = above(&table).collect();
        let blocks: Vec<Block> = above.iter().map(|&i| block(work, &table.buffers[i])).collect();
        let (live_above, peak_step) = live_peak(&blocks);
        for (&i, offset) in above.iter().zip(offsets) {
            table.buffers[i].offset = self.floor.end + offset;
        }
        for buffer in &mut table.buffers {
            if let BufferKind::State(i) = buffer.kind
                && let StateHome::Arena(offset) = self.floor.states[i].home
            {
                buffer.offset = offset;
            }
        }
        let times: Vec<u64> = order.iter().map(|&task| work.tasks[task].nanoseconds).collect();
        let end = table.buffers.iter().map(|b| b.offset + b.bytes).fold(self.floor.end, usize::max);
        ExecutionPlan {
            name: self.name.to_string(),
            graph: self.graph.clone(),
            nanoseconds: predicted(&table.steps, &table.buffers, work.graph.micro_batches, &times, work.disk),
            steps: table.steps,
            buffers: table.buffers,
            outputs: table.outputs,
            spilled: self.in_file(work),
            peak_bytes: end.next_multiple_of(work.alignment),
            live_bytes: self.floor.end + live_above,
            peak_step,
        }
    }
}

/// Moves what is still being written out when a micro-batch or the run ends to where the next one comes late, if there is
/// such a place below `most`.
fn clear_the_way(work: &Work<'_>, order: &[TaskId], table: &Timetable, offsets: &mut [usize], most: usize) {
    let above: Vec<usize> = above(table).collect();
    let buffers: Vec<&Buffer> = above.iter().map(|&i| &table.buffers[i]).collect();
    let body = body(&table.steps);
    // The last ones first: they take longest.
    let late = table.steps.iter().enumerate().rev().filter_map(|(at, step)| {
        let Action::Store { from, .. } = step.action else { return None };
        let end = if step.tail { table.steps.len() } else { body };
        let late = table.buffers[from.index()].last + 1 >= end;
        Some((at, above.binary_search(&from.index()).ok()?)).filter(|_| late)
    });
    let late: Vec<(usize, usize)> = late.collect();
    // By then all of them are done.
    let done =
        late.iter().map(|&(at, _)| work.tasks[order[at]].nanoseconds + work.latency(order[at])).sum::<u64>();
    let mut now = 0_u64;
    let mut starts = vec![u64::MAX; order.len()];
    for (start, &task) in starts.iter_mut().zip(order) {
        if now >= done {
            break;
        }
        *start = now;
        now += if is_transfer(work.tasks[task].deed) { 0 } else { work.tasks[task].nanoseconds };
    }
    let early: Vec<usize> = (0..buffers.len()).filter(|&i| starts[buffers[i].first] < done).collect();
    let most = most / work.alignment * work.alignment;
    for (_, moved) in late {
        let own = buffers[moved];
        let size = block(work, own).size;
        let range = |i: usize| offsets[i]..offsets[i] + block(work, buffers[i]).size;
        // The first moment at which the bytes from a place on are wanted again.
        let wanted = |place: usize| {
            let meets = |i: &usize| *i != moved && range(*i).start < place + size && place < range(*i).end;
            early.iter().copied().filter(meets).map(|i| starts[buffers[i].first]).min().unwrap_or(done)
        };
        let mut best = (wanted(offsets[moved]), offsets[moved]);
        let beside = |i: &usize| {
            let other = buffers[*i];
            *i != moved && other.first <= own.last && own.first <= other.last
        };
        let mut taken: Vec<Range<usize>> = (0..buffers.len()).filter(beside).map(range).collect();
        taken.sort_unstable_by_key(|range| range.start);
        let mut free = 0;
        for Range { start, end } in taken.into_iter().chain(std::iter::once(most..most)) {
            if best.0 >= done {
                break;
            }
            if let Some(highest) = start.checked_sub(size).filter(|&highest| highest >= free) {
                let ends = early.iter().map(|&i| range(i).end).filter(|end| (free..=highest).contains(end));
                let found = ends.chain([free, highest]).map(|place| (wanted(place), place));
                best = found.fold(best, |best, found| if found.0 > best.0 { found } else { best });
            }
            free = free.max(end);
        }
        offsets[moved] = best.1;
    }
}

/// The buffers of a timetable that are no states.
fn above(table: &Timetable) -> impl Iterator<Item = usize> {
    let state = |i: &usize| matches!(table.buffers[*i].kind, BufferKind::State(_));
    (0..table.buffers.len()).filter(move |i| !state(i))
}

fn block(work: &Work<'_>, b: &Buffer) -> Block {
    Block { size: b.bytes.next_multiple_of(work.alignment), first: b.first, last: b.last }
}

fn is_transfer(deed: Deed) -> bool {
    matches!(deed, Deed::Load(_) | Deed::Store(_))
}

/// The order in which each load begins early enough to be done when it is needed, as far as live bytes above the states
/// allow. Loads stay in their order.
fn hoisted(work: &Work<'_>, order: &[TaskId], room: usize) -> Vec<TaskId> {
    let mut live = profile(work, order);
    let wanted = ahead(work, order);
    let mut order = order.to_vec();
    let mut first = 0;
    for at in 0..order.len() {
        let task = order[at];
        let Deed::Load(what) = work.tasks[task].deed else { continue };
        let bytes = work.items[work.tasks[task].writes[0]].size;
        let mut hidden = 0;
        let mut to = at;
        while to > first && hidden < wanted[at] {
            let earlier = &work.tasks[order[to - 1]];
            let stored_there = earlier.deed == Deed::Store(what);
            // What the tail reads may be there before; what every micro-batch reads is not loaded after the last.
            if live[to - 1] + bytes > room || (earlier.tail && !work.tasks[task].tail) || stored_there {
                break;
            }
            hidden += if is_transfer(earlier.deed) { 0 } else { earlier.nanoseconds };
            to -= 1;
        }
        order[to..=at].rotate_right(1);
        let own = if to > 0 { live[to - 1] } else { 0 };
        live[to..=at].rotate_right(1);
        live[to] = own + bytes;
        live[to + 1..=at].iter_mut().for_each(|l| *l += bytes);
        first = to + 1;
    }
    order
}

/// How much computing should lie between each load of an order and its place there, so that it is done by then and the
/// loads after it are, too: the disk reads one after the other.
fn ahead(work: &Work<'_>, order: &[TaskId]) -> Vec<u64> {
    let mut wanted = vec![0; order.len()];
    // How long before the end of the computing so far the next load begins.
    let mut begins = 0_u64;
    for (at, &task) in order.iter().enumerate().rev() {
        let latency = work.latency(task);
        let task = &work.tasks[task];
        match task.deed {
            Deed::Load(_) => {
                begins = begins.max(latency) + task.nanoseconds.saturating_mul(MARGIN) / 4;
                wanted[at] = begins;
            }
            Deed::Store(_) => {}
            Deed::Run(_) | Deed::Stream(_) | Deed::Copy(_) => {
                begins = begins.saturating_sub(task.nanoseconds)
            }
        }
    }
    wanted
}

/// Lets the buffers of stores stay until the store should be done, as far as live bytes allow.
fn linger(work: &Work<'_>, order: &[TaskId], table: &mut Timetable, room: usize) {
    let mut live = vec![0_usize; order.len()];
    for buffer in table.buffers.iter().filter(|b| !matches!(b.kind, BufferKind::State(_))) {
        let size = block(work, buffer).size;
        live[buffer.first..=buffer.last].iter_mut().for_each(|l| *l += size);
    }
    for (at, step) in table.steps.iter().enumerate() {
        let Action::Store { from, .. } = step.action else { continue };
        let buffer = &mut table.buffers[from.index()];
        let size = block(work, buffer).size;
        let wanted = work.tasks[order[at]].nanoseconds.saturating_mul(MARGIN) / 4 + work.latency(order[at]);
        let mut hidden = 0;
        while buffer.last + 1 < order.len() && hidden < wanted && live[buffer.last + 1] + size <= room {
            buffer.last += 1;
            live[buffer.last] += size;
            let task = &work.tasks[order[buffer.last]];
            hidden += if is_transfer(task.deed) { 0 } else { task.nanoseconds };
        }
    }
}
