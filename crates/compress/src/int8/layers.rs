//! Which nodes of a graph become layers of bytes.

use super::KeptLayers;
use super::fold::{Fold, is_constant, reads_state};
use plimsoll_graph::op::{
    Binary, Conv, Elementwise, Geometry, Grid, MatMul, Movement, Norm, Pool, Reduce, Resize, ResizeMode,
    Unary, Windows,
};
use plimsoll_graph::{Graph, Node, NodeId, Op, Origin, ValueId};
use plimsoll_tensor::{DType, SIGMOID_SCALE};

/// A layer of bytes.
pub(super) enum Layer {
    /// A layer with weights.
    Product {
        weights: Weights,
        /// What is done to each channel behind it.
        folds: Vec<Fold>,
    },
    /// The sum of two tensors.
    Sum,
    /// The product of two tensors. The second may have one pixel, for all of the first.
    Mul,
    Sigmoid,
    /// A tensor times its sigmoid.
    Swish,
    /// The mean over an image: the sum times this.
    Mean {
        /// The factor.
        of: f64,
    },
    MaxPool(Windows),
    AveragePool(Windows),
    Resize(ResizeMode, [usize; 2]),
    Reshape,
    Concat {
        axis: usize,
    },
}

/// The weights of a layer.
pub(super) enum Weights {
    /// A state, of a dense layer.
    Dense(usize),
    /// A state, of a convolution that slides so, with so many groups.
    Conv(usize, Geometry, usize),
    /// A state, of a transposed convolution whose windows do not overlap: a dense layer of each pixel, which becomes a block of them.
    Grow(usize),
    /// Ones, for each of so many channels: what is behind scales them. With their name.
    Ones(usize, String),
}

impl Weights {
    /// The state that they are.
    pub fn state(&self) -> Option<usize> {
        match *self {
            Self::Dense(state) | Self::Conv(state, ..) | Self::Grow(state) => Some(state),
            Self::Ones(..) => None,
        }
    }

    /// What the names of the layer's states start with.
    pub fn name<'a>(&'a self, graph: &'a Graph) -> &'a str {
        match self {
            Self::Ones(_, name) => name,
            Self::Dense(state) | Self::Conv(state, ..) | Self::Grow(state) => &graph.states[*state].name,
        }
    }

    /// The axes of the kernel over which weights share a scale.
    pub fn shared_axes(&self, rank: usize) -> (usize, usize) {
        match self {
            Self::Dense(_) => (0, rank),
            // Every place of a block has scales of its own, as it has weights: the last axis is the inputs.
            Self::Grow(_) => (rank - 1, rank),
            Self::Conv(..) | Self::Ones(..) => (0, rank - 1),
        }
    }
}

/// A grid that layers share, and whose range is measured.
pub(super) struct Place {
    /// The values that are put on it; others on it have elements of these.
    pub values: Vec<ValueId>,
    /// The grid, where an op has no other.
    pub fixed: Option<Grid>,
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
    pub places: Vec<Place>,
}

impl Analysis {
    /// Of a graph in which these layers stay in floats.
    pub fn of(graph: &Graph, kept: &KeptLayers) -> Self {
        let readers = graph.readers();
        let mut search = Search {
            graph,
            kept,
            readers,
            coded: vec![None; graph.value_count()],
            taken: vec![false; graph.nodes.len()],
            joined: Vec::new(),
            found: Self { steps: Vec::new(), places: Vec::new() },
        };
        for id in graph.node_ids() {
            if !search.taken[id.index()] && !kept.matches(&graph.node(id).layer) {
                search.add(id);
            }
        }
        search.finish()
    }

    /// The values that are put on a grid, with their places.
    pub fn values(&self) -> impl Iterator<Item = (ValueId, usize)> + '_ {
        self.places
            .iter()
            .enumerate()
            .flat_map(|(place, on)| on.values.iter().map(move |&value| (value, place)))
    }
}

struct Search<'g> {
    graph: &'g Graph,
    kept: &'g KeptLayers,
    readers: Vec<Vec<NodeId>>,
    /// The place of values that are codes.
    coded: Vec<Option<usize>>,
    taken: Vec<bool>,
    /// The place that each was joined to: itself, or one before it.
    joined: Vec<usize>,
    found: Analysis,
}

impl Search<'_> {
    /// The one node that reads a value, if it does not leave the graph and may become a layer of bytes.
    fn only_reader(&self, value: ValueId) -> Option<(NodeId, &Node)> {
        let leaves = self.graph.outputs.iter().any(|output| output.value == value);
        match (&self.readers[value.index()][..], leaves) {
            (&[reader], false) => {
                let node = self.graph.node(reader);
                (!self.kept.matches(&node.layer)).then_some((reader, node))
            }
            _ => None,
        }
    }

    fn new_place(&mut self, value: ValueId) -> usize {
        let place = self.found.places.len();
        self.found.places.push(Place { values: vec![value], fixed: None });
        self.joined.push(place);
        place
    }

    /// The place that a place was joined to.
    fn root(&self, mut place: usize) -> usize {
        while self.joined[place] != place {
            place = self.joined[place];
        }
        place
    }

    /// Lets values of several places share one grid.
    fn join(&mut self, places: &[usize]) {
        let roots: Vec<usize> = places.iter().map(|&place| self.root(place)).collect();
        let first = roots.iter().copied().min().unwrap_or(0);
        roots.into_iter().for_each(|root| self.joined[root] = first);
    }

    /// The layers, with places that are joined as one.
    fn finish(mut self) -> Analysis {
        let roots: Vec<usize> = (0..self.joined.len()).map(|place| self.root(place)).collect();
        let mut number = vec![0; roots.len()];
        let mut places: Vec<Place> = Vec::new();
        for (place, found) in std::mem::take(&mut self.found.places).into_iter().enumerate() {
            match roots[place] == place {
                true => {
                    number[place] = places.len();
                    places.push(found);
                }
                false => places[number[roots[place]]].values.extend(found.values),
            }
        }
        for step in &mut self.found.steps {
            for place in step.places.iter_mut().chain([&mut step.output.place]) {
                *place = number[roots[*place]];
            }
        }
        Analysis { steps: self.found.steps, places }
    }

    /// The place of a layer's input, which is quantized where it is not codes yet.
    fn input_place(&mut self, value: ValueId) -> usize {
        if let Some(place) = self.coded[value.index()] {
            return place;
        }
        // Of what dropout leaves, that of what it took.
        let node = self.graph.producer(value).map(|id| self.graph.node(id));
        let taken = node.and_then(|node| self.dropped(node)).unwrap_or(value);
        let place = self.coded[taken.index()].unwrap_or_else(|| self.new_place(taken));
        self.coded[taken.index()] = Some(place);
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
        let plain = || Output { value: node.outputs[0], place: 0, relu: false, most: None };
        match &node.op {
            Op::Conv(Conv::Forward { geometry, groups, epilogue, output: None })
                if !epilogue.bias && !epilogue.relu =>
            {
                let channels = graph.ty(node.inputs[0]).shape.last().copied().unwrap_or(0);
                let outputs = graph.ty(node.outputs[0]).shape.last().copied().unwrap_or(0);
                if *groups == 1 || (*groups == channels && outputs == channels) {
                    self.product(id, node, |kernel| Weights::Conv(kernel, *geometry, *groups));
                }
            }
            Op::Conv(Conv::InputGrad { geometry, groups: 1, image, output: None }) => {
                let &[_, h, w, _] = &graph.ty(node.inputs[0]).shape[..] else { return };
                let apart = geometry.stride == geometry.window && geometry.dilation == [1, 1];
                let whole = [h * geometry.window[0], w * geometry.window[1]] == *image;
                if apart && whole && geometry.padding == [[0, 0]; 2] {
                    self.product(id, node, Weights::Grow);
                }
            }
            Op::MatMul(MatMul { transpose_a: false, transpose_b: false, epilogue, .. })
                if !epilogue.bias && !epilogue.relu && graph.ty(node.inputs[0]).shape.rank() == 2 =>
            {
                self.product(id, node, Weights::Dense);
            }
            Op::Elementwise(Elementwise::Binary(Binary::Add))
                if node.inputs.iter().all(|&v| coded(v))
                    && graph.ty(node.inputs[0]) == graph.ty(node.inputs[1]) =>
            {
                let mut nodes = vec![id];
                let output = self.activation(node.outputs[0], &mut nodes);
                self.push(Layer::Sum, nodes, node.inputs.clone(), output, true);
            }
            Op::Elementwise(Elementwise::Binary(Binary::Mul))
                if node.inputs.iter().all(|&v| coded(v)) && self.factors(node).is_some() =>
            {
                let Some(inputs) = self.factors(node) else { return };
                let mut nodes = vec![id];
                let output = self.activation(node.outputs[0], &mut nodes);
                self.push(Layer::Mul, nodes, inputs.to_vec(), output, true);
            }
            Op::Elementwise(Elementwise::Binary(_)) if self.is_norm(node) => self.norm(id, node),
            Op::Norm(Norm::Batch { .. })
                if coded(node.inputs[0]) && graph.ty(node.inputs[0]).shape.rank() == 4 =>
            {
                self.norm(id, node);
            }
            Op::Elementwise(Elementwise::Unary(Unary::Sigmoid)) if coded(node.inputs[0]) => {
                self.sigmoid(id, node);
            }
            Op::Pool(Pool::Max { windows })
                if coded(node.inputs[0]) && self.readers[node.outputs[1].index()].is_empty() =>
            {
                self.push(Layer::MaxPool(*windows), vec![id], node.inputs.clone(), plain(), false);
            }
            Op::Pool(Pool::Average { windows, count_padding }) if coded(node.inputs[0]) => {
                // Zeros around an image would have to be counted.
                let padded = matches!(windows, Windows::Sliding(g) if g.padding != [[0, 0]; 2]);
                if !(padded && *count_padding) {
                    self.push(Layer::AveragePool(*windows), vec![id], node.inputs.clone(), plain(), false);
                }
            }
            Op::Resize(Resize::Forward { mode, output }) if coded(node.inputs[0]) => {
                self.push(Layer::Resize(*mode, *output), vec![id], node.inputs.clone(), plain(), false);
            }
            Op::Movement(Movement::Reshape(shape))
                if coded(node.inputs[0]) && shape.first() == graph.ty(node.inputs[0]).shape.first() =>
            {
                self.push(Layer::Reshape, vec![id], node.inputs.clone(), plain(), false);
            }
            Op::Movement(Movement::Concat { axis }) if *axis > 0 && node.inputs.iter().all(|&v| coded(v)) => {
                self.concat(id, node, *axis);
            }
            Op::Elementwise(Elementwise::Select) => {
                if let Some(place) = self.dropped(node).and_then(|value| self.coded[value.index()]) {
                    self.coded[node.outputs[0].index()] = Some(place);
                }
            }
            Op::Reduce(Reduce::Sum { start: 1, end: 3 })
                if coded(node.inputs[0]) && graph.ty(node.inputs[0]).shape.rank() == 4 =>
            {
                self.mean(id, node);
            }
            _ => {}
        }
    }

    /// What a product multiplies, if both are of one shape, or the second has one pixel for all of the first.
    fn factors(&self, node: &Node) -> Option<[ValueId; 2]> {
        let &[a, b] = &node.inputs[..] else { return None };
        let shape = |value: ValueId| &self.graph.ty(value).shape[..];
        let gates = |a: ValueId, b: ValueId| match (shape(a), shape(b)) {
            (&[n, _, _, c], gate) => gate == [n, 1, 1, c],
            _ => false,
        };
        if shape(a) == shape(b) || gates(a, b) { Some([a, b]) } else { gates(b, a).then_some([b, a]) }
    }

    /// A sigmoid, or a swish where nothing but the product with what it is of reads it.
    fn sigmoid(&mut self, id: NodeId, node: &Node) {
        let (x, gate) = (node.inputs[0], node.outputs[0]);
        let plain = |value: ValueId| Output { value, place: 0, relu: false, most: None };
        if let Some((reader, next)) = self.only_reader(gate)
            && next.op == Op::Elementwise(Elementwise::Binary(Binary::Mul))
            && (next.inputs[..] == [x, gate] || next.inputs[..] == [gate, x])
        {
            return self.push(Layer::Swish, vec![id, reader], vec![x], plain(next.outputs[0]), true);
        }
        self.push(Layer::Sigmoid, vec![id], vec![x], plain(gate), true);
        if let Some(place) = self.coded[gate.index()] {
            self.found.places[place].fixed = Some(Grid { scale: SIGMOID_SCALE, zero: 0 });
        }
    }

    /// Tensors one behind the other: all on one grid, so that no code changes.
    fn concat(&mut self, id: NodeId, node: &Node, axis: usize) {
        let places: Vec<usize> = node.inputs.iter().filter_map(|v| self.coded[v.index()]).collect();
        if places.iter().any(|&place| self.found.places[self.root(place)].fixed.is_some()) {
            return;
        }
        self.join(&places);
        let output = Output { value: node.outputs[0], place: 0, relu: false, most: None };
        self.push(Layer::Concat { axis }, vec![id], node.inputs.clone(), output, false);
    }

    /// Whether a node begins a norm of images of codes: what it does to each channel follows from states.
    fn is_norm(&self, node: &Node) -> bool {
        let Some(&x) = node.inputs.iter().find(|v| self.coded[v.index()].is_some()) else { return false };
        let shape = &self.graph.ty(x).shape;
        let channels = shape.last().copied().unwrap_or(1);
        let fold = Fold::of(self.graph, node, x, channels);
        shape.rank() == 4 && fold.is_some_and(|fold| reads_state(self.graph, fold.operand))
    }

    /// A norm that is not behind a product: a depthwise convolution of one pixel.
    fn norm(&mut self, id: NodeId, node: &Node) {
        let Some(&x) = node.inputs.iter().find(|v| self.coded[v.index()].is_some()) else { return };
        let channels = self.graph.ty(x).shape.last().copied().unwrap_or(1);
        let name = format!("{}/factors", node.layer);
        let same = |step: &Step| matches!(&step.layer, Layer::Product { weights: Weights::Ones(_, other), .. } if *other == name);
        // The states of a layer that runs twice would have one name.
        if self.found.steps.iter().any(same) {
            return;
        }
        let (mut nodes, mut folds) = (vec![id], Vec::new());
        folds.extend(Fold::of(self.graph, node, x, channels));
        let value = self.folded(node.outputs[0], channels, &mut nodes, &mut folds);
        let output = self.activation(value, &mut nodes);
        let weights = Weights::Ones(channels, name);
        self.push(Layer::Product { weights, folds }, nodes, vec![x], output, true);
    }

    /// What is done to each channel behind a value, and the last value of that.
    fn folded(
        &self,
        mut value: ValueId,
        channels: usize,
        nodes: &mut Vec<NodeId>,
        folds: &mut Vec<Fold>,
    ) -> ValueId {
        while let Some((reader, next)) = self.only_reader(value) {
            match Fold::of(self.graph, next, value, channels) {
                Some(fold) => folds.push(fold),
                // Batch norm of a graph that trains: its factors are known when it has trained.
                None if matches!(next.op, Op::Norm(Norm::Batch { .. })) && next.inputs[0] == value => {}
                None => break,
            }
            nodes.push(reader);
            value = next.outputs[0];
        }
        value
    }

    /// A product of activations with a state, and what follows it.
    fn product(&mut self, id: NodeId, node: &Node, weights: impl Fn(usize) -> Weights) {
        let graph = self.graph;
        let (Origin::State(kernel), false) =
            (graph.origin(node.inputs[1]), is_constant(graph, node.inputs[0]))
        else {
            return;
        };
        if graph.ty(node.inputs[0]).dtype != DType::F32 || graph.ty(node.inputs[1]).dtype != DType::F32 {
            return;
        }
        // Biases and factors depend on the grids around: weights that several layers share have none of their own.
        let reads = |&&id: &&NodeId| matches!(graph.node(id).op, Op::Conv(_) | Op::MatMul(_));
        if self.readers[node.inputs[1].index()].iter().filter(reads).count() > 1 {
            return;
        }
        let (mut nodes, mut folds) = (vec![id], Vec::new());
        let channels = graph.ty(node.outputs[0]).shape.last().copied().unwrap_or(1);
        let value = self.folded(node.outputs[0], channels, &mut nodes, &mut folds);
        let output = self.activation(value, &mut nodes);
        let layer = Layer::Product { weights: weights(kernel), folds };
        self.push(layer, nodes, vec![node.inputs[0]], output, true);
    }

    /// What dropout takes, if a node is its last. Graphs that do not train have none: what it leaves counts as what it took.
    fn dropped(&self, node: &Node) -> Option<ValueId> {
        if node.op != Op::Elementwise(Elementwise::Select) {
            return None;
        }
        let made = |value: ValueId| self.graph.producer(value).map(|id| self.graph.node(id));
        let (keep, scaled) = (made(node.inputs[0])?, made(node.inputs[1])?);
        let scales = scaled.op == Op::Elementwise(Elementwise::Binary(Binary::Mul));
        (scales && matches!(keep.op, Op::Random(_))).then(|| scaled.inputs[0])
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
