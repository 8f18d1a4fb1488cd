//! Verbs on streams.

use crate::index::{Join, joined_schema};
use crate::stage::Step;
use crate::{DataError, Record, Schema, Stream, Streamed, held::Held};
use plimsoll_tensor::random::Stream as Random;
use std::sync::Arc;

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
    /// Every `every`th record for measuring, or all others.
    Part { every: u64, test: bool },
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
                while self.seen <= wanted && !record.is_stopped() {
                    let more = self.stream.next(record, scratch);
                    // A bad record counts as one.
                    self.round += u64::from(self.seen == wanted);
                    self.seen += 1;
                    if !more? {
                        return Ok(false);
                    }
                }
                Ok(self.seen > wanted)
            }
            Verb::Part { every, test } => {
                while !record.is_stopped() {
                    let wanted = (self.seen % every == every - 1) == *test;
                    self.seen += 1;
                    match self.stream.next(record, scratch) {
                        // A bad record of the other part is not this one's.
                        Err(_) if !wanted => {}
                        Ok(true) if !wanted => {}
                        more => return more,
                    }
                }
                Ok(false)
            }
            Verb::Filter(keeps) => {
                while !record.is_stopped() && self.stream.next(record, scratch)? {
                    if keeps(record).map_err(|error| error.of(|| self.of.origin(record.place.origin)))? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Verb::Repeat { times } => {
                let outer = record.place.epoch;
                while self.round < *times && !record.is_stopped() {
                    // Each time counts as an epoch of its own below.
                    let epoch = self.epoch.wrapping_add(self.round);
                    record.place.epoch = epoch;
                    let more = self.stream.next(record, scratch);
                    record.place.epoch = outer;
                    if more? {
                        self.seen += 1;
                        return Ok(true);
                    }
                    // What gave nothing once is not asked again.
                    if std::mem::take(&mut self.seen) == 0 {
                        return Ok(false);
                    }
                    self.round += 1;
                    self.stream = self.of.start(epoch.wrapping_add(1))?;
                }
                Ok(false)
            }
            Verb::Stage(step) => {
                let mut origin = 0;
                let mut more = false;
                let (stream, of) = (&mut self.stream, &self.of);
                let (own, rest) = scratch.split_at_mut(step.input.room());
                let mut input = Record::over(&step.input, own);
                (input.place, input.stop) = (record.place, record.stop);
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
        self.parts[0].resident_bytes().saturating_add(self.parts[1].resident_bytes())
    }
    fn buffer_bytes(&self) -> usize {
        self.parts[0].buffer_bytes().saturating_add(self.parts[1].buffer_bytes())
    }
    fn scratch_bytes(&self) -> usize {
        self.parts[0].scratch_bytes().max(self.parts[1].scratch_bytes())
    }
    fn decoder_bytes(&self) -> usize {
        self.parts[0].decoder_bytes().max(self.parts[1].decoder_bytes())
    }
    fn origin(&self, origin: u64) -> String {
        // A zip says where the first of a pair is from.
        match self.join {
            Join::Zip => self.parts[0].origin(origin),
            _ => self.parts[usize::from(origin & 1 == 1)].origin(origin >> 1),
        }
    }
}

impl Stream for JoinedStream {
    fn next(&mut self, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<bool, DataError> {
        if self.join == Join::Zip {
            let (mut front, mut back) = record.split_at(self.first_columns);
            let one = self.parts[0].next(&mut front, scratch);
            if let Ok(false) = one {
                return Ok(false);
            }
            // A bad record takes the other of its pair with it.
            let other = self.parts[1].next(&mut back, scratch);
            if let Ok(false) = other {
                return Ok(false);
            }
            one.and(other)?;
            let (lengths, origin) = ([front.lengths(), back.lengths()], front.place.origin);
            record.set_lengths(self.first_columns, lengths);
            record.place.origin = origin;
            return Ok(true);
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
                // Each join takes the lowest bit for which of its two streams a record is from.
                record.place.origin = record.place.origin << 1 | part as u64;
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
    held: Held,
    most: usize,
    ended: bool,
    random: Random,
    drawn: u64,
    /// Records asked of the stream: the numbers that stages before it see.
    asked: u64,
}

impl Streamed for Shuffled {
    fn schema(&self) -> &Schema {
        self.of.schema()
    }
    fn start(&self, epoch: u64) -> Result<Box<dyn Stream>, DataError> {
        Ok(Box::new(Drawn {
            stream: self.of.start(epoch)?,
            held: Held::new("the shuffle buffer", self.schema().clone(), self.records)?,
            most: self.records,
            ended: false,
            random: Random::new(self.seed, epoch, "shuffle buffer"),
            drawn: 0,
            asked: 0,
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
        Held::heap_bytes(self.schema(), self.records)
    }
}

impl Drawn {
    /// Reads the next record into the first free slot; `false` at the end.
    fn fill(&mut self, outer: &Record<'_>, scratch: &mut [u8]) -> Result<bool, DataError> {
        if self.ended || outer.is_stopped() {
            return Ok(false);
        }
        let mut record = self.held.free();
        (record.place.epoch, record.place.number) = (outer.place.epoch, self.asked);
        record.stop = outer.stop;
        self.asked += 1;
        let more = self.stream.next(&mut record, scratch)?;
        let (lengths, origin) = (record.lengths(), record.place.origin);
        self.ended = !more;
        if more {
            self.held.keep(lengths, origin);
        }
        Ok(more)
    }
}

impl Stream for Drawn {
    fn next(&mut self, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<bool, DataError> {
        while self.held.len() < self.most && self.fill(record, scratch)? {}
        if self.held.is_empty() {
            return Ok(false);
        }
        let slot = self.random.below(self.drawn, 0, self.held.len() as u32) as usize;
        self.drawn += 1;
        self.held.copy_to(slot, record)?;
        // The next call fills the end again.
        self.held.remove(slot);
        Ok(true)
    }
}
