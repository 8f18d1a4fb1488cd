//! Sets of channels that must stay together, found in a model's graph.

use plimsoll_graph::op::{Conv, MatMul, Movement, Reduce};
use plimsoll_graph::{Graph, Node, Op, Origin, ValueId};
use std::collections::BTreeMap;

/// The channels of a graph's last axes, in sets. An axis that is longer than its set repeats it: a flattened image has the channels of
/// each pixel.
pub(super) struct ChannelSets<'g> {
    graph: &'g Graph,
    /// The set that each set was joined to, or itself.
    joined: Vec<usize>,
    extents: Vec<usize>,
    /// Whether something fixes the channels.
    fixed: Vec<bool>,
    /// The set of each value's last axis; none for scalars.
    values: Vec<Option<usize>>,
    /// Axes of states besides the last one.
    rows: BTreeMap<(usize, usize), usize>,
    /// States whose last axis makes channels: kernels of convolutions.
    producers: Vec<usize>,
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
        };
        for value in graph.value_ids() {
            match graph.origin(value) {
                Origin::State(_) => sets.values[value.index()] = sets.new_set(value, false),
                Origin::Input(_) | Origin::Accumulator(_) => {
                    sets.values[value.index()] = sets.new_set(value, true);
                }
                Origin::Node { .. } => {}
            }
        }
        for node in &graph.nodes {
            sets.add(node);
        }
        for output in &graph.outputs {
            sets.fix(output.value);
        }
        sets
    }

    /// Kernels of convolutions and the set that each makes, where nothing fixes it.
    pub fn producers(&self) -> Vec<(usize, usize)> {
        let sets = self.producers.iter().filter_map(|&state| Some((state, self.free(self.last(state)?)?)));
        sets.collect()
    }

    /// State, axis and set of every axis of a state whose channels nothing fixes.
    pub fn state_axes(&self) -> Vec<(usize, usize, usize)> {
        let mut axes: Vec<(usize, usize, usize)> = Vec::new();
        for (state, described) in self.graph.states.iter().enumerate() {
            let rank = self.graph.ty(described.input).shape.rank();
            let last = self.last(state).and_then(|set| self.free(set)).map(|set| (state, rank - 1, set));
            let rows = self.rows.range((state, 0)..(state + 1, 0));
            axes.extend(rows.filter_map(|(&(state, axis), &set)| Some((state, axis, self.free(set)?))));
            axes.extend(last);
        }
        axes
    }

    /// Channels of a set.
    pub fn extent(&self, set: usize) -> usize {
        self.extents[set]
    }

    /// The set of a state's last axis.
    fn last(&self, state: usize) -> Option<usize> {
        self.values[self.graph.states[state].input.index()]
    }

    /// The set that a set was joined to, unless its channels are fixed.
    fn free(&self, set: usize) -> Option<usize> {
        let root = self.root(set);
        (!self.fixed[root]).then_some(root)
    }

    fn root(&self, mut set: usize) -> usize {
        while self.joined[set] != set {
            set = self.joined[set];
        }
        set
    }

    fn length(&self, value: ValueId) -> usize {
        self.graph.ty(value).shape.last().copied().unwrap_or(1)
    }

    /// A set of its own for a value's last axis; none for a scalar.
    fn new_set(&mut self, value: ValueId, fixed: bool) -> Option<usize> {
        if self.graph.ty(value).shape.rank() == 0 {
            return None;
        }
        let set = self.joined.len();
        self.joined.push(set);
        self.extents.push(self.length(value));
        self.fixed.push(fixed);
        Some(set)
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        if a == b {
            return;
        }
        let fixed = self.fixed[a] || self.fixed[b] || self.extents[a] != self.extents[b];
        (self.fixed[a], self.fixed[b]) = (fixed, fixed);
        if self.extents[a] == self.extents[b] {
            self.joined[b] = a;
        }
    }

    fn fix(&mut self, value: ValueId) {
        if let Some(set) = self.values[value.index()] {
            let root = self.root(set);
            self.fixed[root] = true;
        }
    }

    /// A state that is read as it is.
    fn state(&self, value: ValueId) -> Option<usize> {
        match self.graph.origin(value) {
            Origin::State(state) => Some(state),
            _ => None,
        }
    }

    fn set_outputs(&mut self, node: &Node, set: Option<usize>) {
        for &output in &node.outputs {
            self.values[output.index()] = set;
        }
    }

    /// Whatever a node reads is fixed, and so is what it writes.
    fn fix_all(&mut self, node: &Node) {
        node.inputs.iter().for_each(|&value| self.fix(value));
        for &output in &node.outputs {
            self.values[output.index()] = self.new_set(output, true);
        }
    }

    fn add(&mut self, node: &Node) {
        match &node.op {
            Op::Elementwise(_) => self.add_elementwise(node),
            Op::Conv(Conv::Forward { .. }) => self.add_convolution(node),
            Op::MatMul(op) => self.add_product(node, op),
            // Channel by channel.
            Op::Pool(_) | Op::Resize(_) => self.pass_on(node),
            Op::Movement(Movement::Detach) => self.pass_on(node),
            Op::Movement(Movement::Reshape(_)) => {
                let (before, after) = (self.length(node.inputs[0]), self.length(node.outputs[0]));
                match before > 0 && after.is_multiple_of(before) && after > 0 {
                    true => self.pass_on(node),
                    false => self.fix_all(node),
                }
            }
            Op::Movement(Movement::Broadcast(_)) if self.keeps_length(node) => self.pass_on(node),
            Op::Reduce(Reduce::Sum { end, .. } | Reduce::Max { end, .. } | Reduce::Min { end, .. }) => {
                match *end < self.graph.ty(node.inputs[0]).shape.rank() {
                    true => self.pass_on(node),
                    false => self.fix_all(node),
                }
            }
            Op::Movement(_)
            | Op::Reduce(_)
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

    fn keeps_length(&self, node: &Node) -> bool {
        self.length(node.inputs[0]) == self.length(node.outputs[0])
    }

    /// The outputs have the channels of the first input.
    fn pass_on(&mut self, node: &Node) {
        let set = self.values[node.inputs[0].index()];
        self.set_outputs(node, set);
    }

    /// Operands of the output's length have the same channels.
    fn add_elementwise(&mut self, node: &Node) {
        let Some(&output) = node.outputs.first() else { return };
        let mut whole: Option<usize> = None;
        for &input in &node.inputs {
            let Some(set) = self.values[input.index()] else { continue };
            if self.length(input) != self.length(output) {
                // One element for all channels, unless the operand has more axes of its own.
                continue;
            }
            match whole {
                Some(first) => self.join(first, set),
                None => whole = Some(set),
            }
        }
        let set = whole.or_else(|| self.new_set(output, true));
        self.set_outputs(node, set.filter(|_| self.graph.ty(output).shape.rank() > 0));
    }

    fn add_convolution(&mut self, node: &Node) {
        let [x, kernel, bias @ ..] = &node.inputs[..] else { return self.fix_all(node) };
        let (Some(state), Some(input)) = (self.state(*kernel), self.values[x.index()]) else {
            return self.fix_all(node);
        };
        let (channels, shape) = (self.length(*x), self.graph.ty(*kernel).shape.clone());
        let (&[_, _, inputs, outputs], Some(made)) = (&shape[..], self.last(state)) else {
            return self.fix_all(node);
        };
        // A repeated set would be an image of pixels side by side.
        let whole = self.extents[self.root(input)] == channels;
        if inputs == channels && whole {
            if let Some(&before) = self.rows.get(&(state, 2)) {
                // A kernel that is used twice.
                self.join(before, input);
            }
            self.rows.insert((state, 2), input);
            if !self.producers.contains(&state) {
                self.producers.push(state);
            }
        } else if inputs == 1 && outputs == channels && whole {
            self.join(input, made);
        } else {
            return self.fix_all(node);
        }
        for bias in bias {
            if let Some(set) = self.values[bias.index()] {
                self.join(made, set);
            }
        }
        self.set_outputs(node, Some(made));
    }

    fn add_product(&mut self, node: &Node, op: &MatMul) {
        let [x, kernel, ..] = &node.inputs[..] else { return self.fix_all(node) };
        let plain = !op.transpose_a && !op.transpose_b;
        let (Some(state), Some(input), true) = (self.state(*kernel), self.values[x.index()], plain) else {
            return self.fix_all(node);
        };
        if self.graph.ty(*kernel).shape.rank() != 2 || self.rows.contains_key(&(state, 0)) {
            return self.fix_all(node);
        }
        self.rows.insert((state, 0), input);
        // Units of dense layers stay.
        self.fix(*kernel);
        node.inputs[2..].iter().for_each(|&bias| self.fix(bias));
        let set = self.values[kernel.index()];
        self.set_outputs(node, set);
    }
}
