//! Records that come one after another: streams, and the verbs on them.

use crate::index::{Join, joined_schema};
use crate::stage::Step;
use crate::{DataError, Record, Schema, Source, budget::zeroed};
use plimsoll_tensor::random::Stream as Random;
use std::sync::Arc;

/// Records in their order, once.
pub trait Stream: Send {
    /// Writes the next record, or returns `false` at the end. `scratch` is at least [`Streamed::scratch_bytes`] long. A
    /// record that is bad is an error, and the next call goes on after it.
    fn next(&mut self, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<bool, DataError>;
}

/// What a stream is started from, anew each epoch. A run that goes on starts the epoch's stream again and lets the records
/// that were already given pass, without the stages that come after it.
pub trait Streamed: Send + Sync {
    /// The columns of its records.
    fn schema(&self) -> &Schema;

    /// The stream of an epoch.
    fn start(&self, epoch: u64) -> Result<Box<dyn Stream>, DataError>;

    /// Heap bytes that this and one started stream hold at most.
    fn resident_bytes(&self) -> usize;

    /// Heap bytes of shuffle buffers among them.
    fn buffer_bytes(&self) -> usize {
        0
    }

    /// Bytes of scratch that reading needs.
    fn scratch_bytes(&self) -> usize {
        0
    }

    /// Heap bytes that a library takes at most while a record is read.
    fn decoder_bytes(&self) -> usize {
        0
    }

    /// Where a record is from, for errors; `origin` is what the stream wrote into [`crate::Place::origin`].
    fn origin(&self, origin: u64) -> String {
        format!("record {origin}")
    }
}

/// A closure that starts a closure which writes record after record.
pub(crate) struct Generator<F> {
    pub schema: Schema,
    pub start: F,
    /// What the closures hold, as declared.
    pub held_bytes: usize,
}

struct Generated<G> {
    next: G,
    given: u64,
}

impl<F, G> Streamed for Generator<F>
where
    F: Fn(u64) -> G + Send + Sync,
    G: FnMut(&mut Record<'_>) -> Result<bool, DataError> + Send + 'static,
{
    fn schema(&self) -> &Schema {
        &self.schema
    }
    fn start(&self, epoch: u64) -> Result<Box<dyn Stream>, DataError> {
        Ok(Box::new(Generated { next: (self.start)(epoch), given: 0 }))
    }
    fn resident_bytes(&self) -> usize {
        self.held_bytes
    }
}

impl<G: FnMut(&mut Record<'_>) -> Result<bool, DataError> + Send> Stream for Generated<G> {
    fn next(&mut self, record: &mut Record<'_>, _: &mut [u8]) -> Result<bool, DataError> {
        record.place.origin = self.given;
        self.given += 1;
        (self.next)(record)
    }
}

/// A source with random access, read in its order.
pub(crate) struct InOrder(pub Arc<dyn Source>);

struct Ordered {
    source: Arc<dyn Source>,
    epoch: u64,
    next: usize,
}

impl Streamed for InOrder {
    fn schema(&self) -> &Schema {
        self.0.schema()
    }
    fn start(&self, epoch: u64) -> Result<Box<dyn Stream>, DataError> {
        Ok(Box::new(Ordered { source: self.0.clone(), epoch, next: 0 }))
    }
    fn resident_bytes(&self) -> usize {
        self.0.resident_bytes()
    }
    fn scratch_bytes(&self) -> usize {
        self.0.scratch_bytes()
    }
    fn decoder_bytes(&self) -> usize {
        self.0.decoder_bytes()
    }
    fn origin(&self, origin: u64) -> String {
        // The epoch's order is gone, the place in it is known.
        format!("record {origin} of the epoch")
    }
}

impl Stream for Ordered {
    fn next(&mut self, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<bool, DataError> {
        if self.next >= self.source.len() {
            return Ok(false);
        }
        (record.place.epoch, record.place.origin) = (self.epoch, self.next as u64);
        self.next += 1;
        self.source.read(self.next - 1, record, scratch)?;
        Ok(true)
    }
}

/// Whether a record stays.
pub(crate) type Predicate = Arc<dyn Fn(&Record<'_>) -> Result<bool, DataError> + Send + Sync>;

/// What a verb does to a stream.
#[derive(Clone)]
pub(crate) enum Verb {
    /// `len` records after the first `start`, every `step`th.
    Cut { start: u64, step: u64, len: u64 },
    /// Those that a predicate keeps.
    Filter(Predicate),
    /// The whole, several times.
    Repeat { times: u64 },
    /// A stage, one record at a time.
    Stage(Step),
}

/// A stream with a verb.
pub(crate) struct Verbed {
    pub of: Arc<dyn Streamed>,
    pub verb: Verb,
}

struct Running {
    of: Arc<dyn Streamed>,
    stream: Box<dyn Stream>,
    verb: Verb,
    epoch: u64,
    seen: u64,
    round: u64,
}

impl Streamed for Verbed {
    fn schema(&self) -> &Schema {
        match &self.verb {
            Verb::Stage(step) => &step.output,
            _ => self.of.schema(),
        }
    }
    fn start(&self, epoch: u64) -> Result<Box<dyn Stream>, DataError> {
        let below = match self.verb {
            Verb::Repeat { times } => epoch.wrapping_mul(times),
            _ => epoch,
        };
        let (of, verb) = (self.of.clone(), self.verb.clone());
        Ok(Box::new(Running { stream: of.start(below)?, of, verb, epoch: below, seen: 0, round: 0 }))
    }
    fn resident_bytes(&self) -> usize {
        self.of.resident_bytes()
    }
    fn buffer_bytes(&self) -> usize {
        self.of.buffer_bytes()
    }
    fn scratch_bytes(&self) -> usize {
        match &self.verb {
            Verb::Stage(step) => step.scratch_bytes(self.of.scratch_bytes()),
            _ => self.of.scratch_bytes(),
        }
    }
    fn decoder_bytes(&self) -> usize {
        let own = if let Verb::Stage(step) = &self.verb { step.stage.decoder_bytes() } else { 0 };
        own.max(self.of.decoder_bytes())
    }
    fn origin(&self, origin: u64) -> String {
        self.of.origin(origin)
    }
}

impl Stream for Running {
    fn next(&mut self, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<bool, DataError> {
        match &self.verb {
            Verb::Cut { start, step, len } => {
                let Some(wanted) = self.round.checked_mul(*step).and_then(|n| n.checked_add(*start)) else {
                    return Ok(false);
                };
                if self.round == *len {
                    return Ok(false);
                }
                while self.seen <= wanted {
                    // A bad record counts as one.
                    self.seen += 1;
                    if !self.stream.next(record, scratch)? {
                        return Ok(false);
                    }
                }
                self.round += 1;
                Ok(true)
            }
            Verb::Filter(keeps) => {
                while self.stream.next(record, scratch)? {
                    if keeps(record).map_err(|error| error.of(|| self.of.origin(record.place.origin)))? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Verb::Repeat { times } => {
                while !self.stream.next(record, scratch)? {
                    self.round += 1;
                    if self.round >= *times {
                        return Ok(false);
                    }
                    self.stream = self.of.start(self.epoch.wrapping_add(self.round))?;
                }
                Ok(true)
            }
            Verb::Stage(step) => {
                let mut origin = 0;
                let mut more = false;
                let (stream, of) = (&mut self.stream, &self.of);
                let (own, rest) = scratch.split_at_mut(step.input.room());
                let mut input = Record::over(&step.input, own);
                input.place = record.place;
                if stream.next(&mut input, rest)? {
                    (more, origin) = (true, input.place.origin);
                    let applied = step.stage.apply(&mut input, record, rest);
                    applied.map_err(|error| error.of(|| of.origin(origin)))?;
                }
                record.place.origin = origin;
                Ok(more)
            }
        }
    }
}

/// Two streams as one.
pub(crate) struct JoinedStreams {
    parts: [Arc<dyn Streamed>; 2],
    join: Join,
    schema: Schema,
}

/// Which of two streams a record is from, in its origin.
const SECOND: u64 = 1 << 63;

impl JoinedStreams {
    pub fn new(join: Join, parts: [Arc<dyn Streamed>; 2]) -> Result<Self, DataError> {
        let schema = joined_schema(join, [parts[0].schema(), parts[1].schema()])?;
        Ok(Self { parts, join, schema })
    }
}

struct JoinedStream {
    parts: [Box<dyn Stream>; 2],
    ended: [bool; 2],
    join: Join,
    first_columns: usize,
    turn: usize,
}

impl Streamed for JoinedStreams {
    fn schema(&self) -> &Schema {
        &self.schema
    }
    fn start(&self, epoch: u64) -> Result<Box<dyn Stream>, DataError> {
        Ok(Box::new(JoinedStream {
            parts: [self.parts[0].start(epoch)?, self.parts[1].start(epoch)?],
            ended: [false; 2],
            join: self.join,
            first_columns: self.parts[0].schema().columns().len(),
            turn: 0,
        }))
    }
    fn resident_bytes(&self) -> usize {
        self.parts[0].resident_bytes() + self.parts[1].resident_bytes()
    }
    fn buffer_bytes(&self) -> usize {
        self.parts[0].buffer_bytes() + self.parts[1].buffer_bytes()
    }
    fn scratch_bytes(&self) -> usize {
        self.parts[0].scratch_bytes().max(self.parts[1].scratch_bytes())
    }
    fn decoder_bytes(&self) -> usize {
        self.parts[0].decoder_bytes().max(self.parts[1].decoder_bytes())
    }
    fn origin(&self, origin: u64) -> String {
        self.parts[usize::from(origin & SECOND != 0)].origin(origin & !SECOND)
    }
}

impl Stream for JoinedStream {
    fn next(&mut self, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<bool, DataError> {
        if self.join == Join::Zip {
            let (mut front, mut back) = record.split_at(self.first_columns);
            let both = self.parts[0].next(&mut front, scratch)? && self.parts[1].next(&mut back, scratch)?;
            let (lengths, origin) = ([front.lengths(), back.lengths()], front.place.origin);
            record.set_lengths(self.first_columns, lengths);
            record.place.origin = origin;
            return Ok(both);
        }
        while !(self.ended[0] && self.ended[1]) {
            let part = self.turn;
            let other = 1 - part;
            if self.ended[part] {
                self.turn = other;
                continue;
            }
            let more = self.parts[part].next(record, scratch);
            self.ended[part] = matches!(more, Ok(false));
            if (self.join == Join::Interleave || self.ended[part]) && !self.ended[other] {
                self.turn = other;
            }
            if more? {
                record.place.origin |= if part == 1 { SECOND } else { 0 };
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// A stream through a buffer of records, from which one after another is drawn.
pub(crate) struct Shuffled {
    pub of: Arc<dyn Streamed>,
    pub records: usize,
    pub seed: u64,
}

struct Drawn {
    stream: Box<dyn Stream>,
    schema: Schema,
    room: usize,
    /// Records one after another, each with its lengths and its origin.
    bytes: Vec<u8>,
    held: Vec<([usize; crate::MOST_COLUMNS], u64)>,
    most: usize,
    ended: bool,
    random: Random,
    drawn: u64,
}

impl Streamed for Shuffled {
    fn schema(&self) -> &Schema {
        self.of.schema()
    }
    fn start(&self, epoch: u64) -> Result<Box<dyn Stream>, DataError> {
        let room = self.schema().room();
        let bytes = room.saturating_mul(self.records) as u64;
        Ok(Box::new(Drawn {
            stream: self.of.start(epoch)?,
            schema: self.schema().clone(),
            room,
            bytes: zeroed("the shuffle buffer", bytes)?,
            held: Vec::with_capacity(self.records),
            most: self.records,
            ended: false,
            random: Random::new(self.seed, epoch, "shuffle buffer"),
            drawn: 0,
        }))
    }
    fn resident_bytes(&self) -> usize {
        self.of.resident_bytes().saturating_add(self.own_bytes())
    }
    fn buffer_bytes(&self) -> usize {
        self.of.buffer_bytes().saturating_add(self.own_bytes())
    }
    fn scratch_bytes(&self) -> usize {
        self.of.scratch_bytes()
    }
    fn decoder_bytes(&self) -> usize {
        self.of.decoder_bytes()
    }
    fn origin(&self, origin: u64) -> String {
        self.of.origin(origin)
    }
}

impl Shuffled {
    fn own_bytes(&self) -> usize {
        let each = self.schema().room() + size_of::<([usize; crate::MOST_COLUMNS], u64)>();
        each.saturating_mul(self.records)
    }
}

impl Drawn {
    /// The record in a slot.
    fn slot(&mut self, slot: usize) -> Record<'_> {
        Record::over(&self.schema, &mut self.bytes[slot * self.room..][..self.room])
    }

    /// Reads the next record into a slot; `false` at the end.
    fn fill(&mut self, slot: usize, epoch: u64, scratch: &mut [u8]) -> Result<bool, DataError> {
        if self.ended {
            return Ok(false);
        }
        let mut record = Record::over(&self.schema, &mut self.bytes[slot * self.room..][..self.room]);
        record.place.epoch = epoch;
        let more = self.stream.next(&mut record, scratch)?;
        let held = (record.lengths(), record.place.origin);
        self.ended = !more;
        if more {
            match self.held.get_mut(slot) {
                Some(place) => *place = held,
                None => self.held.push(held),
            }
        }
        Ok(more)
    }
}

impl Stream for Drawn {
    fn next(&mut self, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<bool, DataError> {
        let epoch = record.place.epoch;
        while self.held.len() < self.most && self.fill(self.held.len(), epoch, scratch)? {}
        if self.held.is_empty() {
            return Ok(false);
        }
        let slot = self.random.below(self.drawn, 0, self.held.len() as u32) as usize;
        self.drawn += 1;
        let (lengths, origin) = self.held[slot];
        {
            let mut held = self.slot(slot);
            held.set_lengths(crate::MOST_COLUMNS, [lengths, lengths]);
            record.copy_from(&held)?;
            record.place.origin = origin;
        }
        // The last record takes the place of the one that is gone; the next call fills the end again.
        let last = self.held.len() - 1;
        if slot != last {
            self.bytes.copy_within(last * self.room..(last + 1) * self.room, slot * self.room);
        }
        self.held.swap_remove(slot);
        Ok(true)
    }
}
