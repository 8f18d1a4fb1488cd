//! A source with random access as a stream.

use crate::{DataError, Record, Schema, Source, Stream, Streamed};
use std::sync::Arc;

/// A source read in index order.
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
    fn decoder_bytes(&self, readers: usize) -> usize {
        self.0.decoder_bytes(readers)
    }
    fn origin(&self, origin: u64) -> String {
        // Only the position in the epoch's order is known here.
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
