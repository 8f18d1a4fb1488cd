//! Plimsoll trains neural networks inside a memory line that you draw, and proves before the first step that the line
//! holds.
//!
//! Describe a model, draw a line, read the load sheet, train:
//!
//! ```
//! use plimsoll::prelude::*;
//!
//! let data = datasets::mnist()?; // train, validation, test
//! let model = Sequential::classifier([28, 28, 1], 10).push(Flatten).push(Dense::new(32)).push(Relu).push(Dense::new(10));
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

pub use plimsoll_compress as compress;
pub use plimsoll_cpu as cpu;
pub use plimsoll_cuda as cuda;
pub use plimsoll_data as data;
pub use plimsoll_eager as eager;
pub use plimsoll_export as export;
pub use plimsoll_graph as graph;
pub use plimsoll_nn as nn;
pub use plimsoll_plan as plan;
pub use plimsoll_report as report;
pub use plimsoll_runtime as runtime;
pub use plimsoll_tensor as tensor;
pub use plimsoll_train as train;
pub use plimsoll_transform as transform;

/// What most programs import.
pub mod prelude {
    pub use plimsoll_compress::{Pruning, Sparsity};
    pub use plimsoll_cpu::Cpu;
    pub use plimsoll_data::{
        Batch, Batches, Buckets, Crop, Cursor, DataError, Dataset, Decode, Memory, Normalise, OneHot,
        OpenOptions, Pipeline, Record, Resize, Schema, Source, Stage, ValidationSplit, datasets, open,
    };
    pub use plimsoll_graph::op::Distribution;
    pub use plimsoll_graph::{GraphError, Init, Value, ValueId};
    pub use plimsoll_nn::{
        Activation, Adafactor, Adam, AdamW, AdaptiveAveragePool2d, AveragePool2d, BatchNorm, Bidirectional,
        BinaryCrossEntropy, Clip, Conv1d, Conv2d, ConvTranspose2d, CosineDistance, CrossEntropy, Decay,
        Dense, DepthwiseConv2d, Dice, Dropout, Elu, Embedding, Field, Flatten, Focal, GaussianNoise, Gelu,
        GeluTanh, GlobalAveragePool, GlobalMaxPool, GroupNorm, Gru, HardSigmoid, HardSwish, Head, Huber,
        KlDivergence, Layer, LayerNorm, LeakyRelu, Lion, LogSoftmax, Loss, LossScale, Lstm, MaxPool2d,
        MeanAbsoluteError, MeanSquaredError, Mish, Mlp, Mode, Model, MultiHeadAttention, Net, Optimizer,
        Padding, Penalty, Permute, Policy, Precision, Recipe, Relu, Relu6, Reshape, Residual, RmsNorm,
        RmsProp, SeparableConv2d, Sequential, Sgd, Sigmoid, Silu, SimpleRnn, SoftCrossEntropy, Softmax,
        Softplus, SpatialDropout, Tanh, TransformerBlock, Upsample, WithLoss, step, zoo,
    };
    pub use plimsoll_plan::{GiB, MiB, Size};
    pub use plimsoll_tensor::{DType, Shape, Tensor, TensorType};
    pub use plimsoll_train::{
        BatchKind, Callback, Control, DeviceName, EarlyStopping, Evaluation, LogicalDevices, Names,
        OwnSchedule, Placement, Predictions, Predictor, Report, RunLog, Schedule, Session, TrainError,
        TrainEvent, Trainer, TrainingPlan, metrics,
    };
}

/// Compiles and runs the snippets of README and of every page that has some.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../README.md")]
    mod readme {}
    #[doc = include_str!("../docs/coming-from-pytorch-and-keras.md")]
    mod coming_from_pytorch_and_keras {}
    #[doc = include_str!("../docs/coming-from-tensorflow.md")]
    mod coming_from_tensorflow {}
    #[doc = include_str!("../docs/command-line.md")]
    mod command_line {}
    #[doc = include_str!("../docs/compression.md")]
    mod compression {}
    #[doc = include_str!("../docs/data.md")]
    mod data {}
    #[doc = include_str!("../docs/eager.md")]
    mod eager {}
    #[doc = include_str!("../docs/export.md")]
    mod export {}
    #[doc = include_str!("../docs/gpu.md")]
    mod gpu {}
    #[doc = include_str!("../docs/library.md")]
    mod library {}
    #[doc = include_str!("../docs/machine-files.md")]
    mod machine_files {}
    #[doc = include_str!("../docs/memory.md")]
    mod memory {}
    #[doc = include_str!("../docs/ops.md")]
    mod ops {}
    #[doc = include_str!("../docs/report.md")]
    mod report {}
    #[doc = include_str!("../docs/scaling.md")]
    mod scaling {}
    #[doc = include_str!("../docs/speed.md")]
    mod speed {}
    #[doc = include_str!("../docs/training.md")]
    mod training {}
    #[doc = include_str!("../docs/watching.md")]
    mod watching {}
    #[doc = include_str!("../docs/what-a-line-costs.md")]
    mod what_a_line_costs {}
}
