//! Records, schemas, batches and errors; allocation, file I/O and panic guards that the other folders use.

pub(crate) mod batch;
pub(crate) mod budget;
pub(crate) mod dataset;
pub(crate) mod error;
pub(crate) mod file_io;
pub(crate) mod guard;
pub(crate) mod preparation;
pub(crate) mod record;
pub(crate) mod schema;
pub(crate) mod shared_buffer;
