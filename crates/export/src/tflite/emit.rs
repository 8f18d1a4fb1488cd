//! The tensors and ops of a TFLite file.

use super::schema::{Code, Options, element};
use super::write::TfliteWeights;
use crate::ExportError;
use crate::batch::ExportGraph;
use crate::pattern::{self, Pattern};
use crate::weights::{Elements, Source};
use plimsoll_graph::op::{Grid, Int8};
use plimsoll_graph::{Graph, Node, Op, Origin, ValueId};
use plimsoll_tensor::DType;
use std::collections::BTreeMap;

/// Weights of fewer elements stay f32.
const LEAST_QUANTISED: usize = 1024;

/// A tensor of the file.
#[derive(Clone, Debug)]
pub(super) struct TfTensor {
    pub name: String,
    pub shape: Vec<i32>,
    pub element: i8,
    /// What its elements stand for, where they are bytes or biases of bytes.
    pub scales: Option<Scales>,
    /// Its elements, where they are constant.
    pub data: Option<Data>,
}

/// Elements stand for `scale · (element - zero)`, with a scale for each index along an axis, or one for all.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scales {
    pub scales: Vec<f32>,
    pub zero: i64,
    pub axis: usize,
}

impl Scales {
    /// Those of codes on a grid: TFLite's are 128 less.
    pub fn of(grid: Grid) -> Self {
        Self { scales: vec![grid.scale], zero: i64::from(grid.zero) - 128, axis: 0 }
    }
}

/// Elements of a constant tensor, and how they are stored.
#[derive(Clone, Debug)]
pub(super) struct Data {
    pub elements: Elements,
    pub stored: Stored,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// As they are.
    Same,
    /// As 16-bit floats.
    Half,
    /// As bytes with a scale for each index along this axis, or one for all.
    Int8 { axis: Option<usize> },
}

/// An op of the file.
#[derive(Clone, Debug)]
pub(super) struct TfOp {
    pub code: Code,
    pub inputs: Vec<i32>,
    pub outputs: Vec<i32>,
    pub options: Options,
    /// Whether it works on codes of bytes.
    pub codes: bool,
}

/// What a file holds.
pub(super) struct Emitted {
    pub tensors: Vec<TfTensor>,
    pub ops: Vec<TfOp>,
    pub inputs: Vec<i32>,
    pub outputs: Vec<i32>,
}

pub(super) struct Emitter<'g> {
    step: &'g ExportGraph,
    pub graph: &'g Graph,
    pub source: &'g Source<'g>,
    pub stored: TfliteWeights,
    tensors: Vec<TfTensor>,
    ops: Vec<TfOp>,
    /// The tensor of each value.
    values: Vec<Option<i32>>,
    /// Constants by type, shape and bytes.
    constants: BTreeMap<(i8, Vec<i32>, Vec<u8>), i32>,
    /// Weights by state and order of axes.
    weights: BTreeMap<(usize, Vec<usize>), i32>,
    pub patterns: Vec<Option<Pattern>>,
    layer: String,
}

/// The element type in TFLite.
fn element_type(dtype: DType) -> Option<i8> {
    match dtype {
        DType::F32 => Some(element::FLOAT32),
        DType::I32 => Some(element::INT32),
        DType::Bool => Some(element::BOOL),
        DType::U8 => Some(element::INT8),
        _ => None,
    }
}

/// The tensors and ops of a step.
pub(super) fn emit(
    step: &ExportGraph,
    source: &Source<'_>,
    stored: TfliteWeights,
) -> Result<Emitted, ExportError> {
    let graph = step.graph();
    let mut emitter = Emitter {
        step,
        graph,
        source,
        stored,
        tensors: Vec::new(),
        ops: Vec::new(),
        values: vec![None; graph.value_count()],
        constants: BTreeMap::new(),
        weights: BTreeMap::new(),
        patterns: pattern::find(graph),
        layer: String::new(),
    };
    let mut inputs = Vec::new();
    for input in &graph.inputs {
        let tensor = emitter.tensor_of(input.name.clone(), input.value)?;
        if let Some(grid) = only_quantized(graph, input.value) {
            let codes = &mut emitter.tensors[tensor as usize];
            (codes.element, codes.scales) = (element::INT8, Some(Scales::of(grid)));
        }
        emitter.values[input.value.index()] = Some(tensor);
        inputs.push(tensor);
    }
    let needed = pattern::needed(graph, &emitter.patterns);
    for id in graph.node_ids().filter(|id| needed[id.index()]) {
        emitter.layer = graph.node(id).layer.to_string();
        emitter.node(id)?;
    }
    let mut outputs = Vec::new();
    for output in &graph.outputs {
        let tensor = emitter.value(output.value)?;
        emitter.tensors[tensor as usize].name.clone_from(&output.name);
        outputs.push(tensor);
    }
    Ok(Emitted { tensors: emitter.tensors, ops: emitter.ops, inputs, outputs })
}

impl<'g> Emitter<'g> {
    pub fn unsupported(&self, node: &Node, reason: &str) -> ExportError {
        ExportError::Unsupported {
            format: "TFLite",
            layer: node.layer.to_string(),
            op: node.op.name().to_string(),
            reason: reason.to_string(),
        }
    }

    pub fn shape(&self, value: ValueId) -> &'g [usize] {
        &self.graph.ty(value).shape
    }

    fn add_tensor(&mut self, tensor: TfTensor) -> i32 {
        self.tensors.push(tensor);
        self.tensors.len() as i32 - 1
    }

    /// A new tensor of a value's type.
    fn tensor_of(&mut self, name: String, value: ValueId) -> Result<i32, ExportError> {
        let ty = self.graph.ty(value);
        let element = element_type(ty.dtype).ok_or_else(|| ExportError::Unsupported {
            format: "TFLite",
            layer: self.layer.clone(),
            op: "elements".into(),
            reason: format!(" of the type {}", ty.dtype),
        })?;
        let scales = if ty.dtype == DType::U8 { Some(Scales::of(self.grid(value)?)) } else { None };
        Ok(self.add_tensor(TfTensor { name, shape: extents(&ty.shape), element, scales, data: None }))
    }

    /// The grid of a value that is codes.
    pub fn grid(&self, value: ValueId) -> Result<Grid, ExportError> {
        self.step.grid(value).ok_or_else(|| ExportError::Unsupported {
            format: "TFLite",
            layer: self.layer.clone(),
            op: "bytes".into(),
            reason: " without a scale".into(),
        })
    }

    /// Whether a tensor is codes.
    pub fn is_codes(&self, tensor: i32) -> bool {
        self.tensors[tensor as usize].element == element::INT8
    }

    /// The tensor of a value; a state is a constant.
    pub fn value(&mut self, value: ValueId) -> Result<i32, ExportError> {
        if let Some(tensor) = self.values[value.index()] {
            return Ok(tensor);
        }
        let Origin::State(_) = self.graph.origin(value) else {
            return Err(ExportError::Unsupported {
                format: "TFLite",
                layer: self.layer.clone(),
                op: value.to_string(),
                reason: ": the value is not written".into(),
            });
        };
        let tensor = self.weight(value, &[], None)?;
        self.values[value.index()] = Some(tensor);
        Ok(tensor)
    }

    /// A state with its axes in another order, as it is stored. `channel`: the axis of the outputs, for weights of products.
    pub fn weight(
        &mut self,
        value: ValueId,
        order: &[usize],
        channel: Option<Option<usize>>,
    ) -> Result<i32, ExportError> {
        let Origin::State(state) = self.graph.origin(value) else {
            return self.transposed_value(value, order);
        };
        let key = (state, order.to_vec());
        if let Some(tensor) = self.weights.get(&key) {
            return Ok(*tensor);
        }
        let shape: Vec<usize> = match order.is_empty() {
            true => self.shape(value).to_vec(),
            false => order.iter().map(|&axis| self.shape(value)[axis]).collect(),
        };
        let many = shape.iter().product::<usize>() >= LEAST_QUANTISED;
        let stored = match (self.stored, channel) {
            (TfliteWeights::F16, _) if self.graph.ty(value).dtype == DType::F32 => Stored::Half,
            (TfliteWeights::DynamicRange, Some(axis)) if many => Stored::Int8 { axis },
            _ => Stored::Same,
        };
        let name = self.graph.states[state].name.clone();
        let elements = Elements::State { state, order: order.to_vec() };
        let element = match stored {
            Stored::Same => element::FLOAT32,
            Stored::Half => element::FLOAT16,
            Stored::Int8 { .. } => element::INT8,
        };
        let shape = extents(&shape);
        let data = Some(Data { elements, stored });
        let mut tensor = self.add_tensor(TfTensor {
            name: name.clone(),
            shape: shape.clone(),
            element,
            scales: None,
            data,
        });
        if stored == Stored::Half {
            let (name, element) = (format!("{name}/f32"), element::FLOAT32);
            let wide = self.add_tensor(TfTensor { name, shape, element, scales: None, data: None });
            self.push(Code::Dequantize, vec![tensor], vec![wide], Options::None);
            tensor = wide;
        }
        self.weights.insert(key, tensor);
        Ok(tensor)
    }

    /// A value that is not constant with its axes in another order.
    fn transposed_value(&mut self, value: ValueId, order: &[usize]) -> Result<i32, ExportError> {
        let x = self.value(value)?;
        if order.is_empty() {
            return Ok(x);
        }
        let shape: Vec<usize> = order.iter().map(|&axis| self.shape(value)[axis]).collect();
        Ok(self.transposed(x, &shape, order))
    }

    /// A tensor with its axes in another order, under this shape.
    pub fn transposed(&mut self, x: i32, shape: &[usize], order: &[usize]) -> i32 {
        let perm: Vec<i32> = order.iter().map(|&axis| axis as i32).collect();
        let perm = self.ints(&perm);
        self.float_op(Code::Transpose, vec![x, perm], shape, Options::None)
    }

    /// A tensor of constant bytes.
    pub fn constant(&mut self, element: i8, shape: Vec<i32>, bytes: Vec<u8>) -> i32 {
        let key = (element, shape, bytes);
        if let Some(tensor) = self.constants.get(&key) {
            return *tensor;
        }
        let name = format!("constant_{}", self.constants.len());
        let data = Some(Data { elements: Elements::Bytes(key.2.clone()), stored: Stored::Same });
        let tensor = self.add_tensor(TfTensor { name, shape: key.1.clone(), element, scales: None, data });
        self.constants.insert(key, tensor);
        tensor
    }

    pub fn ints(&mut self, values: &[i32]) -> i32 {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.constant(element::INT32, vec![values.len() as i32], bytes)
    }

    pub fn floats(&mut self, shape: &[usize], values: &[f32]) -> i32 {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.constant(element::FLOAT32, extents(shape), bytes)
    }

    /// A scalar of a type.
    pub fn number(&mut self, value: f64, dtype: DType) -> i32 {
        match dtype {
            DType::I32 => self.constant(element::INT32, vec![], (value as i32).to_le_bytes().to_vec()),
            DType::Bool => self.constant(element::BOOL, vec![], vec![u8::from(value != 0.0)]),
            _ => self.floats(&[], &[value as f32]),
        }
    }

    pub fn push(&mut self, code: Code, inputs: Vec<i32>, outputs: Vec<i32>, options: Options) {
        let codes = inputs.first().is_some_and(|&tensor| self.is_codes(tensor));
        self.ops.push(TfOp { code, inputs, outputs, options, codes });
    }

    /// An op with a float result of this shape.
    pub fn float_op(&mut self, code: Code, inputs: Vec<i32>, shape: &[usize], options: Options) -> i32 {
        let name = format!("{}/{}", self.layer, self.tensors.len());
        let (shape, element) = (extents(shape), element::FLOAT32);
        let output = self.add_tensor(TfTensor { name, shape, element, scales: None, data: None });
        self.push(code, inputs, vec![output], options);
        output
    }

    /// An op whose result has the elements of its first input and this shape.
    pub fn like_op(&mut self, code: Code, inputs: Vec<i32>, shape: &[usize], options: Options) -> i32 {
        let name = format!("{}/{}", self.layer, self.tensors.len());
        let TfTensor { element, scales, .. } = self.tensors[inputs[0] as usize].clone();
        let output = self.add_tensor(TfTensor { name, shape: extents(shape), element, scales, data: None });
        self.push(code, inputs, vec![output], options);
        output
    }

    /// An op whose result is codes on a grid, of this shape.
    pub fn codes_op(&mut self, code: Code, inputs: Vec<i32>, shape: &[usize], grid: Grid) -> i32 {
        let name = format!("{}/{}", self.layer, self.tensors.len());
        let (shape, element, scales) = (extents(shape), element::INT8, Some(Scales::of(grid)));
        let output = self.add_tensor(TfTensor { name, shape, element, scales, data: None });
        self.push(code, inputs, vec![output], Options::None);
        output
    }

    /// A constant code, as a scalar on the grid of another tensor.
    pub fn code(&mut self, code: u8, like: i32) -> i32 {
        let name = format!("code_{}", self.tensors.len());
        let scales = self.tensors[like as usize].scales.clone();
        let data = Some(Data { elements: Elements::Bytes(vec![code ^ 0x80]), stored: Stored::Same });
        self.add_tensor(TfTensor { name, shape: vec![], element: element::INT8, scales, data })
    }

    /// A state of integers with its axes in another order, and what they stand for, if that is told.
    pub fn integers(
        &mut self,
        value: ValueId,
        order: &[usize],
        element: i8,
        scales: Option<Scales>,
    ) -> Result<i32, ExportError> {
        let tensor = self.weight(value, order, None)?;
        let integers = &mut self.tensors[tensor as usize];
        (integers.element, integers.scales) = (element, scales);
        Ok(tensor)
    }

    /// An op whose result is a node's first output.
    pub fn finish(
        &mut self,
        node: &Node,
        code: Code,
        inputs: Vec<i32>,
        options: Options,
    ) -> Result<(), ExportError> {
        let name = format!("{}/{}", self.layer, self.tensors.len());
        let output = self.tensor_of(name, node.outputs[0])?;
        self.push(code, inputs, vec![output], options);
        self.set(node.outputs[0], output);
        Ok(())
    }

    pub fn set(&mut self, value: ValueId, tensor: i32) {
        self.values[value.index()] = Some(tensor);
    }
}

/// The grid of a value that is read by nothing but ops that put it on one.
fn only_quantized(graph: &Graph, value: ValueId) -> Option<Grid> {
    let mut readers = graph.nodes.iter().filter(|node| node.inputs.contains(&value));
    let Op::Int8(Int8::Quantize(grid)) = readers.next()?.op else { return None };
    let leaves = graph.outputs.iter().any(|output| output.value == value);
    (!leaves && readers.all(|node| node.op == Op::Int8(Int8::Quantize(grid)))).then_some(grid)
}

pub(super) fn extents(shape: &[usize]) -> Vec<i32> {
    shape.iter().map(|&n| i32::try_from(n).unwrap_or(i32::MAX)).collect()
}
