//! Verbs that select, repeat or map the records of a stream.

use crate::transforms::stage::Step;
use crate::{DataError, Record, Schema, Stream, Streamed};
use std::sync::Arc;

/// Whether a filter keeps a record.
pub(crate) type Predicate = Arc<dyn Fn(&Record<'_>) -> Result<bool, DataError> + Send + Sync>;

/// What a verb does to a stream.
#[derive(Clone)]
pub(crate) enum Verb {
    /// `len` records after the first `start`, every `step`th.
    Slice { start: u64, step: u64, len: u64 },
    /// Those that a predicate keeps.
    Filter(Predicate),
    /// The stream, several times.
    Repeat { times: u64 },
    /// Every `every`th record for the test part, or all others.
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
    /// The first epoch of the stream below.
    epoch: u64,
    /// Records read of the stream below.
    seen: u64,
    /// Records given by a slice, or finished repetitions.
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
        let epoch = match self.verb {
            Verb::Repeat { times } => epoch.wrapping_mul(times),
            _ => epoch,
        };
        let (of, verb) = (self.of.clone(), self.verb.clone());
        Ok(Box::new(Running { stream: of.start(epoch)?, of, verb, epoch, seen: 0, round: 0 }))
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
    fn decoder_bytes(&self, readers: usize) -> usize {
        let own = if let Verb::Stage(step) = &self.verb { step.stage.decoder_bytes(readers) } else { 0 };
        own.saturating_add(self.of.decoder_bytes(readers))
    }
    fn origin(&self, origin: u64) -> String {
        self.of.origin(origin)
    }
}

impl Stream for Running {
    fn next(&mut self, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<bool, DataError> {
        match &self.verb {
            Verb::Slice { start, step, len } => {
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
                        // Records of the other part are dropped, bad ones, too.
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
                    // Each repetition is an epoch of the stream below.
                    let epoch = self.epoch.wrapping_add(self.round);
                    record.place.epoch = epoch;
                    let more = self.stream.next(record, scratch);
                    record.place.epoch = outer;
                    if more? {
                        self.seen += 1;
                        return Ok(true);
                    }
                    // An empty stream is not repeated.
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
                let (own, rest) = scratch.split_at_mut(step.input.capacity());
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
