//! From flags to a trainer and its data.

use super::Failure;
use super::args::{OptimizerName, RunOptions, ScheduleName};
use crate::HEAP;
use crate::heap::Tag;
use plimsoll::cpu::Cpu;
use plimsoll::data::{Dataset, Field, OpenOptions, SyntheticSpec, open};
use plimsoll::memory;
use plimsoll::nn::zoo::{ZOO, ZooOptions};
use plimsoll::nn::{AdamW, Model, Optimizer, Sgd};
use plimsoll::tensor::{DType, TensorType};
use plimsoll::train::{Schedule, Trainer};

/// Steps of a run on synthetic data, where epochs mean nothing.
const SYNTHETIC_STEPS: u64 = 100;
/// Epochs over real data.
const EPOCHS: u64 = 6;

/// A run that is ready to be planned.
pub struct Setup {
    pub trainer: Trainer,
    pub data: Dataset,
    pub threads: usize,
    pub batch: usize,
    /// What was available before anything was loaded.
    pub available_bytes: Option<usize>,
}

/// Builds the trainer and opens the data.
pub fn setup(options: &RunOptions) -> Result<Setup, Failure> {
    let threads = match options.threads {
        Some(0) => return Err(Failure::usage("--threads must be at least 1")),
        Some(threads) if threads > 256 => return Err(Failure::usage("--threads must be at most 256")),
        Some(threads) => threads,
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    if options.micro_batches == 0 {
        return Err(Failure::usage("--micro-batches must be at least 1"));
    }
    let name = options.data.clone().unwrap_or_else(|| default_data(&options.model).to_string());
    let batch = options.batch.unwrap_or(if options.model == "gpt" { 16 } else { 64 });
    if batch == 0 {
        return Err(Failure::usage("--batch must be at least 1"));
    }
    if name.starts_with("text:") && options.model != "gpt" {
        return Err(Failure::usage(format!("text is for gpt, not {}: add --model gpt", options.model)));
    }
    let model = model(options, name.starts_with("text:").then_some(256))?;
    // The line comes first: data that would go past it is refused before it is loaded.
    let available_bytes = memory::available();
    let line_bytes = options.memory.bytes(available_bytes.unwrap_or(usize::MAX));
    let open_options = open_options(options, model.as_ref(), batch, line_bytes);
    let data = HEAP.tagged(Tag::Data, || open(&name, &open_options))?;
    if batch > data.train.len() {
        super::hint(&format!("the data has {0} training examples: the batch is {0}", data.train.len()));
    }
    let batch = batch.min(data.train.len());
    let executor =
        Cpu::new(threads).map_err(|e| Failure::run(format!("cannot start {threads} threads: {e}")))?;
    let executor = if options.check_memory { executor.checked() } else { executor };
    let trainer = Trainer::new(model, optimizer(options)?, executor)
        .batch(batch)
        .micro_batches(options.micro_batches)
        .seed(options.seed)
        .schedule(match options.schedule {
            ScheduleName::Constant => Schedule::Constant,
            ScheduleName::Cosine => Schedule::Cosine,
        })
        .line(line_bytes);
    let mut trainer = memory::declare(trainer, threads, &data);
    for &pass in &options.without {
        trainer = trainer.without(pass);
    }
    trainer = match (options.steps, options.epochs) {
        (Some(0), _) => return Err(Failure::usage("--steps must be at least 1")),
        (_, Some(0)) => return Err(Failure::usage("--epochs must be at least 1")),
        (Some(steps), _) => trainer.steps(steps),
        (None, Some(epochs)) => trainer.epochs(epochs),
        (None, None) if name == "synthetic" => trainer.steps(SYNTHETIC_STEPS),
        (None, None) => trainer.epochs(EPOCHS),
    };
    Ok(Setup { trainer, data, threads, batch, available_bytes })
}

fn default_data(model: &str) -> &'static str {
    match model {
        "mlp" | "lenet" => "mnist",
        _ => "synthetic",
    }
}

/// The model of the zoo with the flags' options.
pub fn model(options: &RunOptions, classes: Option<usize>) -> Result<Box<dyn Model>, Failure> {
    let Some(entry) = ZOO.iter().find(|e| e.name == options.model) else {
        let known: Vec<_> = ZOO.iter().map(|e| e.name).collect();
        let message = format!("unknown model `{}`: the zoo has {}", options.model, known.join(", "));
        return Err(Failure::usage(message));
    };
    let (context, layers, width, heads) = (options.context, options.layers, options.width, options.heads);
    let sizes = [
        ("--context", context, 1 << 20),
        ("--layers", layers, 1 << 8),
        ("--width", width, 1 << 20),
        ("--heads", heads, 1 << 20),
    ];
    for (flag, value, most) in sizes {
        if value.is_some() && options.model != "gpt" {
            return Err(Failure::usage(format!("{flag} is for gpt; {} has no such option", options.model)));
        }
        if value.is_some_and(|v| v == 0 || v > most) {
            return Err(Failure::usage(format!("{flag} must be between 1 and {most}")));
        }
    }
    Ok((entry.make)(&ZooOptions { classes, context, layers, width, heads }))
}

fn open_options(options: &RunOptions, model: &dyn Model, batch: usize, max_bytes: usize) -> OpenOptions {
    let synthetic = SyntheticSpec {
        inputs: vec![Field { ty: model.input(), bound: model.input_bound().unwrap_or(model.classes()) }],
        label: TensorType::new(DType::I32, model.labels()),
        classes: Some(model.classes()),
    };
    OpenOptions {
        context: options.context.unwrap_or(256),
        seed: options.seed,
        synthetic: Some(synthetic),
        // Whole batches, so that a benchmark sees one batch type.
        examples: batch.saturating_mul(10),
        max_bytes,
    }
}

fn optimizer(options: &RunOptions) -> Result<Box<dyn Optimizer>, Failure> {
    let rate = options.lr.unwrap_or(if options.optimizer == OptimizerName::Adamw { 1e-3 } else { 1e-2 });
    if !rate.is_finite() || rate <= 0.0 {
        return Err(Failure::usage(format!("--lr must be a positive number, not {rate}")));
    }
    Ok(match options.optimizer {
        OptimizerName::Sgd => Box::new(Sgd::new(rate)),
        OptimizerName::Momentum => Box::new(Sgd::new(rate).momentum(0.9)),
        OptimizerName::Adamw => Box::new(AdamW::new(rate)),
    })
}
