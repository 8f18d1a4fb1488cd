//! Gradient accumulation: turns the step of one micro-batch into a step of several.

mod split_batch_norm;

pub use split_batch_norm::accumulate_split_batch_norm;

use crate::rewriter::Rewriter;
use plimsoll_graph::{BatchRelation, Graph, GraphError, Node, NodeId, ValueId};
use thiserror::Error;

/// Why a step cannot be split into micro-batches.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SplitError {
    /// An op mixes values across the batch.
    #[error("layer `{layer}`: {op} mixes the examples of a batch, so the batch cannot be split")]
    Mixes {
        /// The layer.
        layer: String,
        /// The op.
        op: &'static str,
    },
    /// The micro-batch ends inside a block of the fold.
    #[error(
        "micro-batches of {examples} examples do not end at blocks of {block}: use a multiple of {block}"
    )]
    Block {
        /// Examples of the micro-batch.
        examples: usize,
        /// Examples of a block.
        block: usize,
    },
    /// The graph depends on the number of examples.
    #[error(
        "layer `{layer}`: {op} is missing or another op in micro-batches of {examples}: the batch cannot be split so \
         far, use fewer micro-batches"
    )]
    Changes {
        /// The layer.
        layer: String,
        /// The op.
        op: &'static str,
        /// The number of examples.
        examples: usize,
    },
    /// The graph is broken.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// Whether a step may be split into steps like `part`, both as they were built: nothing in the whole is mixed across the
/// batch, and the part has the same ops. (With one example, a part cannot tell the batch axis from others.)
pub fn check_split(whole: &Graph, part: &Graph) -> Result<(), SplitError> {
    let batch_relations = whole.batch_relations();
    let mixes =
        |node: &&Node| node.outputs.iter().any(|v| batch_relations[v.index()] == BatchRelation::Mixed);
    if let Some(node) = whole.nodes.iter().find(mixes) {
        return Err(SplitError::Mixes { layer: node.layer.to_string(), op: node.op.name() });
    }
    check_same_ops(whole, part)?;
    let is_per_example = |value: Option<ValueId>| {
        value.is_some_and(|v| batch_relations[v.index()] == BatchRelation::PerExample)
    };
    match whole.states.iter().find(|state| is_per_example(state.output)) {
        Some(state) => Err(SplitError::Mixes { layer: state.name.clone(), op: "the update" }),
        None => Ok(()),
    }
}

/// Whether the step of a part of a batch has the ops of the whole batch's step, both as they were built.
pub fn check_same_ops(whole: &Graph, part: &Graph) -> Result<(), SplitError> {
    for (i, node) in whole.nodes.iter().enumerate() {
        let op = node.op.name();
        if part.nodes.get(i).is_none_or(|other| other.op.name() != op || other.inputs != node.inputs) {
            return Err(SplitError::Changes { layer: node.layer.to_string(), op, examples: part.examples });
        }
    }
    Ok(())
}

/// Turns a step over `graph.examples` examples into one over `micro_batches` times as many: accumulators hold the sums
/// over the batch from micro-batch to micro-batch, and the optimizer step, which reads them, runs once, after the last.
/// Because sums fold block by block, the result has the bits of the whole batch run at once.
pub fn accumulate(graph: &Graph, micro_batches: usize) -> Result<Graph, SplitError> {
    if micro_batches == 1 {
        return Ok(graph.clone());
    }
    if !graph.examples.is_multiple_of(graph.example_block) {
        return Err(SplitError::Block { examples: graph.examples, block: graph.example_block });
    }
    with_accumulators(graph, micro_batches)
}

/// Lets an output that is a sum over the batch continue a sum: a new input, named `start`, is what it starts from. Where the batches
/// end at blocks, a sum that is handed from one to the next has the bits of all of them run at once. A graph whose output is not
/// such a sum itself, but computed from some, stays as it is.
pub fn continue_sum(graph: Graph, output: &str, start: &str) -> Result<Graph, GraphError> {
    let batch_relations = graph.batch_relations();
    let is_sum = |v: &ValueId| batch_relations[v.index()] == BatchRelation::Reduced;
    let sums = |id: &NodeId| {
        let node = graph.node(*id);
        let first = node.accumulate.is_empty() && !node.inputs.iter().any(is_sum);
        first && node.outputs.iter().filter(|v| is_sum(v)).count() == 1
    };
    let Some(mut value) = graph.output(output).filter(is_sum) else { return Ok(graph) };
    while let Some(view) = graph.producer(value).filter(|&id| graph.node(id).op.is_view()) {
        value = graph.node(view).inputs[0];
    }
    let Some(summing) = graph.producer(value).filter(sums) else { return Ok(graph) };
    let mut r = Rewriter::new(&graph);
    let start = r.builder.input(start, graph.ty(value).clone(), false);
    for id in graph.node_ids() {
        let node = graph.node(id);
        if id != summing {
            r.copy(node)?;
            continue;
        }
        let inputs: Vec<_> = node.inputs.iter().map(|&v| r.get(v)).collect();
        let emit = |b: &mut plimsoll_graph::Builder| b.accumulating(node.op.clone(), &inputs, &[start]);
        let outputs = r.builder.within(node.layer.clone(), emit)?;
        r.set(node, &outputs);
    }
    r.finish()
}

/// The step with an accumulator for every sum over the batch. Values that are mixed across the batch by such sums alone are no
/// obstacle to one micro-batch.
pub(crate) fn with_accumulators(graph: &Graph, micro_batches: usize) -> Result<Graph, SplitError> {
    let marks = graph.batch_marks();
    let mut r = Rewriter::new(graph);
    r.builder.set_micro_batches(micro_batches);
    for node in &graph.nodes {
        let own = graph.own_relations(node, &marks);
        let is_mixed = |v: &ValueId| marks[v.index()].relation == BatchRelation::Mixed;
        if own.contains(&BatchRelation::Mixed) || micro_batches > 1 && node.outputs.iter().any(is_mixed) {
            return Err(SplitError::Mixes { layer: node.layer.to_string(), op: node.op.name() });
        }
        let reduced = node.outputs.iter().zip(own).filter(|(_, own)| *own == BatchRelation::Reduced);
        let accumulators: Vec<_> =
            reduced.map(|(&v, _)| (v, r.builder.accumulator(graph.ty(v).clone()))).collect();
        let sums: Vec<_> = accumulators.iter().map(|&(_, accumulator)| accumulator).collect();
        let inputs: Vec<_> = node.inputs.iter().map(|&v| r.get(v)).collect();
        let emit = |b: &mut plimsoll_graph::Builder| b.accumulating(node.op.clone(), &inputs, &sums);
        let outputs = r.builder.within(node.layer.clone(), emit)?;
        r.set(node, &outputs);
        for (value, accumulator) in accumulators {
            let output = r.get(value);
            r.builder.set_accumulator(accumulator, output);
        }
    }
    Ok(r.finish()?)
}
