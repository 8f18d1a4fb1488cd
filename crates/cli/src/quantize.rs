//! `plimsoll quantize`: a trained model on bytes.

use super::args::{QuantizeOptions, TrainedOptions};
use super::made_folder::MadeFolder;
use super::text::escaped;
use super::trained::{Described, describe, open_described, peaks};
use super::weights::refused;
use super::{Failure, export, say, setup};
use plimsoll::compress::{CODES, Int8Grids, KeptLayers, LayerNoise, calibration, places};
use plimsoll::data::Pipeline;
use plimsoll::export::Weights;
use plimsoll::graph::Graph;
use plimsoll::memory::{self, measured_peak};
use plimsoll::nn::step::{self, Report};
use plimsoll::nn::{Policy, RANGES};
use plimsoll::plan::{Entry, in_words};
use plimsoll::tensor::Tensor;
use plimsoll::train::{BatchKind, Session, TrainError, WeightsFile, sparse_parameters, stored_sparse};
use serde_json::json;
use std::collections::BTreeMap;

/// A model on bytes.
pub struct Quantized {
    /// Its states.
    pub session: Session,
    /// Its grids.
    pub grids: Int8Grids,
    /// The examples on which their ranges were measured; none where they were learned.
    pub examples: usize,
    /// The planned peak.
    pub planned: usize,
}

/// Measures ranges on a part of the training data, and writes the folder of the model on bytes.
pub fn run(options: &QuantizeOptions) -> Result<(), Failure> {
    let folder = MadeFolder::new(&options.trained.run, &options.out)?;
    let kept = KeptLayers::new(options.keep.iter().map(String::as_str));
    let stripped = sparse_parameters(&options.trained.run).map_err(refused)?;
    let Quantized { session, grids, examples, planned } =
        quantized(&options.trained, options.examples, options.report_layers, &kept, &stripped)?;
    let int8: Vec<(f32, u8)> = grids.iter().collect();
    let (before, after) = folder.write(&session, |model_options| {
        model_options["int8"] = json!(int8);
        let kept: Vec<String> = grids.kept().iter().map(ToString::to_string).collect();
        if !kept.is_empty() {
            model_options["int8_kept"] = json!(kept);
        }
    })?;
    say(&format!("weights      {} before, {} on bytes", in_words(before as usize), in_words(after as usize)));
    let from = if examples == 0 { "learned".to_string() } else { format!("from {examples} examples") };
    say(&format!("grids        {} between layers, {from}", int8.len()));
    let name = escaped(options.out.display());
    say(&format!("Wrote {name}; `plimsoll evaluate {name}` and `plimsoll predict {name}` run it"));
    say(&peaks(planned, measured_peak()));
    Ok(())
}

/// The model of a run on bytes but for some layers, with ranges measured on so many examples of the training part. Prints how far each
/// layer is from floats, if asked to. Weights of stripped parameters, given by their names, are held sparse where that is smaller.
pub fn quantized(
    options: &TrainedOptions,
    examples: usize,
    report_layers: bool,
    kept: &KeptLayers,
    stripped: &BTreeMap<String, usize>,
) -> Result<Quantized, Failure> {
    if examples == 0 {
        return Err(Failure::usage("--examples must be at least 1: ranges are measured on them"));
    }
    let described = describe(&options.run)?;
    if described.int8().is_some() {
        return Err(Failure::usage("the model is on bytes already: give the folder of the run before"));
    }
    if described.is_quantize_aware() && *kept != KeptLayers::default() {
        let reason = "ranges that were learned are those of all layers";
        return Err(Failure::usage(format!(
            "--keep: {reason}: leave it out, or train without --quantize-aware"
        )));
    }
    let learned = learned(&described, options)?;
    let described = described.plain();
    let model = described.model()?;
    let graph = step::prediction(&model, 1).map_err(TrainError::from)?;
    if let Some(pattern) = kept.unknown(&graph) {
        let layers = "`--report-layers` without --keep lists them";
        return Err(Failure::usage(format!("--keep: there is no layer {pattern}: {layers}")));
    }
    let learned = learned.map(|grids| grids.keeping_rest(&graph));
    let kept = &learned.as_ref().map_or(kept, Int8Grids::kept).clone();
    let names = places(&graph, kept);
    if names.is_empty() {
        let reason = "no layer that can run on bytes: there are convolutions and dense layers of rows";
        return Err(Failure::usage(format!("`{}` has {reason}", model.name())));
    }
    let mut trained_options = options.clone();
    trained_options.train_part = true;
    let mut trained = open_described(described, &trained_options, BatchKind::Predict, Report::Classes)?;
    let trainer = trained.trainer.clone().sparse_parameters(BTreeMap::new()).precision(Policy::default());
    let trainer = trainer.outside(weights_on_bytes(&graph, kept)?);
    trained.trainer = match learned {
        Some(_) => trainer.clone(),
        None => {
            let kept = kept.clone();
            trainer.clone().inference_pass(move |graph| calibration(graph, &kept))
        }
    };
    let (mut floats, mut planned) = trained.session(options.json, options.sheet)?;
    let part = trained.part().clone().take(examples);
    let (grids, measured_on) = match learned {
        Some(grids) => (grids, 0),
        None => measured(&mut floats, &part, &names, graph.ty(graph.outputs[0].value).shape[0])?,
    };
    // As in training, the code of each phase is dropped when it is over.
    memory::trim_code();
    let grids = grids.keeping(kept.clone());
    let mut states: BTreeMap<String, Tensor> =
        grids.states(&graph, |name| floats.state(name))?.into_iter().collect();
    let mut answers = Vec::new();
    if report_layers {
        memory::trim_code();
        let (compared, held) = (grids.clone(), floats.plans().arena_bytes);
        let both = trainer.clone().outside(Entry::new("floats", held, "the run on floats"));
        let plans = both.inference_pass(move |graph| compared.comparison(graph)).plan(&trained.data)?;
        planned = planned.max(plans.sheet.host_total_and_line().0);
        memory::trim_code();
        let mut both = plans.start()?;
        set_states(&mut both, &floats, &states)?;
        memory::trim_code();
        answers = report(&mut both, &part, &grids.compared(&graph), &kept.layers(&graph))?;
    }
    let on_bytes = grids.apply(graph).map_err(TrainError::from)?;
    for state in &on_bytes.states {
        if !states.contains_key(&state.name) {
            states.insert(state.name.clone(), floats.state(&state.name)?);
        }
    }
    // The line has no room for a search beside a run.
    drop(floats);
    memory::trim_code();
    let applied = grids.clone();
    let sparse = strip(&mut states, stripped);
    trained.trainer = trainer.inference_pass(move |graph| applied.apply(graph)).sparse_parameters(sparse);
    let plans = trained.trainer.plan(&trained.data)?;
    planned = planned.max(plans.sheet.host_total_and_line().0);
    let mut session = plans.start()?;
    for (name, state) in &states {
        session.set_state(name, state)?;
    }
    if !answers.is_empty() {
        let mut found = Vec::new();
        session.predict_each(&part, |outputs| {
            largest(&outputs[0], &mut found);
            Ok::<(), Failure>(())
        })?;
        let same = found.iter().zip(&answers).filter(|(a, b)| a == b).count();
        say(&format!("answers      {same} of {} are those of the model on floats", answers.len()));
    }
    Ok(Quantized { session, grids, examples: measured_on, planned })
}

/// Replaces the weights of stripped parameters by what is stored of them where that is smaller. Returns the names of those, and how many
/// elements of each are left.
fn strip(
    states: &mut BTreeMap<String, Tensor>,
    stripped: &BTreeMap<String, usize>,
) -> BTreeMap<String, usize> {
    let of_codes = |name: &String| format!("{name}/{CODES}");
    let mut left = BTreeMap::new();
    for name in stripped.keys().flat_map(|name| [name.clone(), of_codes(name)]) {
        let Some(stored) = states.get(&name).and_then(|state| stored_sparse(&name, state)) else { continue };
        left.insert(name.clone(), stored[0].1.ty().shape.elements());
        states.remove(&name);
        states.extend(stored);
    }
    left
}

/// The grids that a run learned, if it was trained as if on bytes.
fn learned(described: &Described, options: &TrainedOptions) -> Result<Option<Int8Grids>, Failure> {
    if !described.is_quantize_aware() {
        return Ok(None);
    }
    let graph = step::prediction(&described.model()?, 1).map_err(TrainError::from)?;
    let weights = WeightsFile::open(&options.run, &graph).map_err(refused)?;
    let nothing = || Failure::usage("the run has learned no ranges: train it for some steps");
    let state = graph.states.iter().position(|state| state.name == RANGES).ok_or_else(nothing)?;
    let mut ranges = Tensor::zeros(graph.ty(graph.states[state].input).clone());
    let mut bytes = vec![0; ranges.ty().bytes()];
    Weights::read(&weights, state, 0, &mut bytes).map_err(export::failure)?;
    ranges.copy_from_bytes(&bytes);
    Int8Grids::learned(&ranges).ok_or_else(nothing).map(Some)
}

/// The grids of the ranges of a part of the data, and its examples. `names`: the layers of the places; `rows`: of an example in the model's
/// output.
fn measured(
    floats: &mut Session,
    part: &Pipeline,
    names: &[String],
    rows: usize,
) -> Result<(Int8Grids, usize), Failure> {
    let mut examples = 0;
    let mut ranges = vec![(f32::INFINITY, f32::NEG_INFINITY); names.len()];
    floats.predict_each(part, |outputs| {
        // The model's own outputs come first.
        let measured = &outputs[outputs.len().saturating_sub(2 * ranges.len())..];
        examples += outputs[0].ty().shape[0] / rows.max(1);
        for (pair, (low, high)) in measured.chunks_exact(2).zip(&mut ranges) {
            let all = |tensor: &Tensor, from: f32, f: fn(f32, f32) -> f32| {
                // NaN must not get lost.
                let elements = tensor.as_f32().unwrap_or_default().iter();
                elements.fold(from, |a, &b| if a.is_nan() || b.is_nan() { f32::NAN } else { f(a, b) })
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
            "the range of {of} on the calibration data is not finite: take data whose numbers are"
        )));
    }
    Ok((Int8Grids::of_ranges(&ranges), examples))
}

/// What is held beside either model: the weights on bytes, and the largest of them on their way there.
fn weights_on_bytes(graph: &Graph, kept: &KeptLayers) -> Result<Entry, Failure> {
    let bytes = |graph: &Graph| -> Vec<usize> {
        graph.states.iter().map(|state| graph.ty(state.input).bytes()).collect()
    };
    let after = setup::on_bytes(graph.clone(), kept).map_err(TrainError::from)?;
    let total = bytes(&after).iter().sum::<usize>() + 2 * bytes(graph).iter().max().unwrap_or(&0);
    Ok(Entry::new("weights on bytes", total, "and the largest of them on their way there"))
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

/// Adds the index of the largest output of each example, where there is a row of them for each.
fn largest(outputs: &Tensor, found: &mut Vec<usize>) {
    let (&[_, columns], Some(numbers)) = (&outputs.ty().shape[..], outputs.as_f32()) else { return };
    if columns < 2 {
        return;
    }
    found.extend(numbers.chunks_exact(columns).map(|row| {
        let larger = |best: usize, i: usize| if row[i] > row[best] { i } else { best };
        (1..columns).fold(0, larger)
    }));
}

/// Prints how far the layers of a comparison are from those on floats, and which are kept there. Returns the answers on floats, where there is one for
/// each example.
fn report(
    both: &mut Session,
    part: &Pipeline,
    layers: &[String],
    kept: &[String],
) -> Result<Vec<usize>, Failure> {
    let (mut measured, mut answers) = (vec![LayerNoise::default(); layers.len()], Vec::new());
    both.predict_each(part, |outputs| {
        largest(&outputs[0], &mut answers);
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
    let widest = layers.iter().chain(kept).map(|layer| layer.chars().count()).max().unwrap_or(0).max(5);
    let decibels = |of: Option<f64>| of.map_or("exact".to_string(), |found| format!("{found:.1} dB"));
    say(&format!("{:<widest$}  {:>9}  {:>9}", "layer", "as it is", "its own"));
    for (layer, noise) in layers.iter().zip(measured) {
        let (all, own) = (decibels(noise.decibels()), decibels(noise.own_decibels()));
        say(&format!("{layer:<widest$}  {all:>9}  {own:>9}"));
    }
    for layer in kept {
        say(&format!("{layer:<widest$}  {:>9}  {:>9}", "f32", "f32"));
    }
    Ok(answers)
}
