//! What the planner knows of a machine: pure and hardware-free.

use crate::{Direction, Entry, Link};
use plimsoll_graph::op::{Exchange, Norm, NormAxis};
use plimsoll_graph::{BatchMark, BatchRelation, Graph, Node, Numerics, Op};
use plimsoll_tensor::TensorType;
use thiserror::Error;

/// One op with everything a target may base its answer on. Not in here, on purpose: the line.
#[derive(Clone, Debug)]
pub struct KernelQuery<'a> {
    /// The op.
    pub op: &'a Op,
    /// Types of its inputs.
    pub inputs: Vec<&'a TensorType>,
    /// Types of its outputs.
    pub outputs: Vec<&'a TensorType>,
    /// Whether outputs that are reduced over the batch are added to accumulators.
    pub accumulate: bool,
    /// Rows of the op's first batched input that belong to one block of examples; 0 if the op reduces nothing over the batch. A sum
    /// folds in blocks whatever it is a sum of: a batch that batch norm mixes may still be split over devices.
    pub fold_rows: usize,
    /// Whether what it reduces is mixed across the batch: then a device that is not one of several has all of the batch.
    pub mixed: bool,
}

impl<'a> KernelQuery<'a> {
    /// The query for a node of a graph with these [`Graph::batch_marks`].
    pub fn new(graph: &'a Graph, marks: &[BatchMark], node: &'a Node) -> Self {
        // A channel's statistics fold like the moments that they are computed from.
        let folds = matches!(node.op, Op::Norm(Norm::Stats { axis: NormAxis::Channel }))
            || graph.own_relations(node, marks).contains(&BatchRelation::Reduced);
        let batched = node.inputs.iter().find(|v| marks[v.index()].axis);
        Self {
            op: &node.op,
            inputs: graph.input_types(node),
            outputs: graph.output_types(node),
            accumulate: !node.accumulate.is_empty(),
            fold_rows: batched.filter(|_| folds).map_or(0, |&v| graph.block_rows(v)),
            mixed: folds && node.outputs.iter().all(|v| marks[v.index()].relation == BatchRelation::Mixed),
        }
    }

    /// The (output, input) pairs of one layout where the op allows that the output is written over the input.
    pub fn overwritable(&self) -> Vec<(usize, usize)> {
        let rule = self.op.properties().in_place;
        let allowed = |o: usize, i: usize| {
            let (output, input) = (self.outputs[o], self.inputs[i]);
            output.shape == input.shape && rule.allows(output, input)
        };
        let pairs = (0..self.outputs.len()).flat_map(|o| (0..self.inputs.len()).map(move |i| (o, i)));
        pairs.filter(|&(o, i)| allowed(o, i)).collect()
    }

    /// What an exchange takes on a device whose arena is behind this link to host memory: all that comes or goes passes it. `None` if
    /// the op is another.
    pub fn exchange_over(&self, link: Link) -> Option<Kernel> {
        let Op::Exchange(op) = self.op else { return None };
        let given = match op {
            Exchange::Give { .. } => self.inputs.first().map_or(0, |ty| ty.bytes()),
            _ => 0,
        };
        let moving = link.ns(Direction::Load, op.received_bytes()) + link.ns(Direction::Store, given);
        Some(Kernel { nanoseconds: link.latency_ns + moving, ..Kernel::default() })
    }

    /// The error of a target that has no kernel for it.
    pub fn unsupported(&self, target: String) -> Unsupported {
        let types = self.inputs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        Unsupported { target, op: self.op.name(), types }
    }
}

/// A target's answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// Scratch bytes needed while the op runs.
    pub workspace: usize,
    /// Pairs (output, input) of equal size such that the output may be written in place of the input: no more than
    /// [`Numerics::may_overwrite`] allows.
    pub in_place: Vec<(usize, usize)>,
    /// Predicted time.
    pub nanoseconds: u64,
}

/// An op that a target cannot run.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{target} has no {op} for {types}")]
pub struct Unsupported {
    /// The target.
    pub target: String,
    /// The op.
    pub op: &'static str,
    /// Its input types.
    pub types: String,
}

/// A machine to plan for.
pub trait Target: Send + Sync {
    /// Its name in load sheets, like `cpu avx512, 2 threads`.
    fn name(&self) -> String;
    /// What of it decides the bits of results, like `cpu avx512, arithmetic 2`: instruction set, and revision of the kernels.
    fn instructions(&self) -> String {
        self.name()
    }
    /// What graphs for it are built by, and plans for it are checked against.
    fn numerics(&self) -> Numerics {
        Numerics::default()
    }
    /// Alignment of every buffer in the arena, a power of two.
    fn alignment(&self) -> usize;
    /// Time to copy a MiB from one buffer to another: each byte is read and written once, at some 8 bytes a nanosecond.
    fn copy_ns_per_mib(&self) -> u64 {
        262_144
    }
    /// What predicted times rest on, as a sentence, where a reader should know.
    fn estimates(&self) -> Option<String> {
        None
    }
    /// Cores of the processor that compute at the same time; none of a device beside it.
    fn cores(&self) -> usize {
        0
    }
    /// What the target itself takes in the computing space beside the arena, like a device's context.
    fn outside(&self) -> Vec<Entry> {
        Vec::new()
    }
    /// What it takes there besides to reach so many bytes of host memory that values are offloaded to.
    fn host_mapping_bytes(&self, _bytes: u64) -> usize {
        0
    }
    /// Which kernel runs an op, and what it needs. A pure function.
    fn kernel(&self, query: &KernelQuery<'_>) -> Result<Kernel, Unsupported>;
}
