//! Which nodes of a graph become layers of bytes.

use super::fold::{Fold, is_constant};
use plimsoll_graph::op::{
    Binary, Conv, Elementwise, Geometry, MatMul, Movement, Pool, Reduce, Unary, Windows,
};
use plimsoll_graph::{Graph, Node, NodeId, Op, Origin, ValueId};
use plimsoll_tensor::DType;

/// A layer of bytes.
pub(super) enum Layer {
    /// A convolution or a dense layer.
    Product {
        /// The state that is its kernel.
        kernel: usize,
        /// How a convolution slides, and its groups.
        conv: Option<(Geometry, usize)>,
        /// Whether each output channel has a scale of its own.
        per_channel: bool,
        /// What is done to each channel behind it.
        folds: Vec<Fold>,
    },
    /// The sum of two tensors.
    Sum,
    /// The mean over an image: the sum times this.
    Mean {
        /// The factor.
        of: f64,
    },
    MaxPool(Windows),
    Reshape,
}

/// What a layer gives.
pub(super) struct Output {
    pub value: ValueId,
    /// The place whose grid it is on.
    pub place: usize,
    /// Whether it is not below zero.
    pub relu: bool,
    /// What it is not above.
    pub most: Option<f64>,
}

/// Nodes that become one layer.
pub(super) struct Step {
    pub layer: Layer,
    pub nodes: Vec<NodeId>,
    pub inputs: Vec<ValueId>,
    /// The places whose grids the inputs are on.
    pub places: Vec<usize>,
    pub output: Output,
}

impl Step {
    /// The last place that it needs.
    pub fn last_place(&self) -> usize {
        self.places.iter().copied().fold(self.output.place, usize::max)
    }
}

/// The layers of bytes of a graph, and the places whose ranges they need.
pub(super) struct Analysis {
    pub steps: Vec<Step>,
    pub places: Vec<ValueId>,
}

impl Analysis {
    pub fn of(graph: &Graph) -> Self {
        let readers = graph.readers();
        let mut search = Search {
            graph,
            readers,
            coded: vec![None; graph.value_count()],
            taken: vec![false; graph.nodes.len()],
            found: Self { steps: Vec::new(), places: Vec::new() },
        };
        for id in graph.node_ids() {
            if !search.taken[id.index()] {
                search.add(id);
            }
        }
        search.found
    }
}

struct Search<'g> {
    graph: &'g Graph,
    readers: Vec<Vec<NodeId>>,
    /// The place of values that are codes.
    coded: Vec<Option<usize>>,
    taken: Vec<bool>,
    found: Analysis,
}

impl Search<'_> {
    /// The one node that reads a value, if it does not leave the graph.
    fn only_reader(&self, value: ValueId) -> Option<(NodeId, &Node)> {
        let leaves = self.graph.outputs.iter().any(|output| output.value == value);
        match (&self.readers[value.index()][..], leaves) {
            (&[reader], false) => Some((reader, self.graph.node(reader))),
            _ => None,
        }
    }

    fn new_place(&mut self, value: ValueId) -> usize {
        self.found.places.push(value);
        self.found.places.len() - 1
    }

    /// The place of a layer's input, which is quantized where it is not codes yet.
    fn input_place(&mut self, value: ValueId) -> usize {
        if let Some(place) = self.coded[value.index()] {
            return place;
        }
        let place = self.new_place(value);
        self.coded[value.index()] = Some(place);
        place
    }

    fn push(
        &mut self,
        layer: Layer,
        nodes: Vec<NodeId>,
        inputs: Vec<ValueId>,
        mut output: Output,
        own_place: bool,
    ) {
        let places: Vec<usize> = inputs.iter().map(|&value| self.input_place(value)).collect();
        output.place = if own_place { self.new_place(output.value) } else { places[0] };
        self.coded[output.value.index()] = Some(output.place);
        nodes.iter().for_each(|id| self.taken[id.index()] = true);
        self.found.steps.push(Step { layer, nodes, inputs, places, output });
    }

    fn add(&mut self, id: NodeId) {
        let graph = self.graph;
        let node = graph.node(id);
        let coded = |value: ValueId| self.coded[value.index()].is_some();
        match &node.op {
            Op::Conv(Conv::Forward { geometry, groups, epilogue, output: None })
                if !epilogue.bias && !epilogue.relu =>
            {
                let channels = graph.ty(node.inputs[0]).shape.last().copied().unwrap_or(0);
                let outputs = graph.ty(node.outputs[0]).shape.last().copied().unwrap_or(0);
                if *groups == 1 || (*groups == channels && outputs == channels) {
                    self.product(id, node, Some((*geometry, *groups)));
                }
            }
            Op::MatMul(MatMul { transpose_a: false, transpose_b: false, epilogue, .. })
                if !epilogue.bias && !epilogue.relu && graph.ty(node.inputs[0]).shape.rank() == 2 =>
            {
                self.product(id, node, None);
            }
            Op::Elementwise(Elementwise::Binary(Binary::Add))
                if node.inputs.iter().all(|&v| coded(v))
                    && graph.ty(node.inputs[0]) == graph.ty(node.inputs[1]) =>
            {
                let mut nodes = vec![id];
                let output = self.activation(node.outputs[0], &mut nodes);
                self.push(Layer::Sum, nodes, node.inputs.clone(), output, true);
            }
            Op::Pool(Pool::Max { windows })
                if coded(node.inputs[0]) && self.readers[node.outputs[1].index()].is_empty() =>
            {
                let output = Output { value: node.outputs[0], place: 0, relu: false, most: None };
                self.push(Layer::MaxPool(*windows), vec![id], node.inputs.clone(), output, false);
            }
            Op::Movement(Movement::Reshape(shape))
                if coded(node.inputs[0]) && shape.first() == graph.ty(node.inputs[0]).shape.first() =>
            {
                let output = Output { value: node.outputs[0], place: 0, relu: false, most: None };
                self.push(Layer::Reshape, vec![id], node.inputs.clone(), output, false);
            }
            Op::Reduce(Reduce::Sum { start: 1, end: 3 })
                if coded(node.inputs[0]) && graph.ty(node.inputs[0]).shape.rank() == 4 =>
            {
                self.mean(id, node);
            }
            _ => {}
        }
    }

    /// A product of activations with a state, and what follows it.
    fn product(&mut self, id: NodeId, node: &Node, conv: Option<(Geometry, usize)>) {
        let graph = self.graph;
        let (Origin::State(kernel), false) =
            (graph.origin(node.inputs[1]), is_constant(graph, node.inputs[0]))
        else {
            return;
        };
        // A kernel that several layers share would need factors for each: a recurrence stays in f32.
        if self.readers[node.inputs[1].index()].len() > 1 {
            return;
        }
        if graph.ty(node.inputs[0]).dtype != DType::F32 || graph.ty(node.inputs[1]).dtype != DType::F32 {
            return;
        }
        let (mut nodes, mut folds, mut value) = (vec![id], Vec::new(), node.outputs[0]);
        let channels = graph.ty(value).shape.last().copied().unwrap_or(1);
        while let Some((reader, next)) = self.only_reader(value) {
            let Some(fold) = Fold::of(graph, next, value, channels) else { break };
            folds.push(fold);
            nodes.push(reader);
            value = next.outputs[0];
        }
        let output = self.activation(value, &mut nodes);
        let layer = Layer::Product { kernel, conv, per_channel: conv.is_some(), folds };
        self.push(layer, nodes, vec![node.inputs[0]], output, true);
    }

    /// A relu behind a value, and a bound behind that.
    fn activation(&self, value: ValueId, nodes: &mut Vec<NodeId>) -> Output {
        let mut output = Output { value, place: 0, relu: false, most: None };
        let Some((id, node)) = self.only_reader(value) else { return output };
        if node.op != Op::Elementwise(Elementwise::Unary(Unary::Relu)) {
            return output;
        }
        nodes.push(id);
        (output.value, output.relu) = (node.outputs[0], true);
        if let Some((id, node)) = self.only_reader(output.value)
            && node.op == Op::Elementwise(Elementwise::Binary(Binary::Min))
            && let Some(most) = self.constant(node.inputs[1])
        {
            nodes.push(id);
            (output.value, output.most) = (node.outputs[0], Some(most));
        }
        output
    }

    /// A scalar constant.
    fn constant(&self, value: ValueId) -> Option<f64> {
        match self.graph.producer(value).map(|id| &self.graph.node(id).op) {
            Some(Op::Elementwise(Elementwise::Constant { value, .. })) => Some(*value),
            _ => None,
        }
    }

    /// A sum over an image that is divided by its pixels, with or without a reshape between.
    fn mean(&mut self, id: NodeId, node: &Node) {
        let (mut nodes, mut value) = (vec![id], node.outputs[0]);
        if let Some((reader, next)) = self.only_reader(value)
            && matches!(next.op, Op::Movement(Movement::Reshape(_)))
        {
            nodes.push(reader);
            value = next.outputs[0];
        }
        let Some((reader, next)) = self.only_reader(value) else { return };
        if next.op != Op::Elementwise(Elementwise::Binary(Binary::Mul)) || next.inputs[0] != value {
            return;
        }
        let Some(of) = self.constant(next.inputs[1]) else { return };
        nodes.push(reader);
        let output = Output { value: next.outputs[0], place: 0, relu: false, most: None };
        self.push(Layer::Mean { of }, nodes, node.inputs.clone(), output, true);
    }
}
