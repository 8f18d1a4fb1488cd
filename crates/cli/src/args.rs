//! Every flag, defined once.

use super::applies::{data_help, help};
use super::compare::CompareOptions;
use super::device_flags::DeviceOptions;
use super::devices::DevicesOptions;
use super::doctor::DoctorOptions;
use super::export::ExportOptions;
use super::machine::Elsewhere;
use super::machine_flags::spill_speed;
pub use super::machine_flags::{Device, DeviceMemory, MachineOptions, SpillSpeed};
use super::manual::{EXPORT_EXAMPLES, PLAN_EXAMPLES, TRAIN_EXAMPLES};
use super::page::{PageOptions, ReportOptions};
use super::plot::PlotOptions;
use super::precision::{PrecisionOptions, precision};
use super::predict::PredictOptions;
use super::prune::PruneOptions;
use super::ranks::RankOptions;
use super::running::LoopOptions;
use super::update::UpdateOptions;
use super::watching::WatchOptions;
use super::zoo_model::DEFAULT_MODEL;
use clap::{Args, Parser, Subcommand, ValueEnum};
use plimsoll::Size;
use plimsoll::data::{FormatOption, Prefetch};
use plimsoll::nn::Precision;
use plimsoll::train::BatchKind;
use plimsoll::transform::Pass;
use std::path::PathBuf;

/// Trains neural networks inside a memory line that you draw, and proves before the first step that the line holds.
#[derive(Debug, Parser)]
#[command(name = "plimsoll", version)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a model: prints what the run will take, trains, and prints planned next to measured peak
    #[command(after_help = TRAIN_EXAMPLES)]
    Train(RunOptions),
    /// Print the load sheet of a run without running it, for any line; or answer what batch and line it needs
    #[command(after_help = PLAN_EXAMPLES)]
    Plan(PlanOptions),
    /// Measure a trained model on data: loss, accuracy and other metrics
    Evaluate(EvaluateOptions),
    /// Write what a trained model says of data
    Predict(PredictOptions),
    /// Write a trained model as a file of another system: ONNX, TFLite, safetensors
    #[command(after_help = EXPORT_EXAMPLES)]
    Export(ExportOptions),
    /// Write the page of a run: its plan, and what was measured so far
    #[command(after_help = "Example:\n  plimsoll report runs/first")]
    Report(ReportOptions),
    /// Set runs side by side: the flags that differ, losses, metrics, memory planned and measured, speed
    #[command(after_help = "Example:\n  plimsoll compare runs/first runs/second")]
    Compare(CompareOptions),
    /// Draw losses and memory of runs as a picture
    #[command(after_help = "Example:\n  plimsoll plot runs/first runs/second --to loss.svg --what loss")]
    Plot(PlotOptions),
    /// Remove whole channels of a trained model: a smaller and faster one, to train on
    #[command(
        after_help = "Example:\n  plimsoll prune run --channels 0.5 --out half\n  plimsoll train --model resnet20 --weights half --out tuned"
    )]
    Prune(PruneChannelsOptions),
    /// Quantize a trained model: convolutions and dense layers on bytes, with ranges measured on its training data
    #[command(after_help = "Example:\n  plimsoll quantize run --out small\n  plimsoll evaluate small")]
    Quantize(QuantizeOptions),
    /// Print the graph of a step
    Graph(GraphOptions),
    /// Look at data without training: counts, columns, classes, a few examples, examples per second, peak memory
    Data(DataOptions),
    /// List models and data sets
    Zoo(ZooOptions),
    /// List what can compute here: the processor and NVIDIA GPUs, with their memory and who holds it
    Devices(DevicesOptions),
    /// Measure this machine: products, memory, disk, limits; say what to change; and write its file for `plan --machine`
    Doctor(DoctorOptions),
    /// Print a script that completes commands and flags in a shell
    #[command(
        after_help = "Example:\n  plimsoll completions bash > ~/.local/share/bash-completion/completions/plimsoll"
    )]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page of the program, or of one of its commands
    #[command(after_help = "Example:\n  plimsoll man train | man -l -")]
    Man {
        /// The command
        command: Option<String>,
    },
}

/// The most batches ahead with `--prefetch auto`.
const MOST_AHEAD: usize = 16;

/// Parses `--prefetch`.
fn prefetch(text: &str) -> Result<Prefetch, String> {
    match (text, text.parse()) {
        ("auto", _) => Ok(Prefetch::UpTo(MOST_AHEAD)),
        (_, Ok(batches @ 0..=1024)) => Ok(Prefetch::Exactly(batches)),
        _ => Err("a number of batches, at most 1024, or auto".into()),
    }
}

/// How files become batches.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Data")]
pub struct InputOptions {
    #[arg(long, help = help(FormatOption::Workers, "Threads that read and decode files; never changes the data",
        "one, and more when training waits for them, up to the machine's cores"))]
    pub workers: Option<usize>,
    #[arg(long, value_name = "BATCHES", value_parser = prefetch, help = help(FormatOption::Prefetch,
        "Batches prepared ahead, or auto: one, and more when they arrive unevenly, as far as the line allows", "1"))]
    pub prefetch: Option<Prefetch>,
    #[arg(long, value_name = "FILES", help = help(FormatOption::SkipBad, "Skip bad files and records, up to this many", ""))]
    pub skip_bad: Option<u64>,
    #[arg(long, value_name = "PIXELS", help = help(FormatOption::MaxPixels,
        "The most pixels of an image file; a larger file is bad",
        "the largest in the files' headers, or, for more than a thousand files, twice the largest of a thousand"))]
    pub max_pixels: Option<usize>,
    #[arg(long, value_name = "NAME", help = help(FormatOption::Label,
        "Column, array or feature that is the label; for an .npy the file with the labels, for a raster the file with the classes",
        "the last column, or the one called label, labels, y or target"))]
    pub label: Option<String>,
    #[arg(long, value_name = "NAMES", value_delimiter = ',', help = help(FormatOption::Columns,
        "Columns of a table that are features, comma-separated", "all but the label"))]
    pub columns: Vec<String>,
    #[arg(long, value_name = "FILE", help = help(FormatOption::Tokenizer,
        "Hugging Face tokenizer file; the model gets its vocabulary", "tokens are bytes"))]
    pub tokenizer: Option<PathBuf>,
    #[arg(long, value_name = "RECORDS", help = help(FormatOption::Shuffle,
        "Records of the shuffle buffer of a stream; data with random access is shuffled as a whole, without a buffer",
        "1024"))]
    pub shuffle: Option<usize>,
}

#[derive(Debug, Args)]
pub struct DataOptions {
    /// Data, as for train
    pub spec: String,
    #[arg(long, value_name = "PIXELS",
        help = help(FormatOption::ImageSize, "Height and width to which images are resized", "224"))]
    pub image_size: Option<usize>,
    #[arg(long, help = help(FormatOption::Channels, "Channels of the decoded images", "3"))]
    pub channels: Option<usize>,
    #[arg(long, help = help(FormatOption::Context, "Positions of an example of text", "256"))]
    pub context: Option<usize>,
    #[arg(long, help = help(FormatOption::Augment, "Random crops of images, every second mirrored", ""))]
    pub augment: bool,
    /// Examples per batch
    #[arg(long, default_value_t = 64)]
    pub batch: usize,
    /// Examples to show
    #[arg(long, default_value_t = 3)]
    pub samples: usize,
    /// Seconds to read for
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
    /// Seed of the order of examples
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    #[command(flatten)]
    pub input: InputOptions,
    /// Print one JSON object as the last line
    #[arg(long)]
    pub json: bool,
}

/// Which model, and its sizes.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelOptions {
    /// Model of the zoo (`plimsoll zoo` lists them), or onnx:FILE for the model of an ONNX file, with its weights [default: lenet; for
    /// files of pictures resnet20, with masks unet, for text gpt, for tables mlp]
    #[arg(long, default_value = DEFAULT_MODEL, hide_default_value = true)]
    pub model: String,
    /// Classes, or tokens of a language model
    #[arg(long)]
    pub classes: Option<usize>,
    /// Height and width of images
    #[arg(long, value_name = "PIXELS")]
    pub image_size: Option<usize>,
    /// Channels of images
    #[arg(long)]
    pub channels: Option<usize>,
    /// Positions of an example, for models of text
    #[arg(long)]
    pub context: Option<usize>,
    /// Blocks of a transformer, or recurrences on top of each other; at most 512
    #[arg(long)]
    pub layers: Option<usize>,
    /// Width of a transformer's stream, units of a recurrence, or channels of the first convolution
    #[arg(long)]
    pub width: Option<usize>,
    /// Width as a multiple of the published one, like 0.5, for mobilenet_v2 and efficientnet_b0
    #[arg(long, value_name = "X", conflicts_with = "width", allow_negative_numbers = true)]
    pub width_multiplier: Option<f64>,
    /// Attention heads
    #[arg(long)]
    pub heads: Option<usize>,
    /// Heads of keys and values, each shared by a group of heads, for gpt and gpt2 [default: as many as --heads]
    #[arg(long, value_name = "N")]
    pub kv_heads: Option<usize>,
    /// Positions that a position attends to, itself and those before it, for gpt and gpt2 [default: all]
    #[arg(long, value_name = "N")]
    pub window: Option<usize>,
    /// Dropout rate
    #[arg(long)]
    pub dropout: Option<f64>,
    /// Weight of each class in the loss, comma-separated [default: all 1]
    #[arg(long, value_name = "WEIGHTS", value_delimiter = ',', allow_negative_numbers = true)]
    pub class_weights: Vec<f64>,
    /// Numbers of a row, for an mlp on tables [default: from the data]
    #[arg(long)]
    pub features: Option<usize>,
    /// Train the batch norms of an ONNX file, too: with the statistics of the batch [default: they stay as they are in the file]
    #[arg(long)]
    pub train_batch_norm: bool,
    /// Output channels of convolutions, like `stage1/block1/conv1=8`; comma-separated [default: the model's, or those of the run of
    /// --weights, which `plimsoll prune` removed some of]
    #[arg(long, value_name = "LAYER=N", value_delimiter = ',')]
    pub widths: Vec<String>,
    /// Train as if the model ran on bytes, with ranges that are learned: `plimsoll quantize` then costs less accuracy
    #[arg(long)]
    pub quantize_aware: bool,
}

/// A trained model and the data to run it on.
#[derive(Clone, Debug, Args)]
pub struct TrainedOptions {
    /// Folder of `train --out`: its weights, or, for an unfinished run, its newest intact checkpoint
    pub run: PathBuf,
    /// Data, as for train [default: the training data]
    #[arg(long)]
    pub data: Option<String>,
    /// Use the training part instead of the test part
    #[arg(long)]
    pub train_part: bool,
    /// Examples per batch [default: the batch of training]
    #[arg(long, allow_negative_numbers = true)]
    pub batch: Option<usize>,
    #[command(flatten)]
    pub input: InputOptions,
    #[command(flatten)]
    pub machine: MachineOptions,
    /// Folder on a disk to which weights that exceed the line are offloaded, to be loaded layer by layer, or `none` [default: the
    /// folder of the run]
    #[arg(long, value_name = "DIR", help_heading = "Memory and machine")]
    pub spill: Option<PathBuf>,
    /// Print the load sheet, the account of every byte
    #[arg(long, help_heading = "Memory and machine")]
    pub sheet: bool,
    /// Print one JSON object as the last line
    #[arg(long, help_heading = "Answers")]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct PruneChannelsOptions {
    /// Folder of `train --out`, of a run that has ended
    pub run: PathBuf,
    /// Share of the channels of every convolution to remove, like 0.5: those of the smallest magnitudes
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    pub channels: f64,
    /// Folder for the smaller model
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// The line: a size like 512MiB or 4GB, or a share like 50% or 0.5 of the available memory
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "90%",
        allow_negative_numbers = true,
        help_heading = "Memory and machine"
    )]
    pub memory: Size,
    /// Folder on a disk to which weights of the smaller model that exceed the line are offloaded, or `none` [default: the folder of the
    /// run]
    #[arg(long, value_name = "DIR", help_heading = "Memory and machine")]
    pub spill: Option<PathBuf>,
    /// Print the load sheet, the account of every byte
    #[arg(long, help_heading = "Memory and machine")]
    pub sheet: bool,
}

#[derive(Debug, Args)]
pub struct QuantizeOptions {
    #[command(flatten)]
    pub trained: TrainedOptions,
    /// Folder for the model on bytes
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Examples of the training part on which ranges are measured
    #[arg(long, default_value_t = 512)]
    pub examples: usize,
    /// Also tell how far every layer is from the same on floats, and how many answers stay the same, on these examples
    #[arg(long)]
    pub report_layers: bool,
    /// Leave these layers in f32: a name, or a pattern like `conv*`; comma-separated
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub keep: Vec<String>,
}

#[derive(Debug, Args)]
pub struct EvaluateOptions {
    #[command(flatten)]
    pub trained: TrainedOptions,
    /// Metrics besides the loss: accuracy, topK, f1, precision, recall, iou, dice, auc, confusion, perplexity, mse, mae,
    /// cosine; comma-separated [default: accuracy for classes, mse for values]
    #[arg(long, value_delimiter = ',', help_heading = "Answers")]
    pub metrics: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StepName {
    /// Forward, backward, update
    Train,
    /// Loss and predicted classes
    Evaluate,
    /// Outputs
    Predict,
}

#[derive(Debug, Args)]
pub struct GraphOptions {
    #[command(flatten)]
    pub model: ModelOptions,
    /// Examples of the batch
    #[arg(long, default_value_t = 1)]
    pub batch: usize,
    /// Which step
    #[arg(long, value_enum, default_value = "train")]
    pub step: StepName,
    /// Precision of activations: f32, tf32 (the graph of f32), bf16 or f16
    #[arg(long, default_value = "f32", value_parser = precision)]
    pub precision: Precision,
    /// Print it for Graphviz
    #[arg(long, conflicts_with = "text")]
    pub dot: bool,
    /// Print the text form, which can be parsed again [default]
    #[arg(long)]
    pub text: bool,
    /// Switch a pass off; without all four the graph is as the layers built it
    #[arg(long, value_name = "PASS")]
    pub without: Vec<Pass>,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Run")]
pub struct RunOptions {
    /// File of flags, as TOML: `lr = 0.001` for `--lr 0.001`. Flags on the command line override it
    #[arg(value_name = "FILE.toml")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub model: ModelOptions,
    #[arg(long, help_heading = "Data", help = data_help())]
    pub data: Option<String>,
    #[arg(long, help_heading = "Data", help = help(FormatOption::Augment, "Train on random crops of images, every second mirrored", ""))]
    pub augment: bool,
    #[command(flatten)]
    pub input: InputOptions,
    /// Examples per step; with --accumulate, per batch [default: the model's own, from 4 to 64]
    #[arg(long, allow_negative_numbers = true)]
    pub batch: Option<usize>,
    /// Accumulate the gradients of this many batches in a step: the results are those of one batch of all their examples
    /// [default: 1]
    #[arg(long, value_name = "BATCHES", allow_negative_numbers = true)]
    pub accumulate: Option<usize>,
    /// Passes over the training data [default: 6; synthetic data: 100 steps]
    #[arg(long, conflicts_with = "steps", allow_negative_numbers = true)]
    pub epochs: Option<u64>,
    /// Training steps, instead of whole epochs
    #[arg(long, allow_negative_numbers = true)]
    pub steps: Option<u64>,
    /// Split every step into this many micro-batches; only with --allow-split-batchnorm does this change results [default: as
    /// few as the line allows]
    #[arg(long, allow_negative_numbers = true)]
    pub micro_batches: Option<usize>,
    /// Allow micro-batches for models with batch norm: statistics are per micro-batch, so results differ from those of the
    /// whole batch
    #[arg(long)]
    pub allow_split_batchnorm: bool,
    #[command(flatten)]
    pub precision: PrecisionOptions,
    #[command(flatten)]
    pub update: UpdateOptions,
    #[command(flatten)]
    pub prune: PruneOptions,
    #[command(flatten)]
    pub running: LoopOptions,
    #[command(flatten)]
    pub page: PageOptions,
    #[command(flatten)]
    pub watching: WatchOptions,
    #[command(flatten)]
    pub machine: MachineOptions,
    #[command(flatten)]
    pub devices: DeviceOptions,
    #[command(flatten)]
    pub ranks: RankOptions,
    /// Seed of initial values and of the order of examples
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Folder for the trained weights (weights.safetensors), the report (report.json), the events (events.jsonl) and checkpoints,
    /// which are saved at the best validations, at the end, and when Ctrl-C, SIGTERM or SIGHUP stops the run
    #[arg(long, value_name = "DIR", help_heading = "Files")]
    pub out: Option<PathBuf>,
    /// Delete the run that is in the folder of --out, and start anew
    #[arg(long, help_heading = "Files")]
    pub overwrite: bool,
    /// Folder on a disk to which parameters, optimizer state and activations that exceed the line are offloaded, or `none`
    /// [default: the folder of --out, or the current one]
    #[arg(long, value_name = "DIR", help_heading = "Memory and machine")]
    pub spill: Option<PathBuf>,
    /// Bytes per second that the disk of --spill reads or writes, or `measure` for a short trial; plans are chosen and
    /// predicted by it [default: 2.5GiB]
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true, value_parser = spill_speed, help_heading = "Memory and machine")]
    pub spill_speed: Option<SpillSpeed>,
    /// Folder of the plan cache, so that no plan is searched for twice, or `none`; never changes plans [default: plimsoll in
    /// $XDG_CACHE_HOME or ~/.cache]
    #[arg(long, value_name = "DIR", help_heading = "Files")]
    pub plan_cache: Option<PathBuf>,
    /// Also save a checkpoint every this many steps
    #[arg(long, value_name = "STEPS", allow_negative_numbers = true, help_heading = "Files")]
    pub save_every: Option<u64>,
    /// Start from these weights: a safetensors file, under Plimsoll's, PyTorch's or Keras's names, or the folder of a run
    #[arg(long, value_name = "FILE", conflicts_with = "resume", help_heading = "Files")]
    pub weights: Option<PathBuf>,
    /// With --weights: load what fits the model and tell what does not, instead of refusing weights of another model
    #[arg(long, requires = "weights", help_heading = "Files")]
    pub new_head: bool,
    /// Resume the run whose checkpoints are in this folder from the newest intact one, and save there, too; the run's flags
    /// come from the checkpoint
    #[arg(long, value_name = "DIR", help_heading = "Files")]
    pub resume: Option<PathBuf>,
    /// Memory of your own code, so that the line covers it
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true, help_heading = "Memory and machine")]
    pub your_code: Option<Size>,
    /// Print the whole load sheet, the account of every byte, in place of the summary; `plan` always prints it
    #[arg(long)]
    pub sheet: bool,
    /// Print one JSON object as the last line
    #[arg(long)]
    pub json: bool,
    /// Switch a pass off, to bisect a fault: simplify, save or fuse (and decompose, for models without norms)
    #[arg(long, value_name = "PASS")]
    pub without: Vec<Pass>,
    /// Fill dead memory with NaN and check every step for writes outside its buffers; slow, and needs a second arena that the
    /// line does not cover
    #[arg(long)]
    pub check_memory: bool,
    /// The machine of `plan --machine`.
    #[arg(skip)]
    pub elsewhere: Option<Elsewhere>,
    /// The step of `plan --step`, where it is not that of training.
    #[arg(skip)]
    pub inference: Option<BatchKind>,
    /// Whether its layers are on bytes: `plan --on-bytes`.
    #[arg(skip)]
    pub on_bytes: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Questions to the planner")]
pub struct PlanOptions {
    #[command(flatten)]
    pub run: RunOptions,
    /// Plan for the machine that this file describes, or for one that comes with Plimsoll: laptop, h200, board or
    /// microcontroller. --memory is then the line of its host [default: the file's]; `plimsoll doctor --machine-file` writes this machine's
    #[arg(long, value_name = "FILE", conflicts_with_all = ["spill_speed", "replicas", "place"])]
    pub machine: Option<PathBuf>,
    /// Which step to plan: the training run with its evaluations, or evaluation or prediction alone, which hold no optimizer state
    #[arg(long, value_enum, default_value = "train")]
    pub step: StepName,
    /// With --step predict or evaluate: plan the model with its layers on bytes, as `plimsoll quantize` makes it of a run
    #[arg(long)]
    pub on_bytes: bool,
    /// Print where every buffer of the first plan lies in the arena, and from which step to which
    #[arg(long, conflicts_with_all = ["replicas", "place"])]
    pub layout: bool,
    /// Print line against predicted slowdown, from no line down to the smallest that works, instead of the load sheet
    #[arg(long)]
    pub curve: bool,
    /// Print the largest batch that trains under the line, whole and in micro-batches
    #[arg(long, conflicts_with_all = ["batch", "micro_batches", "accumulate"])]
    pub max_batch: bool,
    /// Print batch against planned peak and predicted samples per second under the line, with the best marked
    #[arg(long, conflicts_with_all = ["micro_batches", "accumulate"])]
    pub batches: bool,
    /// Tell of a layer or a tensor why it is kept, rematerialized or offloaded, and what it would cost otherwise
    #[arg(long, value_name = "NAME", conflicts_with_all = ["replicas", "place"])]
    pub why: Option<String>,
    /// Plan a step recorded elsewhere, under a line that may be a share of its recorded peak
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "model", "classes", "image_size", "channels", "context", "layers", "width", "width_multiplier", "heads", "kv_heads", "window", "dropout", "class_weights", "features", "widths", "quantize_aware",
        "train_batch_norm", "data", "batch",
        "augment", "workers", "prefetch", "skip_bad", "max_pixels", "label", "columns", "tokenizer", "shuffle",
        "epochs", "steps", "micro_batches", "allow_split_batchnorm", "accumulate", "lr", "optimizer", "momentum", "moments",
        "weight_decay", "decay_group", "clip_value", "clip_norm", "clip_global_norm", "ema", "freeze", "prune", "prune_schedule", "prune_layers", "schedule", "warmup",
        "every", "factor", "patience", "precision", "keep_f32", "loss_scale", "loss_scale_growth", "steps_per_epoch", "validation_split", "validate_every", "metrics", "monitor",
        "early_stop", "time_limit", "keep", "log", "weight_names", "config", "threads", "seed", "out", "overwrite", "spill", "spill_speed", "plan_cache",
        "without", "check_memory", "sheet", "save_every", "resume", "weights", "new_head", "your_code", "step", "on_bytes", "layout", "curve", "max_batch", "batches",
        "machine", "device_memory", "replicas", "place", "log_placement", "ranks", "rank_timeout", "restart", "attempt", "shard", "reduce", "report", "live", "live_address", "why",
        "trace", "trace_steps", "tensorboard", "histograms", "profile", "profile_steps", "tui",
    ])]
    pub workload: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct ZooOptions {
    /// Batch for the training peaks
    #[arg(long, default_value_t = 32)]
    pub batch: usize,
    /// Print one JSON object as the last line
    #[arg(long)]
    pub json: bool,
}
