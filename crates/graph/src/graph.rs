//! Graph, nodes, values, states.

use crate::Op;
use plimsoll_tensor::TensorType;
use serde::{Deserialize, Serialize};
use std::{fmt, sync::Arc};

/// Names a value of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ValueId(pub u32);

/// Names a node of a graph; nodes are in a topological order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeId(pub u32);

impl ValueId {
    /// As an index into per-value tables.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl NodeId {
    /// As an index into per-node tables.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// `Graph::inputs[i]`.
    Input(usize),
    /// The old version of `Graph::states[i]`.
    State(usize),
    /// `Graph::accumulators[i]` before this micro-batch.
    Accumulator(usize),
    /// Output `output` of a node.
    Node {
        /// The node.
        node: NodeId,
        /// Which of its outputs.
        output: usize,
    },
}

/// One application of an op.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// What is computed.
    pub op: Op,
    /// The values read, in the op's order.
    pub inputs: Vec<ValueId>,
    /// Accumulators that the op's folding outputs are added to, one for each of them; empty: the sums start at zero.
    pub accumulate: Vec<ValueId>,
    /// The values written.
    pub outputs: Vec<ValueId>,
    /// The layer it belongs to, like `block3/conv2`; backward and update nodes have their layer's name too.
    pub layer: Arc<str>,
}

impl Node {
    /// Every value read: inputs, then accumulators.
    pub fn reads(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.inputs.iter().chain(&self.accumulate).copied()
    }
}

/// A value that enters from outside in every step.
#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    /// Its name.
    pub name: String,
    /// The value.
    pub value: ValueId,
    /// Whether axis 0 is the batch axis (else it is a setting, like a learning rate).
    pub batched: bool,
    /// Which of the body's micro-batches it belongs to, where that has several ([`Graph::unrolled`]): each has inputs of the same names.
    pub part: usize,
}

impl Input {
    /// Its name, and of which of the body's micro-batches it is after the first.
    pub fn label(&self) -> String {
        match self.part {
            0 => self.name.clone(),
            part => format!("{}, micro-batch {}", self.name, part + 1),
        }
    }
}

/// What a state is, for the load sheet and for checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A trained parameter.
    Parameter,
    /// An optimizer's moment.
    Moment,
    /// A running statistic of a norm.
    Statistic,
    /// A running average of a parameter.
    Average,
    /// Which elements of a pruned parameter are kept, a bit for each.
    Mask,
}

/// How a state starts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Init {
    /// All zero.
    Zeros,
    /// All ones.
    Ones,
    /// All this number.
    Constant(f64),
    /// Normal with mean zero and this deviation.
    Normal(f64),
    /// Uniform in ± this bound.
    Uniform(f64),
}

/// A (state in, state out) pair that lives across steps.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// Its name, like `block3/conv2/kernel`; the same in every graph of a model.
    pub name: String,
    /// What it is.
    pub role: Role,
    /// How it starts.
    pub init: Init,
    /// The version the step reads.
    pub input: ValueId,
    /// The version the step leaves; `None`: the step does not write it.
    pub output: Option<ValueId>,
}

/// A sum over the batch, accumulated from micro-batch to micro-batch; it starts each step at zero.
#[derive(Clone, Debug, PartialEq)]
pub struct Accumulator {
    /// The sum before this micro-batch.
    pub input: ValueId,
    /// The sum after it.
    pub output: ValueId,
}

/// A value handed to the caller after the step.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// Its name.
    pub name: String,
    /// The value.
    pub value: ValueId,
}

/// One step as data.
///
/// With `micro_batches > 1`, the nodes of the *body* run once per micro-batch, on slices of the batched inputs; those of the
/// *optimizer step* ([`Graph::optimizer_step`]), which read finished accumulators, run once, after the last.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    /// Examples of one micro-batch: the first extent of batched inputs.
    pub examples: usize,
    /// Sums over the batch fold block by block of this many examples; batches may be split at its multiples.
    pub example_block: usize,
    /// How often the body runs per step.
    pub micro_batches: usize,
    /// How many micro-batches the body itself has, one after another, each with batched inputs of its own. Where that is more than one, the
    /// body runs once, and the accumulators are what it starts from.
    pub unrolled: usize,
    /// Values from outside.
    pub inputs: Vec<Input>,
    /// States.
    pub states: Vec<State>,
    /// Sums accumulated over the micro-batches.
    pub accumulators: Vec<Accumulator>,
    /// The nodes, in a topological order.
    pub nodes: Vec<Node>,
    /// Results.
    pub outputs: Vec<Output>,
    /// Type and origin of every value, by [`ValueId`].
    pub(crate) values: Vec<(TensorType, Origin)>,
}

impl Graph {
    /// Type of a value.
    pub fn ty(&self, value: ValueId) -> &TensorType {
        &self.values[value.index()].0
    }

    /// Origin of a value.
    pub fn origin(&self, value: ValueId) -> Origin {
        self.values[value.index()].1
    }

    /// Micro-batches of a step: those that the body has, as often as it runs.
    pub fn step_micro_batches(&self) -> usize {
        self.micro_batches * self.unrolled
    }

    /// Number of values.
    pub fn value_count(&self) -> usize {
        self.values.len()
    }

    /// Every value.
    pub fn value_ids(&self) -> impl Iterator<Item = ValueId> + use<> {
        (0..self.values.len() as u32).map(ValueId)
    }

    /// A node.
    pub fn node(&self, node: NodeId) -> &Node {
        &self.nodes[node.index()]
    }

    /// Every node, in order.
    pub fn node_ids(&self) -> impl DoubleEndedIterator<Item = NodeId> + use<> {
        (0..self.nodes.len() as u32).map(NodeId)
    }

    /// The node that writes a value, if one does.
    pub fn producer(&self, value: ValueId) -> Option<NodeId> {
        match self.origin(value) {
            Origin::Node { node, .. } => Some(node),
            _ => None,
        }
    }

    /// The types of a node's inputs.
    pub fn input_types(&self, node: &Node) -> Vec<&TensorType> {
        node.inputs.iter().map(|&v| self.ty(v)).collect()
    }

    /// The types of a node's outputs.
    pub fn output_types(&self, node: &Node) -> Vec<&TensorType> {
        node.outputs.iter().map(|&v| self.ty(v)).collect()
    }

    /// The nodes that read each value.
    pub fn readers(&self) -> Vec<Vec<NodeId>> {
        let mut readers = vec![Vec::new(); self.values.len()];
        for id in self.node_ids() {
            for value in self.node(id).reads() {
                if readers[value.index()].last() != Some(&id) {
                    readers[value.index()].push(id);
                }
            }
        }
        readers
    }

    /// For every node, whether it runs once, after the last micro-batch: because it depends on a finished accumulator, or
    /// because it depends on states and settings alone and only such nodes read it.
    pub fn optimizer_step(&self) -> Vec<bool> {
        self.optimizer_step_after(|_| true)
    }

    /// As [`Graph::optimizer_step`], if only some accumulators, by index, are finished after the last micro-batch: the others are
    /// inside of each.
    pub fn optimizer_step_after(&self, finishes: impl Fn(usize) -> bool) -> Vec<bool> {
        let mut finished = vec![false; self.values.len()];
        let finishing = self.accumulators.iter().enumerate().filter(|(at, _)| finishes(*at));
        for (_, accumulator) in finishing {
            finished[accumulator.output.index()] = true;
        }
        let mut once = vec![false; self.nodes.len()];
        // Whether a value is the same in every micro-batch.
        let mut constant: Vec<bool> = self.value_ids().map(|value| self.is_constant_input(value)).collect();
        for id in self.node_ids() {
            let node = self.node(id);
            once[id.index()] = node.inputs.iter().any(|v| finished[v.index()]);
            let all_constant = node.reads().all(|v| constant[v.index()]);
            for value in &node.outputs {
                finished[value.index()] |= once[id.index()];
                constant[value.index()] = all_constant;
            }
        }
        // Whether the body reads a value, or it leaves the step.
        let mut needed_early = vec![self.accumulators.is_empty(); self.values.len()];
        let states = self.states.iter().filter_map(|s| s.output);
        let accumulators = self.accumulators.iter().map(|c| c.output);
        states
            .chain(accumulators)
            .chain(self.outputs.iter().map(|o| o.value))
            .for_each(|v| needed_early[v.index()] = true);
        for id in self.node_ids().rev() {
            let node = self.node(id);
            let late = |v: &ValueId| constant[v.index()] && !needed_early[v.index()];
            once[id.index()] |= node.outputs.iter().all(late);
            if !once[id.index()] {
                node.reads().for_each(|v| needed_early[v.index()] = true);
            }
        }
        once
    }

    /// Whether a value enters the step from outside and is the same in every micro-batch.
    fn is_constant_input(&self, value: ValueId) -> bool {
        match self.origin(value) {
            Origin::Input(i) => !self.inputs[i].batched,
            Origin::State(_) => true,
            Origin::Accumulator(_) | Origin::Node { .. } => false,
        }
    }

    /// The named input.
    pub fn input(&self, name: &str) -> Option<&Input> {
        self.inputs.iter().find(|i| i.name == name)
    }

    /// The named output's value.
    pub fn output(&self, name: &str) -> Option<ValueId> {
        self.outputs.iter().find(|o| o.name == name).map(|o| o.value)
    }

    /// Elements of all parameters.
    pub fn parameter_count(&self) -> usize {
        let parameters = self.states.iter().filter(|s| s.role == Role::Parameter);
        parameters.map(|s| self.ty(s.input).shape.elements()).sum()
    }

    /// Rows of a batched value that belong to one block of examples.
    pub fn block_rows(&self, value: ValueId) -> usize {
        let rows = self.ty(value).shape.first().copied().unwrap_or(0);
        (rows / self.examples.max(1) * self.example_block).max(1)
    }
}
