//! The training loop, state and events.
//!
//! A [`Trainer`] holds what a run is; [`Trainer::plan`] answers before anything is allocated, [`Trainer::prepare`]
//! takes the arena, and the [`Session`] trains, evaluates and predicts in it.

mod best;
mod callback;
mod checkpoint;
mod diverged;
mod error;
mod event;
mod feed;
mod fit;
mod init;
mod layout;
mod log;
pub mod metrics;
mod nearest;
mod run_log;
mod schedule;
mod session;
mod tensor_file;
mod trainer;
mod watch;
mod weights;

pub use best::{Best, Monitor};
pub use callback::{Callback, EarlyStopping, OwnSchedule};
pub use checkpoint::{MANIFEST, Resumed, TrainState, checkpoints};
pub use diverged::{Diverged, Origin};
pub use error::TrainError;
pub use event::{Control, Ending, Evaluation, Report, Scale, TrainEvent};
pub use init::CHUNK_BYTES as STATE_BUFFER_BYTES;
pub use plimsoll_plan::sheet::{
    BATCH_BUFFERS, BATCHES_AHEAD, HEAP_CAP, INPUT_STACKS, METRICS, OUTPUTS, STATE_BUFFER,
};
pub use run_log::RunLog;
pub use schedule::{Plateau, Schedule};
pub use session::Session;
pub use trainer::{BatchKind, Forecast, Tally, Trainer, tally};
pub use watch::{Held, Overload, Saved, Watch};
pub use weights::Names;
