//! Every flag, defined once.

use clap::{Args, Parser, Subcommand, ValueEnum};
use plimsoll::Size;
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
    /// Train a model: prints the load sheet, trains, and prints planned next to measured peak
    Train(RunOptions),
    /// Print the load sheet of a run without running it, for any line
    Plan(RunOptions),
    /// List models and data sets
    Zoo(ZooOptions),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OptimizerName {
    /// Plain stochastic gradient descent
    Sgd,
    /// Descent with a momentum of 0.9
    Momentum,
    /// Adam with decoupled weight decay
    Adamw,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ScheduleName {
    /// It stays
    Constant,
    /// It falls to zero along half a cosine
    Cosine,
}

#[derive(Debug, Args)]
pub struct RunOptions {
    /// Model of the zoo: mlp, lenet, resnet20 or gpt
    #[arg(long, default_value = "lenet")]
    pub model: String,
    /// Data: mnist (embedded), mnist:DIR (IDX files), text:FILE (for gpt) or synthetic [default: mnist for mlp and
    /// lenet, else synthetic]
    #[arg(long)]
    pub data: Option<String>,
    /// Examples per step [default: 64; gpt: 16]
    #[arg(long, allow_negative_numbers = true)]
    pub batch: Option<usize>,
    /// Times through the training data [default: 6; synthetic data: 100 steps]
    #[arg(long, conflicts_with = "steps", allow_negative_numbers = true)]
    pub epochs: Option<u64>,
    /// Steps to do, instead of whole epochs
    #[arg(long, allow_negative_numbers = true)]
    pub steps: Option<u64>,
    /// Split every step into this many micro-batches, which never changes results
    #[arg(long, default_value_t = 1, allow_negative_numbers = true)]
    pub micro_batches: usize,
    /// Learning rate [default: 0.001 for adamw, 0.01 for sgd and momentum]
    #[arg(long, allow_negative_numbers = true)]
    pub lr: Option<f64>,
    /// Optimizer
    #[arg(long, value_enum, default_value = "adamw")]
    pub optimizer: OptimizerName,
    /// How the learning rate goes over the run
    #[arg(long, value_enum, default_value = "cosine")]
    pub schedule: ScheduleName,
    /// The line: a size like 512MiB or 4GB, or a share like 50% of the available memory
    #[arg(long, value_name = "SIZE", default_value = "90%", allow_negative_numbers = true)]
    pub memory: Size,
    /// Threads; never changes results [default: the machine's cores]
    #[arg(long, allow_negative_numbers = true)]
    pub threads: Option<usize>,
    /// Fixes initial values and the order of examples
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Folder for the trained weights (weights.safetensors) and the report (report.json)
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print one JSON object as the last line
    #[arg(long)]
    pub json: bool,
    /// Positions of an example (gpt) [default: 256]
    #[arg(long)]
    pub context: Option<usize>,
    /// Blocks (gpt) [default: 4]
    #[arg(long)]
    pub layers: Option<usize>,
    /// Width of the residual stream (gpt) [default: 256]
    #[arg(long)]
    pub width: Option<usize>,
    /// Attention heads (gpt) [default: 4]
    #[arg(long)]
    pub heads: Option<usize>,
    /// Switch a pass off, to find which one is at fault: simplify, save or fuse (decompose, too, for models without norms)
    #[arg(long, value_name = "PASS")]
    pub without: Vec<Pass>,
    /// Fill dead memory with NaN and check every step for writes outside its buffers; slow, and takes a second arena
    /// beside the line
    #[arg(long)]
    pub check_memory: bool,
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
