//! The training loop, state and events.
//!
//! A [`Trainer`] holds what a run is; [`Trainer::plan`] answers before anything is allocated, [`Trainer::prepare`]
//! takes the arena, and the [`Session`] trains, evaluates and predicts in it.

mod error;
mod event;
mod feed;
mod forecast;
mod init;
pub mod metrics;
mod nearest;
mod planning;
mod session;
mod trainer;
mod weights;

pub use error::TrainError;
pub use event::{Control, Evaluation, Report, TrainEvent};
pub use forecast::{Forecast, Tally, tally};
pub use session::Session;
pub use trainer::{BATCH_BUFFERS, BatchKind, HEAP_CAP, OUTPUTS, Schedule, Trainer};
