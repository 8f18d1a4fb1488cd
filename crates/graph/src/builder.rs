//! Builds graphs node by node, types checked as they grow.

mod einsum;
mod elementwise;
mod index;
mod math;
mod movement;
mod reduce;
mod windows;

pub use math::Value;

use crate::op::{Binary, Elementwise, MatMul, Movement, Unary};
use crate::{
    Accumulator, BatchMark, Graph, GraphError, Init, Input, Node, NodeId, Op, Origin, Output, Role, State,
    ValueId,
};
use plimsoll_tensor::{DType, Shape, TensorType};
use std::sync::Arc;

/// Builds a [`Graph`]. Every method that adds a node checks its types at once, so errors name the layer at fault.
#[derive(Clone, Debug)]
pub struct Builder {
    graph: Graph,
    layer: Arc<str>,
    /// For every value, how it relates to the batch.
    marks: Vec<BatchMark>,
}

impl Graph {
    /// The output types of an op on these values, as an error that names the layer where they do not fit.
    pub(crate) fn infer(
        &self,
        op: Op,
        inputs: &[ValueId],
        layer: &str,
    ) -> Result<Vec<TensorType>, GraphError> {
        let types: Vec<&TensorType> = inputs.iter().map(|&v| self.ty(v)).collect();
        op.infer(&types).map_err(|reason| GraphError::Type {
            layer: layer.to_string(),
            op: op.name(),
            inputs: types.into_iter().cloned().collect(),
            reason,
        })
    }
}

impl Builder {
    /// A builder for batches of `examples`, whose sums over the batch fold in blocks of `example_block`.
    pub fn new(examples: usize, example_block: usize) -> Self {
        let graph = Graph {
            examples,
            example_block,
            micro_batches: 1,
            unrolled: 1,
            inputs: Vec::new(),
            states: Vec::new(),
            accumulators: Vec::new(),
            nodes: Vec::new(),
            outputs: Vec::new(),
            values: Vec::new(),
        };
        Self { graph, layer: Arc::from(""), marks: Vec::new() }
    }

    /// The graph so far.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Type of a value.
    pub fn ty(&self, value: ValueId) -> &TensorType {
        self.graph.ty(value)
    }

    /// Shape of a value.
    pub fn shape(&self, value: ValueId) -> &Shape {
        &self.ty(value).shape
    }

    /// Runs `build` with `name` appended to the layer's path.
    pub fn scope<T>(&mut self, name: &str, build: impl FnOnce(&mut Self) -> T) -> T {
        self.within(Arc::from(self.path(name)), build)
    }

    /// Runs `build` with the layer's path set to `layer`.
    pub fn within<T>(&mut self, layer: Arc<str>, build: impl FnOnce(&mut Self) -> T) -> T {
        let outer = self.set_layer(layer);
        let result = build(self);
        self.layer = outer;
        result
    }

    /// Sets the layer's path and returns the one before; [`Builder::within`] sets it back by itself.
    pub fn set_layer(&mut self, layer: Arc<str>) -> Arc<str> {
        std::mem::replace(&mut self.layer, layer)
    }

    /// The current layer's path.
    pub fn layer(&self) -> &Arc<str> {
        &self.layer
    }

    /// The path of `name` inside the current layer.
    pub fn path(&self, name: &str) -> String {
        if self.layer.is_empty() { name.to_string() } else { format!("{}/{name}", self.layer) }
    }

    fn value(&mut self, ty: TensorType, origin: Origin) -> ValueId {
        self.graph.values.push((ty, origin));
        self.marks.push(BatchMark::input(false));
        ValueId(self.graph.values.len() as u32 - 1)
    }

    /// A value from outside whose axis 0 is the batch axis.
    pub fn batch_input(&mut self, name: &str, ty: TensorType) -> ValueId {
        self.input(name, ty, true)
    }

    /// A value from outside that is the same for the whole batch, like a learning rate.
    pub fn setting(&mut self, name: &str, ty: TensorType) -> ValueId {
        self.input(name, ty, false)
    }

    /// A value from outside.
    pub fn input(&mut self, name: &str, ty: TensorType, batched: bool) -> ValueId {
        self.marked_input(name, ty, BatchMark::input(batched))
    }

    /// A value from outside that was computed there from a batch. A graph keeps of it whether axis 0 is the batch axis; what is
    /// built from it, and [`Builder::batch_mark`], know the rest.
    pub fn marked_input(&mut self, name: &str, ty: TensorType, mark: BatchMark) -> ValueId {
        let value = self.value(ty, Origin::Input(self.graph.inputs.len()));
        self.graph.inputs.push(Input { name: name.to_string(), value, batched: mark.axis, part: 0 });
        self.marks[value.index()] = mark;
        value
    }

    /// A value from outside like another graph's: of its name, and of the same of the body's micro-batches.
    pub fn input_like(&mut self, input: &Input, ty: TensorType) -> ValueId {
        let value = self.input(&input.name, ty, input.batched);
        if let Some(own) = self.graph.inputs.last_mut() {
            own.part = input.part;
        }
        value
    }

    /// A state of the current layer; its name is the layer's path and `name`.
    pub fn state(&mut self, name: &str, ty: TensorType, role: Role, init: Init) -> ValueId {
        self.named_state(self.path(name), ty, role, init)
    }

    /// A state under its full name.
    pub fn named_state(&mut self, name: String, ty: TensorType, role: Role, init: Init) -> ValueId {
        let value = self.value(ty, Origin::State(self.graph.states.len()));
        self.graph.states.push(State { name, role, init, input: value, output: None });
        value
    }

    /// Sets the value that the state that starts as `input` has after the step.
    ///
    /// # Panics
    /// If `input` is not a state's old version.
    pub fn set_state(&mut self, input: ValueId, output: ValueId) {
        let Origin::State(i) = self.graph.origin(input) else { panic!("{input} is not a state") };
        self.graph.states[i].output = Some(output);
    }

    /// A sum accumulated over the micro-batches; [`Builder::set_accumulator`] sets its value after each.
    pub fn accumulator(&mut self, ty: TensorType) -> ValueId {
        let input = self.value(ty, Origin::Accumulator(self.graph.accumulators.len()));
        self.graph.accumulators.push(Accumulator { input, output: input });
        input
    }

    /// Sets the value of an accumulator after the micro-batch.
    ///
    /// # Panics
    /// If `input` is not an accumulator.
    pub fn set_accumulator(&mut self, input: ValueId, output: ValueId) {
        let Origin::Accumulator(i) = self.graph.origin(input) else {
            panic!("{input} is not an accumulator")
        };
        self.graph.accumulators[i].output = output;
    }

    /// Sets examples and block of the batch, before the first value of one.
    pub fn set_batch(&mut self, examples: usize, example_block: usize) {
        (self.graph.examples, self.graph.example_block) = (examples, example_block);
    }

    /// Sets how often the body runs per step.
    pub fn set_micro_batches(&mut self, count: usize) {
        self.graph.micro_batches = count;
    }

    /// Sets how many micro-batches the body itself has.
    pub fn set_unrolled(&mut self, count: usize) {
        self.graph.unrolled = count;
    }

    /// Hands a value to the caller after the step.
    pub fn output(&mut self, name: &str, value: ValueId) {
        self.graph.outputs.push(Output { name: name.to_string(), value });
    }

    /// Adds a node and returns its outputs.
    pub fn node(&mut self, op: Op, inputs: &[ValueId]) -> Result<Vec<ValueId>, GraphError> {
        self.accumulating(op, inputs, &[])
    }

    /// Adds a node whose folding outputs are added to accumulators.
    pub fn accumulating(
        &mut self,
        op: Op,
        inputs: &[ValueId],
        accumulate: &[ValueId],
    ) -> Result<Vec<ValueId>, GraphError> {
        let types = self.graph.infer(op.clone(), inputs, &self.layer)?;
        let node = NodeId(self.graph.nodes.len() as u32);
        let outputs: Vec<ValueId> = (types.into_iter().enumerate())
            .map(|(output, ty)| self.value(ty, Origin::Node { node, output }))
            .collect();
        let node = Node {
            op,
            inputs: inputs.to_vec(),
            accumulate: accumulate.to_vec(),
            outputs: outputs.clone(),
            layer: self.layer.clone(),
        };
        for (value, mark) in outputs.iter().zip(self.graph.marks_of(&node, &self.marks)) {
            self.marks[value.index()] = mark;
        }
        self.graph.nodes.push(node);
        Ok(outputs)
    }

    /// Adds a node with one output and returns it.
    pub fn one(&mut self, op: Op, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        self.node(op, inputs).map(|outputs| outputs[0])
    }

    /// A scalar constant.
    pub fn constant(&mut self, value: f64, dtype: DType) -> Result<ValueId, GraphError> {
        self.one(Op::Elementwise(Elementwise::Constant { value, dtype }), &[])
    }

    /// A function of one element.
    pub fn unary(&mut self, op: Unary, x: ValueId) -> Result<ValueId, GraphError> {
        self.one(Op::Elementwise(Elementwise::Unary(op)), &[x])
    }

    /// A function of two elements, with broadcasting.
    pub fn binary(&mut self, op: Binary, a: ValueId, b: ValueId) -> Result<ValueId, GraphError> {
        self.one(Op::Elementwise(Elementwise::Binary(op)), &[a, b])
    }

    /// A function of an element and a constant of its type.
    pub fn with_constant(&mut self, op: Binary, a: ValueId, constant: f64) -> Result<ValueId, GraphError> {
        let constant = self.constant(constant, self.ty(a).dtype)?;
        self.binary(op, a, constant)
    }

    /// `a + b`, with broadcasting.
    pub fn add(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, GraphError> {
        self.binary(Binary::Add, a, b)
    }

    /// `a - b`, with broadcasting.
    pub fn sub(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, GraphError> {
        self.binary(Binary::Sub, a, b)
    }

    /// `a · b` elementwise, with broadcasting.
    pub fn mul(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, GraphError> {
        self.binary(Binary::Mul, a, b)
    }

    /// `a / b` elementwise, with broadcasting.
    pub fn div(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, GraphError> {
        self.binary(Binary::Div, a, b)
    }

    /// `a · factor`.
    pub fn scale(&mut self, a: ValueId, factor: f64) -> Result<ValueId, GraphError> {
        self.with_constant(Binary::Mul, a, factor)
    }

    /// `a` where the condition is true, else `b`.
    pub fn select(&mut self, condition: ValueId, a: ValueId, b: ValueId) -> Result<ValueId, GraphError> {
        self.one(Op::Elementwise(Elementwise::Select), &[condition, a, b])
    }

    /// Conversion to another element type.
    pub fn cast(&mut self, x: ValueId, dtype: DType) -> Result<ValueId, GraphError> {
        if self.ty(x).dtype == dtype {
            Ok(x)
        } else {
            self.one(Op::Elementwise(Elementwise::Cast(dtype)), &[x])
        }
    }

    /// The same elements under another shape.
    pub fn reshape(&mut self, x: ValueId, shape: impl Into<Shape>) -> Result<ValueId, GraphError> {
        let shape = shape.into();
        if *self.shape(x) == shape { Ok(x) } else { self.one(Op::Movement(Movement::Reshape(shape)), &[x]) }
    }

    /// Matrix product.
    pub fn matmul(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, GraphError> {
        self.one(Op::MatMul(MatMul::default()), &[a, b])
    }

    /// Whether axis 0 of a value is the batch axis.
    pub fn is_batched(&self, value: ValueId) -> bool {
        self.marks[value.index()].axis
    }

    /// How a value relates to the batch.
    pub fn batch_mark(&self, value: ValueId) -> BatchMark {
        self.marks[value.index()]
    }

    /// Sums a value down to the shape of `like`, which broadcasts to its own: the gradient of broadcasting. A batched value
    /// is summed over the batch if `like` is not batched, even if there is only one example: other micro-batches have others.
    /// Sums of 16-bit floats are f32, and stay f32 where they are sums over the batch.
    pub fn sum_like(&mut self, x: ValueId, like: ValueId) -> Result<ValueId, GraphError> {
        let (full, shape) = (self.shape(x).clone(), self.shape(like).clone());
        let missing = full.rank() - shape.rank();
        let folds = self.is_batched(x) && !self.is_batched(like);
        let summed = |axis: usize| {
            axis < missing || (shape[axis - missing] == 1 && (full[axis] != 1 || (axis == 0 && folds)))
        };
        let mut value = x;
        let mut axis = 0;
        while axis < full.rank() {
            let end = (axis..full.rank()).find(|&a| !summed(a)).unwrap_or(full.rank());
            if end > axis {
                let axes: Vec<usize> = (axis..end).collect();
                value = self.sum(value, &axes, true)?;
            }
            axis = end + 1;
        }
        if self.is_batched(like) {
            value = self.cast(value, self.ty(x).dtype)?;
        }
        self.reshape(value, shape)
    }

    /// The finished graph, checked.
    pub fn finish(mut self) -> Result<Graph, GraphError> {
        self.graph.check()?;
        self.graph.nodes.shrink_to_fit();
        self.graph.values.shrink_to_fit();
        Ok(self.graph)
    }
}
