//! From flags to data as a model takes it.

use super::args::{InputOptions, ModelOptions};
use super::zoo_model::{entry, onnx_file};
use super::{Failure, applies};
use plimsoll::data::{
    Dataset, Family, Format, ImageOptions, Itself, Masked, ModelSize, OpenOptions, Prefetch, Shaped,
    SyntheticSpec, TableOptions, Workers,
};
use plimsoll::nn::{Field, Model, NarrowInputs, Precision};
use plimsoll::tensor::Shape;

/// The most pixels along a side of an image.
const MOST_SIDE: usize = 1 << 14;

/// How image files become the inputs of a model. For a model in bf16 they are bf16, too, unless they are also its target.
pub fn image_options(
    input: &InputOptions,
    model: &dyn Model,
    precision: Precision,
    augment: bool,
) -> Result<ImageOptions, Failure> {
    let bf16 = precision == Precision::BF16 && model.target().bound.is_some();
    Ok(ImageOptions { bf16, ..images_of(input, model.inputs().first(), augment)? })
}

/// The model for data whose floats are in its precision already.
pub fn narrowed(
    model: Box<dyn Model>,
    data: &Dataset,
    precision: Precision,
) -> Result<Box<dyn Model>, Failure> {
    let (inputs, _) = data.train.schema().fields()?;
    let narrow = precision.is_low() && inputs.iter().any(|f| f.ty.dtype == precision.dtype());
    Ok(if narrow { Box::new(NarrowInputs::new(model, precision)) } else { model })
}

/// How image files become inputs of this type.
pub fn images_of(
    input: &InputOptions,
    field: Option<&Field>,
    augment: bool,
) -> Result<ImageOptions, Failure> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let workers = match input.workers {
        None => Workers::UpTo(cores),
        Some(workers) if workers > 256 => return Err(Failure::usage("--workers must be at most 256")),
        Some(workers) => {
            if workers > cores {
                super::hint(&format!("{workers} workers are more than the {cores} cores here"));
            }
            Workers::Exactly(workers)
        }
    };
    let prefetch = input.prefetch.unwrap_or(Prefetch::Exactly(1));
    if input.max_pixels.is_some_and(|pixels| pixels > 1 << 30) {
        return Err(Failure::usage("--max-pixels must be at most 1073741824"));
    }
    let shape = field.map_or(&[][..], |field| &field.ty.shape);
    if shape.iter().take(2).any(|&side| side > MOST_SIDE) {
        return Err(Failure::usage(format!("--image-size must be at most {MOST_SIDE}")));
    }
    let size = shape.try_into().unwrap_or(ImageOptions::default().size);
    let (skip_bad, most_pixels) = (input.skip_bad, input.max_pixels);
    Ok(ImageOptions { size, bf16: false, augment, workers, prefetch, skip_bad, most_pixels })
}

/// The options of opening data for a model.
pub fn open_options(
    model: &dyn Model,
    input: &InputOptions,
    sizes: &ModelOptions,
    seed: u64,
    max_bytes: usize,
) -> OpenOptions {
    let (inputs, target) = (model.inputs(), model.target());
    OpenOptions {
        context: inputs.first().and_then(|field| field.ty.shape.first().copied()).unwrap_or(1),
        seed,
        synthetic: Some(SyntheticSpec { inputs, label: target }),
        table: table_options(input),
        classes: sizes.classes,
        shuffle: input.shuffle,
        tokenizer: input.tokenizer.clone(),
        max_bytes,
        ..OpenOptions::default()
    }
}

/// The columns that the flags select.
pub fn table_options(input: &InputOptions) -> TableOptions {
    let columns = (!input.columns.is_empty()).then(|| input.columns.clone());
    TableOptions { label: input.label.clone(), columns, prepared: None }
}

/// Sets the sizes that a model takes from its data, where none were given; returns whether the model must be rebuilt.
pub fn fit(sizes: &mut ModelOptions, name: &str, data: &Dataset) -> Result<bool, Failure> {
    if onnx_file(&sizes.model).is_some() {
        return Ok(false);
    }
    let entry = entry(&sizes.model)?;
    let schema = data.train.schema();
    let format = Format::find(name, &[]);
    if applies::is(name, Family::Text) {
        // The mask is an additional token.
        let mask = usize::from(is_masked(entry.name));
        let tokens = schema.classes().map(|tokens| tokens + mask);
        let given = sizes.classes.is_some();
        sizes.classes = sizes.classes.or(tokens);
        return Ok(!given);
    }
    let takes = |option: &str| entry.options.contains(&option);
    let decides = |size| format.is_some_and(|format| format.model_sizes.contains(&size));
    if decides(ModelSize::Classes) && !decides(ModelSize::Features) {
        if takes("classes") {
            sizes.classes = sizes.classes.or(schema.classes());
        }
        if decides(ModelSize::Channels) && takes("channels") {
            let bands = schema.fields()?.0.first().and_then(|field| field.ty.shape.last().copied());
            sizes.channels = sizes.channels.or(bands);
        }
        return Ok(takes("classes"));
    }
    if !decides(ModelSize::Features) {
        return Ok(false);
    }
    let (inputs, label) = schema.fields()?;
    if label.bound.is_none() {
        return Err(Failure::usage(format!(
            "the label `{}` holds values, {} tells classes apart: name a label of whole numbers or words with --label",
            schema.columns().last().map_or("", |column| &column.name),
            entry.name
        )));
    }
    let plain = sizes.image_size.is_none() && sizes.channels.is_none();
    let features = inputs.first().map(|field| field.ty.shape.elements());
    if takes("features") && plain {
        sizes.features = sizes.features.or(features);
    }
    if takes("classes") {
        sizes.classes = sizes.classes.or(label.bound);
    }
    Ok(true)
}

/// Data as a model takes it: for an autoencoder with the input as the label, for a masked language model with masked tokens,
/// and with rows in the shape of the model's input.
pub fn fitted(data: Dataset, model: &dyn Model, seed: u64) -> Result<Dataset, Failure> {
    let (inputs, target) = (model.inputs(), model.target());
    let classes = data.train.schema().classes();
    let own = inputs.len() == 1 && inputs[0] == target && target.bound.is_none() && classes.is_some();
    let shape = inputs.first().map(|field| field.ty.shape.clone());
    let other = |shape: &Shape| {
        let (has, _) = data.train.schema().fields().ok()?;
        let has = &has.first()?.ty.shape;
        (applies::is(&data.name, Family::Table) && has != shape && has.elements() == shape.elements())
            .then(|| shape.to_vec())
    };
    let data = match shape.as_ref().and_then(other) {
        Some(shape) => data.map_parts(|part| part.apply(Shaped::new(shape.clone())))?,
        None => data,
    };
    if own {
        return Ok(data.map_parts(|part| part.apply(Itself))?);
    }
    if !is_masked(model.name()) || applies::is(&data.name, Family::Synthetic) {
        return Ok(data);
    }
    let masked = |seed| Masked { tokens: classes.unwrap_or(0) as u32, seed };
    // Each part has masks of its own.
    let (train, test) = (data.train.apply(masked(seed))?, data.test.apply(masked(seed ^ 1))?);
    let validation = data.validation.map(|part| part.apply(masked(seed ^ 2))).transpose()?;
    Ok(Dataset { train, validation, test, ..data })
}

/// Whether a model is a masked language model.
pub fn is_masked(model: &str) -> bool {
    model == "bert_tiny"
}
