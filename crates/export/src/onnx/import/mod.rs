//! ONNX files as models.
//!
//! A file's nodes are walked in order each time a graph is built, with the batch at hand, so shapes are numbers throughout: what a
//! file computes from shapes is folded here. Images are `[n, c, h, w]` there and `[n, h, w, c]` here; a value keeps its order
//! until a node needs the other, so transposes appear only where a file mixes both.

mod elementwise;
mod fold;
mod narrow;
mod node;
mod reduce;
mod shape;
mod values;
mod weights;
mod windows;

use super::proto::{TensorTypeProto, ValueInfoProto, element};
use super::read::OnnxFile;
use super::write::TARGET;
use crate::ExportError;
use fold::Ints;
use narrow::Narrowed;
use plimsoll_graph::{Builder, GraphError, Role, ValueId};
use plimsoll_nn::{Field, Head, InitialValues, Mode, Model, Net};
use plimsoll_tensor::{DType, Shape, TensorType};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use weights::Source;

/// A model that was read from an ONNX file. Its weights are read from the file when a run starts, piece by piece.
///
/// ```no_run
/// use plimsoll_export::OnnxModel;
/// let model = OnnxModel::open("resnet18.onnx".as_ref())?.train_batch_norm();
/// # Ok::<(), plimsoll_export::ExportError>(())
/// ```
pub struct OnnxModel {
    file: OnnxFile,
    name: String,
    inputs: Vec<ModelInput>,
    target: Field,
    /// Whether batch norms take the statistics of the batch while training.
    trains_norms: bool,
    /// The examples of a batch that the file was made for, where it says so.
    fixed_batch: Option<usize>,
    /// Where the first values of states are.
    sources: BTreeMap<String, Source>,
}

/// An input of the model.
struct ModelInput {
    name: String,
    field: Field,
    /// Whether the file has it as `[n, c, h, w]`.
    image: bool,
}

/// What is known of a value of the file.
#[derive(Clone, Debug)]
enum Known {
    /// A value in the file's order of axes.
    Plain(ValueId),
    /// An image `[n, h, w, c]` that is `[n, c, h, w]` in the file.
    Image(ValueId),
    /// A tensor of the file that no node has read as weights yet.
    Tensor(String),
    /// Whole numbers that follow from shapes.
    Ints(Ints),
}

/// A file's nodes in a net.
struct Walked<'m> {
    outputs: Vec<ValueId>,
    known: HashMap<&'m str, Known>,
    sources: BTreeMap<String, Source>,
}

/// Adds a file's nodes to a net.
struct Importer<'m, 'n> {
    model: &'m OnnxModel,
    net: &'n mut Net,
    known: HashMap<&'m str, Known>,
    /// States by the tensor that they hold: axis order, shape and value.
    states: BTreeMap<String, (Vec<usize>, Vec<usize>, ValueId)>,
    sources: BTreeMap<String, Source>,
    node: &'m super::proto::NodeProto,
    /// The shapes of a model with fewer channels than the file's.
    narrowed: Option<Narrowed>,
    /// Constants of nodes, by the name of their output.
    constants: HashMap<String, super::read::StoredTensor>,
}

impl OnnxModel {
    /// Reads the structure of a file, and checks that every node has a counterpart here.
    pub fn open(path: &Path) -> Result<Self, ExportError> {
        let file = OnnxFile::open(path)?;
        let wrong = |reason: String| ExportError::File { path: path.display().to_string(), reason };
        let name = path.file_stem().map_or_else(|| "onnx".into(), |n| n.to_string_lossy().into_owned());
        let mut inputs = Vec::new();
        let mut fixed_batch = None;
        for info in file.inputs.iter().filter(|info| !file.tensors.contains_key(&info.name)) {
            let (input, batch) = model_input(&file, info).map_err(wrong)?;
            fixed_batch = fixed_batch.or(batch);
            inputs.push(input);
        }
        if inputs.is_empty() {
            return Err(wrong("the model has no input".into()));
        }
        check_order(&file).map_err(wrong)?;
        let target = Field::floats([]);
        let sources = BTreeMap::new();
        let mut model = Self { file, name, inputs, target, trains_norms: false, fixed_batch, sources };
        // Two batches tell what of the output grows with them; a file for one batch is built for that.
        let batches = model.fixed_batch.map_or([2, 3], |examples| [examples; 2]);
        let (small, sources) = model.trial(batches[0])?;
        let (large, _) = model.trial(batches[1])?;
        model.sources = sources;
        model.target = match model.file.notes.get(TARGET).and_then(|note| noted_target(note)) {
            Some(target) => target,
            None => guessed_target(&small, &large, batches[0]).map_err(wrong)?,
        };
        let bounds: Vec<usize> = model.inputs.iter().map(|input| model.rows_of_table(&input.name)).collect();
        for (input, bound) in model.inputs.iter_mut().zip(bounds) {
            if input.field.ty.dtype == DType::I32 {
                input.field.bound = Some(bound);
            }
        }
        Ok(model)
    }

    /// With batch norms that take the statistics of the batch while training, and whose running statistics move. Without it they
    /// stay as they are in the file, and only gain and bias are trained.
    pub fn train_batch_norm(self) -> Self {
        Self { trains_norms: true, ..self }
    }

    /// With another target than the file's notes say or its output suggests: values for a regression, for example.
    pub fn with_target(self, target: Field) -> Self {
        Self { target, ..self }
    }

    /// Whether the file has a batch norm.
    pub fn has_batch_norm(&self) -> bool {
        self.file.nodes.iter().any(|node| node.op_type == "BatchNormalization")
    }

    /// Builds the model for so many examples; the shape of its first output, and where its weights are.
    fn trial(&self, examples: usize) -> Result<(Shape, BTreeMap<String, Source>), ExportError> {
        let (net, walked) = self.whole(examples)?;
        Ok((net.shape(walked.outputs[0]).clone(), walked.sources))
    }

    /// The model with all channels of the file, for so many examples.
    fn whole(&self, examples: usize) -> Result<(Net, Walked<'_>), GraphError> {
        let mut net = Net::new(Builder::new(examples, 1), Mode::Infer, DType::F32);
        let inputs: Vec<ValueId> = self
            .inputs
            .iter()
            .map(|input| {
                let shape = [&[examples], &input.field.ty.shape[..]].concat();
                net.batch_input(&input.name, TensorType::new(input.field.ty.dtype, shape))
            })
            .collect();
        let walked = self.walk(&mut net, &inputs, None)?;
        Ok((net, walked))
    }

    /// Adds the file's nodes to a net, with the channels that the net says.
    fn build(&self, net: &mut Net, inputs: &[ValueId]) -> Result<Vec<ValueId>, GraphError> {
        let narrowed = match net.widths.is_empty() {
            true => None,
            false => Some(self.narrowed(net.graph().examples, &net.widths)?),
        };
        self.walk(net, inputs, narrowed).map(|walked| walked.outputs)
    }

    fn walk(
        &self,
        net: &mut Net,
        inputs: &[ValueId],
        narrowed: Option<Narrowed>,
    ) -> Result<Walked<'_>, GraphError> {
        let Some(first) = self.file.nodes.first() else {
            return Err(GraphError::Choice(format!("{}: the model has no nodes", self.file.path.display())));
        };
        let mut importer = Importer {
            model: self,
            net,
            known: HashMap::new(),
            states: BTreeMap::new(),
            sources: BTreeMap::new(),
            node: first,
            narrowed,
            constants: HashMap::new(),
        };
        for (input, &value) in self.inputs.iter().zip(inputs) {
            let known = if input.image { Known::Image(value) } else { Known::Plain(value) };
            importer.known.insert(&input.name, known);
        }
        for name in self.file.tensors.keys() {
            importer.known.insert(name, Known::Tensor(name.clone()));
        }
        for node in &self.file.nodes {
            importer.node = node;
            let layer = layer_of(&node.name);
            let outer = importer.net.set_layer(layer.into());
            let done = importer.import();
            importer.net.set_layer(outer);
            done.map_err(|error| self.with_batch(error, importer.net.graph().examples))?;
        }
        let mut outputs = Vec::new();
        for output in &self.file.outputs {
            let known = importer.known.get(output.name.as_str()).cloned();
            let missing = || {
                GraphError::Choice(format!(
                    "{}: nothing writes the output `{}`",
                    self.file.path.display(),
                    output.name
                ))
            };
            let value = importer.float_value(known.ok_or_else(missing)?)?;
            outputs.push(value);
        }
        if outputs.is_empty() {
            return Err(GraphError::Choice(format!("{}: the model has no output", self.file.path.display())));
        }
        Ok(Walked { outputs, known: importer.known, sources: importer.sources })
    }

    /// The error, with a word on the batch that the file is for.
    fn with_batch(&self, error: GraphError, examples: usize) -> GraphError {
        match self.fixed_batch.filter(|fixed| *fixed != examples) {
            Some(fixed) => GraphError::Choice(format!(
                "{error}; the file is for batches of {fixed}: take those, or export it for any batch"
            )),
            None => error,
        }
    }

    /// Rows of the table that an input of whole numbers looks up in: they are below that.
    fn rows_of_table(&self, input: &str) -> usize {
        // Through nodes that keep the numbers as they are.
        let mut names = vec![input];
        for node in &self.file.nodes {
            let reads = |i: usize| node.input.get(i).is_some_and(|name| names.contains(&name.as_str()));
            if node.op_type == "Gather" && reads(1) {
                let table = node.input.first().and_then(|name| self.file.tensors.get(name));
                if let Some(rows) = table.and_then(|table| table.dims.first()) {
                    return *rows;
                }
            }
            let keeps = ["Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape"];
            if keeps.contains(&node.op_type.as_str()) && reads(0) {
                names.extend(node.output.iter().map(String::as_str));
            }
        }
        i32::MAX as usize
    }
}

/// The layer's name of a node: its own, without the op that exporters append.
fn layer_of(name: &str) -> String {
    let path = name.rsplit_once('/').map_or(name, |(path, _)| path);
    path.trim_matches('/').to_string()
}

/// The input that a file describes, and its batch if that is fixed.
fn model_input(file: &OnnxFile, info: &ValueInfoProto) -> Result<(ModelInput, Option<usize>), String> {
    let name = info.name.clone();
    let no_type = || format!("input `{name}` has no type and shape");
    let TensorTypeProto { elem_type, shape } =
        info.r#type.clone().and_then(|t| t.tensor_type).ok_or_else(no_type)?;
    let dims = shape.ok_or_else(no_type)?.dim;
    let extent = |i: usize| dims[i].dim_value.and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
    if dims.is_empty() {
        return Err(format!("input `{name}` is a scalar: its first axis must be the batch"));
    }
    let mut extents = Vec::new();
    for (i, dim) in dims.iter().enumerate().skip(1) {
        let symbol = dim.dim_param.clone().unwrap_or_else(|| "?".into());
        extents.push(extent(i).ok_or_else(|| {
            format!("axis {i} of input `{name}` is `{symbol}`: only the first, the batch, may be dynamic; export with fixed sizes")
        })?);
    }
    let most = extents.iter().try_fold(1usize, |product, &n| product.checked_mul(n)).filter(|n| *n < 1 << 40);
    most.ok_or_else(|| format!("input `{name}` is too large: {extents:?}"))?;
    let (field, image) = match elem_type {
        element::FLOAT => match extents[..] {
            [c, h, w] if is_image(file, &name) => (Field::floats([h, w, c]), true),
            _ => (Field::floats(extents), false),
        },
        element::INT64 | element::INT32 => (Field::below(i32::MAX as usize, extents), false),
        other => {
            return Err(format!(
                "input `{name}` has elements of the type {other}: f32, i32 and i64 are read"
            ));
        }
    };
    Ok((ModelInput { name, field, image }, extent(0)))
}

/// Whether an input with four axes is `[n, c, h, w]`: an op on images reads it, after functions of its elements. Others are left as
/// they are, like those that a file turns around itself.
fn is_image(file: &OnnxFile, input: &str) -> bool {
    const IMAGES: [&str; 7] = [
        "Conv",
        "ConvTranspose",
        "MaxPool",
        "AveragePool",
        "GlobalAveragePool",
        "BatchNormalization",
        "Resize",
    ];
    const ELEMENTS: [&str; 9] = ["Add", "Sub", "Mul", "Div", "Cast", "Identity", "Clip", "Relu", "Pad"];
    let mut names = vec![input];
    for node in &file.nodes {
        if !node.input.first().is_some_and(|name| names.contains(&name.as_str())) {
            continue;
        }
        if IMAGES.contains(&node.op_type.as_str()) {
            return true;
        }
        if ELEMENTS.contains(&node.op_type.as_str()) {
            names.extend(node.output.iter().map(String::as_str));
        }
    }
    false
}

/// Checks that every node reads what nodes before it write.
fn check_order(file: &OnnxFile) -> Result<(), String> {
    let mut written: std::collections::HashSet<&str> = file.tensors.keys().map(String::as_str).collect();
    written.extend(file.inputs.iter().map(|input| input.name.as_str()));
    for node in &file.nodes {
        let named = || format!("node `{}` ({})", node.name, node.op_type);
        if let Some(input) = node.input.iter().find(|i| !i.is_empty() && !written.contains(i.as_str())) {
            return Err(format!(
                "{} reads `{input}`, which nothing before it writes: a cycle, or a damaged file",
                named()
            ));
        }
        for output in node.output.iter().filter(|o| !o.is_empty()) {
            if !written.insert(output) {
                return Err(format!("{} writes `{output}`, which is there already", named()));
            }
        }
    }
    Ok(())
}

/// The target in a file's notes.
fn noted_target(note: &str) -> Option<Field> {
    let (what, shape) = note.split_once(" of [")?;
    let shape = shape.strip_suffix(']')?;
    let extents = shape.split(',').filter(|n| !n.is_empty()).map(|n| n.trim().parse::<usize>().ok());
    let extents: Vec<usize> = extents.collect::<Option<_>>()?;
    match what.strip_prefix("classes ") {
        Some(classes) => Some(Field::below(classes.parse().ok().filter(|n| *n > 0)?, extents)),
        None => (what == "values").then(|| Field::floats(extents)),
    }
}

/// Classes for the last axis of the output; of a single column, values.
fn guessed_target(small: &Shape, large: &Shape, examples: usize) -> Result<Field, String> {
    let rows = |shape: &Shape| shape.first().copied().unwrap_or(0);
    let per_example = match small == large {
        true => Some(rows(small) / examples.max(1)),
        false => rows(large).checked_sub(rows(small)),
    };
    let per_example = per_example.filter(|n| *n > 0);
    let (Some(per_example), Some(&last), true) = (per_example, small.last(), small.rank() > 1) else {
        return Err(format!(
            "its output is {small} for {examples} examples: the first axis must be the batch, the last the classes"
        ));
    };
    let inner = &small[1..small.rank() - 1];
    let rows: Vec<usize> =
        (per_example > 1).then_some(per_example).into_iter().chain(inner.iter().copied()).collect();
    Ok(if last > 1 { Field::below(last, rows) } else { Field::floats([&rows[..], &[last]].concat()) })
}

impl Model for OnnxModel {
    fn name(&self) -> &str {
        &self.name
    }

    fn inputs(&self) -> Vec<Field> {
        self.inputs.iter().map(|input| input.field.clone()).collect()
    }

    fn target(&self) -> Field {
        self.target.clone()
    }

    fn forward(&self, net: &mut Net, inputs: &[ValueId]) -> Result<Head, GraphError> {
        self.build(net, inputs).map(Head::Outputs)
    }

    fn initial_values(&self) -> Option<&dyn InitialValues> {
        Some(self)
    }
}

impl Importer<'_, '_> {
    /// An error of the node at hand.
    fn wrong(&self, reason: impl Into<String>) -> GraphError {
        let (node, path) = (self.node, self.model.file.path.display());
        let name = if node.name.is_empty() {
            node.output.first().cloned().unwrap_or_default()
        } else {
            node.name.clone()
        };
        GraphError::Choice(format!("{path}: node `{name}` ({}): {}", node.op_type, reason.into()))
    }

    /// The role of a tensor's state: trained, unless it is a constant of a node.
    fn role(&self, tensor: &str) -> Role {
        if self.constants.contains_key(tensor) { Role::Statistic } else { Role::Parameter }
    }
}
