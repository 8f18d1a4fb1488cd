//! Mixed precision (autocast): values between layers are stored as 16-bit floats, sums stay f32.
//!
//! Each op's [`PrecisionClass`](plimsoll_graph::op::PrecisionClass) says what it reads and when its result is rounded:
//!
//! - Products, convolutions and attention read 16-bit floats, accumulate in f32, and round once, a product after its bias
//!   (unless the target's [`Numerics`] have it otherwise).
//! - Everything else computes in f32. Norms, pooled or resized images and gathered rows are rounded as they are written,
//!   a chain of elementwise ops at its end, which is at the latest the end of its layer; sums and statistics are not.
//! - Relu, changes of sign, movement and the largest of a window are exact: they read and write stored values, so that
//!   backward needs no others.
//! - The loss and the layers that the caller keeps are f32 throughout.
//!
//! Casts are ordinary ops, and so are their gradients: `save` rematerializes a widened value from the stored one, and `fuse`
//! absorbs casts into the ops that read and write them. Parameters and values computed from them alone stay f32; a product
//! casts them as it reads them, and the gradient of that cast is a sum over the batch, in f32.

use crate::rewriter::Rewriter;
use plimsoll_graph::op::{Binary, Conv, Elementwise, MatMul, OperandPrecision, Rounding};
use plimsoll_graph::{Builder, Graph, GraphError, Node, NodeId, Numerics, Op, ProductType, ValueId};
use plimsoll_tensor::DType;
use std::collections::BTreeMap;

/// A forward graph in mixed precision, open for its gradient.
#[derive(Debug)]
pub struct MixedPrecision {
    /// The graph so far.
    pub builder: Builder,
    values: Vec<Option<ValueId>>,
}

impl MixedPrecision {
    /// The new value of an old one, in its old element type; only of values that leave the graph.
    pub fn value(&self, old: ValueId) -> Option<ValueId> {
        self.values.get(old.index()).copied().flatten()
    }
}

/// Stores what layers hand on in `low`, a 16-bit float; layers for which `keep` is true stay as they are. The target's
/// numerics say which products are f32 until their bias is added, and how many bits the bias has.
///
/// Inputs, states and outputs of the graph keep their types.
pub fn mixed_precision(
    graph: &Graph,
    low: DType,
    numerics: &Numerics,
    keep: &dyn Fn(&str) -> bool,
) -> Result<MixedPrecision, GraphError> {
    let mut pass = Pass {
        graph,
        low,
        numerics,
        keep,
        readers: graph.readers(),
        stored: vec![None; graph.value_count()],
        casts: vec![None; graph.value_count()],
        low_biases: BTreeMap::new(),
        leaves: leaving(graph),
        r: Rewriter::new(graph),
    };
    for node in &graph.nodes {
        pass.node(node)?;
    }
    for value in graph.value_ids() {
        if !pass.leaves[value.index()] {
            continue;
        }
        let wide = pass.wide(value)?;
        pass.r.map[value.index()] = Some(wide);
    }
    let values = pass.r.map.clone();
    Ok(MixedPrecision { builder: pass.r.close(), values })
}

/// Which values leave the graph.
fn leaving(graph: &Graph) -> Vec<bool> {
    let mut leaves = vec![false; graph.value_count()];
    let states = graph.states.iter().filter_map(|s| s.output);
    states.chain(graph.outputs.iter().map(|o| o.value)).for_each(|v| leaves[v.index()] = true);
    leaves
}

struct Pass<'g> {
    graph: &'g Graph,
    low: DType,
    numerics: &'g Numerics,
    keep: &'g dyn Fn(&str) -> bool,
    readers: Vec<Vec<NodeId>>,
    /// New values of old ones as 16-bit floats. Where there is one, `r.map` holds at most its widened form.
    stored: Vec<Option<ValueId>>,
    /// New values that are cast for readers of low values, but stay f32 for others: parameters above all.
    casts: Vec<Option<ValueId>>,
    /// Biases that are added as 16-bit floats, by the sum of product and bias.
    low_biases: BTreeMap<ValueId, ValueId>,
    leaves: Vec<bool>,
    r: Rewriter<'g>,
}

impl Pass<'_> {
    fn node(&mut self, node: &Node) -> Result<(), GraphError> {
        let layer = self.r.builder.set_layer(node.layer.clone());
        let done = self.emit(node);
        self.r.builder.set_layer(layer);
        done
    }

    fn emit(&mut self, node: &Node) -> Result<(), GraphError> {
        let precision = node.op.properties().precision;
        if precision.operands == OperandPrecision::FirstAsStored {
            let first = node.inputs[0];
            let mut inputs = self.wides(&node.inputs[1..])?;
            inputs.insert(0, self.stored[first.index()].map_or_else(|| self.wide(first), Ok)?);
            return self.plain(node, node.op.clone(), &inputs);
        }
        let batched = node.inputs.iter().any(|&v| self.is_batched(v));
        if !batched || self.is_kept(&node.layer) {
            let inputs = self.wides(&node.inputs)?;
            return self.plain(node, node.op.clone(), &inputs);
        }
        // A value that is widened here is stored low already.
        if node.op == Op::Elementwise(Elementwise::Cast(DType::F32))
            && self.graph.ty(node.inputs[0]).dtype == self.low
        {
            self.stored[node.outputs[0].index()] = Some(self.r.get(node.inputs[0]));
            return Ok(());
        }
        let is_stored = node.inputs.iter().any(|v| self.stored[v.index()].is_some());
        let biased = match precision.rounding {
            Rounding::AfterBias if self.numerics.product_before_bias == ProductType::Wide => self.bias(node),
            _ => None,
        };
        match (precision.operands, biased) {
            (OperandPrecision::Low, Some((sum, bias))) => {
                if self.numerics.epilogues.bias == Some(ProductType::AsOperands) {
                    self.low_biases.insert(sum, bias);
                }
                let inputs = self.lows(&node.inputs)?;
                self.plain(node, with_wide_output(&node.op), &inputs)
            }
            (OperandPrecision::Low, None) => self.store(node),
            (OperandPrecision::AsStored, _) if is_stored => self.store(node),
            (OperandPrecision::AsStored | OperandPrecision::FirstAsStored | OperandPrecision::Wide, _) => {
                let inputs = self.summands(node)?;
                self.plain(node, node.op.clone(), &inputs)?;
                if self.is_rounded(node) { self.round(node.outputs[0]) } else { Ok(()) }
            }
        }
    }

    /// The inputs of an op that computes in f32; a bias that is added as a 16-bit float is rounded first.
    fn summands(&mut self, node: &Node) -> Result<Vec<ValueId>, GraphError> {
        let mut inputs = self.wides(&node.inputs)?;
        let low_bias = node.outputs.first().and_then(|sum| self.low_biases.get(sum)).copied();
        if let Some(at) = node.inputs.iter().position(|&v| Some(v) == low_bias) {
            let low = self.low(node.inputs[at])?;
            inputs[at] = self.r.builder.cast(low, DType::F32)?;
        }
        Ok(inputs)
    }

    /// If the only reader of a product adds a bias to it, one number for each column: the sum and the bias.
    fn bias(&self, node: &Node) -> Option<(ValueId, ValueId)> {
        let value = node.outputs[0];
        let [reader] = self.readers[value.index()][..] else { return None };
        let add = self.graph.node(reader);
        let others: Vec<ValueId> = add.inputs.iter().copied().filter(|&v| v != value).collect();
        let [bias] = others[..] else { return None };
        let is_bias = add.op == Op::Elementwise(Elementwise::Binary(Binary::Add))
            && !self.leaves[value.index()]
            && !self.is_kept(&add.layer)
            && self.graph.ty(bias).shape.rank() == 1
            && self.graph.ty(bias).shape.last() == self.graph.ty(value).shape.last()
            // A value that is not copied yet comes after the product: it is not a parameter.
            && self.r.map[bias.index()].is_some_and(|v| !self.r.builder.is_batched(v));
        is_bias.then_some((add.outputs[0], bias))
    }

    /// Whether a node's f32 result is stored low.
    fn is_rounded(&self, node: &Node) -> bool {
        let value = node.outputs[0];
        if self.graph.ty(value).dtype != DType::F32 || !self.is_batched(value) {
            return false;
        }
        match node.op.properties().precision.rounding {
            Rounding::AtOnce => true,
            Rounding::EndOfChain => {
                let ends_product = node.inputs.iter().any(|&v| self.is_wide_product(v));
                ends_product || !self.readers[value.index()].iter().all(|&id| self.extends_chain(node, id))
            }
            Rounding::AfterBias | Rounding::Never => false,
        }
    }

    /// Whether a value is a product that is still f32.
    fn is_wide_product(&self, value: ValueId) -> bool {
        let producer = self.graph.producer(value).map(|id| self.graph.node(id));
        producer.is_some_and(|node| {
            let product = node.op.properties().precision.rounding == Rounding::AfterBias;
            product && self.stored[value.index()].is_none() && !self.is_kept(&node.layer)
        })
    }

    /// Whether a reader continues the chain of a node: in f32, in the same layer.
    fn extends_chain(&self, node: &Node, reader: NodeId) -> bool {
        let reader = self.graph.node(reader);
        reader.op.properties().precision.extends_chain && reader.layer == node.layer
    }

    fn is_kept(&self, layer: &str) -> bool {
        (self.keep)(layer)
    }

    fn is_batched(&self, value: ValueId) -> bool {
        let new = self.stored[value.index()].or(self.r.map[value.index()]);
        new.is_some_and(|v| self.r.builder.is_batched(v))
    }

    /// Emits a node whose results have the types that its op gives.
    fn plain(&mut self, node: &Node, op: Op, inputs: &[ValueId]) -> Result<(), GraphError> {
        let outputs = self.r.builder.node(op, inputs)?;
        self.r.set(node, &outputs);
        Ok(())
    }

    /// Emits a node on low operands. Those of its results that are low are stored as they are.
    fn store(&mut self, node: &Node) -> Result<(), GraphError> {
        let inputs = self.lows(&node.inputs)?;
        let outputs = self.r.builder.node(node.op.clone(), &inputs)?;
        for (old, new) in node.outputs.iter().zip(outputs) {
            let rounded = self.graph.ty(*old).dtype == DType::F32 && self.r.builder.ty(new).dtype == self.low;
            let map = if rounded { &mut self.stored } else { &mut self.r.map };
            map[old.index()] = Some(new);
        }
        Ok(())
    }

    /// Rounds a value: from here on, the rounded one is read.
    fn round(&mut self, value: ValueId) -> Result<(), GraphError> {
        let wide = self.r.get(value);
        self.stored[value.index()] = Some(self.r.builder.cast(wide, self.low)?);
        self.r.map[value.index()] = None;
        Ok(())
    }

    /// A value in its own type: widened if it is stored low.
    fn wide(&mut self, value: ValueId) -> Result<ValueId, GraphError> {
        if let (None, Some(stored)) = (self.r.map[value.index()], self.stored[value.index()]) {
            self.r.map[value.index()] = Some(self.r.builder.cast(stored, self.graph.ty(value).dtype)?);
        }
        Ok(self.r.get(value))
    }

    /// A float as a low one: as it is stored, or cast for its reader. Other types stay as they are.
    fn low(&mut self, value: ValueId) -> Result<ValueId, GraphError> {
        if self.graph.ty(value).dtype != DType::F32 {
            return Ok(self.r.get(value));
        }
        if let Some(stored) = self.stored[value.index()] {
            return Ok(stored);
        }
        if self.casts[value.index()].is_none() {
            let wide = self.r.get(value);
            self.casts[value.index()] = Some(self.r.builder.cast(wide, self.low)?);
        }
        Ok(self.casts[value.index()].expect("cast above"))
    }

    fn wides(&mut self, values: &[ValueId]) -> Result<Vec<ValueId>, GraphError> {
        values.iter().map(|&v| self.wide(v)).collect()
    }

    fn lows(&mut self, values: &[ValueId]) -> Result<Vec<ValueId>, GraphError> {
        values.iter().map(|&v| self.low(v)).collect()
    }
}

/// The product with an f32 result.
fn with_wide_output(op: &Op) -> Op {
    let mut op = op.clone();
    match &mut op {
        Op::MatMul(MatMul { output, .. })
        | Op::Conv(Conv::Forward { output, .. } | Conv::InputGrad { output, .. }) => {
            *output = Some(DType::F32)
        }
        other => unreachable!("{} rounds after its bias, but has no output type", other.name()),
    }
    op
}
