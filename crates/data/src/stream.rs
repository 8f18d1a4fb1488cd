//! Records one after another: the traits, streams of closures and sources, and verbs that change a stream.

pub(crate) mod generator;
pub(crate) mod in_order;
pub(crate) mod join;
pub(crate) mod record_buffer;
pub(crate) mod shuffle;
pub(crate) mod verbs;

use crate::{DataError, Record, Schema};

/// One pass over the records of an epoch.
pub trait Stream: Send {
    /// Writes the next record, or returns `false` at the end. `scratch` is at least [`Streamed::scratch_bytes`] long. A bad
    /// record is an error, and the next call continues after it.
    fn next(&mut self, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<bool, DataError>;

    /// Called when the bad record of the last call is skipped. Returns whether an empty record replaces it.
    fn leave_out(&mut self) -> bool {
        false
    }
}

/// Starts a [`Stream`] for each epoch. A resumed run starts the epoch's stream and skips the records that were already given,
/// without running the stages after it.
pub trait Streamed: Send + Sync {
    /// The columns of its records.
    fn schema(&self) -> &Schema;

    /// The stream of an epoch.
    fn start(&self, epoch: u64) -> Result<Box<dyn Stream>, DataError>;

    /// The most heap bytes that this and one started stream hold.
    fn resident_bytes(&self) -> usize;

    /// Heap bytes of shuffle buffers among them.
    fn buffer_bytes(&self) -> usize {
        0
    }

    /// Bytes of scratch that reading needs.
    fn scratch_bytes(&self) -> usize {
        0
    }

    /// The most heap bytes that libraries allocate while this many threads read records at once.
    fn decoder_bytes(&self, readers: usize) -> usize {
        let _ = readers;
        0
    }

    /// Where a record is from, for errors; `origin` is what the stream wrote into [`crate::Place::origin`].
    fn origin(&self, origin: u64) -> String {
        format!("record {origin}")
    }
}
