//! Two sources as one, by index.

use crate::{Counted, DataError, Record, Schema, Source};
use std::sync::Arc;

/// How two sources or streams become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Join {
    /// One after the other.
    Concatenate,
    /// Alternately, then the rest of the longer.
    Interleave,
    /// Side by side: the columns of the first, then those of the second.
    Zip,
}

/// Two sources as one.
pub(crate) struct Joined {
    parts: [Arc<dyn Source>; 2],
    join: Join,
    schema: Schema,
}

impl Joined {
    pub fn new(join: Join, parts: [Arc<dyn Source>; 2]) -> Result<Self, DataError> {
        let schema = joined_schema(join, [parts[0].schema(), parts[1].schema()])?;
        Ok(Self { parts, join, schema })
    }

    /// The part and the index in it.
    fn find(&self, index: usize) -> (usize, usize) {
        let lens = self.lens();
        match self.join {
            Join::Concatenate if index < lens[0] => (0, index),
            Join::Concatenate => (1, index - lens[0]),
            Join::Interleave => {
                let shorter = lens[0].min(lens[1]);
                match index < shorter.saturating_mul(2) {
                    true => (index % 2, index / 2),
                    false => (usize::from(lens[1] > lens[0]), index - shorter),
                }
            }
            Join::Zip => (0, index),
        }
    }

    fn lens(&self) -> [usize; 2] {
        [self.parts[0].len(), self.parts[1].len()]
    }
}

/// The columns of a join: those of both for a zip, else the common ones.
pub(crate) fn joined_schema(join: Join, [first, second]: [&Schema; 2]) -> Result<Schema, DataError> {
    if join == Join::Zip {
        let columns = first.columns().iter().chain(second.columns());
        let schema =
            columns.fold(Schema::new(), |schema, column| schema.column(&column.name, column.kind.clone()));
        schema.check()?;
        return Ok(schema);
    }
    if first != second {
        return Err(DataError::OtherColumns { expected: first.in_words(), found: second.in_words() });
    }
    Ok(first.clone())
}

impl Source for Joined {
    fn schema(&self) -> &Schema {
        &self.schema
    }
    fn len(&self) -> usize {
        let lens = self.lens();
        match self.join {
            Join::Concatenate | Join::Interleave => lens[0].saturating_add(lens[1]),
            Join::Zip => lens[0].min(lens[1]),
        }
    }
    fn read(&self, index: usize, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<(), DataError> {
        if self.join != Join::Zip {
            let (part, index) = self.find(index);
            return self.parts[part].read(index, record, scratch);
        }
        let first = self.parts[0].schema().columns().len();
        let (mut front, mut back) = record.split_at(first);
        self.parts[0].read(index, &mut front, scratch)?;
        self.parts[1].read(index, &mut back, scratch)?;
        let lengths = [front.lengths(), back.lengths()];
        record.set_lengths(first, lengths);
        Ok(())
    }
    fn resident_bytes(&self) -> usize {
        self.parts[0].resident_bytes().saturating_add(self.parts[1].resident_bytes())
    }
    fn resident_bytes_once(&self, counted: &mut Counted) -> usize {
        self.parts.iter().fold(0, |bytes: usize, part| bytes.saturating_add(counted.shared(part)))
    }
    fn scratch_bytes(&self) -> usize {
        self.parts[0].scratch_bytes().max(self.parts[1].scratch_bytes())
    }
    fn decoder_bytes(&self, readers: usize) -> usize {
        self.parts[0].decoder_bytes(readers).saturating_add(self.parts[1].decoder_bytes(readers))
    }
    fn origin(&self, index: usize, epoch: u64) -> String {
        let (part, index) = self.find(index);
        self.parts[part].origin(index, epoch)
    }
}
