//! Opens a trained model from its folder, for `evaluate` and `predict`.

use super::args::{InputOptions, ModelOptions, TrainedOptions};
use super::input::{fit, fitted, image_options, narrowed, open_options};
use super::run_folder::{REPORT, report};
use super::setup::{batch, check_available, line, process, say_line_above, threads, trained_executor};
use super::text::escaped;
use super::weights::refused;
use super::zoo_model::{self, model};
use super::{Failure, answer, applies, devices, hint, progress, resume::recorded, say};
use plimsoll::Size;
use plimsoll::compress::{Int8Grids, KeptLayers};
use plimsoll::data::{Dataset, OpenOptions, Pipeline, Preparation, TableOptions, ValidationSplit};
use plimsoll::memory::{self, Tag};
use plimsoll::nn::{Model, Policy, Precision, Sgd, step};
use plimsoll::plan::in_words;
use plimsoll::train::{
    BatchKind, DataFile, Session, TrainError, TrainState, Trainer, WEIGHTS_FILE, sparse_parameters,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The most classes that a message lists.
const MOST_LISTED: usize = 12;

/// A trained model with its data.
pub struct Trained {
    pub trainer: Trainer,
    pub data: Dataset,
    /// Classes of the model's labels; `None` for values.
    pub classes: Option<usize>,
    /// The names of the classes, and what records go through.
    pub preparation: Preparation,
    parameters: Parameters,
    available_bytes: Option<usize>,
}

/// What a run's folder tells about its model.
pub struct Described {
    sizes: ModelOptions,
    /// The data of training.
    pub data: Option<String>,
    batch: Option<usize>,
    seed: u64,
    parameters: Parameters,
    /// The label, columns and tokenizer of training.
    pub input: InputOptions,
    policy: Policy,
    /// The grids of a model on bytes.
    int8: Option<Int8Grids>,
    /// What records go through; `None` for a run of a version that did not save it.
    pub preparation: Option<Preparation>,
    /// Whether the sizes are those that the model took from its data.
    fitted: bool,
}

/// Where the parameters are.
enum Parameters {
    /// In a file of weights.
    File(PathBuf),
    /// In the newest intact checkpoint of a folder.
    Checkpoint(PathBuf),
}

/// Reads the report of a finished run, or else the newest intact checkpoint, and what the run's data decided.
pub fn describe(folder: &Path) -> Result<Described, Failure> {
    let mut described = match folder.join(REPORT).exists() {
        true => describe_report(folder)?,
        false => describe_checkpoint(folder)?,
    };
    if let Some(file) = DataFile::read(folder).map_err(|e| Failure::usage(escaped(e)))? {
        if !described.fitted {
            described.sizes = sizes(described.sizes.model, &file.model_options);
            described.fitted = true;
        }
        described.preparation = Some(file.preparation);
    }
    Ok(described)
}

/// The sizes of a model as a report has them.
fn sizes(model: String, options: &Value) -> ModelOptions {
    let size = |key: &str| number(options.get(key));
    let weights = options.get("class_weights").and_then(Value::as_array);
    ModelOptions {
        model,
        classes: size("classes"),
        image_size: size("image_size"),
        channels: size("channels"),
        context: size("context"),
        layers: size("layers"),
        width: size("width"),
        width_multiplier: options.get("width_multiplier").and_then(Value::as_f64),
        heads: size("heads"),
        kv_heads: size("kv_heads"),
        window: size("window"),
        dropout: None,
        class_weights: weights.into_iter().flatten().filter_map(Value::as_f64).collect(),
        features: size("features"),
        train_batch_norm: false,
        widths: options.get("widths").map(zoo_model::widths_in).unwrap_or_default(),
        quantize_aware: options.get("quantize_aware").and_then(Value::as_bool).unwrap_or(false),
    }
}

fn number(value: Option<&Value>) -> Option<usize> {
    value.and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok())
}

fn describe_report(folder: &Path) -> Result<Described, Failure> {
    let path = folder.join(REPORT);
    let wrong = |reason: String| Failure::usage(escaped(format!("{}: {reason}", path.display())));
    let manifest = report(folder)?;
    let known = |key: &str| manifest.get(key).and_then(Value::as_str).map(str::to_string);
    let model = known("model").ok_or_else(|| wrong("there is no \"model\"".into()))?;
    let columns = manifest.get("columns").and_then(Value::as_array).into_iter().flatten();
    let input = InputOptions {
        label: known("label"),
        columns: columns.filter_map(Value::as_str).map(str::to_string).collect(),
        tokenizer: known("tokenizer").map(PathBuf::from),
        ..InputOptions::default()
    };
    Ok(Described {
        sizes: sizes(model, manifest.get("model_options").unwrap_or(&Value::Null)),
        data: known("data"),
        batch: number(manifest.get("batch")),
        seed: manifest.get("seed").and_then(Value::as_u64).unwrap_or(0),
        parameters: Parameters::File(folder.join(WEIGHTS_FILE)),
        input,
        policy: precision(&manifest).map_err(wrong)?,
        int8: int8_grids(manifest.get("model_options")).map_err(wrong)?,
        preparation: None,
        fitted: true,
    })
}

fn describe_checkpoint(folder: &Path) -> Result<Described, Failure> {
    let wrong = |reason: String| {
        let hint = "give a folder in which `train --out` left a report or a checkpoint";
        Failure::usage(escaped(format!("{reason}; {hint}")))
    };
    let state = TrainState::read(folder).map_err(|e| wrong(e.to_string()))?;
    let run = recorded(&state).map_err(wrong)?;
    Ok(Described {
        sizes: ModelOptions { dropout: None, train_batch_norm: false, ..run.model },
        data: run.data,
        batch: run.batch,
        seed: run.seed,
        parameters: Parameters::Checkpoint(folder.to_path_buf()),
        input: run.input,
        policy: run.precision.policy()?,
        int8: None,
        preparation: None,
        fitted: false,
    })
}

/// Reads what `train` wrote, rebuilds the model, and opens the data.
pub fn open(options: &TrainedOptions, kind: BatchKind, report: step::Report) -> Result<Trained, Failure> {
    open_described(describe(&options.run)?, options, kind, report)
}

/// As [`open`], of a run that was described.
pub fn open_described(
    mut described: Described,
    options: &TrainedOptions,
    kind: BatchKind,
    report: step::Report,
) -> Result<Trained, Failure> {
    let trained_on = described.data.clone();
    let no_data = || Failure::usage("the run does not say which data it had: add --data");
    let data_name = options.data.clone().or(trained_on.clone()).ok_or_else(no_data)?;
    // The model is as it was trained, whatever data it runs on now.
    let mut model = described.model()?;
    let examples = batch(options.batch.or(described.batch).unwrap_or(1))?;
    let (_, line_bytes) = line(&options.machine);
    let images = image_options(&options.input, model.as_ref(), described.policy.precision, false)?;
    // Columns are those of training, unless flags say otherwise.
    let mut input = options.input.clone();
    applies::restore(&data_name, trained_on.as_deref(), &mut input, described.input.clone());
    applies::check(&data_name, &input, false)?;
    let mut open_options = OpenOptions {
        images,
        examples: examples.saturating_mul(10),
        validation: ValidationSplit::None,
        ..open_options(model.as_ref(), &input, &described.sizes, described.seed, line_bytes)
    };
    // Rows go through what those of training went through, unless flags choose others.
    let rows = ["csv:", "parquet:"].iter().any(|format| data_name.starts_with(format));
    let chosen = options.input.label.is_some() || !options.input.columns.is_empty();
    let prepared = described.preparation.as_ref().filter(|_| rows && !chosen);
    if let Some(table) = prepared.and_then(TableOptions::as_prepared) {
        open_options.table = table;
    }
    let opened = memory::tagged(Tag::Data, || plimsoll::data::open(&data_name, &open_options))?;
    if !described.fitted && fit(&mut described.sizes, &data_name, &opened)? {
        model = described.model()?;
    }
    if kind == BatchKind::Evaluate {
        described.check_classes(&data_name, &opened.train.preparation().classes)?;
    }
    let mut data = fitted(opened, model.as_ref(), described.seed)?;
    if options.train_part {
        std::mem::swap(&mut data.train, &mut data.test);
    }
    described.with_data(options, model, data, kind, report)
}

impl Described {
    /// The model, as it was trained.
    pub fn model(&self) -> Result<Box<dyn Model>, Failure> {
        model(&self.sizes, self.data.as_deref())
    }

    /// The model without what is there for training alone: it computes in floats, though it was trained as if on bytes.
    pub fn plain_model(&self) -> Result<Box<dyn Model>, Failure> {
        let sizes = ModelOptions { quantize_aware: false, ..self.sizes.clone() };
        model(&sizes, self.data.as_deref())
    }

    /// The same, to be opened as [`Described::plain_model`].
    pub fn plain(mut self) -> Self {
        self.sizes.quantize_aware = false;
        self
    }

    /// Whether the model was trained as if on bytes.
    pub fn is_quantize_aware(&self) -> bool {
        self.sizes.quantize_aware
    }

    /// The model's name in the zoo.
    pub fn name(&self) -> &str {
        &self.sizes.model
    }

    /// The output channels of layers that differ from the zoo's, with these more.
    pub fn all_widths(&self, more: &BTreeMap<String, usize>) -> BTreeMap<String, usize> {
        let own = zoo_model::widths(&self.sizes.widths).unwrap_or_default();
        own.into_iter().chain(more.iter().map(|(layer, n)| (layer.clone(), *n))).collect()
    }

    /// The grids of a model on bytes.
    pub fn int8(&self) -> Option<&Int8Grids> {
        self.int8.as_ref()
    }

    /// The precision of training.
    pub fn precision(&self) -> Precision {
        self.policy.precision
    }

    /// The seed of training.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Refuses labels that are numbered by other names than those of training.
    fn check_classes(&self, data: &str, classes: &[String]) -> Result<(), Failure> {
        let own = self.preparation.as_ref().map_or(&[][..], |preparation| &preparation.classes);
        if own.is_empty() || classes.is_empty() || own == classes {
            return Ok(());
        }
        let listed = |names: &[String]| {
            let more = if names.len() > MOST_LISTED { ", ..." } else { "" };
            format!("{}{more}", names[..names.len().min(MOST_LISTED)].join(", "))
        };
        let (own, found) = (listed(own), listed(classes));
        Err(Failure::usage(escaped(format!(
            "{data} has the classes {found}, the model {own}: name and number them alike (a folder may be empty)"
        ))))
    }

    /// Refuses grids of other layers than those that run on bytes here.
    pub fn check_int8(&self, model: &dyn Model) -> Result<(), Failure> {
        let Some(grids) = &self.int8 else { return Ok(()) };
        let prediction = step::prediction(model, 1).map_err(TrainError::from)?;
        if grids.fit(&prediction) {
            return Ok(());
        }
        Err(Failure::usage(
            "the run was quantized for other layers on bytes than this version has: quantize the run on floats again",
        ))
    }

    /// A trainer for the model and the test part of this data.
    pub fn with_data(
        self,
        options: &TrainedOptions,
        model: Box<dyn Model>,
        data: Dataset,
        kind: BatchKind,
        report: step::Report,
    ) -> Result<Trained, Failure> {
        let examples = batch(options.batch.or(self.batch).unwrap_or(1))?;
        let threads = threads(&options.machine)?;
        let (available_bytes, line_bytes) = line(&options.machine);
        say_line_above(&options.machine, available_bytes);
        self.check_int8(model.as_ref())?;
        let classes = model.target().bound;
        let model = narrowed(model, &data, self.policy.precision)?;
        let gpu = devices::gpu(&options.machine, self.policy.precision, false, None)?;
        let policy = match self.policy.precision {
            Precision::TF32 if gpu.is_none() => {
                hint("trained in tf32, which the cpu does not have: it computes in f32");
                Policy { precision: Precision::F32, ..self.policy }
            }
            _ => self.policy,
        };
        let (with_gpu, device_line) = (gpu.is_some(), gpu.as_ref().map_or(usize::MAX, |gpu| gpu.line_bytes));
        let cpu = || trained_executor(threads, options.spill.as_deref(), &options.run);
        let executor = gpu.map_or_else(cpu, |gpu| Ok(Box::new(gpu.executor) as _))?;
        let trainer = Trainer::new(model, Sgd::new(0.0)).executor(executor).device_line(device_line);
        let examples = examples.min(data.test.len().unwrap_or(1).max(1));
        let trainer = trainer.batch(examples).seed(self.seed).precision(policy);
        let trainer = trainer.memory(Size::Bytes(line_bytes)).process(process(threads, with_gpu));
        let trainer = progress::attach(trainer.kinds(&[kind]).report(report));
        let sparse = match &self.parameters {
            Parameters::File(path) => sparse_parameters(path).map_err(refused)?,
            Parameters::Checkpoint(_) => BTreeMap::new(),
        };
        let trainer = trainer.sparse_parameters(sparse);
        let trainer = match self.int8 {
            Some(grids) => {
                trainer.precision(Policy::default()).inference_pass(move |graph| grids.apply(graph))
            }
            None => trainer,
        };
        let preparation = self.preparation.unwrap_or_default();
        Ok(Trained { trainer, data, classes, preparation, parameters: self.parameters, available_bytes })
    }
}

/// The grids of a model on bytes, from its options.
fn int8_grids(options: Option<&Value>) -> Result<Option<Int8Grids>, String> {
    let Some(listed) = options.and_then(|options| options.get("int8")?.as_array()) else { return Ok(None) };
    let grid =
        |pair: &Value| Some((pair.get(0)?.as_f64()? as f32, u8::try_from(pair.get(1)?.as_u64()?).ok()?));
    let grids: Option<Vec<(f32, u8)>> = listed.iter().map(grid).collect();
    let kept = options.and_then(|options| options.get("int8_kept")?.as_array()).into_iter().flatten();
    let kept = KeptLayers::new(kept.filter_map(Value::as_str));
    grids
        .and_then(Int8Grids::new)
        .map(|grids| Some(grids.keeping(kept)))
        .ok_or_else(|| "\"int8\" is no list of scales and zero points".into())
}

/// Data without a training part: in its place is a record that is never read.
pub fn only_test(name: &str, test: Pipeline) -> Dataset {
    Dataset::new(name, Pipeline::generator(test.schema().clone(), 0, |_| |_| Ok(false)).counted(1), test)
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
    pub fn session(&self, json: bool, show: bool) -> Result<(Session, usize), Failure> {
        memory::trim_code();
        let plans = self.trainer.plan(&self.data).map_err(|e| answer(e, json))?;
        // The measured peak that it stands beside is the host's.
        let (total, _) = plans.sheet.host_total_and_line();
        if show {
            say(&plans.sheet.to_string());
        }
        check_available(total, self.available_bytes)?;
        // As in training, the code of each phase is dropped when it is over.
        memory::trim_code();
        let mut session = plans.start()?;
        match &self.parameters {
            Parameters::File(path) => session.load(path).map_err(refused)?,
            Parameters::Checkpoint(folder) => {
                let path = session.load_checkpoint(folder).map_err(refused)?;
                let path = path.display().to_string();
                hint(&format!("the run is not finished: these are the parameters of {}", escaped(&path)));
            }
        }
        memory::trim_code();
        Ok((session, total))
    }

    /// Whether the model is one of text: classes for each of several tokens.
    pub fn is_text(&self) -> bool {
        let fields = self.data.test.schema().fields();
        let input = fields.ok().and_then(|(inputs, _)| inputs.into_iter().next());
        input.is_some_and(|input| {
            !input.ty.dtype.is_float() && input.bound.is_some() && self.classes.is_some()
        })
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
