//! The training loop, state and events.
//!
//! A [`Trainer`] holds what a run is; [`Trainer::plan`] answers before anything is allocated, [`Trainer::prepare`]
//! takes the arena, and the [`Session`] trains, evaluates and predicts in it.

mod checkpoint;
mod error;
mod event;
mod feed;
mod forecast;
mod init;
mod log;
pub mod metrics;
mod nearest;
mod planning;
mod schedule;
mod session;
mod tensor_file;
mod trainer;
mod watch;
mod weights;

pub use checkpoint::{CHECKPOINT, TrainState};
pub use error::TrainError;
pub use event::{Control, Evaluation, Report, Scale, TrainEvent};
pub use forecast::{Forecast, Tally, tally};
pub use init::CHUNK_BYTES as STATE_BUFFER_BYTES;
pub use nearest::nearest;
pub use schedule::{Plateau, Schedule};
pub use session::Session;
pub use trainer::{BATCH_BUFFERS, BatchKind, HEAP_CAP, INPUT_STACKS, OUTPUTS, STATE_BUFFER, Trainer};
pub use watch::{Held, Overload, Saved, Watch};
