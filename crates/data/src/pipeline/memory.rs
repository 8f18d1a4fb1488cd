//! The memory of a pipeline, stated before it is allocated.

use super::buckets::grouped::Grouped;
use super::{Head, Pipeline};
use crate::core::budget::zeroed;
use crate::{Counted, DataError, Schema};

/// One part of a pipeline's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Its name in the load sheet.
    pub name: &'static str,
    /// Its size at most.
    pub bytes: usize,
    /// How the size is computed.
    pub how: String,
}

/// Memory of a source: file lists, or the examples themselves.
pub const DATA_SET: &str = "data set";
/// Batches that are being filled or used.
pub const BATCHES: &str = "batches";
/// Records in the workers' scratch; an idle pipeline ([`crate::Batches::settle`]) holds none of it.
pub const INPUT_WORKERS: &str = "input workers";
/// Heap of decoder libraries while they run; an idle pipeline ([`crate::Batches::settle`]) holds none of it.
pub const DECODERS: &str = "decoders";
/// Buffered records of a shuffled stream.
pub const SHUFFLE_BUFFER: &str = "shuffle buffer";
/// Buffered records of the buckets.
pub const BUCKET_BUFFER: &str = "bucket buffer";
/// Records cached after their first reading.
pub const CACHE: &str = "cache";

/// Queues of a running pipeline, and again of each of its workers.
const ENGINE_BYTES: usize = 4 << 10;
/// Touched stack of a worker, with the kernel's records of the thread.
const STACK_BYTES: usize = 48 << 10;

impl Pipeline {
    /// Heap bytes that the source holds already, with the names of its classes and columns.
    pub fn resident_bytes(&self) -> usize {
        let source = match &self.head {
            Head::Indexed(source) => source.resident_bytes(),
            Head::Streamed(stream, _) => stream.resident_bytes().saturating_sub(stream.buffer_bytes()),
        };
        source.saturating_add(self.preparation().bytes())
    }

    /// The same without what `counted` has already.
    pub(crate) fn resident_bytes_once(&self, counted: &mut Counted) -> usize {
        let Head::Indexed(source) = &self.head else { return self.resident_bytes() };
        let bytes = counted.shared(source);
        let own = self.preparation.as_ref().is_some_and(|preparation| counted.is_new(preparation));
        bytes.saturating_add(if own { self.preparation().bytes() } else { 0 })
    }

    /// The most memory that it takes while it runs, part by part, known before it starts. The source's own bytes are
    /// already allocated.
    pub fn bytes(&self) -> Vec<Share> {
        let workers = self.workers.most();
        let mut shares = Vec::new();
        let mut push = |name, bytes: usize, how: String| {
            if bytes > 0 {
                shares.push(Share { name, bytes, how });
            }
        };
        push(
            DATA_SET,
            self.resident_bytes().saturating_sub(self.cache_bytes),
            "what the source holds".into(),
        );
        push(CACHE, self.cache_bytes, "records after their first reading".into());
        if let Head::Streamed(stream, _) = &self.head {
            push(SHUFFLE_BUFFER, stream.buffer_bytes(), "records of the stream".into());
        }
        let (ring, size) = (self.ring(), self.rows());
        if let Some(buckets) = &self.buckets {
            let how = format!("{size} records of each of {} buckets", buckets.batches.len());
            push(BUCKET_BUFFER, Grouped::own_bytes(buckets, size), how);
        }
        let queues = workers.saturating_add(1).saturating_mul(ENGINE_BYTES);
        let batches = ring.saturating_mul(self.batch_bytes()).saturating_add(queues);
        let held = self.held_rows();
        let of = if self.reads_own_rows() { format!("{held} of {size}") } else { size.to_string() };
        push(BATCHES, batches, format!("{ring} × {of} examples"));
        let scratch = self.scratch_bytes();
        let at_once = workers.max(1);
        push(
            INPUT_WORKERS,
            at_once.saturating_mul(scratch),
            format!("{at_once} × {scratch} bytes of records"),
        );
        push(DECODERS, self.decoder_bytes(at_once), format!("while {at_once} decode"));
        shares
    }

    /// Stack and kernel records of the threads, in addition to [`Pipeline::bytes`].
    pub fn stack_bytes(&self) -> usize {
        self.workers.most().saturating_mul(STACK_BYTES)
    }

    /// Bytes of one example of the largest type of batch.
    pub(crate) fn row_bytes(&self) -> usize {
        self.batch_schemas().iter().map(Schema::capacity).max().unwrap_or(0)
    }

    /// The maximum number of batches that exist at once.
    pub(crate) fn ring(&self) -> usize {
        if self.workers.most() == 0 { 1 } else { self.prefetch.most().saturating_add(1) }
    }

    /// Bytes of one batch.
    pub fn batch_bytes(&self) -> usize {
        self.row_bytes().saturating_mul(self.held_rows())
    }

    /// Rows of a batch's buffers.
    pub fn held_rows(&self) -> usize {
        match self.own.filter(|_| self.reads_own_rows()) {
            Some(own) => own.into_iter().map(|(examples, own)| own.count(examples)).fold(1, usize::max),
            None => self.rows(),
        }
    }

    /// Records of a batch: no more than an epoch has.
    pub(crate) fn rows(&self) -> usize {
        self.batch.min(self.len().unwrap_or(usize::MAX)).max(1)
    }

    /// Allocates the scratch of one worker, unless it is.
    pub(crate) fn fill_scratch(&self, scratch: &mut Vec<u8>) -> Result<(), DataError> {
        let bytes = if scratch.is_empty() { self.scratch_bytes() } else { 0 };
        if bytes > 0 {
            *scratch = zeroed("the records that a worker reads", bytes as u64)?;
        }
        Ok(())
    }

    /// Bytes of scratch of one worker.
    pub(crate) fn scratch_bytes(&self) -> usize {
        if let Some(buckets) = &self.buckets {
            return buckets.records.capacity().saturating_add(self.streamed().scratch_bytes());
        }
        match &self.head {
            Head::Indexed(source) => source.scratch_bytes(),
            Head::Streamed(stream, steps) => {
                let inputs = steps.iter().map(|step| step.input.capacity());
                let inputs = match self.between() {
                    Some(record) if steps.is_empty() => record.capacity(),
                    _ => inputs.fold(0, usize::saturating_add),
                };
                let own = steps.iter().map(|step| step.stage.scratch_bytes(&step.input));
                inputs.saturating_add(own.chain([stream.scratch_bytes()]).max().unwrap_or(0))
            }
        }
    }

    fn decoder_bytes(&self, workers: usize) -> usize {
        match &self.head {
            Head::Indexed(source) => source.decoder_bytes(workers),
            Head::Streamed(stream, steps) => {
                // Workers may be at different steps.
                let own = steps.iter().map(|step| step.stage.decoder_bytes(workers));
                own.fold(stream.decoder_bytes(1), usize::saturating_add)
            }
        }
    }
}
