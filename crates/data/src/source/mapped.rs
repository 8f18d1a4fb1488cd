//! A source with a stage after it.

use crate::transforms::stage::{Stage, Step};
use crate::{Counted, DataError, Record, Schema, Source};
use std::sync::Arc;

/// A source whose records pass through a stage when they are read.
pub(crate) struct Mapped {
    source: Arc<dyn Source>,
    step: Step,
}

impl Mapped {
    pub fn new(source: Arc<dyn Source>, stage: Arc<dyn Stage>) -> Result<Self, DataError> {
        let step = Step::new(stage, source.schema())?;
        Ok(Self { source, step })
    }
}

impl Source for Mapped {
    fn schema(&self) -> &Schema {
        &self.step.output
    }
    fn len(&self) -> usize {
        self.source.len()
    }
    fn read(&self, index: usize, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<(), DataError> {
        let epoch = record.place.epoch;
        let read = |input: &mut Record<'_>, rest: &mut [u8]| self.source.read(index, input, rest);
        self.step.run(record, scratch, read, || self.source.origin(index, epoch))
    }
    fn resident_bytes(&self) -> usize {
        self.source.resident_bytes()
    }
    fn resident_bytes_once(&self, counted: &mut Counted) -> usize {
        counted.shared(&self.source)
    }
    fn scratch_bytes(&self) -> usize {
        self.step.scratch_bytes(self.source.scratch_bytes())
    }
    fn decoder_bytes(&self, readers: usize) -> usize {
        // Readers may be at either.
        self.source.decoder_bytes(readers).saturating_add(self.step.stage.decoder_bytes(readers))
    }
    fn origin(&self, index: usize, epoch: u64) -> String {
        self.source.origin(index, epoch)
    }
}
