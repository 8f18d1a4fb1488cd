//! `plimsoll graph`: the graph of a step.

use super::args::{GraphOptions, StepName};
use super::setup::batch;
use super::zoo_model::model;
use super::{Failure, say};
use plimsoll::graph::Numerics;
use plimsoll::nn::{AdamW, Policy, step};
use plimsoll::train::TrainError;
use plimsoll::transform::optimize;

/// Builds the step's graph, runs the passes, and prints it.
pub fn run(options: &GraphOptions) -> Result<(), Failure> {
    let examples = batch(options.batch)?;
    let model = model(&options.model, None)?;
    let model = model.as_ref();
    let (policy, numerics) = (&Policy::new(options.precision), &Numerics::default());
    let graph = match options.step {
        StepName::Train => step::training_as(policy, numerics, model, &AdamW::new(1e-3), examples),
        StepName::Evaluate => step::evaluation_as(policy, numerics, model, examples, step::Report::Classes),
        StepName::Predict => step::prediction_as(policy, numerics, model, examples),
    };
    let graph = graph.and_then(|g| optimize(g, numerics, &options.without)).map_err(TrainError::from)?;
    let text = if options.dot { graph.dot().to_string() } else { graph.to_string() };
    say(text.trim_end());
    Ok(())
}
