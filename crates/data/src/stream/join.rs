//! Two streams as one.

use crate::source::join::{Join, joined_schema};
use crate::{DataError, Record, Schema, Stream, Streamed};
use std::sync::Arc;

/// Two streams as one.
pub(crate) struct JoinedStreams {
    parts: [Arc<dyn Streamed>; 2],
    join: Join,
    schema: Schema,
}

impl JoinedStreams {
    pub fn new(join: Join, parts: [Arc<dyn Streamed>; 2]) -> Result<Self, DataError> {
        let schema = joined_schema(join, [parts[0].schema(), parts[1].schema()])?;
        Ok(Self { parts, join, schema })
    }
}

struct JoinedStream {
    parts: [Box<dyn Stream>; 2],
    ended: [bool; 2],
    join: Join,
    first_columns: usize,
    next_part: usize,
}

impl Streamed for JoinedStreams {
    fn schema(&self) -> &Schema {
        &self.schema
    }
    fn start(&self, epoch: u64) -> Result<Box<dyn Stream>, DataError> {
        Ok(Box::new(JoinedStream {
            parts: [self.parts[0].start(epoch)?, self.parts[1].start(epoch)?],
            ended: [false; 2],
            join: self.join,
            first_columns: self.parts[0].schema().columns().len(),
            next_part: 0,
        }))
    }
    fn resident_bytes(&self) -> usize {
        self.parts[0].resident_bytes().saturating_add(self.parts[1].resident_bytes())
    }
    fn buffer_bytes(&self) -> usize {
        self.parts[0].buffer_bytes().saturating_add(self.parts[1].buffer_bytes())
    }
    fn scratch_bytes(&self) -> usize {
        self.parts[0].scratch_bytes().max(self.parts[1].scratch_bytes())
    }
    fn decoder_bytes(&self, readers: usize) -> usize {
        self.parts[0].decoder_bytes(readers).saturating_add(self.parts[1].decoder_bytes(readers))
    }
    fn origin(&self, origin: u64) -> String {
        // A zip names the origin of its first record.
        match self.join {
            Join::Zip => self.parts[0].origin(origin),
            _ => self.parts[usize::from(origin & 1 == 1)].origin(origin >> 1),
        }
    }
}

impl Stream for JoinedStream {
    fn next(&mut self, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<bool, DataError> {
        if self.join == Join::Zip {
            let (mut front, mut back) = record.split_at(self.first_columns);
            let first = self.parts[0].next(&mut front, scratch);
            if let Ok(false) = first {
                return Ok(false);
            }
            // A bad record invalidates its pair: both streams advance.
            let second = self.parts[1].next(&mut back, scratch);
            if let Ok(false) = second {
                return Ok(false);
            }
            first.and(second)?;
            let (lengths, origin) = ([front.lengths(), back.lengths()], front.place.origin);
            record.set_lengths(self.first_columns, lengths);
            record.place.origin = origin;
            return Ok(true);
        }
        while !(self.ended[0] && self.ended[1]) {
            let part = self.next_part;
            let other = 1 - part;
            if self.ended[part] {
                self.next_part = other;
                continue;
            }
            let more = self.parts[part].next(record, scratch);
            self.ended[part] = matches!(more, Ok(false));
            if (self.join == Join::Interleave || self.ended[part]) && !self.ended[other] {
                self.next_part = other;
            }
            if more? {
                // The lowest bit of the origin is the part; nested joins each shift one in.
                record.place.origin = record.place.origin << 1 | part as u64;
                return Ok(true);
            }
        }
        Ok(false)
    }
}
