//! What happens before what in a program of streams and events, and which accesses to the same bytes have no order.
//!
//! A stream does what it is given in order. An event that is recorded has happened when all that was in its stream has; what a stream is
//! given after it was told to wait for an event comes after the last record of it. Whatever is given to a stream comes after what the
//! host did before. The host is one: its threads order themselves by other means, and their calls are taken in the order seen.

use super::program::Addresses;
use std::collections::HashMap;

/// An access of bytes, and whether it writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    pub range: Addresses,
    pub writes: bool,
}

/// What is done or asked for at a moment.
#[derive(Clone, Debug)]
pub enum Event {
    /// A stream is given something to do.
    Work {
        stream: u64,
        accesses: Vec<Access>,
    },
    /// The host itself uses memory.
    Host(Vec<Access>),
    Record {
        event: u64,
        stream: u64,
    },
    Wait {
        stream: u64,
        event: u64,
    },
    /// The host waits for an event, for a stream, or for all streams.
    Reach(u64),
    FinishStream(u64),
    FinishAll,
}

impl Event {
    fn accesses(&self) -> &[Access] {
        match self {
            Self::Work { accesses, .. } | Self::Host(accesses) => accesses,
            _ => &[],
        }
    }

    /// Whether they use the same bytes, and one of them writes.
    fn meets(&self, other: &Self) -> bool {
        let meet = |a: &Access, b: &Access| {
            (a.writes || b.writes) && a.range.start < b.range.end && b.range.start < a.range.end
        };
        self.accesses().iter().any(|a| other.accesses().iter().any(|b| meet(a, b)))
    }
}

/// Streams of a program at most, with the host.
const MOST: usize = 10;

/// How much of each stream, and of the host, happens before a moment.
type Clock = [u32; MOST];

/// The host's place in a clock.
const HOST: usize = 0;

/// A program with the pairs of its events that need an order.
pub struct Program {
    pub events: Vec<Event>,
    /// The place of every stream in a clock.
    streams: HashMap<u64, usize>,
    /// Pairs that use the same bytes, at least one of which writes, and are not both of one stream or both of the host.
    conflicts: Vec<(usize, usize)>,
}

impl Program {
    pub fn new(events: Vec<Event>) -> Self {
        let mut streams = HashMap::new();
        for event in &events {
            if let Event::Work { stream, .. }
            | Event::Record { stream, .. }
            | Event::Wait { stream, .. }
            | Event::FinishStream(stream) = event
            {
                let next = streams.len() + 1;
                streams.entry(*stream).or_insert(next);
            }
        }
        assert!(streams.len() < MOST, "{} streams", streams.len());
        let mut program = Self { events, streams, conflicts: Vec::new() };
        program.conflicts = program.find_conflicts();
        program
    }

    /// The order in which events are given, if nothing is changed.
    pub fn order(&self) -> Vec<usize> {
        (0..self.events.len()).collect()
    }

    fn timeline(&self, event: &Event) -> usize {
        match event {
            Event::Work { stream, .. } => self.streams[stream],
            _ => HOST,
        }
    }

    /// For each access the last one of every other stream, and of the host, that it needs an order with: those before that one come
    /// before it anyway.
    fn find_conflicts(&self) -> Vec<(usize, usize)> {
        let used = |at: &usize| !self.events[*at].accesses().is_empty();
        let used: Vec<usize> = self.order().into_iter().filter(used).collect();
        let mut conflicts = Vec::new();
        for (i, &b) in used.iter().enumerate() {
            let mut found = [false; MOST];
            found[self.timeline(&self.events[b])] = true;
            for &a in used[..i].iter().rev() {
                let timeline = self.timeline(&self.events[a]);
                if !found[timeline] && self.events[a].meets(&self.events[b]) {
                    found[timeline] = true;
                    conflicts.push((a, b));
                }
            }
        }
        conflicts
    }

    /// How many pairs need an order.
    pub fn conflicts(&self) -> usize {
        self.conflicts.len()
    }

    /// The pairs that need an order and have none, where these events are given in this order: all that access memory among them.
    pub fn races(&self, order: &[usize]) -> Vec<(usize, usize)> {
        let clocks = self.clocks(order);
        self.conflicts.iter().copied().filter(|&pair| self.races_in(&clocks, pair)).collect()
    }

    /// Whether there is such a pair.
    pub fn has_race(&self, order: &[usize]) -> bool {
        let clocks = self.clocks(order);
        self.conflicts.iter().any(|&pair| self.races_in(&clocks, pair))
    }

    fn races_in(&self, clocks: &[Clock], (a, b): (usize, usize)) -> bool {
        let timeline = self.timeline(&self.events[a]);
        clocks[b][timeline] < clocks[a][timeline]
    }

    /// For each event with accesses what happens before it, itself included.
    fn clocks(&self, order: &[usize]) -> Vec<Clock> {
        let mut clocks = vec![Clock::default(); self.events.len()];
        // What the next thing of each stream, and of the host, comes after.
        let mut now = [Clock::default(); MOST];
        let mut recorded: HashMap<u64, Clock> = HashMap::new();
        for &at in order {
            match &self.events[at] {
                Event::Work { stream, .. } => {
                    let stream = self.streams[stream];
                    now[stream] = joined(now[stream], now[HOST]);
                    now[stream][stream] += 1;
                    clocks[at] = now[stream];
                }
                Event::Host(_) => {
                    now[HOST][HOST] += 1;
                    clocks[at] = now[HOST];
                }
                Event::Record { event, stream } => {
                    recorded.insert(*event, joined(now[self.streams[stream]], now[HOST]));
                }
                Event::Wait { stream, event } => {
                    let stream = self.streams[stream];
                    // An event that was never recorded has happened.
                    now[stream] = joined(now[stream], recorded.get(event).copied().unwrap_or_default());
                }
                Event::Reach(event) => {
                    now[HOST] = joined(now[HOST], recorded.get(event).copied().unwrap_or_default());
                }
                Event::FinishStream(stream) => now[HOST] = joined(now[HOST], now[self.streams[stream]]),
                Event::FinishAll => now[HOST] = now.into_iter().fold(now[HOST], joined),
            }
        }
        clocks
    }
}

fn joined(a: Clock, b: Clock) -> Clock {
    std::array::from_fn(|timeline| a[timeline].max(b[timeline]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: Addresses = 100..200;

    fn work(stream: u64, writes: bool) -> Event {
        Event::Work { stream, accesses: vec![Access { range: BYTES, writes }] }
    }

    fn host(writes: bool) -> Event {
        Event::Host(vec![Access { range: 150..151, writes }])
    }

    fn races(events: Vec<Event>) -> Vec<(usize, usize)> {
        let program = Program::new(events);
        program.races(&program.order())
    }

    fn record(event: u64, stream: u64) -> Event {
        Event::Record { event, stream }
    }

    fn wait(stream: u64, event: u64) -> Event {
        Event::Wait { stream, event }
    }

    #[test]
    fn streams_are_ordered_by_events_alone() {
        assert_eq!(races(vec![work(1, true), work(2, false)]), [(0, 1)]);
        assert_eq!(races(vec![work(1, false), work(2, false)]), []);
        assert_eq!(races(vec![work(1, true), record(7, 1), wait(2, 7), work(2, false)]), []);
        // The wait or the record comes too late or too early, or is another's.
        assert_eq!(races(vec![work(1, true), record(7, 1), work(2, false), wait(2, 7)]), [(0, 2)]);
        assert_eq!(races(vec![record(7, 1), work(1, true), wait(2, 7), work(2, false)]), [(1, 3)]);
        assert_eq!(races(vec![work(1, true), wait(2, 7), record(7, 1), work(2, false)]), [(0, 3)]);
        assert_eq!(races(vec![work(1, true), record(7, 1), wait(2, 8), work(2, false)]), [(0, 3)]);
        assert_eq!(
            races(vec![work(1, true), record(7, 1), record(7, 3), wait(2, 7), work(2, false)]),
            [(0, 4)]
        );
        // By way of a third stream.
        let by_a_third = [record(7, 1), wait(3, 7), record(8, 3), wait(2, 8)];
        assert_eq!(races([&[work(1, true)][..], &by_a_third, &[work(2, true)]].concat()), []);
    }

    #[test]
    fn the_host_comes_before_what_it_queues_and_after_what_it_waits_for() {
        assert_eq!(races(vec![host(true), work(1, false)]), []);
        assert_eq!(races(vec![work(1, true), host(false)]), [(0, 1)]);
        assert_eq!(races(vec![work(1, true), Event::FinishStream(2), host(false)]), [(0, 2)]);
        for finish in [Event::FinishStream(1), Event::FinishAll] {
            assert_eq!(races(vec![work(1, true), finish.clone(), host(false)]), []);
            assert_eq!(races(vec![work(1, true), finish, work(2, true)]), []);
        }
        assert_eq!(races(vec![work(1, true), record(7, 1), Event::Reach(7), host(true)]), []);
        assert_eq!(races(vec![record(7, 1), work(1, true), Event::Reach(7), host(true)]), [(1, 3)]);
    }

    #[test]
    fn bytes_beside_each_other_need_no_order() {
        let work = |stream, range| Event::Work { stream, accesses: vec![Access { range, writes: true }] };
        assert_eq!(races(vec![work(1, 0..8), work(2, 8..16)]), []);
        assert_eq!(races(vec![work(1, 0..9), work(2, 8..16)]), [(0, 1)]);
    }
}
