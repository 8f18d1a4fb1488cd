//! Work on one record at a time.

use crate::{DataError, Record, Schema};
use std::sync::Arc;
use std::time::Duration;

/// Stages that take less time for a record are not shown in traces: that of all records is.
const SHORTEST_TRACED: Duration = Duration::from_micros(2);

/// Maps one record to another. Worker threads call it concurrently, and results never depend on their number: random
/// numbers are functions of [`Record::place`].
///
/// For a closure there is [`crate::Pipeline::map`].
pub trait Stage: Send + Sync {
    /// The columns it writes; an error if it does not accept records of `input`.
    fn schema(&self, input: &Schema) -> Result<Schema, DataError>;

    /// Writes `output` from `input`. `scratch` is at least [`Stage::scratch_bytes`] long, with undefined content.
    fn apply(
        &self,
        input: &mut Record<'_>,
        output: &mut Record<'_>,
        scratch: &mut [u8],
    ) -> Result<(), DataError>;

    /// Its name in traces: that of its type.
    fn name(&self) -> &'static str {
        let name = std::any::type_name::<Self>();
        let path = name.split('<').next().unwrap_or(name);
        path.rsplit("::").next().unwrap_or(path)
    }

    /// Bytes of scratch that one thread needs for records of `input`.
    fn scratch_bytes(&self, input: &Schema) -> usize {
        let _ = input;
        0
    }

    /// The most heap bytes that libraries allocate while this many threads run the stage at once.
    fn decoder_bytes(&self, readers: usize) -> usize {
        let _ = readers;
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

/// A stage with its input and output columns.
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

    /// Bytes that one thread needs: the input record, and the scratch of reading it or of the stage.
    pub fn scratch_bytes(&self, reading: usize) -> usize {
        self.input.capacity().saturating_add(reading.max(self.stage.scratch_bytes(&self.input)))
    }

    /// Reads a record into the scratch, and writes the stage's output.
    pub fn run(
        &self,
        output: &mut Record<'_>,
        scratch: &mut [u8],
        read: impl FnOnce(&mut Record<'_>, &mut [u8]) -> Result<(), DataError>,
        origin: impl FnOnce() -> String,
    ) -> Result<(), DataError> {
        let (own, rest) = scratch.split_at_mut(self.input.capacity());
        let mut input = Record::over(&self.input, own);
        input.place = output.place;
        read(&mut input, rest)?;
        self.apply(&mut input, output, rest).map_err(|error| error.of(origin))
    }

    /// Runs the stage, with a span in the trace if it takes time.
    pub fn apply(
        &self,
        input: &mut Record<'_>,
        output: &mut Record<'_>,
        scratch: &mut [u8],
    ) -> Result<(), DataError> {
        let started = plimsoll_trace::now();
        let applied = self.stage.apply(input, output, scratch);
        if let Some((started, time)) = started.map(|started| (started, started.elapsed()))
            && time >= SHORTEST_TRACED
        {
            plimsoll_trace::span_of(started, time, "input", self.stage.name(), &[]);
        }
        applied
    }
}
