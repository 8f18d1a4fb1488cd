//! `plimsoll prune`: a trained model with fewer channels.

use super::args::PruneChannelsOptions;
use super::run_folder::{REPORT, WEIGHTS, found_in};
use super::text::escaped;
use super::trained::describe;
use super::weights::refused;
use super::{Failure, say};
use plimsoll::compress::{ChannelError, Channels};
use plimsoll::data::{Dataset, Pipeline, Schema};
use plimsoll::nn::{Model, Narrow, Sgd};
use plimsoll::train::{BatchKind, DataFile, Session, TrainError, Trainer, write_atomically};
use serde_json::{Value, json};

/// What a report says that a later run or prediction needs.
const KEPT: [&str; 10] = [
    "model",
    "data",
    "tokenizer",
    "label",
    "columns",
    "batch",
    "accumulate",
    "seed",
    "precision",
    "keep_f32",
];

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

/// Loads a run's weights, removes channels, and writes the folder of the smaller model.
pub fn run(options: &PruneChannelsOptions) -> Result<(), Failure> {
    let (run, out) = (&options.run, &options.out);
    if let Some(what) = found_in(out) {
        let name = escaped(out.display());
        return Err(Failure::usage(format!("--out {name}: {what}; name another folder")));
    }
    let report = run.join(REPORT);
    let name = escaped(report.display());
    let text = std::fs::read_to_string(&report)
        .map_err(|e| Failure::usage(format!("{name}: {e}; give the folder of a run that has ended")))?;
    let report: Value = serde_json::from_str(&text).map_err(|e| Failure::usage(format!("{name}: {e}")))?;
    let described = describe(run)?;
    let model = described.model()?;
    let mut whole = session(described.model()?)?;
    whole.load(run).map_err(refused)?;
    let read = |name: &str| whole.state(name).map_err(Refusal::Read);
    let channels = Channels::smallest(&model, options.channels, read)?;
    let mut small = session(Box::new(Narrow::new(model, described.all_widths(channels.widths()))))?;
    let names: Vec<String> = small.plans().states.iter().map(|state| state.name.clone()).collect();
    for name in names {
        small.set_state(&name, &channels.cut(&name, &whole.state(&name)?))?;
    }
    let elements = |session: &Session| session.parameters().map(|(_, ty)| ty.shape.elements()).sum::<usize>();
    let parameters = [elements(&whole), elements(&small)];
    drop(whole);
    let failed = |e: std::io::Error| Failure::usage(format!("--out {}: {e}", escaped(out.display())));
    std::fs::create_dir_all(out).map_err(failed)?;
    small.save(out.join(WEIGHTS))?;
    let mut options_of_model = report.get("model_options").cloned().unwrap_or_else(|| json!({}));
    options_of_model["widths"] = json!(described.all_widths(channels.widths()));
    let mut file = DataFile::read(run).map_err(refused)?.unwrap_or_default();
    file.model_options = options_of_model.clone();
    file.write(out)?;
    let kept = KEPT.iter().filter_map(|&key| Some((key.to_string(), report.get(key)?.clone())));
    let mut written: serde_json::Map<String, Value> = kept.collect();
    written.insert("model_options".into(), options_of_model);
    let (before, after) = channels.counts();
    written.insert("channels".into(), json!({ "before": before, "after": after }));
    let text = format!("{:#}\n", Value::Object(written));
    write_atomically(&out.join(REPORT), text.as_bytes())?;
    say(&format!("channels     {before} before, {after} left, in {} layers", channels.widths().len()));
    say(&format!("parameters   {} before, {} left", parameters[0], parameters[1]));
    let name = escaped(out.display());
    say(&format!(
        "Wrote {name}; train it on with `plimsoll train --model {} --weights {name}`",
        described.name()
    ));
    Ok(())
}

/// A model with memory for its states, to read and write them.
fn session(model: Box<dyn Model>) -> Result<Session, Failure> {
    let schema = Schema::examples(model.inputs(), model.target());
    // Stands for rows that are never read.
    let rows = Pipeline::generator(schema, 0, |_| |_| Ok(false)).counted(1);
    let trainer = Trainer::new(model, Sgd::new(0.0)).kinds(&[BatchKind::Predict]).batch(1);
    Ok(trainer.plan(&Dataset::new("states", rows.clone(), rows))?.start()?)
}
