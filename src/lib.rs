//! Plimsoll trains neural networks inside a memory line that you draw, and proves before the first step that the line
//! holds.
//!
//! Describe a model, draw a line, read the load sheet, train:
//!
//! ```
//! use plimsoll::prelude::*;
//!
//! let data = datasets::mnist()?; // train, validation, test
//! let model = Sequential::classifier("digits", [28, 28, 1], 10)
//!     .layer("flatten", Flatten)
//!     .layer("hidden", Dense::new(32))
//!     .layer("relu", Activation::Relu)
//!     .layer("head", Dense::new(10));
//! let plan = Trainer::new(model, AdamW::new(1e-3)).memory(MiB(128)).batch(100).steps(20).plan(&data)?;
//! println!("{}", plan.load_sheet()); // every byte is known here; nothing is allocated yet
//! let mut run = plan.start()?;
//! run.fit()?;
//! assert!(run.evaluate(&data.test)?.accuracy > Some(0.3));
//! # Ok::<(), plimsoll::Error>(())
//! ```

pub use plimsoll_plan::{Size, SizeError};
pub use plimsoll_train::{TrainError as Error, memory};

/// The result of planning and training.
pub type Result<T, E = Error> = std::result::Result<T, E>;

pub use plimsoll_cpu as cpu;
pub use plimsoll_data as data;
pub use plimsoll_graph as graph;
pub use plimsoll_nn as nn;
pub use plimsoll_plan as plan;
pub use plimsoll_runtime as runtime;
pub use plimsoll_tensor as tensor;
pub use plimsoll_train as train;
pub use plimsoll_transform as transform;

/// What most programs import.
pub mod prelude {
    pub use plimsoll_cpu::Cpu;
    pub use plimsoll_data::{
        Batch, Batches, Buckets, Cursor, Dataset, Memory, OpenOptions, Pipeline, Record, Schema, Source,
        Stage, ValidationSplit, datasets, open,
    };
    pub use plimsoll_graph::{GraphError, Init, ValueId};
    pub use plimsoll_nn::{
        Activation, AdamW, AveragePool2d, BatchNorm, BinaryCrossEntropy, Conv1d, Conv2d, CrossEntropy, Dense,
        DepthwiseConv2d, Dice, Dropout, Embedding, Field, Flatten, GlobalAveragePool, GroupNorm, Gru, Head,
        Layer, LayerNorm, Loss, Lstm, MaxPool2d, MeanSquaredError, Model, MultiHeadAttention, Net, Optimizer,
        Padding, Policy, Precision, Residual, RmsNorm, Sequential, Sgd, TransformerBlock, WithLoss, step,
        zoo,
    };
    pub use plimsoll_plan::{GiB, MiB, Size};
    pub use plimsoll_tensor::{DType, HostTensor, Shape, TensorType};
    pub use plimsoll_train::{
        BatchKind, Callback, Control, EarlyStopping, Evaluation, Names, OwnSchedule, Report, RunLog,
        Schedule, Session, TrainError, TrainEvent, Trainer, TrainingPlan, metrics,
    };
}

/// Compiles the snippets of the guide.
#[cfg(doctest)]
#[doc = include_str!("../docs/coming-from-pytorch-and-keras.md")]
mod coming_from_pytorch_and_keras {}
