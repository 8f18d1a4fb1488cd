//! The order of records under bucketing, so that each batch is of one bucket.

use super::Bucketing;
use crate::stream::record_buffer::RecordBuffer;
use crate::{DataError, Record, Schema, Source, Stream, Streamed};
use std::sync::Arc;

/// A stream that gives its records batch by batch, each of one bucket. Leftover records at the end move up to the next
/// larger bucket, so that at most one batch of an epoch is not full: the last, of the largest bucket.
pub(crate) struct Grouped {
    pub of: Arc<dyn Streamed>,
    /// The source it reads, if any: it knows the origin of a record.
    pub source: Option<Arc<dyn Source>>,
    pub buckets: Arc<Bucketing>,
    /// Records of a batch.
    pub size: usize,
}

struct GroupedStream {
    stream: Box<dyn Stream>,
    source: Option<Arc<dyn Source>>,
    of: Arc<dyn Streamed>,
    buckets: Arc<Bucketing>,
    size: usize,
    /// The buffered records of each bucket.
    waiting: Vec<RecordBuffer>,
    /// The bucket whose batch is being given, and how many of its records were.
    giving: Option<(usize, usize)>,
    ended: bool,
    epoch: u64,
    /// Records requested from the stream: their numbers, as stages before it see them.
    requested: u64,
}

impl Grouped {
    /// Heap bytes of the buffers.
    pub fn own_bytes(buckets: &Bucketing, size: usize) -> usize {
        let each = buckets.buffered.iter().map(|schema| RecordBuffer::heap_bytes(schema, size));
        each.fold(0, |sum: usize, bytes| sum.saturating_add(bytes))
    }
}

impl Streamed for Grouped {
    fn schema(&self) -> &Schema {
        self.of.schema()
    }
    fn start(&self, epoch: u64) -> Result<Box<dyn Stream>, DataError> {
        let schemas = self.buckets.buffered.iter();
        let waiting =
            schemas.map(|schema| RecordBuffer::new("the records of a bucket", schema.clone(), self.size));
        Ok(Box::new(GroupedStream {
            stream: self.of.start(epoch)?,
            source: self.source.clone(),
            of: self.of.clone(),
            buckets: self.buckets.clone(),
            size: self.size,
            waiting: waiting.collect::<Result<_, _>>()?,
            giving: None,
            ended: false,
            epoch,
            requested: 0,
        }))
    }
    fn resident_bytes(&self) -> usize {
        self.of.resident_bytes().saturating_add(Self::own_bytes(&self.buckets, self.size))
    }
    fn buffer_bytes(&self) -> usize {
        self.of.buffer_bytes().saturating_add(Self::own_bytes(&self.buckets, self.size))
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

impl GroupedStream {
    /// Reads the next record, and finds its bucket; `None` at the end.
    fn read(&mut self, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<Option<usize>, DataError> {
        if self.ended {
            return Ok(None);
        }
        let number = std::mem::replace(&mut record.place.number, self.requested);
        self.requested += 1;
        let more = self.stream.next(record, scratch);
        record.place.number = number;
        let position = record.place.origin;
        let origin = || match &self.source {
            Some(source) => source.origin(position as usize, self.epoch),
            None => self.of.origin(position),
        };
        let more = match more {
            // A stream's errors name their origin themselves.
            Err(error) if self.source.is_some() => Err(error.of(origin)),
            more => more,
        };
        self.ended = !more?;
        if self.ended {
            return Ok(None);
        }
        self.buckets.of(record).map(Some).map_err(|error| error.of(origin))
    }

    /// At the end of an epoch, takes the last record of the smallest bucket that has one; returns the next larger bucket.
    fn promote(&mut self, record: &mut Record<'_>) -> Result<Option<usize>, DataError> {
        let largest = self.waiting.len() - 1;
        let Some(bucket) = self.waiting[..largest].iter().position(|waiting| !waiting.is_empty()) else {
            return Ok(None);
        };
        let waiting = &mut self.waiting[bucket];
        let last = waiting.len() - 1;
        waiting.copy_to(last, record)?;
        waiting.remove(last);
        Ok(Some(bucket + 1))
    }

    /// Starts to give a bucket's records once it has a batch.
    fn give_if_full(&mut self, bucket: usize) {
        if self.waiting[bucket].len() == self.size {
            self.giving = Some((bucket, 0));
        }
    }
}

impl Stream for GroupedStream {
    fn next(&mut self, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<bool, DataError> {
        while self.giving.is_none() {
            if record.is_stopped() {
                return Ok(false);
            }
            let read = self.read(record, scratch)?;
            let bucket = if read.is_some() { read } else { self.promote(record)? };
            let Some(bucket) = bucket else {
                let last = self.waiting.len() - 1;
                if self.waiting[last].is_empty() {
                    return Ok(false);
                }
                self.giving = Some((last, 0));
                break;
            };
            self.waiting[bucket].push(record)?;
            self.give_if_full(bucket);
        }
        let Some((bucket, given)) = self.giving else { return Ok(false) };
        self.waiting[bucket].copy_to(given, record)?;
        record.bucket = bucket;
        self.giving = Some((bucket, given + 1));
        if given + 1 == self.waiting[bucket].len() {
            self.waiting[bucket].clear();
            self.giving = None;
        }
        Ok(true)
    }

    fn leave_out(&mut self) -> bool {
        let mut free = self.waiting[0].free();
        let written = self.buckets.blank(&mut free).map(|()| free.lengths());
        let Ok(lengths) = written else { return false };
        self.waiting[0].keep(lengths, 0);
        self.give_if_full(0);
        true
    }
}
