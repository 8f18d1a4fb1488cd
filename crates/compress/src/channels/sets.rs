//! Sets of channels that must stay together, found in a model's graph.

use plimsoll_graph::op::{Conv, MatMul, Movement, Reduce, Span};
use plimsoll_graph::{Graph, Node, Op, Origin, ValueId};
use plimsoll_tensor::Shape;
use std::collections::BTreeMap;

/// Where a value has the channels of a set: along an axis, each as so many elements that follow each other. An axis that is longer
/// than that repeats them: a flattened image `[n, h, w, c]` has the channels of each pixel, and one `[n, c, h, w]` the pixels of each
/// channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lane {
    set: usize,
    axis: usize,
    inner: usize,
}

/// An axis of a state that has the channels of a set which nothing fixes, each as `inner` elements that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StateAxis {
    pub state: usize,
    pub axis: usize,
    pub set: usize,
    pub inner: usize,
}

/// What fixes the channels of a set.
#[derive(Clone, Copy, Debug)]
enum Fixed {
    Input,
    Output,
    /// A node that cannot follow, by its number.
    Node(usize),
    /// A tensor along whose axis the channels are not known.
    State,
}

/// The channels of a graph's values, in sets.
pub struct ChannelSets<'g> {
    graph: &'g Graph,
    /// The set that each set was joined to, or itself.
    joined: Vec<usize>,
    extents: Vec<usize>,
    /// What fixes the channels, if anything does.
    fixed: Vec<Option<Fixed>>,
    /// The channels of each value; none for scalars. A state's are along its last axis.
    values: Vec<Option<Lane>>,
    /// Channels that are read along axes of states.
    rows: BTreeMap<(usize, usize), Lane>,
    /// States whose last axis makes channels: kernels of convolutions.
    producers: Vec<usize>,
    /// The number of the node that is added.
    node: usize,
}

impl<'g> ChannelSets<'g> {
    /// The sets of a graph that does not train.
    pub fn of(graph: &'g Graph) -> Self {
        let mut sets = Self {
            graph,
            joined: Vec::new(),
            extents: Vec::new(),
            fixed: Vec::new(),
            values: vec![None; graph.value_count()],
            rows: BTreeMap::new(),
            producers: Vec::new(),
            node: 0,
        };
        for value in graph.value_ids() {
            match graph.origin(value) {
                Origin::State(_) => sets.values[value.index()] = sets.new_lane(value, None),
                Origin::Input(_) | Origin::Accumulator(_) => {
                    sets.values[value.index()] = sets.new_lane(value, Some(Fixed::Input));
                }
                Origin::Node { .. } => {}
            }
        }
        for (i, node) in graph.nodes.iter().enumerate() {
            sets.node = i;
            sets.add(node);
        }
        for output in &graph.outputs {
            sets.fix(output.value, Fixed::Output);
        }
        sets
    }

    /// Kernels of convolutions and the set that each makes, where nothing fixes it.
    pub(super) fn producers(&self) -> Vec<(usize, usize)> {
        let sets = self.producers.iter().filter_map(|&state| Some((state, self.free(self.last(state)?)?)));
        sets.collect()
    }

    /// Every axis of a state whose channels nothing fixes.
    pub(super) fn state_axes(&self) -> Vec<StateAxis> {
        let mut axes = Vec::new();
        for state in 0..self.graph.states.len() {
            let last = self.values[self.graph.states[state].input.index()];
            let rows = self.rows.range((state, 0)..(state + 1, 0)).map(|(_, lane)| *lane);
            axes.extend(rows.chain(last).filter_map(|Lane { set, axis, inner }| {
                Some(StateAxis { state, axis, set: self.free(set)?, inner })
            }));
        }
        axes
    }

    /// Channels of a set.
    pub(super) fn extent(&self, set: usize) -> usize {
        self.extents[set]
    }

    /// How many channels are left of each set, where layers have other widths. An error is the reason why a layer cannot.
    pub fn kept(&self, widths: &BTreeMap<String, usize>) -> Result<KeptChannels, String> {
        let mut kept: BTreeMap<usize, (&str, usize)> = BTreeMap::new();
        for (layer, &width) in widths {
            let made = |state: &&usize| width_name(&self.graph.states[**state].name) == layer;
            let Some(set) = self.producers.iter().find(made).and_then(|&state| self.last(state)) else {
                return Err(format!("no convolution makes channels that are named `{layer}`"));
            };
            let root = self.root(set);
            if let Some(fixed) = self.fixed[root] {
                return Err(format!("`{layer}` keeps its channels: {}", self.reason(fixed)));
            }
            if width == 0 || width > self.extents[root] {
                return Err(format!("`{layer}` has {} channels, {width} cannot be left", self.extents[root]));
            }
            if let Some((other, found)) = kept.insert(root, (layer, width)).filter(|(_, n)| *n != width) {
                return Err(format!(
                    "`{other}` and `{layer}` have the same channels, so {found} and {width} differ"
                ));
            }
        }
        Ok(KeptChannels(kept.into_iter().map(|(set, (_, width))| (set, width)).collect()))
    }

    /// The shape of a value with these channels.
    pub fn value_shape(&self, value: ValueId, kept: &KeptChannels) -> Shape {
        let mut shape = self.graph.ty(value).shape.to_vec();
        if let Some(lane) = self.values[value.index()] {
            self.cut(&mut shape, lane.axis, lane.set, kept);
        }
        shape.into()
    }

    /// The shape of a state with these channels, by its number.
    pub fn state_shape(&self, state: usize, kept: &KeptChannels) -> Shape {
        let mut shape = self.graph.ty(self.graph.states[state].input).shape.to_vec();
        for StateAxis { axis, set, .. } in self.state_axes().into_iter().filter(|axis| axis.state == state) {
            self.cut(&mut shape, axis, set, kept);
        }
        shape.into()
    }

    fn cut(&self, shape: &mut [usize], axis: usize, set: usize, kept: &KeptChannels) {
        let root = self.root(set);
        if let Some(width) = kept.0.get(&root) {
            shape[axis] = shape[axis] / self.extents[root] * width;
        }
    }

    /// What fixes the channels of the first convolution of which that is known.
    pub(super) fn first_fixed(&self) -> Option<String> {
        self.producers.iter().find_map(|&state| {
            let fixed = self.fixed[self.root(self.last(state)?)]?;
            Some(format!("`{}`: {}", width_name(&self.graph.states[state].name), self.reason(fixed)))
        })
    }

    fn reason(&self, fixed: Fixed) -> String {
        match fixed {
            Fixed::Input => "they are those of the data".into(),
            Fixed::Output => "they are those of an output".into(),
            Fixed::State => "a tensor that is read beside them cannot follow".into(),
            Fixed::Node(node) => {
                let node = &self.graph.nodes[node];
                let layer =
                    if node.layer.is_empty() { String::new() } else { format!(" of `{}`", node.layer) };
                format!("the op {}{layer} cannot follow", node.op.name())
            }
        }
    }

    /// The set of a state's last axis.
    fn last(&self, state: usize) -> Option<usize> {
        self.values[self.graph.states[state].input.index()].map(|lane| lane.set)
    }

    /// The set that a set was joined to, unless its channels are fixed.
    fn free(&self, set: usize) -> Option<usize> {
        let root = self.root(set);
        self.fixed[root].is_none().then_some(root)
    }

    fn root(&self, mut set: usize) -> usize {
        while self.joined[set] != set {
            set = self.joined[set];
        }
        set
    }

    fn shape(&self, value: ValueId) -> &'g Shape {
        &self.graph.ty(value).shape
    }

    /// A set of its own for a value's last axis; none for a scalar.
    fn new_lane(&mut self, value: ValueId, fixed: Option<Fixed>) -> Option<Lane> {
        let axis = self.shape(value).rank().checked_sub(1)?;
        let set = self.joined.len();
        self.joined.push(set);
        self.extents.push(self.shape(value)[axis]);
        self.fixed.push(fixed);
        Some(Lane { set, axis, inner: 1 })
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        if a == b {
            return;
        }
        let differ = (self.extents[a] != self.extents[b]).then_some(Fixed::Node(self.node));
        let fixed = self.fixed[a].or(self.fixed[b]).or(differ);
        (self.fixed[a], self.fixed[b]) = (fixed, fixed);
        if self.extents[a] == self.extents[b] {
            self.joined[b] = a;
        }
    }

    fn fix_set(&mut self, set: usize, fixed: Fixed) {
        let root = self.root(set);
        self.fixed[root].get_or_insert(fixed);
    }

    fn fix(&mut self, value: ValueId, fixed: Fixed) {
        if let Some(lane) = self.values[value.index()] {
            self.fix_set(lane.set, fixed);
        }
    }

    /// A state that is read as it is.
    fn state(&self, value: ValueId) -> Option<usize> {
        match self.graph.origin(value) {
            Origin::State(state) => Some(state),
            _ => None,
        }
    }

    fn set_outputs(&mut self, node: &Node, lane: Option<Lane>) {
        for &output in &node.outputs {
            self.values[output.index()] = lane;
        }
    }

    /// Whatever a node reads is fixed, and so is what it writes.
    fn fix_all(&mut self, node: &Node) {
        let fixed = Fixed::Node(self.node);
        node.inputs.iter().for_each(|&value| self.fix(value, fixed));
        for &output in &node.outputs {
            self.values[output.index()] = self.new_lane(output, Some(fixed));
        }
    }

    /// The outputs have the channels of the first input along this axis; without one they are fixed.
    fn pass_on(&mut self, node: &Node, axis: Option<usize>) {
        match (self.values[node.inputs[0].index()], axis) {
            (Some(lane), Some(axis)) => self.set_outputs(node, Some(Lane { axis, ..lane })),
            _ => self.fix_all(node),
        }
    }

    fn add(&mut self, node: &Node) {
        let read = node.inputs.first().copied();
        let axis = read.and_then(|value| self.values[value.index()]).map(|lane| lane.axis);
        let rank = read.map_or(0, |value| self.shape(value).rank());
        match &node.op {
            Op::Elementwise(_) => self.add_elementwise(node),
            Op::Conv(Conv::Forward { .. }) => self.add_convolution(node),
            Op::MatMul(op) => self.add_product(node, op),
            // Channel by channel.
            Op::Pool(_) | Op::Resize(_) => self.pass_on(node, axis.filter(|axis| axis + 1 == rank)),
            Op::Movement(op) => self.add_movement(node, op),
            Op::Reduce(
                Reduce::Sum { start, end } | Reduce::Max { start, end } | Reduce::Min { start, end },
            ) => self.pass_on(node, axis.filter(|axis| !(*start..*end).contains(axis))),
            Op::Reduce(_)
            | Op::Conv(_)
            | Op::Fused(_)
            | Op::Norm(_)
            | Op::Attention(_)
            | Op::Recurrent(_)
            | Op::Index(_)
            | Op::Loss(_)
            | Op::Random(_)
            | Op::Quantise(_)
            | Op::Prune(_)
            | Op::Int8(_)
            | Op::Exchange(_) => self.fix_all(node),
        }
    }

    fn add_movement(&mut self, node: &Node, op: &Movement) {
        let (Some(lane), Some(&output)) = (self.values[node.inputs[0].index()], node.outputs.first()) else {
            return self.fix_all(node);
        };
        let (before, after) = (self.shape(node.inputs[0]), self.shape(output));
        let whole = |spans: &[Span]| {
            let whole = Span { start: 0, extent: before[lane.axis], step: 1 };
            (spans[lane.axis] == whole).then_some(lane.axis)
        };
        match op {
            Movement::Detach => self.pass_on(node, Some(lane.axis)),
            Movement::Reshape(_) => match self.reshaped(lane, before, after) {
                Some(lane) => self.set_outputs(node, Some(lane)),
                None => self.fix_all(node),
            },
            Movement::Transpose(axes) => {
                self.pass_on(node, axes.iter().position(|&axis| axis == lane.axis));
            }
            Movement::Broadcast(_) => {
                let axis = lane.axis + after.rank() - before.rank();
                self.pass_on(node, (after[axis] == before[lane.axis]).then_some(axis));
            }
            Movement::Slice(spans) => self.pass_on(node, whole(spans)),
            Movement::Pad { spans, .. } => {
                let same = after[lane.axis] == before[lane.axis];
                self.pass_on(node, whole(spans).filter(|_| same));
            }
            Movement::Split { axis, .. } => self.pass_on(node, Some(lane.axis).filter(|own| own != axis)),
            Movement::Concat { .. } => self.fix_all(node),
        }
    }

    /// The lane after a reshape: the elements keep their order, so a channel's stride stays.
    fn reshaped(&self, lane: Lane, before: &Shape, after: &Shape) -> Option<Lane> {
        let extent = self.extents[self.root(lane.set)];
        let stride = lane.inner * before[lane.axis + 1..].iter().product::<usize>();
        let fits = |axis: &usize| {
            let behind = after[axis + 1..].iter().product::<usize>();
            behind > 0
                && stride.is_multiple_of(behind)
                && (after[*axis] * behind).is_multiple_of((stride * extent).max(1))
        };
        let axis = (0..after.rank()).rev().find(fits)?;
        let behind = after[axis + 1..].iter().product::<usize>();
        Some(Lane { axis, inner: stride / behind, ..lane })
    }

    /// Operands that have as many elements along the channels' axis as the output have the same channels.
    fn add_elementwise(&mut self, node: &Node) {
        let Some(&output) = node.outputs.first() else { return };
        let shape = self.shape(output);
        let graph = self.graph;
        // An operand's lane as the output would have it, unless it is one element for all channels.
        let aligned = |sets: &Self, value: ValueId| {
            let lane = sets.values[value.index()]?;
            let own = &graph.ty(value).shape;
            let axis = lane.axis + shape.rank() - own.rank();
            (own[lane.axis] == shape[axis]).then_some(Lane { axis, ..lane })
        };
        let Some(whole) = node.inputs.iter().find_map(|&value| aligned(self, value)) else {
            let lane = self.new_lane(output, Some(Fixed::Node(self.node)));
            return self.set_outputs(node, lane);
        };
        for &value in &node.inputs {
            let own = self.shape(value);
            let along = (whole.axis + own.rank()).checked_sub(shape.rank()).map_or(1, |axis| own[axis]);
            match aligned(self, value) {
                Some(lane) if (lane.axis, lane.inner) == (whole.axis, whole.inner) => {
                    self.join(whole.set, lane.set);
                }
                found => {
                    // Its elements along that axis are not known as channels.
                    if along > 1 {
                        self.fix_set(whole.set, Fixed::State);
                    }
                    // Nor are the others' along the axis of its own.
                    if let Some(lane) = found.filter(|lane| shape[lane.axis] > 1) {
                        self.fix_set(lane.set, Fixed::Node(self.node));
                    }
                }
            }
        }
        self.set_outputs(node, Some(whole));
    }

    fn add_convolution(&mut self, node: &Node) {
        let [x, kernel, bias @ ..] = &node.inputs[..] else { return self.fix_all(node) };
        let (Some(state), Some(input)) = (self.state(*kernel), self.values[x.index()]) else {
            return self.fix_all(node);
        };
        let (shape, axis) = (self.shape(*kernel), self.shape(*x).rank() - 1);
        let (&[_, _, inputs, outputs], Some(made)) = (&shape[..], self.values[kernel.index()]) else {
            return self.fix_all(node);
        };
        let channels = self.shape(*x)[axis];
        // A repeated set would be an image of pixels side by side.
        let whole = input.axis == axis && input.inner == 1 && self.extents[self.root(input.set)] == channels;
        if inputs == channels && whole {
            if let Some(before) = self.rows.get(&(state, 2)).copied() {
                // A kernel that is used twice.
                self.join(before.set, input.set);
            }
            self.rows.insert((state, 2), Lane { set: input.set, axis: 2, inner: 1 });
            if !self.producers.contains(&state) {
                self.producers.push(state);
            }
        } else if inputs == 1 && outputs == channels && whole {
            self.join(input.set, made.set);
        } else {
            return self.fix_all(node);
        }
        for bias in bias {
            if let Some(lane) = self.values[bias.index()] {
                self.join(made.set, lane.set);
            }
        }
        self.set_outputs(node, Some(Lane { axis, ..made }));
    }

    fn add_product(&mut self, node: &Node, op: &MatMul) {
        let [x, kernel, ..] = &node.inputs[..] else { return self.fix_all(node) };
        let (Some(state), Some(input), false) = (self.state(*kernel), self.values[x.index()], op.transpose_a)
        else {
            return self.fix_all(node);
        };
        let axis = usize::from(op.transpose_b);
        let row = input.axis + 1 == self.shape(*x).rank();
        if self.shape(*kernel).rank() != 2 || self.rows.contains_key(&(state, axis)) || !row {
            return self.fix_all(node);
        }
        // Units of dense layers stay.
        let fixed = Fixed::Node(self.node);
        self.fix(*kernel, fixed);
        node.inputs[2..].iter().for_each(|&bias| self.fix(bias, fixed));
        self.rows.insert((state, axis), Lane { axis, ..input });
        for &output in &node.outputs {
            self.values[output.index()] = self.new_lane(output, Some(fixed));
        }
    }
}

/// How many channels are left of sets of channels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptChannels(BTreeMap<usize, usize>);

/// The name of a kernel's width: its layer's, or its own where it has no such name.
pub(super) fn width_name(kernel: &str) -> &str {
    kernel.strip_suffix("/kernel").unwrap_or(kernel)
}
