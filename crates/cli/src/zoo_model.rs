//! From flags to a model: of the zoo, or of an ONNX file.

use super::args::ModelOptions;
use super::input::is_masked;
use super::text::escaped;
use super::{Failure, applies, export};
use plimsoll::compress::QuantizeAware;
use plimsoll::data::{Family, Format, FormatOption};
use plimsoll::export::OnnxModel;
use plimsoll::graph::op::Conv;
use plimsoll::graph::{Node, Op, Role};
use plimsoll::nn::zoo::{ZOO, ZooEntry, ZooOptions};
use plimsoll::nn::{CrossEntropy, Model, Narrow, WithLoss, step};
use serde_json::Value;
use std::collections::BTreeMap;

/// The model where neither flags nor data say otherwise.
pub const DEFAULT_MODEL: &str = "lenet";
/// Examples of a batch of an imported model where no flag gives their number.
const ONNX_BATCH: usize = 32;

/// The file of a model that is imported.
pub fn onnx_file(model: &str) -> Option<&str> {
    model.strip_prefix("onnx:")
}

/// Examples of a batch where no flag gives their number.
pub fn default_batch(model: &str) -> Result<usize, Failure> {
    if onnx_file(model).is_some() { Ok(ONNX_BATCH) } else { entry(model).map(|entry| entry.batch) }
}

/// The data of a model where no flag names any.
pub fn default_data(model: &str) -> &'static str {
    match model {
        "mlp" | "lenet" | "autoencoder" => "mnist",
        _ => "synthetic",
    }
}

/// The model of data where no flag names one.
pub fn default_model(data: Option<&str>) -> &'static str {
    let Some(format) = data.and_then(|data| Format::find(data, &[])) else { return DEFAULT_MODEL };
    match (format.prefix(), format.family) {
        ("masks" | "raster", _) => "unet",
        (_, Family::Images) if format.takes(FormatOption::ImageSize) => "resnet20",
        ("csv" | "parquet", _) => "mlp",
        (_, Family::Text) => "gpt",
        _ => DEFAULT_MODEL,
    }
}

/// The zoo's entry of this name.
pub fn entry(name: &str) -> Result<&'static ZooEntry, Failure> {
    ZOO.iter().find(|e| e.name == name).ok_or_else(|| {
        let known: Vec<_> = ZOO.iter().map(|e| e.name).collect();
        // Names within two letters: `lenett`, `resnet-20`, `ResNet50`.
        let typed = name.to_lowercase();
        let near = known.iter().map(|known| (strsim::levenshtein(&typed, known), known));
        let near = near.filter(|(distance, _)| *distance <= 2).min_by_key(|(distance, _)| *distance);
        let meant = near.map_or(String::new(), |(_, meant)| format!("; did you mean {meant}?"));
        let known = known.join(", ");
        Failure::usage(format!(
            "unknown model `{name}`: the zoo has {known}; onnx:FILE is a model in a file{meant}"
        ))
    })
}

/// The model with the flags' options, and with the tokens of the data.
pub fn model(options: &ModelOptions, data: Option<&str>) -> Result<Box<dyn Model>, Failure> {
    let model = match onnx_file(&options.model) {
        Some(file) => with_class_weights(onnx_model(options, file)?, options)?,
        None if options.train_batch_norm => {
            return Err(Failure::usage(
                "--train-batch-norm is for --model onnx:FILE; models of the zoo always do",
            ));
        }
        None => with_class_weights(zoo_model(options, data)?, options)?,
    };
    if !options.quantize_aware {
        return Ok(model);
    }
    let aware = QuantizeAware::new(model).map_err(|e| Failure::usage(format!("--quantize-aware: {e}")))?;
    Ok(Box::new(aware))
}

/// The model of an ONNX file, which has all its sizes.
fn onnx_model(options: &ModelOptions, file: &str) -> Result<Box<dyn Model>, Failure> {
    let sizes = [
        ("--classes", options.classes),
        ("--image-size", options.image_size),
        ("--channels", options.channels),
        ("--context", options.context),
        ("--layers", options.layers),
        ("--width", options.width),
        ("--heads", options.heads),
        ("--kv-heads", options.kv_heads),
        ("--window", options.window),
        ("--dropout", options.dropout.map(|_| 1)),
        ("--features", options.features),
    ];
    if let Some((flag, _)) = sizes.into_iter().find(|(_, value)| value.is_some()) {
        return Err(Failure::usage(format!("{flag}: a model of a file has the file's sizes: leave it out")));
    }
    let model = OnnxModel::open(file.as_ref()).map_err(export::failure)?;
    let model = match (options.train_batch_norm, model.has_batch_norm()) {
        (true, false) => {
            return Err(Failure::usage("--train-batch-norm: the file has no batch norm: leave it out"));
        }
        (true, true) => model.train_batch_norm(),
        (false, _) => model,
    };
    if options.widths.is_empty() {
        return Ok(Box::new(model));
    }
    let widths = widths(&options.widths)?;
    check_widths(&widths, &model)?;
    let narrow = Narrow::new(model, widths);
    // The file may have what cannot follow.
    step::prediction(&narrow, 1).map_err(|e| Failure::usage(format!("--widths: {}", escaped(e))))?;
    Ok(Box::new(narrow))
}

/// The model of the zoo with the flags' options, and with the tokens of the data.
fn zoo_model(options: &ModelOptions, data: Option<&str>) -> Result<Box<dyn Model>, Failure> {
    let entry = entry(&options.model)?;
    let sizes = [
        ("--classes", "classes", options.classes, 1 << 24),
        ("--image-size", "image", options.image_size, 1 << 14),
        ("--channels", "channels", options.channels, 1 << 14),
        ("--context", "context", options.context, 1 << 20),
        ("--layers", "layers", options.layers, 1 << 9),
        ("--width", "width", options.width, 1 << 20),
        ("--heads", "heads", options.heads, 1 << 20),
        ("--kv-heads", "key_heads", options.kv_heads, 1 << 20),
        ("--window", "window", options.window, 1 << 20),
        ("--dropout", "dropout", options.dropout.map(|_| 1), 1),
        ("--features", "features", options.features, 1 << 24),
    ];
    for (flag, name, value, most) in sizes {
        if value.is_some() && !entry.options.contains(&name) {
            let others: Vec<_> = sizes.iter().filter(|s| entry.options.contains(&s.1)).map(|s| s.0).collect();
            let others = others.join(", ");
            return Err(Failure::usage(format!("{} has no {flag}; it has {others}", entry.name)));
        }
        if value.is_some_and(|v| v == 0 || v > most) {
            return Err(Failure::usage(format!("{flag} must be between 1 and {most}")));
        }
    }
    if options.dropout.is_some_and(|rate| !(0.0..1.0).contains(&rate)) {
        return Err(Failure::usage("--dropout must be at least 0 and below 1"));
    }
    let scaled = options.width_multiplier.map(|factor| scaled_width(entry, factor)).transpose()?;
    let mut sizes = ZooOptions {
        classes: options.classes,
        image: options.image_size,
        channels: options.channels,
        context: options.context,
        layers: options.layers,
        width: options.width.or(scaled),
        heads: options.heads,
        key_heads: options.kv_heads,
        window: options.window,
        dropout: options.dropout,
        features: options.features,
    };
    if data.is_some_and(|data| applies::is(data, Family::Text)) {
        let texts: Vec<_> = ZOO.iter().filter(|e| e.options.contains(&"context")).map(|e| e.name).collect();
        if !texts.contains(&entry.name) || entry.name == "seq2seq" {
            let texts: Vec<_> = texts.into_iter().filter(|name| *name != "seq2seq").collect();
            let message = format!("text is for {}, not {}: add --model gpt", texts.join(", "), entry.name);
            return Err(Failure::usage(message));
        }
        // Bytes, and the mask token of a masked language model.
        sizes.classes = sizes.classes.or(Some(if is_masked(entry.name) { 257 } else { 256 }));
    }
    let mut model = (entry.make)(&sizes);
    if !options.widths.is_empty() {
        let widths = widths(&options.widths)?;
        check_widths(&widths, model.as_ref())?;
        model = Box::new(Narrow::new(model, widths));
    }
    Ok(model)
}

/// The model with the weights of classes in its loss, if flags give some.
fn with_class_weights(model: Box<dyn Model>, options: &ModelOptions) -> Result<Box<dyn Model>, Failure> {
    if options.class_weights.is_empty() {
        return Ok(model);
    }
    if model.target().bound.is_none() {
        return Err(Failure::usage(format!(
            "--class-weights is for models of classes, not {}",
            options.model
        )));
    }
    if !options.class_weights.iter().any(|&weight| weight > 0.0) {
        return Err(Failure::usage("--class-weights: at least one class must count, with a weight above 0"));
    }
    let loss = CrossEntropy::default().class_weights(options.class_weights.clone());
    Ok(Box::new(WithLoss::new(model, loss)))
}

/// Models with published multiples of their width, and the width that is published as 1.
const MULTIPLIED: [(&str, f64); 2] = [("mobilenet_v2", 32.0), ("efficientnet_b0", 32.0)];

/// The width of `--width-multiplier`.
fn scaled_width(entry: &ZooEntry, factor: f64) -> Result<usize, Failure> {
    let Some((_, width)) = MULTIPLIED.iter().find(|(name, _)| *name == entry.name) else {
        let names = MULTIPLIED.map(|(name, _)| name).join(" and ");
        let message = format!("--width-multiplier is for {names}, not {}: leave it out", entry.name);
        return Err(Failure::usage(message));
    };
    match (width * factor).round() {
        scaled if (1.0..=16384.0).contains(&scaled) => Ok(scaled as usize),
        _ => Err(Failure::usage(format!("--width-multiplier must be a number like 0.5, not {factor}"))),
    }
}

/// Parses `--widths`.
pub fn widths(words: &[String]) -> Result<BTreeMap<String, usize>, Failure> {
    let mut widths = BTreeMap::new();
    for word in words {
        let parts = word.rsplit_once('=').and_then(|(layer, n)| Some((layer.to_string(), n.parse().ok()?)));
        let (layer, n) = parts.filter(|(_, n)| (1..=1 << 14).contains(n)).ok_or_else(|| {
            Failure::usage(format!("--widths {word}: write a layer and a number of channels, like `conv1=8`"))
        })?;
        if let Some(before) = widths.insert(layer.clone(), n) {
            return Err(Failure::usage(format!(
                "--widths: `{layer}` is there twice, with {before} and {n} channels: leave one out"
            )));
        }
    }
    Ok(widths)
}

/// The widths in a run's files, as flags.
pub fn widths_in(options: &Value) -> Vec<String> {
    let layers = options.as_object().into_iter().flatten();
    layers.filter_map(|(layer, n)| Some(format!("{layer}={}", n.as_u64()?))).collect()
}

/// Refuses layers that the model does not have, whose channels are not a kernel's, or which have those of the layer that they read.
fn check_widths(widths: &BTreeMap<String, usize>, model: &dyn Model) -> Result<(), Failure> {
    let graph = step::prediction(model, 1).map_err(Failure::usage)?;
    let kernels =
        graph.states.iter().filter(|s| s.role == Role::Parameter && graph.ty(s.input).shape.rank() == 4);
    let name = |kernel: &'_ str| kernel.strip_suffix("/kernel").unwrap_or(kernel).to_string();
    let (mut layers, mut grouped) = (Vec::new(), Vec::new());
    for kernel in kernels {
        let in_groups = |node: &Node| {
            matches!(node.op, Op::Conv(Conv::Forward { groups: 2.., .. })) && node.inputs[1] == kernel.input
        };
        let list = if graph.nodes.iter().any(in_groups) { &mut grouped } else { &mut layers };
        list.push(name(&kernel.name));
    }
    let listed = layers.join(", ");
    match widths.keys().find(|layer| !layers.contains(layer)) {
        Some(layer) if grouped.contains(layer) => Err(Failure::usage(format!(
            "--widths: `{layer}` is a convolution in groups, like a depthwise one: it has the channels of the layer that it reads; name \
             that one: there are {listed}"
        ))),
        Some(layer) => Err(Failure::usage(format!(
            "--widths: no convolution of {} is named `{layer}`; there are {listed}",
            model.name()
        ))),
        None => Ok(()),
    }
}
