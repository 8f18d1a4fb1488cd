//! A trained model from its folder, ready to look at data.

use super::args::{ModelOptions, TrainedOptions};
use super::setup::{batch, check_available, dataset, executor, image_options, line, model, threads};
use super::{Failure, answer, say};
use crate::HEAP;
use crate::heap::Tag;
use plimsoll::data::{Dataset, Pipeline};
use plimsoll::memory;
use plimsoll::nn::{Policy, Sgd, step};
use plimsoll::plan::in_words;
use plimsoll::train::{BatchKind, Session, Trainer};
use serde_json::Value;
use std::path::PathBuf;

/// What a run's folder says, with data opened for it.
pub struct Trained {
    pub trainer: Trainer,
    pub data: Dataset,
    /// Classes of the model's labels; `None` for values.
    pub classes: Option<usize>,
    weights: PathBuf,
    available_bytes: Option<usize>,
}

/// Reads the report that `train` wrote, builds the model again, and opens the data.
pub fn open(options: &TrainedOptions, kind: BatchKind, report: step::Report) -> Result<Trained, Failure> {
    let path = options.run.join("report.json");
    let shown = path.display();
    let text = std::fs::read_to_string(&path)
        .map_err(|e| Failure::usage(format!("{shown}: {e}; give a folder that `train --out` wrote")))?;
    let manifest: Value = serde_json::from_str(&text).map_err(|e| Failure::usage(format!("{shown}: {e}")))?;
    let known = |key: &str| manifest.get(key).and_then(Value::as_str).map(str::to_string);
    let missing = |key: &str| Failure::usage(format!("{shown}: there is no \"{key}\""));
    let name = known("model").ok_or_else(|| missing("model"))?;
    let size = |key: &str| {
        let value = manifest.get("model_options").and_then(|options| options.get(key));
        value.and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok())
    };
    let sizes = ModelOptions {
        model: name,
        classes: size("classes"),
        image_size: size("image_size"),
        channels: size("channels"),
        context: size("context"),
        layers: size("layers"),
        width: size("width"),
        heads: size("heads"),
        dropout: None,
    };
    let trained_on = known("data");
    let data_name = options.data.clone().or(trained_on.clone()).ok_or_else(|| missing("data"))?;
    // The model is as it was trained, whatever it looks at now.
    let model = model(&sizes, trained_on.as_deref())?;
    let trained_batch = manifest.get("batch").and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
    let examples = batch(options.batch.or(trained_batch).unwrap_or(1))?;
    let seed = manifest.get("seed").and_then(Value::as_u64).unwrap_or(0);
    let threads = threads(&options.machine)?;
    let (available_bytes, line_bytes) = line(&options.machine);
    let images = image_options(&options.input, model.inputs().first(), false)?;
    let mut data = dataset(&data_name, model.as_ref(), seed, examples, images, line_bytes)?;
    if options.train_part {
        std::mem::swap(&mut data.train, &mut data.test);
    }
    let classes = model.target().bound;
    let trainer = Trainer::new(model, Sgd::new(0.0), executor(threads)?);
    let trainer =
        trainer.batch(examples.min(data.test.len().unwrap_or(1).max(1))).seed(seed).line(line_bytes);
    let trainer =
        trainer.precision(precision(&manifest).map_err(|e| Failure::usage(format!("{shown}: {e}")))?);
    let trainer = memory::declare(trainer.kinds(&[kind]).report(report), threads, &data);
    let weights = options.run.join("weights.safetensors");
    Ok(Trained { trainer, data, classes, weights, available_bytes })
}

/// What the model was trained in.
fn precision(manifest: &Value) -> Result<Policy, String> {
    let name = manifest.get("precision").and_then(Value::as_str).unwrap_or("f32");
    let kept = manifest.get("keep_f32").and_then(Value::as_array);
    let patterns = kept.into_iter().flatten().filter_map(Value::as_str);
    Ok(patterns.fold(Policy::new(name.parse()?), Policy::keep_f32))
}

impl Trained {
    /// Plans, prints the load sheet unless the output is data, and loads the weights.
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
        session.load(&self.weights)?;
        Ok((session, total))
    }

    /// The part of the data to look at.
    pub fn part(&self) -> &Pipeline {
        &self.data.test
    }
}

/// Planned beside measured peak, in words.
pub fn peaks(planned: usize, measured: Option<usize>) -> String {
    let measured = measured.map_or("unknown".to_string(), in_words);
    format!("peak memory: planned {}, measured {measured}", in_words(planned))
}
