//! Work on records one by one, on many threads.

use crate::{DataError, Record, Schema, Source};
use std::sync::Arc;

/// What is done with each record: reads one, writes one. Worker threads call it at the same time, and results never depend
/// on how many there are: random numbers are made of [`Record::place`].
///
/// For a closure there is [`crate::Pipeline::map`].
pub trait Stage: Send + Sync {
    /// The columns it writes; an error if it cannot take records of `input`.
    fn schema(&self, input: &Schema) -> Result<Schema, DataError>;

    /// Writes `output` from `input`. `scratch` is at least [`Stage::scratch_bytes`] long, and holds anything.
    fn apply(
        &self,
        input: &mut Record<'_>,
        output: &mut Record<'_>,
        scratch: &mut [u8],
    ) -> Result<(), DataError>;

    /// Bytes of scratch that one thread needs for records of `input`.
    fn scratch_bytes(&self, input: &Schema) -> usize {
        let _ = input;
        0
    }

    /// Heap bytes that a library takes at most while one thread is at work.
    fn decoder_bytes(&self) -> usize {
        0
    }
}

/// A closure with the columns it writes.
pub(crate) struct Closure<F> {
    pub schema: Schema,
    pub work: F,
}

impl<F> Stage for Closure<F>
where
    F: Fn(&Record<'_>, &mut Record<'_>) -> Result<(), DataError> + Send + Sync,
{
    fn schema(&self, _: &Schema) -> Result<Schema, DataError> {
        Ok(self.schema.clone())
    }

    fn apply(&self, input: &mut Record<'_>, output: &mut Record<'_>, _: &mut [u8]) -> Result<(), DataError> {
        (self.work)(input, output)
    }
}

/// A stage with the columns it takes and gives.
#[derive(Clone)]
pub(crate) struct Step {
    pub stage: Arc<dyn Stage>,
    pub input: Schema,
    pub output: Schema,
}

impl Step {
    pub fn new(stage: Arc<dyn Stage>, input: &Schema) -> Result<Self, DataError> {
        let output = stage.schema(input)?;
        output.check()?;
        Ok(Self { input: input.clone(), output, stage })
    }

    /// Bytes that one thread needs: the record that goes in, and what reading it or the stage takes besides.
    pub fn scratch_bytes(&self, reading: usize) -> usize {
        self.input.room().saturating_add(reading.max(self.stage.scratch_bytes(&self.input)))
    }

    /// Reads a record into the scratch, and writes what the stage makes of it.
    pub fn run(
        &self,
        output: &mut Record<'_>,
        scratch: &mut [u8],
        read: impl FnOnce(&mut Record<'_>, &mut [u8]) -> Result<(), DataError>,
        origin: impl FnOnce() -> String,
    ) -> Result<(), DataError> {
        let (own, rest) = scratch.split_at_mut(self.input.room());
        let mut input = Record::over(&self.input, own);
        input.place = output.place;
        read(&mut input, rest)?;
        self.stage.apply(&mut input, output, rest).map_err(|error| error.of(origin))
    }
}

/// A source whose records go through a stage when they are read.
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
    fn scratch_bytes(&self) -> usize {
        self.step.scratch_bytes(self.source.scratch_bytes())
    }
    fn decoder_bytes(&self) -> usize {
        self.source.decoder_bytes().max(self.step.stage.decoder_bytes())
    }
    fn origin(&self, index: usize, epoch: u64) -> String {
        self.source.origin(index, epoch)
    }
}
