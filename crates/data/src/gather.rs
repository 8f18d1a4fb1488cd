//! The order in which records of many lengths come, so that each batch is of one bucket.

use crate::buckets::Bucketing;
use crate::held::Held;
use crate::{DataError, Record, Schema, Source, Stream, Streamed};
use std::sync::Arc;

/// A stream whose records come a batch of one bucket after another. Whatever is left at the end goes up to the next
/// larger bucket, so that at most one batch of an epoch is not full: the last, of the largest bucket.
pub(crate) struct Gathered {
    pub of: Arc<dyn Streamed>,
    /// What it reads, where that can say where a record is from.
    pub source: Option<Arc<dyn Source>>,
    pub buckets: Arc<Bucketing>,
    /// Records of a batch.
    pub size: usize,
}

struct Gathering {
    stream: Box<dyn Stream>,
    source: Option<Arc<dyn Source>>,
    of: Arc<dyn Streamed>,
    buckets: Arc<Bucketing>,
    size: usize,
    /// The records of each bucket that wait for others.
    held: Vec<Held>,
    /// The bucket that is given out, and how many of its records were.
    giving: Option<(usize, usize)>,
    ended: bool,
    epoch: u64,
    /// Records asked of the stream: the numbers that stages before it see.
    asked: u64,
}

impl Gathered {
    /// Heap bytes of the records that wait.
    pub fn own_bytes(buckets: &Bucketing, size: usize) -> usize {
        let each = buckets.held.iter().map(|schema| Held::heap_bytes(schema, size));
        each.fold(0, |sum: usize, bytes| sum.saturating_add(bytes))
    }
}

impl Streamed for Gathered {
    fn schema(&self) -> &Schema {
        self.of.schema()
    }
    fn start(&self, epoch: u64) -> Result<Box<dyn Stream>, DataError> {
        let held = self.buckets.held.iter();
        let held = held.map(|schema| Held::new("the records of a bucket", schema.clone(), self.size));
        Ok(Box::new(Gathering {
            stream: self.of.start(epoch)?,
            source: self.source.clone(),
            of: self.of.clone(),
            buckets: self.buckets.clone(),
            size: self.size,
            held: held.collect::<Result<_, _>>()?,
            giving: None,
            ended: false,
            epoch,
            asked: 0,
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
    fn decoder_bytes(&self) -> usize {
        self.of.decoder_bytes()
    }
    fn origin(&self, origin: u64) -> String {
        self.of.origin(origin)
    }
}

impl Gathering {
    /// Reads the next record, and finds its bucket; `None` at the end.
    fn read(&mut self, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<Option<usize>, DataError> {
        if self.ended {
            return Ok(None);
        }
        let number = std::mem::replace(&mut record.place.number, self.asked);
        self.asked += 1;
        let more = self.stream.next(record, scratch);
        record.place.number = number;
        let place = record.place.origin;
        let origin = || match &self.source {
            Some(source) => source.origin(place as usize, self.epoch),
            None => self.of.origin(place),
        };
        let more = match more {
            // A stream says itself where it failed.
            Err(error) if self.source.is_some() => Err(error.of(origin)),
            more => more,
        };
        self.ended = !more?;
        if self.ended {
            return Ok(None);
        }
        self.buckets.of(record).map(Some).map_err(|error| error.of(origin))
    }

    /// A record that goes up to a larger bucket: at the end, the last of the smallest that has some.
    fn lift(&mut self, record: &mut Record<'_>) -> Result<Option<usize>, DataError> {
        let below = self.held.len() - 1;
        let Some(bucket) = self.held[..below].iter().position(|held| !held.is_empty()) else {
            return Ok(None);
        };
        let held = &mut self.held[bucket];
        let last = held.len() - 1;
        held.copy_to(last, record)?;
        held.remove(last);
        Ok(Some(bucket + 1))
    }

    /// Gives a bucket out once it has a batch.
    fn give_if_full(&mut self, bucket: usize) {
        if self.held[bucket].len() == self.size {
            self.giving = Some((bucket, 0));
        }
    }
}

impl Stream for Gathering {
    fn next(&mut self, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<bool, DataError> {
        while self.giving.is_none() {
            if record.is_stopped() {
                return Ok(false);
            }
            let read = self.read(record, scratch)?;
            let bucket = if read.is_some() { read } else { self.lift(record)? };
            let Some(bucket) = bucket else {
                let last = self.held.len() - 1;
                if self.held[last].is_empty() {
                    return Ok(false);
                }
                self.giving = Some((last, 0));
                break;
            };
            self.held[bucket].push(record)?;
            self.give_if_full(bucket);
        }
        let Some((bucket, given)) = self.giving else { return Ok(false) };
        self.held[bucket].copy_to(given, record)?;
        record.bucket = bucket;
        self.giving = Some((bucket, given + 1));
        if given + 1 == self.held[bucket].len() {
            self.held[bucket].clear();
            self.giving = None;
        }
        Ok(true)
    }

    fn leave_out(&mut self) -> bool {
        let mut free = self.held[0].free();
        let written = self.buckets.blank(&mut free).map(|()| free.lengths());
        let Ok(lengths) = written else { return false };
        self.held[0].keep(lengths, 0);
        self.give_if_full(0);
        true
    }
}
