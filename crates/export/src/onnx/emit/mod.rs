//! From a graph to ONNX nodes.
//!
//! Images are `[n, h, w, c]` here and `[n, c, h, w]` in ONNX's convolutions. A value has a name in either order, or in both: the
//! second is made by a transpose when an op asks for it, so that chains of convolutions, norms and activations have none.

mod attention;
mod elementwise;
mod int8;
mod movement;
mod patterns;
mod reduce;
mod windows;

use super::proto::{AttributeProto, NodeProto, TensorProto, attribute, element};
use crate::ExportError;
use crate::batch::{ExportGraph, Extent};
use crate::pattern::{self, Pattern};
use crate::weights::{Elements, Source};
use plimsoll_graph::{Graph, Node, NodeId, Op, Origin, ValueId};
use plimsoll_tensor::DType;
use std::collections::{BTreeMap, BTreeSet};

/// Axis i of an image in ONNX is this axis of ours.
const TO_IMAGE: [usize; 4] = [0, 3, 1, 2];
/// Axis i of ours is this axis in ONNX.
const FROM_IMAGE: [usize; 4] = [0, 2, 3, 1];

/// A tensor that is in the file.
pub(crate) struct NamedTensor {
    pub name: String,
    pub element: i32,
    pub dims: Vec<usize>,
    pub elements: Elements,
}

/// The nodes and tensors of an ONNX graph.
pub(crate) struct Emitted {
    pub nodes: Vec<NodeProto>,
    pub tensors: Vec<NamedTensor>,
}

/// The order of a value's axes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Plain,
    Image,
}

struct Emitter<'g> {
    step: &'g ExportGraph,
    source: &'g Source<'g>,
    graph: &'g Graph,
    nodes: Vec<NodeProto>,
    tensors: Vec<NamedTensor>,
    /// Names of values in our order and in ONNX's.
    plain: Vec<Option<String>>,
    image: Vec<Option<String>>,
    taken: BTreeSet<String>,
    /// Tensors by what they hold: states by order and dims, numbers by type and bits.
    states: BTreeMap<(usize, Vec<usize>, Vec<usize>), String>,
    constants: BTreeMap<(i32, Vec<usize>, Vec<u8>), String>,
    patterns: Vec<Option<Pattern>>,
    /// The layer of the node at hand.
    layer: String,
    /// The name of the tensor that holds the number of examples.
    batch: Option<String>,
}

/// The element type in ONNX.
pub(crate) fn element_type(dtype: DType) -> i32 {
    match dtype {
        DType::F32 => element::FLOAT,
        DType::F64 => element::DOUBLE,
        DType::BF16 => element::BFLOAT16,
        DType::F16 => element::FLOAT16,
        DType::I32 => element::INT32,
        DType::I64 => element::INT64,
        DType::U8 => element::UINT8,
        DType::Bool => element::BOOL,
    }
}

/// The nodes and tensors of a step.
pub(crate) fn emit(step: &ExportGraph, source: &Source<'_>) -> Result<Emitted, ExportError> {
    let graph = step.graph();
    let count = graph.value_count();
    let mut emitter = Emitter {
        step,
        source,
        graph,
        nodes: Vec::new(),
        tensors: Vec::new(),
        plain: vec![None; count],
        image: vec![None; count],
        taken: BTreeSet::new(),
        states: BTreeMap::new(),
        constants: BTreeMap::new(),
        patterns: pattern::find(graph),
        layer: String::new(),
        batch: None,
    };
    for input in &graph.inputs {
        emitter.taken.insert(input.name.clone());
        emitter.plain[input.value.index()] = Some(input.name.clone());
    }
    emitter.taken.extend(graph.outputs.iter().map(|output| output.name.clone()));
    let needed = pattern::needed(graph, &emitter.patterns);
    for id in graph.node_ids().filter(|id| needed[id.index()]) {
        emitter.node(id)?;
    }
    emitter.outputs()?;
    Ok(Emitted { nodes: emitter.nodes, tensors: emitter.tensors })
}

impl<'g> Emitter<'g> {
    fn node(&mut self, id: NodeId) -> Result<(), ExportError> {
        let graph = self.graph;
        let node = graph.node(id);
        self.layer = node.layer.to_string();
        if let Some(pattern) = self.patterns[id.index()].clone() {
            return self.pattern(node, &pattern);
        }
        match &node.op {
            Op::Elementwise(op) => self.elementwise(node, op),
            Op::Movement(op) => self.movement(node, op),
            Op::Reduce(op) => self.reduce(node, op),
            Op::MatMul(op) => self.matmul(node, op, None),
            Op::Conv(op) => self.conv(node, op, None),
            Op::Pool(op) => self.pool(node, op),
            Op::Resize(op) => self.resize(node, op),
            Op::Norm(op) => self.norm(node, op),
            Op::Attention(op) => self.attention(node, op),
            Op::Index(op) => self.index(node, op),
            Op::Int8(op) => self.int8(node, op),
            Op::Fused(_)
            | Op::Recurrent(_)
            | Op::Loss(_)
            | Op::Random(_)
            | Op::Quantise(_)
            | Op::Prune(_)
            | Op::Exchange(_) => Err(self.unsupported(node, "")),
        }
    }

    fn unsupported(&self, node: &Node, reason: &str) -> ExportError {
        ExportError::Unsupported {
            format: "ONNX",
            layer: node.layer.to_string(),
            op: node.op.name().to_string(),
            reason: reason.to_string(),
        }
    }

    /// Gives the graph's outputs their names.
    fn outputs(&mut self) -> Result<(), ExportError> {
        let graph = self.graph;
        self.layer.clear();
        for (i, output) in graph.outputs.iter().enumerate() {
            let name = self.plain(output.value);
            let repeated = graph.outputs[..i].iter().any(|o| o.value == output.value);
            let made = self.nodes.iter().any(|node| node.output.contains(&name));
            if repeated || !made {
                self.nodes.push(NodeProto {
                    input: vec![name],
                    output: vec![output.name.clone()],
                    name: format!("{}/Identity", output.name),
                    op_type: "Identity".into(),
                    ..NodeProto::default()
                });
                continue;
            }
            let names = self.nodes.iter_mut().flat_map(|node| node.input.iter_mut().chain(&mut node.output));
            names.filter(|n| **n == name).for_each(|n| n.clone_from(&output.name));
            self.plain[output.value.index()] = Some(output.name.clone());
        }
        Ok(())
    }

    /// A name that nothing else has.
    fn fresh(&mut self, base: String) -> String {
        let mut name = base.clone();
        let mut number = 0;
        while !self.taken.insert(name.clone()) {
            number += 1;
            name = format!("{base}_{number}");
        }
        name
    }

    /// Adds a node of the current layer with so many outputs.
    fn add_many(
        &mut self,
        op: &str,
        input: Vec<String>,
        outputs: usize,
        attributes: Vec<AttributeProto>,
    ) -> Vec<String> {
        let base = if self.layer.is_empty() { op.to_string() } else { format!("{}/{op}", self.layer) };
        let name = self.fresh(base);
        let output: Vec<String> = match outputs {
            1 => vec![self.fresh(format!("{name}_output"))],
            _ => (0..outputs).map(|i| self.fresh(format!("{name}_output_{i}"))).collect(),
        };
        self.nodes.push(NodeProto {
            input,
            output: output.clone(),
            name,
            op_type: op.to_string(),
            attribute: attributes,
            domain: String::new(),
        });
        output
    }

    /// Adds a node with one output.
    fn add(&mut self, op: &str, input: Vec<String>, attributes: Vec<AttributeProto>) -> String {
        self.add_many(op, input, 1, attributes).swap_remove(0)
    }

    /// The name of a node's output in an order.
    fn set(&mut self, value: ValueId, order: Order, name: String) {
        let names = if order == Order::Image { &mut self.image } else { &mut self.plain };
        names[value.index()] = Some(name);
    }

    fn shape(&self, value: ValueId) -> &'g [usize] {
        &self.graph.ty(value).shape
    }

    fn rank(&self, value: ValueId) -> usize {
        self.shape(value).len()
    }

    /// Whether an image's elements lie in the same order in ours and in ONNX's.
    fn is_trivial(&self, value: ValueId) -> bool {
        matches!(*self.shape(value), [_, h, w, c] if h * w == 1 || c == 1)
    }

    /// Whether a value is known in ONNX's order alone.
    fn is_image(&self, value: ValueId) -> bool {
        self.image[value.index()].is_some() && self.plain[value.index()].is_none()
    }

    /// The name of a value in our order.
    fn plain(&mut self, value: ValueId) -> String {
        if let Some(name) = &self.plain[value.index()] {
            return name.clone();
        }
        let name = match (self.graph.origin(value), self.image[value.index()].clone()) {
            (Origin::State(state), _) => self.state(state, &[], self.shape(value).to_vec()),
            (_, Some(image)) if self.is_trivial(value) => {
                let shape = [0, 1, 2, 3].map(|a| if a == 0 { 0 } else { self.shape(value)[a] as i64 });
                let shape = self.ints(&shape);
                self.add("Reshape", vec![image, shape], vec![])
            }
            (_, Some(image)) => self.add("Transpose", vec![image], vec![ints("perm", &FROM_IMAGE)]),
            // A value that is read is written before.
            (_, None) => String::new(),
        };
        self.plain[value.index()] = Some(name.clone());
        name
    }

    /// The name of an image in ONNX's order.
    fn image(&mut self, value: ValueId) -> String {
        if let Some(name) = &self.image[value.index()] {
            return name.clone();
        }
        let name = match self.graph.origin(value) {
            Origin::State(state) => {
                let dims = TO_IMAGE.map(|axis| self.shape(value)[axis]);
                self.state(state, &TO_IMAGE, dims.to_vec())
            }
            // An input is turned by name, so that readers see its order of axes.
            Origin::Node { .. } if self.is_trivial(value) => {
                let shape = TO_IMAGE.map(|a| if a == 0 { 0 } else { self.shape(value)[a] as i64 });
                let (plain, shape) = (self.plain(value), self.ints(&shape));
                self.add("Reshape", vec![plain, shape], vec![])
            }
            _ => {
                let plain = self.plain(value);
                self.add("Transpose", vec![plain], vec![ints("perm", &TO_IMAGE)])
            }
        };
        self.image[value.index()] = Some(name.clone());
        name
    }

    fn in_order(&mut self, value: ValueId, order: Order) -> String {
        match order {
            Order::Plain => self.plain(value),
            Order::Image => self.image(value),
        }
    }

    /// A value with its axes in another order: as it is in the file for a state, by a transpose for others.
    fn ordered(&mut self, value: ValueId, order: &[usize]) -> String {
        if let Origin::State(state) = self.graph.origin(value) {
            let dims = order.iter().map(|&axis| self.shape(value)[axis]).collect();
            return self.state(state, order, dims);
        }
        let plain = self.plain(value);
        self.add("Transpose", vec![plain], vec![ints("perm", order)])
    }

    /// A state as a tensor of the file.
    fn state(&mut self, state: usize, order: &[usize], dims: Vec<usize>) -> String {
        let element = element_type(self.graph.ty(self.graph.states[state].input).dtype);
        self.state_as(state, order, dims, element)
    }

    /// As [`Emitter::state`], with its bytes as elements of another type.
    fn state_as(&mut self, state: usize, order: &[usize], dims: Vec<usize>, element: i32) -> String {
        let key = (state, order.to_vec(), dims);
        if let Some(name) = self.states.get(&key) {
            return name.clone();
        }
        let name = self.fresh(self.graph.states[state].name.clone());
        let elements = Elements::State { state, order: order.to_vec() };
        self.tensors.push(NamedTensor { name: name.clone(), element, dims: key.2.clone(), elements });
        self.states.insert(key, name.clone());
        name
    }

    /// Numbers as a tensor of the file.
    fn tensor(&mut self, base: &str, element: i32, dims: &[usize], bytes: Vec<u8>) -> String {
        let key = (element, dims.to_vec(), bytes);
        if let Some(name) = self.constants.get(&key) {
            return name.clone();
        }
        let name = self.fresh(base.to_string());
        let (dims, elements) = (dims.to_vec(), Elements::Bytes(key.2.clone()));
        self.tensors.push(NamedTensor { name: name.clone(), element, dims, elements });
        self.constants.insert(key, name.clone());
        name
    }

    /// Whole numbers, as shapes and axes are.
    fn ints(&mut self, values: &[i64]) -> String {
        let words: Vec<String> = values.iter().map(ToString::to_string).collect();
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.tensor(&format!("ints_{}", words.join("_")), element::INT64, &[values.len()], bytes)
    }

    /// A scalar.
    fn number(&mut self, value: f64, dtype: DType) -> String {
        let bytes = match dtype {
            DType::F64 => value.to_le_bytes().to_vec(),
            DType::I32 => (value as i32).to_le_bytes().to_vec(),
            DType::I64 => (value as i64).to_le_bytes().to_vec(),
            DType::U8 => vec![value as u8],
            DType::Bool => vec![u8::from(value != 0.0)],
            DType::F32 | DType::BF16 | DType::F16 => (value as f32).to_le_bytes().to_vec(),
        };
        let element = if dtype.is_low() { element::FLOAT } else { element_type(dtype) };
        self.tensor(&format!("constant_{value:e}"), element, &[], bytes)
    }

    /// Numbers that are no weights: a node of their own says so.
    fn floats(&mut self, dims: &[usize], values: impl Iterator<Item = f64>) -> String {
        let bytes: Vec<u8> = values.flat_map(|v| (v as f32).to_le_bytes()).collect();
        let key = (element::FLOAT, dims.to_vec(), bytes);
        if let Some(name) = self.constants.get(&key) {
            return name.clone();
        }
        let t = Some(TensorProto {
            dims: dims.iter().map(|&n| n as i64).collect(),
            data_type: element::FLOAT,
            raw_data: Some(key.2.clone()),
            ..TensorProto::default()
        });
        let r#type = attribute::TENSOR;
        let value = AttributeProto { name: "value".into(), t, r#type, ..AttributeProto::default() };
        let name = self.add("Constant", vec![], vec![value]);
        self.constants.insert(key, name.clone());
        name
    }

    /// A tensor that holds a value's shape. With `infer`, at most one extent may be -1.
    fn shape_tensor(&mut self, value: ValueId, infer: bool) -> String {
        let extents = self.step.extents(value);
        let growing = extents.iter().filter(|e| matches!(e, Extent::PerExample(_))).count();
        if growing == 0 || (infer && growing == 1) {
            let fixed = extents.iter().map(|extent| match extent {
                Extent::Fixed(n) => *n as i64,
                Extent::PerExample(_) => -1,
            });
            return self.ints(&fixed.collect::<Vec<_>>());
        }
        self.extents_tensor(extents)
    }

    /// A tensor that holds the shape of an image in ONNX's order.
    fn image_shape_tensor(&mut self, value: ValueId) -> String {
        let extents = self.step.extents(value);
        let extents: Vec<Extent> = TO_IMAGE.iter().map(|&axis| extents[axis]).collect();
        let fixed: Option<Vec<i64>> =
            extents.iter().map(|e| if let Extent::Fixed(n) = e { Some(*n as i64) } else { None }).collect();
        match fixed {
            Some(fixed) => self.ints(&fixed),
            None => self.extents_tensor(extents),
        }
    }

    /// Extents that grow with the batch, as a tensor.
    fn extents_tensor(&mut self, extents: Vec<Extent>) -> String {
        let batch = self.batch_tensor();
        let mut parts = Vec::new();
        for extent in extents {
            parts.push(match extent {
                Extent::Fixed(n) => self.ints(&[n as i64]),
                Extent::PerExample(1) => batch.clone(),
                Extent::PerExample(n) => {
                    let each = self.ints(&[n as i64]);
                    self.add("Mul", vec![batch.clone(), each], vec![])
                }
            });
        }
        self.add("Concat", parts, vec![int("axis", 0)])
    }

    /// The number of examples, as a tensor of one element.
    fn batch_tensor(&mut self) -> String {
        if let Some(name) = &self.batch {
            return name.clone();
        }
        let input = self.graph.inputs.iter().find(|i| i.batched).map(|i| i.name.clone()).unwrap_or_default();
        let layer = std::mem::take(&mut self.layer);
        let name = self.add("Shape", vec![input], vec![int("start", 0), int("end", 1)]);
        self.layer = layer;
        self.batch = Some(name.clone());
        name
    }
}

pub(crate) fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto { name: name.into(), i: Some(value), r#type: attribute::INT, ..AttributeProto::default() }
}

pub(crate) fn float(name: &str, value: f64) -> AttributeProto {
    let f = Some(value as f32);
    AttributeProto { name: name.into(), f, r#type: attribute::FLOAT, ..AttributeProto::default() }
}

pub(crate) fn text(name: &str, value: &str) -> AttributeProto {
    let s = Some(value.as_bytes().to_vec());
    AttributeProto { name: name.into(), s, r#type: attribute::STRING, ..AttributeProto::default() }
}

pub(crate) fn ints(name: &str, values: &[usize]) -> AttributeProto {
    let ints = values.iter().map(|&v| v as i64).collect();
    AttributeProto { name: name.into(), ints, r#type: attribute::INTS, ..AttributeProto::default() }
}
