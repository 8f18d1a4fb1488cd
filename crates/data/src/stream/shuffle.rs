//! Shuffling a stream through a buffer.

use crate::stream::record_buffer::RecordBuffer;
use crate::{DataError, Record, Schema, Stream, Streamed};
use plimsoll_tensor::random::Stream as Random;
use std::sync::Arc;

/// A stream that draws its records at random from a buffer.
pub(crate) struct Shuffled {
    pub of: Arc<dyn Streamed>,
    pub records: usize,
    pub seed: u64,
}

struct Drawn {
    stream: Box<dyn Stream>,
    buffer: RecordBuffer,
    records: usize,
    ended: bool,
    random: Random,
    drawn: u64,
    /// Records requested from the stream: their numbers, as stages before the shuffle see them.
    requested: u64,
}

impl Streamed for Shuffled {
    fn schema(&self) -> &Schema {
        self.of.schema()
    }
    fn start(&self, epoch: u64) -> Result<Box<dyn Stream>, DataError> {
        Ok(Box::new(Drawn {
            stream: self.of.start(epoch)?,
            buffer: RecordBuffer::new("the shuffle buffer", self.schema().clone(), self.records)?,
            records: self.records,
            ended: false,
            random: Random::new(self.seed, epoch, "shuffle buffer"),
            drawn: 0,
            requested: 0,
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
    fn decoder_bytes(&self, readers: usize) -> usize {
        self.of.decoder_bytes(readers)
    }
    fn origin(&self, origin: u64) -> String {
        self.of.origin(origin)
    }
}

impl Shuffled {
    fn own_bytes(&self) -> usize {
        RecordBuffer::heap_bytes(self.schema(), self.records)
    }
}

impl Drawn {
    /// Reads the next record into the first free slot; `false` at the end.
    fn fill(&mut self, outer: &Record<'_>, scratch: &mut [u8]) -> Result<bool, DataError> {
        if self.ended || outer.is_stopped() {
            return Ok(false);
        }
        let mut record = self.buffer.free();
        (record.place.epoch, record.place.number) = (outer.place.epoch, self.requested);
        record.stop = outer.stop;
        self.requested += 1;
        let more = self.stream.next(&mut record, scratch)?;
        let (lengths, origin) = (record.lengths(), record.place.origin);
        self.ended = !more;
        if more {
            self.buffer.keep(lengths, origin);
        }
        Ok(more)
    }
}

impl Stream for Drawn {
    fn next(&mut self, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<bool, DataError> {
        while self.buffer.len() < self.records && self.fill(record, scratch)? {}
        if self.buffer.is_empty() {
            return Ok(false);
        }
        let slot = self.random.below(self.drawn, 0, self.buffer.len() as u32) as usize;
        self.drawn += 1;
        self.buffer.copy_to(slot, record)?;
        // The next call refills the freed slot at the end.
        self.buffer.remove(slot);
        Ok(true)
    }
}
