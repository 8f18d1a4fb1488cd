//! `plimsoll quantize`: a trained model on bytes.

use super::args::QuantizeOptions;
use super::made_folder::MadeFolder;
use super::trained::{describe, open, peaks};
use super::{Failure, say};
use plimsoll::compress::{Int8Grids, LayerNoise, calibration, places};
use plimsoll::data::Pipeline;
use plimsoll::memory::{self, measured_peak};
use plimsoll::nn::Policy;
use plimsoll::nn::step::{self, Report};
use plimsoll::plan::{Entry, in_words};
use plimsoll::tensor::Tensor;
use plimsoll::train::{BatchKind, Session, TrainError, Trainer};
use serde_json::json;
use std::collections::BTreeMap;

/// Measures ranges on a part of the training data, and writes the folder of the model on bytes.
pub fn run(options: &QuantizeOptions) -> Result<(), Failure> {
    if options.examples == 0 {
        return Err(Failure::usage("--examples must be at least 1: ranges are measured on them"));
    }
    let folder = MadeFolder::new(&options.trained.run, &options.out)?;
    let model = describe(&options.trained.run)?.model()?;
    let graph = step::prediction(&model, 1).map_err(TrainError::from)?;
    let names = places(&graph);
    if names.is_empty() {
        let reason = "no layer that can run on bytes: there are convolutions and dense layers of rows";
        return Err(Failure::usage(format!("`{}` has {reason}", model.name())));
    }
    let mut trained_options = options.trained.clone();
    trained_options.train_part = true;
    let mut trained = open(&trained_options, BatchKind::Predict, Report::Classes)?;
    let trainer = trained.trainer.clone().sparse_parameters(BTreeMap::new()).precision(Policy::default());
    trained.trainer = trainer.clone().inference_pass(calibration);
    let (mut floats, mut planned) = trained.session(options.trained.json, options.trained.sheet)?;
    let mut ranges = vec![(f32::INFINITY, f32::NEG_INFINITY); names.len()];
    let part = trained.part().clone().take(options.examples);
    floats.predict_each(&part, |outputs| {
        // The model's own outputs come first.
        let measured = &outputs[outputs.len().saturating_sub(2 * ranges.len())..];
        for (pair, (low, high)) in measured.chunks_exact(2).zip(&mut ranges) {
            let all = |tensor: &Tensor, from: f32, f: fn(f32, f32) -> f32| {
                // NaN must not get lost.
                let elements = tensor.as_f32().unwrap_or_default().iter();
                elements.fold(from, |a, &b| if b.is_nan() { b } else { f(a, b) })
            };
            *high = all(&pair[0], *high, f32::max);
            *low = all(&pair[1], *low, f32::min);
        }
        Ok::<(), Failure>(())
    })?;
    if let Some(place) = ranges.iter().position(|(low, high)| !(low.is_finite() && high.is_finite())) {
        let of =
            if names[place].is_empty() { "the inputs".to_string() } else { format!("`{}`", names[place]) };
        return Err(Failure::usage(format!(
            "the range of {of} on the calibration data is not finite: take data whose numbers are, with --data"
        )));
    }
    let grids = Int8Grids::of_ranges(&ranges);
    let read = |name: &str| floats.state(name);
    let states: BTreeMap<String, Tensor> = grids.states(&graph, read)?.into_iter().collect();
    // What comes now is beside the run on floats.
    let held = floats.plans().arena_bytes + states.values().map(|state| state.ty().bytes()).sum::<usize>();
    let trainer = trainer.outside(Entry::new("floats", held, "the run on floats, and states on bytes"));
    let mut start = |trainer: Trainer| -> Result<Session, Failure> {
        // As in training, the code of each phase is dropped when it is over.
        memory::trim_code();
        let plans = trainer.plan(&trained.data)?;
        planned = planned.max(plans.sheet.host_total_and_line().0);
        memory::trim_code();
        let mut session = plans.start()?;
        set_states(&mut session, &floats, &states)?;
        memory::trim_code();
        Ok(session)
    };
    if options.report_layers {
        let compared = grids.clone();
        let mut both = start(trainer.clone().inference_pass(move |graph| compared.comparison(graph)))?;
        report(&mut both, &part, &grids.compared(&graph))?;
    }
    let kept = grids.clone();
    let bytes = start(trainer.inference_pass(move |graph| kept.apply(graph)))?;
    drop(floats);
    let int8: Vec<(f32, u8)> = grids.iter().collect();
    let (before, after) = folder.write(&bytes, |model_options| model_options["int8"] = json!(int8))?;
    say(&format!("weights      {} before, {} on bytes", in_words(before as usize), in_words(after as usize)));
    say(&format!("grids        {} between layers, from {} examples", int8.len(), options.examples));
    say(&peaks(planned, measured_peak()));
    Ok(())
}

/// Gives a run its states: those of layers on bytes, and of the run on floats.
fn set_states(
    to: &mut Session,
    floats: &Session,
    of_bytes: &BTreeMap<String, Tensor>,
) -> Result<(), Failure> {
    let names: Vec<String> = to.plans().states.iter().map(|state| state.name.clone()).collect();
    for name in names {
        match of_bytes.get(&name) {
            Some(state) => to.set_state(&name, state)?,
            None => to.set_state(&name, &floats.state(&name)?)?,
        }
    }
    Ok(())
}

/// Prints how far the layers of a comparison are from those on floats.
fn report(both: &mut Session, part: &Pipeline, layers: &[String]) -> Result<(), Failure> {
    let mut measured = vec![LayerNoise::default(); layers.len()];
    both.predict_each(part, |outputs| {
        // The model's own outputs come first.
        let compared = &outputs[outputs.len().saturating_sub(LayerNoise::OUTPUTS * layers.len())..];
        for (sums, layer) in compared.chunks_exact(LayerNoise::OUTPUTS).zip(&mut measured) {
            let all = |tensor: &Tensor| tensor.to_f64().iter().sum::<f64>();
            layer.signal += all(&sums[0]);
            layer.noise += all(&sums[1]);
            layer.own += all(&sums[2]);
        }
        Ok::<(), Failure>(())
    })?;
    let widest = layers.iter().map(|layer| layer.chars().count()).max().unwrap_or(0).max(5);
    let decibels = |of: Option<f64>| of.map_or("exact".to_string(), |found| format!("{found:.1} dB"));
    say(&format!("{:<widest$}  {:>9}  {:>9}", "layer", "as it is", "its own"));
    for (layer, noise) in layers.iter().zip(measured) {
        let (all, own) = (decibels(noise.decibels()), decibels(noise.own_decibels()));
        say(&format!("{layer:<widest$}  {all:>9}  {own:>9}"));
    }
    Ok(())
}
