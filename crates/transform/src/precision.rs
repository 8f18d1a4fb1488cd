//! Forward in mixed precision: what is stored between layers becomes 16-bit floats, what is summed stays f32.
//!
//! Casts are ordinary ops, and so are their gradients: `save` makes a widened value again from the stored one, and `fuse`
//! joins casts into what reads and writes values. Parameters and all that is made of them alone stay f32; a product casts
//! them as it reads them, and the gradient of that cast is a sum over examples, in f32.
//!
//! - Products, convolutions and attention read 16-bit floats, sum in f32, and give 16-bit floats; a bias is added before
//!   the rounding.
//! - Everything else computes in f32. A norm's result, a chain of elementwise ops at the end of its layer, a pooled or
//!   resized image and looked-up rows are then rounded; sums and statistics are not.
//! - Relu, changes of sign and the largest of a window are exact: they take and give stored values, so that backward needs nothing but those.
//! - The loss and the layers that are kept are f32 throughout.

use crate::rewriter::Rewriter;
use plimsoll_graph::op::{Attention, Binary, Conv, Elementwise, Index, Loss, MatMul, Norm, Pool, Unary};
use plimsoll_graph::{Builder, Graph, GraphError, Node, NodeId, Op, ValueId};
use plimsoll_tensor::DType;

/// A forward graph in mixed precision, open for its gradient.
#[derive(Debug)]
pub struct Lowered {
    /// The graph so far.
    pub builder: Builder,
    values: Vec<Option<ValueId>>,
}

impl Lowered {
    /// The value of the graph as it was, in its own element type; only of values that leave the graph.
    pub fn value(&self, old: ValueId) -> Option<ValueId> {
        self.values.get(old.index()).copied().flatten()
    }
}

/// Stores what layers hand on in `low`, a 16-bit float; layers for which `keep` says so stay as they are.
///
/// Inputs, states and outputs of the graph keep their types.
pub fn lower(graph: &Graph, low: DType, keep: &dyn Fn(&str) -> bool) -> Result<Lowered, GraphError> {
    let mut pass = Pass {
        graph,
        low,
        keep,
        readers: graph.readers(),
        stored: vec![None; graph.value_count()],
        casts: vec![None; graph.value_count()],
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
    Ok(Lowered { builder: pass.r.close(), values })
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
    keep: &'g dyn Fn(&str) -> bool,
    readers: Vec<Vec<NodeId>>,
    /// New values of old ones as 16-bit floats. Where there is one, `r.map` holds at most its widened form.
    stored: Vec<Option<ValueId>>,
    /// New values that are cast for those who read them low, but stay f32 for others: parameters above all.
    casts: Vec<Option<ValueId>>,
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
        let batched = node.inputs.iter().any(|&v| self.is_batched(v));
        if let Op::Loss(Loss::LinearCrossEntropy { .. }) = node.op {
            // A product with its loss: features are read as they are stored, all else is f32.
            let features = node.inputs[0];
            let mut inputs = self.wides(&node.inputs[1..])?;
            inputs.insert(0, self.stored[features.index()].map_or_else(|| self.wide(features), Ok)?);
            return self.plain(node, node.op.clone(), &inputs);
        }
        if !batched || self.is_kept(&node.layer) {
            let inputs = self.wides(&node.inputs)?;
            return self.plain(node, node.op.clone(), &inputs);
        }
        match &node.op {
            Op::MatMul(_) | Op::Conv(Conv::Forward { .. } | Conv::InputGrad { .. }) => self.product(node),
            Op::Attention(Attention::Forward { .. }) => {
                let inputs = self.lows(&node.inputs)?;
                let outputs = self.r.builder.node(node.op.clone(), &inputs)?;
                self.stored[node.outputs[0].index()] = Some(outputs[0]);
                self.r.map[node.outputs[1].index()] = Some(outputs[1]);
                Ok(())
            }
            // What is widened here is stored low already.
            Op::Elementwise(Elementwise::Cast(DType::F32))
                if self.graph.ty(node.inputs[0]).dtype == self.low =>
            {
                self.stored[node.outputs[0].index()] = Some(self.r.get(node.inputs[0]));
                Ok(())
            }
            Op::Movement(_) if node.inputs.iter().any(|v| self.stored[v.index()].is_some()) => {
                let inputs = self.lows(&node.inputs)?;
                self.store(node, node.op.clone(), &inputs)
            }
            Op::Elementwise(Elementwise::Unary(Unary::Relu | Unary::Neg | Unary::Abs))
            | Op::Pool(Pool::Max { .. })
                if self.stored[node.inputs[0].index()].is_some() =>
            {
                let inputs = self.lows(&node.inputs)?;
                self.store(node, node.op.clone(), &inputs)
            }
            _ => {
                let inputs = self.wides(&node.inputs)?;
                self.plain(node, node.op.clone(), &inputs)?;
                if self.is_rounded(node) { self.round(node.outputs[0]) } else { Ok(()) }
            }
        }
    }

    /// A product of low operands. With a bias it is rounded after that.
    fn product(&mut self, node: &Node) -> Result<(), GraphError> {
        let inputs = self.lows(&node.inputs)?;
        if !self.has_bias(node) {
            return self.store(node, node.op.clone(), &inputs);
        }
        let mut op = node.op.clone();
        match &mut op {
            Op::MatMul(MatMul { output, .. })
            | Op::Conv(Conv::Forward { output, .. } | Conv::InputGrad { output, .. }) => {
                *output = Some(DType::F32);
            }
            _ => {}
        }
        self.plain(node, op, &inputs)
    }

    /// Whether nothing but an addition of one number for each column reads a product.
    fn has_bias(&self, node: &Node) -> bool {
        let value = node.outputs[0];
        let [reader] = self.readers[value.index()][..] else { return false };
        let add = self.graph.node(reader);
        let others: Vec<ValueId> = add.inputs.iter().copied().filter(|&v| v != value).collect();
        let [bias] = others[..] else { return false };
        add.op == Op::Elementwise(Elementwise::Binary(Binary::Add))
            && !self.leaves[value.index()]
            && !self.is_kept(&add.layer)
            && self.graph.ty(bias).shape.rank() == 1
            && self.graph.ty(bias).shape.last() == self.graph.ty(value).shape.last()
            // What is not yet copied comes after the product: it is no parameter.
            && self.r.map[bias.index()].is_some_and(|v| !self.r.builder.is_batched(v))
    }

    /// Whether what a node computes in f32 is stored low: what it hands on to another layer, or to what reads low values.
    fn is_rounded(&self, node: &Node) -> bool {
        let value = node.outputs[0];
        if self.graph.ty(value).dtype != DType::F32 || !self.is_batched(value) {
            return false;
        }
        match &node.op {
            Op::Norm(Norm::Layer { .. } | Norm::Batch { .. })
            | Op::Pool(_)
            | Op::Resize(_)
            | Op::Attention(_)
            | Op::Index(Index::Gather) => true,
            Op::Elementwise(_) => {
                let ends_product = node.inputs.iter().any(|&v| self.is_wide_product(v));
                ends_product || !self.readers[value.index()].iter().all(|&id| self.goes_on(node, id))
            }
            _ => false,
        }
    }

    /// Whether a value is a product that has been left in f32 for its bias.
    fn is_wide_product(&self, value: ValueId) -> bool {
        let producer = self.graph.producer(value).map(|id| self.graph.node(id));
        producer.is_some_and(|node| {
            let product = matches!(node.op, Op::MatMul(_) | Op::Conv(_));
            product && self.stored[value.index()].is_none() && !self.is_kept(&node.layer)
        })
    }

    /// Whether a reader of a node's result computes on in f32, in the same layer.
    fn goes_on(&self, node: &Node, reader: NodeId) -> bool {
        let reader = self.graph.node(reader);
        let in_f32 = match &reader.op {
            Op::Elementwise(Elementwise::Unary(Unary::Relu)) => false,
            Op::Elementwise(_) | Op::Reduce(_) => true,
            Op::Norm(norm) => *norm == Norm::LogSumExp,
            _ => false,
        };
        in_f32 && reader.layer == node.layer
    }

    fn is_kept(&self, layer: &str) -> bool {
        (self.keep)(layer)
    }

    fn is_batched(&self, value: ValueId) -> bool {
        let new = self.stored[value.index()].or(self.r.map[value.index()]);
        new.is_some_and(|v| self.r.builder.is_batched(v))
    }

    /// Emits a node whose results have their own types.
    fn plain(&mut self, node: &Node, op: Op, inputs: &[ValueId]) -> Result<(), GraphError> {
        let outputs = self.r.builder.node(op, inputs)?;
        self.r.set(node, &outputs);
        Ok(())
    }

    /// Emits a node whose results are low.
    fn store(&mut self, node: &Node, op: Op, inputs: &[ValueId]) -> Result<(), GraphError> {
        let outputs = self.r.builder.node(op, inputs)?;
        for (old, new) in node.outputs.iter().zip(outputs) {
            match self.graph.ty(*old).dtype {
                DType::F32 => self.stored[old.index()] = Some(new),
                _ => self.r.map[old.index()] = Some(new),
            }
        }
        Ok(())
    }

    /// Rounds a value: from here on, it is what is stored.
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
