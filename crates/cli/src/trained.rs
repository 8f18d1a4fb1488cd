//! Opens a trained model from its folder, for `evaluate` and `predict`.

use super::args::{InputOptions, ModelOptions, TrainedOptions};
use super::input::{fit, fitted, image_options, narrowed, open_options};
use super::setup::{batch, check_available, executor, line, threads};
use super::zoo_model::model;
use super::{Failure, answer, applies, hint, progress, resume::recorded, say};
use crate::HEAP;
use crate::heap::Tag;
use plimsoll::data::{Dataset, OpenOptions, Pipeline};
use plimsoll::memory;
use plimsoll::nn::{Policy, Sgd, step};
use plimsoll::plan::in_words;
use plimsoll::train::{BatchKind, Session, TrainState, Trainer};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A trained model with its data.
pub struct Trained {
    pub trainer: Trainer,
    pub data: Dataset,
    /// Classes of the model's labels; `None` for values.
    pub classes: Option<usize>,
    parameters: Parameters,
    available_bytes: Option<usize>,
}

/// What a run's folder tells about its model.
struct Described {
    model: ModelOptions,
    data: Option<String>,
    batch: Option<usize>,
    seed: u64,
    parameters: Parameters,
    /// The label, columns and tokenizer of training.
    input: InputOptions,
    policy: Policy,
}

/// Where the parameters are.
enum Parameters {
    /// In a file of weights.
    File(PathBuf),
    /// In the newest intact checkpoint of a folder.
    Checkpoint(PathBuf),
}

/// Reads the report of a finished run, or else the newest intact checkpoint.
fn describe(folder: &Path) -> Result<Described, Failure> {
    let path = folder.join("report.json");
    if !path.exists() {
        return describe_checkpoint(folder);
    }
    let shown = path.display();
    let wrong = |reason: String| Failure::usage(format!("{shown}: {reason}"));
    let text = std::fs::read_to_string(&path).map_err(|e| wrong(e.to_string()))?;
    let manifest: Value = serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?;
    let known = |key: &str| manifest.get(key).and_then(Value::as_str).map(str::to_string);
    let number = |value: Option<&Value>| value.and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
    let size = |key: &str| number(manifest.get("model_options").and_then(|options| options.get(key)));
    let weights = manifest.get("model_options").and_then(|options| options.get("class_weights"));
    let weights = weights.and_then(Value::as_array);
    let model = ModelOptions {
        model: known("model").ok_or_else(|| wrong("there is no \"model\"".into()))?,
        classes: size("classes"),
        image_size: size("image_size"),
        channels: size("channels"),
        context: size("context"),
        layers: size("layers"),
        width: size("width"),
        heads: size("heads"),
        dropout: None,
        class_weights: weights.into_iter().flatten().filter_map(Value::as_f64).collect(),
        features: size("features"),
    };
    let columns = manifest.get("columns").and_then(Value::as_array).into_iter().flatten();
    let input = InputOptions {
        label: known("label"),
        columns: columns.filter_map(Value::as_str).map(str::to_string).collect(),
        tokenizer: known("tokenizer").map(PathBuf::from),
        ..InputOptions::default()
    };
    let policy = precision(&manifest).map_err(wrong)?;
    let seed = manifest.get("seed").and_then(Value::as_u64).unwrap_or(0);
    let parameters = Parameters::File(folder.join("weights.safetensors"));
    Ok(Described {
        model,
        data: known("data"),
        input,
        policy,
        batch: number(manifest.get("batch")),
        seed,
        parameters,
    })
}

fn describe_checkpoint(folder: &Path) -> Result<Described, Failure> {
    let wrong = |reason: String| {
        Failure::usage(format!(
            "{reason}; give a folder in which `train --out` left a report or a checkpoint"
        ))
    };
    let state = TrainState::read(folder).map_err(|e| wrong(e.to_string()))?;
    let run = recorded(&state).map_err(wrong)?;
    let model = ModelOptions { dropout: None, ..run.model };
    let policy = run.precision.policy()?;
    let parameters = Parameters::Checkpoint(folder.to_path_buf());
    Ok(Described {
        model,
        data: run.data,
        input: run.input,
        policy,
        batch: run.batch,
        seed: run.seed,
        parameters,
    })
}

/// Reads what `train` wrote, rebuilds the model, and opens the data.
pub fn open(options: &TrainedOptions, kind: BatchKind, report: step::Report) -> Result<Trained, Failure> {
    let described = describe(&options.run)?;
    let Described { model: mut sizes, data: trained_on, batch: trained_batch, seed, parameters, .. } =
        described;
    let no_data = || Failure::usage("the run does not say which data it had: add --data");
    let data_name = options.data.clone().or(trained_on.clone()).ok_or_else(no_data)?;
    // The model is as it was trained, whatever data it runs on now.
    let mut model = model(&sizes, trained_on.as_deref())?;
    let examples = batch(options.batch.or(trained_batch).unwrap_or(1))?;
    let threads = threads(&options.machine)?;
    let (available_bytes, line_bytes) = line(&options.machine);
    let precision = described.policy.precision;
    let images = image_options(&options.input, model.as_ref(), precision, false)?;
    // Columns are those of training, unless flags say otherwise.
    let mut input = options.input.clone();
    applies::restore(&data_name, trained_on.as_deref(), &mut input, described.input);
    applies::check(&data_name, &input, false)?;
    let open_options = OpenOptions {
        images,
        examples: examples.saturating_mul(10),
        ..open_options(model.as_ref(), &input, &sizes, seed, line_bytes)
    };
    let opened = HEAP.tagged(Tag::Data, || plimsoll::data::open(&data_name, &open_options))?;
    // A report has the sizes that the model took from the data, a checkpoint does not.
    if matches!(parameters, Parameters::Checkpoint(_)) && fit(&mut sizes, &data_name, &opened)? {
        model = self::model(&sizes, trained_on.as_deref())?;
    }
    let mut data = fitted(opened, model.as_ref(), seed)?;
    if options.train_part {
        std::mem::swap(&mut data.train, &mut data.test);
    }
    let classes = model.target().bound;
    let model = narrowed(model, &data, precision)?;
    let trainer = Trainer::new(model, Sgd::new(0.0), executor(threads)?);
    let trainer =
        trainer.batch(examples.min(data.test.len().unwrap_or(1).max(1))).seed(seed).line(line_bytes);
    let trainer = trainer.precision(described.policy);
    let trainer = progress::attach(memory::declare(trainer.kinds(&[kind]).report(report), threads, &data));
    Ok(Trained { trainer, data, classes, parameters, available_bytes })
}

/// The precision policy of training.
fn precision(manifest: &Value) -> Result<Policy, String> {
    let name = manifest.get("precision").and_then(Value::as_str).unwrap_or("f32");
    let kept = manifest.get("keep_f32").and_then(Value::as_array);
    let patterns = kept.into_iter().flatten().filter_map(Value::as_str);
    Ok(patterns.fold(Policy::new(name.parse()?), Policy::keep_f32))
}

impl Trained {
    /// Plans, prints the load sheet if `show` is set, and loads the weights.
    pub fn session(&self, json: bool, show: bool) -> Result<(Session<'_>, usize), Failure> {
        let plans =
            HEAP.tagged(Tag::Planning, || self.trainer.plan(&self.data)).map_err(|e| answer(e, json))?;
        let total = plans.sheet.total_bytes;
        if show {
            say(&plans.sheet.to_string());
        }
        check_available(total, self.available_bytes)?;
        memory::trim_heap();
        memory::trim_code();
        let mut session = self.trainer.prepare(plans, &self.data)?;
        match &self.parameters {
            Parameters::File(path) => session.load(path)?,
            Parameters::Checkpoint(folder) => {
                let path = session.load_checkpoint(folder)?;
                hint(&format!("the run is not finished: these are the parameters of {}", path.display()));
            }
        }
        Ok((session, total))
    }

    /// The part of the data to run on.
    pub fn part(&self) -> &Pipeline {
        &self.data.test
    }
}

/// The planned beside the measured peak, as text.
pub fn peaks(planned: usize, measured: Option<usize>) -> String {
    let measured = measured.map_or("unknown".to_string(), in_words);
    format!("peak memory: planned {}, measured {measured}", in_words(planned))
}
