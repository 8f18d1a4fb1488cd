//! What everything else is made of: records, their schema, batches, errors, and memory that is checked before it is taken.

pub(crate) mod batch;
pub(crate) mod budget;
pub(crate) mod dataset;
pub(crate) mod error;
pub(crate) mod file_io;
pub(crate) mod guard;
pub(crate) mod record;
pub(crate) mod schema;
pub(crate) mod shared_buffer;
