//! A stream of records that a closure writes.

use crate::{DataError, Record, Schema, Stream, Streamed};

/// Calls a closure for each epoch; the closure that it returns writes record after record.
pub(crate) struct Generator<F> {
    pub schema: Schema,
    pub start: F,
    /// Declared heap bytes of the closures.
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
