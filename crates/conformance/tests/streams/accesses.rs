//! From what was recorded to what each call accesses. Copies say so themselves; kernels are matched, one by one, to the steps of the plan
//! that runs, whose operands they have to have.

use super::expected::{FileTransfer, Item, Launches, Placed, accesses};
use super::order::{Access, Event};
use super::program::{Addresses, Call, Entry, Mark, Work};
use plimsoll_plan::{BufferKind, Direction, PlanSet};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// The events of a record, and what its streams are for.
///
/// # Panics
/// If the device was asked for something else than what the plans that run have.
pub fn events(entries: &[Entry]) -> (Vec<Event>, HashMap<u64, &'static str>) {
    let mut reader = Reader::default();
    let own: Vec<Option<Event>> = entries.iter().map(|entry| reader.event(entry)).collect();
    assert!(reader.file.is_empty(), "transfers to the file that were never made: {:?}", reader.file);
    // What the host itself does with memory that is copied, right after a call.
    let mut host = vec![Vec::new(); entries.len()];
    for (at, entry) in entries.iter().enumerate() {
        let Call::Queue { work: Work::Copy { from, to, bytes, kinds }, .. } = entry.call else { continue };
        if reader.staging.contains(&from) {
            // A thread may write a part of the input staging as soon as it has made the call before the copy.
            let before = (0..at).rev().find(|&before| entries[before].thread == entry.thread);
            host[before.expect("a wait for the part")]
                .push(Event::Host(accesses(None, Some(from..from + bytes))));
        }
        if kinds[1].is_none() {
            // And read what comes to memory of its own as soon as it has waited for it, if it does.
            host[waited(entries, at)].push(Event::Host(accesses(Some(to..to + bytes), None)));
        }
    }
    let events = own.into_iter().zip(host).flat_map(|(own, host)| own.into_iter().chain(host));
    (events.collect(), reader.names)
}

/// What follows the calls.
#[derive(Default)]
struct Reader {
    staging: Addresses,
    plans: Option<(Arc<PlanSet>, u64, Addresses)>,
    /// The run that is being queued.
    run: Option<Run>,
    /// Transfers to and from the file that were asked for and not made, the first one up to so many bytes.
    file: VecDeque<FileTransfer>,
    moved: u64,
    /// What each stream is for.
    names: HashMap<u64, &'static str>,
}

/// A run that is being queued.
struct Run {
    plan: usize,
    /// What is still to come.
    pending: VecDeque<Item>,
    /// What was copied or filled before the first step.
    entered: Vec<Addresses>,
}

impl Reader {
    fn event(&mut self, entry: &Entry) -> Option<Event> {
        Some(match &entry.call {
            Call::Queue { stream, work } => {
                self.name(*stream, entry, work);
                Event::Work { stream: *stream, accesses: self.work(entry, work) }
            }
            &Call::Record { event, stream } => Event::Record { event, stream },
            &Call::Wait { stream, event } => Event::Wait { stream, event },
            &Call::FinishEvent(event) => Event::Reach(event),
            &Call::FinishStream(stream) => Event::FinishStream(stream),
            Call::FinishAll => Event::FinishAll,
            Call::Free(range) => Event::Host(accesses(None, Some(range.clone()))),
            &Call::Unload(module) => Event::Host(accesses(None, Some(code(module)))),
            Call::Said(Mark::Used { range, writes: true }) => {
                Event::Host(accesses(None, Some(range.clone())))
            }
            Call::Said(Mark::Used { range, writes: false }) => {
                Event::Host(accesses(Some(range.clone()), None))
            }
            Call::Said(mark) => {
                self.said(mark);
                return None;
            }
        })
    }

    fn said(&mut self, mark: &Mark) {
        match mark {
            Mark::Opened { staging } => self.staging = staging.clone(),
            Mark::Prepared { plans, arena, tier } => self.plans = Some((plans.clone(), *arena, tier.clone())),
            Mark::Run(plan) => {
                let (plans, arena, tier) = self.plans.as_ref().expect("plans that are prepared");
                let mut pending = Placed { plans, arena: *arena, tier: tier.start }.run(*plan);
                // Those of the file are made by another thread, in their own time.
                for item in std::mem::take(&mut pending) {
                    match item {
                        Item::File(transfer) => self.file.push_back(transfer),
                        item => pending.push_back(item),
                    }
                }
                assert!(self.run.is_none(), "a run in a run");
                self.run = Some(Run { plan: *plan, pending, entered: Vec::new() });
            }
            Mark::Ran => {
                let run = self.run.take().expect("a run");
                assert!(run.pending.is_empty(), "never asked for: {:?}", run.pending);
                let (plans, arena, _) = self.plans.as_ref().expect("plans that are prepared");
                run.check_inputs(plans, *arena);
            }
            Mark::Used { .. } => {}
        }
    }

    /// Names a stream by what it does.
    fn name(&mut self, stream: u64, entry: &Entry, work: &Work) {
        let in_tier = |at: u64| self.plans.as_ref().is_some_and(|(.., tier)| tier.contains(&at));
        let name = match *work {
            Work::Kernel { .. } | Work::Product { .. } => "kernels",
            Work::Copy { .. } if entry.staged => "copies for the file",
            Work::Copy { from, .. } if in_tier(from) => "loads",
            Work::Copy { to, .. } if in_tier(to) => "stores",
            Work::Copy { to, .. } if self.is_ahead(to) => "inputs ahead",
            Work::Copy { .. } | Work::Fill { .. } => return,
        };
        let known = self.names.insert(stream, name);
        assert!(known.is_none_or(|known| known == name), "a stream of {known:?} and {name}");
    }

    /// Whether an address is one of the memory for the next inputs.
    fn is_ahead(&self, at: u64) -> bool {
        let Some((plans, arena, _)) = &self.plans else { return false };
        at >= arena + plans.arena_bytes as u64 && self.in_arena(at)
    }

    fn work(&mut self, entry: &Entry, work: &Work) -> Vec<Access> {
        match *work {
            Work::Kernel { module, blocks, ref pointers } => {
                let mut found = self.run("a kernel").launched(Some(blocks), pointers);
                // Words in which kernels note indices.
                let outside = pointers.iter().filter(|&&at| at != 0 && !self.in_arena(at));
                found.extend(accesses(Some(code(module)), outside.map(|&at| at..at + 8)));
                found
            }
            Work::Product { ref pointers, ref workspace } => {
                let mut found = self.run("a product").launched(None, pointers);
                found.extend(accesses(None, Some(workspace.clone())));
                found
            }
            Work::Fill { to, bytes, .. } => {
                if let Some(run) = &mut self.run {
                    run.entered.push(to..to + bytes);
                }
                accesses(None, Some(to..to + bytes))
            }
            Work::Copy { from, to, bytes, kinds } => {
                self.copied(entry, from, to, bytes);
                // Host memory that is not page-locked is read before the call returns.
                accesses(kinds[0].map(|_| from..from + bytes), Some(to..to + bytes))
            }
        }
    }

    fn run(&mut self, what: &str) -> &mut Run {
        self.run.as_mut().unwrap_or_else(|| panic!("{what} outside of a run"))
    }

    /// Whether an address is one of the arena, or of the inputs behind it.
    fn in_arena(&self, at: u64) -> bool {
        self.plans
            .as_ref()
            .is_some_and(|(plans, arena, _)| (*arena..arena + arena_bytes(plans)).contains(&at))
    }

    /// Finds out what a copy is for.
    fn copied(&mut self, entry: &Entry, from: u64, to: u64, bytes: u64) {
        let Some((.., tier)) = &self.plans else { return };
        if entry.staged {
            let (direction, memory) =
                if self.in_arena(to) { (Direction::Load, to) } else { (Direction::Store, from) };
            let asked = self.file.front().expect("a transfer that was asked for");
            let expected = (asked.direction, asked.memory + self.moved);
            assert_eq!((direction, memory), expected, "another transfer to the file");
            self.moved += bytes;
            assert!(self.moved <= asked.bytes, "a transfer to the file of too many bytes");
            if self.moved == asked.bytes {
                self.moved = 0;
                self.file.pop_front();
            }
            return;
        }
        let is_input = self.is_ahead(from) || !self.in_arena(from) && !tier.contains(&from);
        let Some(run) = &mut self.run else { return };
        if is_input {
            run.entered.push(to..to + bytes);
            return;
        }
        let next = run.pending.pop_front();
        let same =
            matches!(next, Some(Item::Copy { from: a, to: b, bytes: n }) if (a, b, n) == (from, to, bytes));
        assert!(same, "a copy of {bytes} bytes from {from:#x} to {to:#x}, where the plan has {next:?}");
    }
}

/// Bytes of the arena, with what is behind it.
fn arena_bytes(plans: &PlanSet) -> u64 {
    (plans.arena_bytes + plans.sheet.outside_bytes(plimsoll_plan::sheet::NEXT_BATCH)) as u64
}

/// What stands for a kernel's code: no memory is at such addresses.
fn code(module: u64) -> Addresses {
    module..module + 1
}

impl Run {
    /// A launch: the next one of the plan, or one that does what several steps do. Those come forward to the first of them, past steps that
    /// do not depend on them.
    fn launched(&mut self, blocks: Option<[u32; 3]>, pointers: &[u64]) -> Vec<Access> {
        let is = |expected: &[Option<u64>], found: &[u64]| {
            expected.iter().zip(found).all(|(expected, found)| expected.is_none_or(|at| at == *found))
        };
        if let Some(Item::Launches(next)) = self.pending.front_mut() {
            let own = next.left.front().expect("a step that is not over");
            if own.blocks == blocks && own.pointers.len() == pointers.len() && is(&own.pointers, pointers) {
                let found = next.accesses.clone();
                next.left.pop_front();
                if next.left.is_empty() {
                    self.pending.pop_front();
                }
                return found;
            }
        }
        let (mut rest, mut own_blocks, mut found) = (pointers, 0, Vec::new());
        let mut at = 0;
        while at < self.pending.len() && !rest.is_empty() {
            let Item::Launches(Launches { left, accesses, what }) = &self.pending[at] else { break };
            let own = &left[0];
            let alone = left.len() == 1 && own.pointers.len() <= rest.len() && is(&own.pointers, rest);
            let Some([count, 1, 1]) = own.blocks.filter(|_| alone) else {
                at += 1;
                continue;
            };
            for passed in self.pending.iter().take(at) {
                assert!(!passed.depends(accesses), "{what} runs before {passed:?}");
            }
            own_blocks += count;
            rest = &rest[own.pointers.len()..];
            found.extend(accesses.iter().cloned());
            self.pending.remove(at);
        }
        let first = self.pending.front();
        assert!(
            rest.is_empty(),
            "a launch with {pointers:x?}, where the plan `{}` has {first:x?}",
            self.plan
        );
        assert_eq!(blocks, Some([own_blocks, 1, 1]), "blocks of steps that run as one");
        found
    }

    /// Every input and every accumulator was copied or filled whole, once.
    fn check_inputs(&self, plans: &PlanSet, arena: u64) {
        for buffer in &plans.plans[self.plan].buffers {
            if let BufferKind::Input(_) | BufferKind::Accumulator(_) = buffer.kind {
                let own = arena + buffer.offset as u64..arena + (buffer.offset + buffer.bytes) as u64;
                let inside =
                    self.entered.iter().filter(|range| range.start >= own.start && range.end <= own.end);
                let bytes: u64 = inside.map(|range| range.end - range.start).sum();
                assert_eq!(bytes, own.end - own.start, "{:?} of plan {}", buffer.kind, self.plan);
            }
        }
    }
}

impl Item {
    /// Whether it and these accesses may not change places.
    fn depends(&self, others: &[Access]) -> bool {
        let meet = |a: &Access| {
            others
                .iter()
                .any(|b| (a.writes || b.writes) && a.range.start < b.range.end && b.range.start < a.range.end)
        };
        match self {
            Self::Launches(launches) => launches.accesses.iter().any(meet),
            Self::Copy { from, to, bytes } => {
                accesses(Some(*from..from + bytes), Some(*to..to + bytes)).iter().any(meet)
            }
            Self::File(_) => false,
        }
    }
}

/// The last of the calls by which a thread waits, right after one of its calls; that call, if it does not wait.
fn waited(entries: &[Entry], at: usize) -> usize {
    let own = (at + 1..entries.len()).filter(|&later| entries[later].thread == entries[at].thread);
    let waits = |at: &usize| matches!(entries[*at].call, Call::FinishEvent(_) | Call::FinishStream(_));
    own.take_while(waits).last().unwrap_or(at)
}
