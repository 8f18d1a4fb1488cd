//! `plimsoll prune`: a trained model with fewer channels.

use super::args::PruneChannelsOptions;
use super::made_folder::MadeFolder;
use super::setup::{process, trained_executor};
use super::text::escaped;
use super::trained::{describe, peaks};
use super::weights::refused;
use super::{Failure, answer, say};
use plimsoll::Size;
use plimsoll::compress::{ChannelError, Channels};
use plimsoll::data::{Dataset, Pipeline, Schema};
use plimsoll::export::Weights;
use plimsoll::graph::Graph;
use plimsoll::memory::{self, measured_peak};
use plimsoll::nn::{Model, Narrow, Sgd, step};
use plimsoll::plan::Entry;
use plimsoll::tensor::Tensor;
use plimsoll::train::{BatchKind, Session, TrainError, Trainer, WeightsFile};
use serde_json::json;

/// Why channels could not be removed.
enum Refusal {
    Channels(ChannelError),
    Read(TrainError),
}

impl From<ChannelError> for Refusal {
    fn from(error: ChannelError) -> Self {
        Self::Channels(error)
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Channels(error) => Self::usage(format!("--channels: {}", escaped(error))),
            Refusal::Read(error) => error.into(),
        }
    }
}

/// Reads a run's weights, removes channels, and writes the folder of the smaller model. Of the whole model one state at a time is in
/// memory.
pub fn run(options: &PruneChannelsOptions) -> Result<(), Failure> {
    let run = &options.run;
    let folder = MadeFolder::new(run, &options.out)?;
    let described = describe(run)?;
    if described.int8().is_some() {
        return Err(Failure::usage(
            "the model is on bytes, whose channels are not removed: give the folder of the run before, and quantize what is left of it",
        ));
    }
    let model = described.plain_model()?;
    let whole = step::prediction(&model, 1).map_err(TrainError::from)?;
    let weights = WeightsFile::open(run, &whole).map_err(refused)?;
    let read = |name: &str| state(&whole, &weights, name).map_err(Refusal::Read);
    let channels = Channels::smallest(&model, options.channels, read)?;
    let widths = described.all_widths(channels.widths());
    let (mut small, planned) = session(Narrow::new(model, widths.clone()), &whole, options)?;
    let names: Vec<String> = small.plans().states.iter().map(|state| state.name.clone()).collect();
    for name in names {
        let cut = channels.cut(&name, &state(&whole, &weights, &name)?);
        small.set_state(&name, &cut)?;
    }
    let left = small.parameters().map(|(_, ty)| ty.shape.elements()).sum::<usize>();
    folder.write(&small, |model_options| model_options["widths"] = json!(widths))?;
    let (before, after) = channels.counts();
    say(&format!("channels     {before} before, {after} left, in {} layers", channels.widths().len()));
    say(&format!("parameters   {} before, {left} left", whole.parameter_count()));
    let name = escaped(options.out.display());
    say(&format!(
        "Wrote {name}; train it on with `plimsoll train --model {} --weights {name}`",
        described.name()
    ));
    say(&peaks(planned, measured_peak()));
    Ok(())
}

/// A state of the whole model.
fn state(graph: &Graph, weights: &WeightsFile, name: &str) -> Result<Tensor, TrainError> {
    let unknown = || TrainError::Setting(format!("the model has no state `{name}`"));
    let index = graph.states.iter().position(|state| state.name == name).ok_or_else(unknown)?;
    let mut tensor = Tensor::zeros(graph.ty(graph.states[index].input).clone());
    let mut bytes = vec![0; tensor.ty().bytes()];
    Weights::read(weights, index, 0, &mut bytes)?;
    tensor.copy_from_bytes(&bytes);
    Ok(tensor)
}

/// The smaller model with memory for its states, under the line, and its planned peak. States that exceed the line go to a file.
fn session(
    model: impl Model + 'static,
    whole: &Graph,
    options: &PruneChannelsOptions,
) -> Result<(Session, usize), Failure> {
    let schema = Schema::examples(model.inputs(), model.target());
    // Stands for rows that are never read.
    let rows = Pipeline::generator(schema, 0, |_| |_| Ok(false)).counted(1);
    // A state as it is read, as a tensor, and what is left of it.
    let largest = whole.states.iter().map(|state| whole.ty(state.input).bytes()).max().unwrap_or(0);
    let entry = Entry::new("weights", 3 * largest, "the largest of the whole model, and what is left of it");
    let line_bytes = options.memory.bytes(memory::available().unwrap_or(usize::MAX));
    let trainer = Trainer::new(model, Sgd::new(0.0))
        .executor(trained_executor(1, options.spill.as_deref(), &options.run)?)
        .kinds(&[BatchKind::Predict])
        .batch(1)
        .memory(Size::Bytes(line_bytes))
        .process(process(1, false))
        .outside(entry);
    let plans = trainer.plan(&Dataset::new("states", rows.clone(), rows)).map_err(|e| answer(e, false))?;
    let (planned, _) = plans.sheet.host_total_and_line();
    if options.sheet {
        say(&plans.sheet.to_string());
    }
    memory::trim_code();
    Ok((plans.start()?, planned))
}
