//! Files of a run: weights, checkpoints, what the data decided, the run log (`run_log.rs` writes it, `events.rs` reads it), and what
//! TensorBoard reads.
//!
//! `tensor_file.rs` reads and writes safetensors files of states, with checked lengths and atomic writes. `weights.rs` maps
//! names and layouts of other frameworks (`layout.rs`), `checkpoint.rs` adds where the run stands, and
//! `checkpoint_folder.rs` names and prunes a folder of them. `joined.rs` reads a checkpoint whose processes wrote a part each. `sparse.rs` is
//! about pruned parameters. What logs write of steps waits in `waiting.rs` for more of it. Every file is untrusted input.

mod checkpoint;
pub(crate) mod checkpoint_folder;
mod data_file;
mod events;
mod joined;
pub(crate) mod layout;
mod run_log;
mod sparse;
pub(crate) mod tensor_file;
mod tensorboard;
mod waiting;
pub(crate) mod weights;

pub use checkpoint::TrainState;
pub(crate) use checkpoint::max_header_bytes;
pub use checkpoint_folder::{MANIFEST, checkpoints};
pub use data_file::DataFile;
pub use events::{RunEvent, RunEventKind, RunEvents, read_events};
pub use run_log::{EVENTS_FILE, RunLog};
pub(crate) use sparse::kept_in_state;
pub use sparse::{sparse_parameters, stored_sparse};
pub use tensor_file::write_atomically;
pub use tensorboard::TensorBoard;
pub use weights::{Loaded, Names, WEIGHTS_FILE, WeightsFile};

/// Bytes of the buffer through which states pass chunk by chunk, on their way to and from files.
pub const STATE_BUFFER_BYTES: usize = 64 << 10;
