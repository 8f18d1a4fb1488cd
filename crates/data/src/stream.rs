//! Records that come one after another.

use crate::{DataError, Record, Schema, Source};
use std::sync::Arc;

/// Records in their order, once.
pub trait Stream: Send {
    /// Writes the next record, or returns `false` at the end. `scratch` is at least [`Streamed::scratch_bytes`] long. A
    /// record that is bad is an error, and the next call goes on after it.
    fn next(&mut self, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<bool, DataError>;

    /// Told that the record which the last call found bad is skipped: whether an empty one comes in its place.
    fn leave_out(&mut self) -> bool {
        false
    }
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
