//! The training loop, state and events.
//!
//! A [`Trainer`] holds what a run is; [`Trainer::plan`] answers before anything is allocated, [`Trainer::prepare`]
//! takes the arena, and the [`Session`] trains, evaluates and predicts in it.

mod error;
mod files;
pub mod metrics;
mod nearest;
mod session;
mod trainer;

pub use error::TrainError;
pub use files::{MANIFEST, Names, RunLog, STATE_BUFFER_BYTES, TrainState, checkpoints};
pub use nearest::nearest;
pub use plimsoll_plan::sheet::{
    BATCH_BUFFERS, BATCHES_AHEAD, HEAP_CAP, INPUT_STACKS, METRICS, OUTPUTS, STATE_BUFFER,
};
pub use session::{
    Best, Callback, Control, Diverged, EarlyStopping, Ending, Evaluation, Held, Monitor, Origin, Overload,
    OwnSchedule, Plateau, Report, Resumed, Saved, Scale, Schedule, Session, TrainEvent, Watch,
};
pub use trainer::{BatchKind, Forecast, Tally, Trainer, tally};
