//! `plimsoll quantize`: a trained model on bytes.

use super::args::QuantizeOptions;
use super::made_folder::MadeFolder;
use super::text::escaped;
use super::trained::{describe, open, peaks};
use super::{Failure, say};
use plimsoll::compress::{Int8Grids, calibration, places};
use plimsoll::memory::measured_peak;
use plimsoll::nn::Policy;
use plimsoll::nn::step::{self, Report};
use plimsoll::plan::in_words;
use plimsoll::tensor::Tensor;
use plimsoll::train::{BatchKind, TrainError};
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
    let (mut floats, planned) = trained.session(options.trained.json, options.trained.sheet)?;
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
    let mut states: BTreeMap<String, Tensor> = grids.states(&graph, read)?.into_iter().collect();
    let kept = grids.clone();
    trained.trainer = trainer.inference_pass(move |graph| kept.apply(graph));
    let mut bytes = trained.trainer.plan(&trained.data)?.start()?;
    let names: Vec<String> = bytes.plans().states.iter().map(|state| state.name.clone()).collect();
    for name in names {
        let state = states.remove(&name).map_or_else(|| floats.state(&name), Ok)?;
        bytes.set_state(&name, &state)?;
    }
    drop(floats);
    let int8: Vec<(f32, u8)> = grids.iter().collect();
    let (before, after) = folder.write(&bytes, |model_options| model_options["int8"] = json!(int8))?;
    say(&format!("weights      {} before, {} on bytes", in_words(before as usize), in_words(after as usize)));
    say(&format!("grids        {} between layers, from {} examples", int8.len(), options.examples));
    let name = escaped(options.out.display());
    say(&format!("Wrote {name}; `plimsoll evaluate {name}` and `plimsoll predict {name}` run it"));
    say(&peaks(planned, measured_peak()));
    Ok(())
}
