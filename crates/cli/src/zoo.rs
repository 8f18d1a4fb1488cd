//! `plimsoll zoo`: models and data sets.

use super::args::ZooOptions;
use super::setup::executor;
use super::text::count;
use super::{Failure, say};
use plimsoll::compress::{Int8Grids, KeptLayers, places};
use plimsoll::data::catalogue;
use plimsoll::graph::Graph;
use plimsoll::nn::zoo::{ZOO, ZooOptions as ZooDefaults};
use plimsoll::nn::{AdamW, Policy, step};
use plimsoll::plan::{Budget, Executor as _, in_words, plan};
use plimsoll::train::TrainError;
use plimsoll::transform::optimize;
use serde_json::json;

/// Prints every model with its parameters and training peak, and every data set with its size.
pub fn run(options: &ZooOptions) -> Result<(), Failure> {
    if options.batch == 0 {
        return Err(Failure::usage("--batch must be at least 1"));
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let executor = executor(threads)?;
    let (policy, numerics) = (Policy::default(), executor.target().numerics());
    let mut models = Vec::new();
    say(&format!(
        "{:<16} {:>12} {:>12} {:>14} {:>16} {:>10}",
        "model", "parameters", "state", "training peak", "forward flops", "int8"
    ));
    for entry in &ZOO {
        let model = (entry.make)(&ZooDefaults::default());
        let forward = step::prediction(model.as_ref(), 1).map_err(TrainError::from)?;
        let flops: u64 = (forward.nodes.iter())
            .map(|n| n.op.flops(&forward.input_types(n), &forward.output_types(n)))
            .sum();
        let on_bytes = bytes_on_int8(forward)?;
        let build =
            || step::training_as(&policy, &numerics, model.as_ref(), &AdamW::new(1e-3), options.batch);
        let graph = build().and_then(|g| optimize(g, &numerics, &[])).map_err(TrainError::from)?;
        let state: usize = graph.states.iter().map(|s| graph.ty(s.input).bytes()).sum();
        let parameters = graph.parameter_count();
        let budget = Budget::new(usize::MAX, Vec::new());
        let plans = plan(&[("train".into(), graph)], executor.target(), &budget).map_err(TrainError::from)?;
        say(&format!(
            "{:<16} {:>12} {:>12} {:>14} {:>16} {:>10}   {}",
            entry.name,
            count(parameters),
            in_words(state),
            in_words(plans.arena_bytes),
            flops_in_words(flops),
            on_bytes.map_or("-".to_string(), in_words),
            entry.description
        ));
        models.push(json!({
            "name": entry.name, "parameters": parameters, "state_bytes": state, "arena_bytes": plans.arena_bytes,
            "forward_flops": flops, "int8_bytes": on_bytes,
        }));
    }
    say(&format!(
        "State: parameters, optimizer state and statistics. Training peak: the arena for batches of {}, adamw, {}. Flops: one\n\
         example, a multiplication and an addition are two. int8: all weights once `plimsoll quantize` has layers run on bytes; - where none can.\n",
        options.batch,
        executor.target().name()
    ));
    say(&format!("{:<16} {:>8} {:>8} {:>12}", "data", "train", "test", "in memory"));
    for set in catalogue() {
        let number = |n: Option<usize>| n.map_or("".to_string(), count);
        let memory = set.resident_bytes.map_or(String::new(), in_words);
        let (train, test) = (number(set.train), number(set.test));
        let option = set
            .requires
            .map_or(String::new(), |(option, value)| format!("with --{} {value}: ", option.name()));
        let off = set.feature().filter(|_| !set.is_built());
        let off = off.map_or(String::new(), |feature| format!(" (off in this build: feature {feature})"));
        let description = set.description;
        say(&format!("{:<16} {train:>8} {test:>8} {memory:>12}   {option}{description}{off}", set.name));
    }
    if options.json {
        say(&json!({ "batch": options.batch, "models": models }).to_string());
    }
    Ok(())
}

/// Bytes of the states of a model whose layers run on bytes, where some can; `forward` is its prediction.
fn bytes_on_int8(forward: Graph) -> Result<Option<usize>, Failure> {
    let places = places(&forward, &KeptLayers::default()).len();
    // Scales do not change sizes.
    let Some(grids) = Int8Grids::new(vec![(1.0, 0); places]).filter(|_| places > 0) else { return Ok(None) };
    let graph = grids.apply(forward).map_err(TrainError::from)?;
    Ok(Some(graph.states.iter().map(|state| graph.ty(state.input).bytes()).sum()))
}

/// A number of operations with its unit.
fn flops_in_words(flops: u64) -> String {
    let (scale, unit) = if flops >= 1_000_000_000 { (1e9, "GFLOP") } else { (1e6, "MFLOP") };
    format!("{:.2} {unit}", flops as f64 / scale)
}
