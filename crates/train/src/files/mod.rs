//! What a run reads and writes: weights, checkpoints, and its log.

mod checkpoint;
pub(crate) mod checkpoint_folder;
pub(crate) mod layout;
mod run_log;
pub(crate) mod tensor_file;
pub(crate) mod weights;

pub use checkpoint::TrainState;
pub(crate) use checkpoint::{Checkpoints, most_header_bytes};
pub use checkpoint_folder::{MANIFEST, checkpoints};
pub use run_log::RunLog;
pub use weights::Names;

/// Bytes of the buffer through which states pass chunk by chunk, on their way to and from files.
pub const STATE_BUFFER_BYTES: usize = 64 << 10;
