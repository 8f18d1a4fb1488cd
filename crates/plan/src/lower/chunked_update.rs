//! Chunked updates: offloaded states that are never resident as a whole.

use crate::{KernelQuery, TIER_ALIGNMENT};
use plimsoll_graph::op::InPlace;
use plimsoll_graph::{Graph, Node, NodeId, Numerics, Op, Origin, State, ValueId};
use plimsoll_tensor::TensorType;

/// Elements of a chunk: few beside any state worth it, enough for a disk's full bandwidth.
pub(crate) const CHUNK_ELEMENTS: usize = 1 << 17;

/// Operand types of an elementwise node that runs on a chunk of its elements.
///
/// ```
/// use plimsoll_graph::Builder;
/// use plimsoll_plan::ChunkTypes;
/// let mut b = Builder::new(1, 1);
/// let (x, rate) = (b.setting("x", "f32[30,20]".parse()?), b.setting("rate", "f32[]".parse()?));
/// let y = b.mul(x, rate)?;
/// b.output("y", y);
/// let graph = b.finish()?;
/// let types = ChunkTypes::new(&graph, &graph.nodes[0], 7).unwrap();
/// assert_eq!(types.inputs[0].to_string(), "f32[7]");
/// assert_eq!(types.inputs[1].to_string(), "f32[]");
/// assert_eq!(ChunkTypes::elements(&graph, &graph.nodes[0]), Some(600));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ChunkTypes {
    /// Of the inputs: a chunk of elements, or a scalar as it is.
    pub inputs: Vec<TensorType>,
    /// Of the outputs.
    pub outputs: Vec<TensorType>,
}

impl ChunkTypes {
    /// The most inputs, or outputs, of a chunked update.
    pub const MOST_OPERANDS: usize = 24;

    /// The elements of every operand but scalars, if the node is elementwise and all have the same number.
    pub fn elements(graph: &Graph, node: &Node) -> Option<usize> {
        if node.op.properties().in_place != InPlace::Elementwise || !node.accumulate.is_empty() {
            return None;
        }
        if node.inputs.len().max(node.outputs.len()) > Self::MOST_OPERANDS {
            return None;
        }
        let elements = graph.ty(*node.outputs.first()?).shape.elements();
        let as_many = |v: &ValueId| graph.ty(*v).shape.elements() == elements;
        let scalar = |v: &ValueId| graph.ty(*v).shape.is_empty();
        let fits = node.outputs.iter().all(as_many) && node.inputs.iter().all(|v| scalar(v) || as_many(v));
        fits.then_some(elements)
    }

    /// The types of a chunk of so many elements; `None` if the node cannot be chunked.
    pub fn new(graph: &Graph, node: &Node, chunk_elements: usize) -> Option<Self> {
        Self::elements(graph, node)?;
        let of = |v: &ValueId| {
            let ty = graph.ty(*v);
            if ty.shape.is_empty() { ty.clone() } else { TensorType::new(ty.dtype, [chunk_elements]) }
        };
        Some(Self {
            inputs: node.inputs.iter().map(of).collect(),
            outputs: node.outputs.iter().map(of).collect(),
        })
    }

    /// The query for a kernel that runs on a chunk.
    pub fn query<'a>(&'a self, op: &'a Op) -> KernelQuery<'a> {
        let (inputs, outputs) = (self.inputs.iter().collect(), self.outputs.iter().collect());
        KernelQuery { op, inputs, outputs, accumulate: false, fold_rows: 0, mixed: false }
    }
}

/// For each of the graph's states the node that can update it in chunks: its only reader computes its new version, which
/// nothing else reads, with a kernel that works in place.
pub(crate) fn chunkable_updates(graph: &Graph, numerics: &Numerics) -> Vec<Option<NodeId>> {
    let mut readers = vec![0_usize; graph.value_count()];
    graph.nodes.iter().flat_map(Node::reads).for_each(|v| readers[v.index()] += 1);
    graph.outputs.iter().for_each(|o| readers[o.value.index()] += 1);
    graph.states.iter().filter_map(|s| s.output).for_each(|v| readers[v.index()] += 1);
    graph.accumulators.iter().for_each(|c| readers[c.output.index()] += 1);
    // What runs in every micro-batch would update a state every time.
    let optimizer_step = graph.optimizer_step();
    let runs_once = |id: NodeId| graph.micro_batches <= 1 || optimizer_step[id.index()];
    let node = |state: &State| {
        let output = state.output?;
        let Origin::Node { .. } = graph.origin(output) else { return None };
        let id = graph.producer(output)?;
        let node = graph.node(id);
        let alone = readers[state.input.index()] == 1 && readers[output.index()] == 1;
        let large = ChunkTypes::elements(graph, node).is_some_and(|elements| elements >= 2 * CHUNK_ELEMENTS);
        // Chunks start at pages of the tier.
        let pages =
            (CHUNK_ELEMENTS * graph.ty(state.input).dtype.bytes()).is_multiple_of(TIER_ALIGNMENT as usize);
        let in_place = numerics.may_run_in_chunks(&node.op);
        (in_place && alone && large && pages && runs_once(id) && node.inputs.contains(&state.input))
            .then_some(id)
    };
    graph.states.iter().map(node).collect()
}
