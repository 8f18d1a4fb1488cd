//! `plimsoll graph`: the graph of a step.

use super::args::{GraphOptions, StepName};
use super::setup::{batch, model};
use super::{Failure, say};
use plimsoll::nn::{AdamW, Policy, step};
use plimsoll::train::TrainError;
use plimsoll::transform::optimize;

/// Builds the step's graph, runs the passes, and prints it.
pub fn run(options: &GraphOptions) -> Result<(), Failure> {
    let examples = batch(options.batch)?;
    let model = model(&options.model, None)?;
    let model = model.as_ref();
    let policy = Policy::new(options.precision);
    let lowered = |graph| step::inference_as(&policy, graph);
    let graph = match options.step {
        StepName::Train => step::training_as(&policy, model, &AdamW::new(1e-3), examples),
        StepName::Evaluate => step::evaluation(model, examples, step::Report::Classes).and_then(lowered),
        StepName::Predict => step::prediction(model, examples).and_then(lowered),
    };
    let graph = graph.and_then(|g| optimize(g, &options.without)).map_err(TrainError::from)?;
    let text = if options.dot { graph.dot().to_string() } else { graph.to_string() };
    say(text.trim_end());
    Ok(())
}
