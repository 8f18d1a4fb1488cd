//! Plans and runs training under a memory line.
//!
//! - A [`Trainer`] is a builder: model, optimizer, batch size, schedule, line, callbacks. It allocates nothing.
//! - A [`TrainingPlan`] (from [`Trainer::plan`]) owns what was planned: the data, the steps and arena offsets of every batch
//!   type (training, evaluation and prediction batches, and their remainders), and the load sheet, the account of every byte.
//!   A line that no plan fits under is an error here, before anything runs.
//! - A [`Session`] (from [`TrainingPlan::start`]) owns the memory of a plan: it trains, evaluates, predicts, saves and resumes.
//! - A [`Predictor`] is a session for a trained model alone: weights from a file, answers for tensors, pictures and rows.
//!
//! ```
//! use plimsoll_data::datasets;
//! use plimsoll_nn::{AdamW, zoo};
//! use plimsoll_plan::MiB;
//! use plimsoll_train::Trainer;
//!
//! let data = datasets::mnist()?;
//! let plan = Trainer::new(zoo::lenet(), AdamW::new(1e-3)).memory(MiB(128)).steps(3).plan(&data)?;
//! assert!(plan.load_sheet().total_bytes <= 128 << 20);
//! let mut session = plan.start()?; // the memory is allocated here
//! let report = session.fit()?;
//! assert_eq!(report.steps, 3);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Where to find what:
//!
//! | what | where |
//! |---|---|
//! | the training loop: steps, validations, checkpoints | `session/fit.rs` ([`Session::fit`]) |
//! | micro-batches, rematerialization, offload: which a run uses | `plimsoll_plan`'s `choice` ([`plimsoll_plan::Chooser`]), called by `trainer/planning.rs` |
//! | graphs of batch types, gradient accumulation over micro-batches | `trainer/graphs.rs` |
//! | byte accounting outside the arena | `trainer/accounting.rs`, under the entry names of [`plimsoll_plan::sheet`] |
//! | replicas on logical devices: parts of the batch, a plan for each | `trainer/devices.rs` ([`LogicalDevices`]), `trainer/replicas.rs` |
//! | layers on logical devices | `trainer/placement.rs` ([`Placement`]) |
//! | plans under many lines: floor, curve | `trainer/forecast.rs` ([`Forecast`]) |
//! | events, callbacks, early stopping, the memory watch | `session/event.rs`, `session/callback.rs`, `session/watch.rs` |
//! | the layer a NaN came from | `session/diverged.rs` ([`Diverged`]) |
//! | checkpoints: format, folder, resume | `files/checkpoint.rs`, `files/checkpoint_folder.rs`, `session/checkpoints.rs` |
//! | weights files under PyTorch's and Keras's names | `files/weights.rs` ([`Names`]) |
//! | predictions of tensors, pictures and tables | [`Predictor`] |
//! | metrics in bounded memory | [`metrics`] |
//! | the process besides the arena: its account, heap, watchdog | [`memory`] |

mod error;
mod files;
pub mod memory;
pub mod metrics;
mod predictor;
mod progress;
mod session;
mod suggestion;
mod trainer;

pub use error::TrainError;
pub use files::{
    DataFile, EVENTS_FILE, Loaded, MANIFEST, Names, RunEvent, RunEventKind, RunEvents, RunLog,
    STATE_BUFFER_BYTES, TensorBoard, TrainState, WEIGHTS_FILE, WeightsFile, checkpoints, read_events,
    sparse_parameters, stored_sparse, write_atomically,
};
pub use plimsoll_plan::sheet::{
    BATCH_BUFFERS, BATCHES_AHEAD, HEAP_CAP, INPUT_STACKS, METRICS, MODEL_FILE, OUTPUTS, STATE_BUFFER, TRACE,
};
pub use plimsoll_transform::{Reduction, Shard, StateBytes};
pub use predictor::{Likely, Predictions, Predictor, PredictorBuilder, likeliest};
pub use progress::Progress;
pub use session::{
    Best, Callback, Control, Diverged, EarlyStopping, Ending, Evaluation, Held, Kept, Monitor, Origin,
    Overload, OwnSchedule, Plateau, Report, Resumed, Saved, Scale, Schedule, Session, ShowProgress,
    TrainEvent, Watch,
};
pub use trainer::{
    BatchKind, DeviceName, Forecast, LogicalDevices, Placement, Tally, Trainer, TrainingPlan, communication,
    largest_that, tally,
};
