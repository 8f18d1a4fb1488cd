//! A lower bound of the memory of a run, without a search.

use super::Candidates;
use crate::{Entry, PlanError, lower, sheet};
use plimsoll_graph::{Graph, Origin, Role, ValueId};
use std::sync::Arc;

/// Memory that every plan of a run needs, and who holds it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeastMemory {
    /// Outside the arena: program, data, heap.
    pub outside_bytes: usize,
    /// Parameters, optimizer state and other states, where they cannot be offloaded; else 0.
    pub state_bytes: usize,
    /// What one kernel reads besides, at the smallest micro-batch; with tiers, states included.
    pub kernel_bytes: usize,
    /// The layer of that kernel.
    pub layer: String,
    /// Nodes of all graphs: what a search would work on.
    pub nodes: usize,
}

impl LeastMemory {
    /// All of it.
    pub fn bytes(&self) -> usize {
        self.outside_bytes.saturating_add(self.state_bytes).saturating_add(self.kernel_bytes)
    }
}

/// Memory that every plan of a run needs, whatever it does to stay under a line. Takes the time to build the graphs. For runs
/// whose kernels compute in host memory.
pub fn least_memory<C: Candidates>(run: &C) -> Result<LeastMemory, C::Error> {
    let counts = run.micro_batches();
    let (first, last) = (counts[0], counts[counts.len() - 1]);
    let (micro_batches, graphs) = match run.graphs(last) {
        Err(error) if C::is_unsplittable(&error) && last != first => (first, run.graphs(first)?),
        graphs => (last, graphs?),
    };
    let graphs: Vec<(String, Arc<Graph>)> =
        graphs.into_iter().map(|(name, graph)| (name, Arc::new(graph))).collect();
    let offloads = !run.tiers().is_empty();
    let states = lower::find_states(graphs.iter().map(|(name, graph)| (name.as_str(), graph.as_ref())))
        .map_err(|error: PlanError| C::Error::from(error))?;
    let state_bytes = if offloads { 0 } else { states.iter().map(|s| s.ty.bytes()).sum() };
    let heap = run.heap_bytes().map_or(0, |heap| heap + sheet::graphs_heap_bytes(&graphs, false));
    let outside = run.outside(micro_batches, &graphs);
    let outside_bytes = outside.iter().fold(heap, |sum, entry: &Entry| sum.saturating_add(entry.bytes));
    let nodes = graphs.iter().map(|(_, graph)| graph.nodes.len()).sum();
    let largest = graphs.iter().filter_map(|(_, graph)| largest_kernel(graph, offloads));
    let (kernel_bytes, layer) = largest.max_by_key(|(bytes, _)| *bytes).unwrap_or_default();
    Ok(LeastMemory { outside_bytes, state_bytes, kernel_bytes, layer, nodes })
}

/// The most bytes that one node reads at a time, and its layer. States count where they may be offloaded: elsewhere they are
/// counted once, for all nodes. Updates of states may be done in chunks, so they do not count.
fn largest_kernel(graph: &Graph, with_states: bool) -> Option<(usize, String)> {
    let updated: Vec<ValueId> = graph.states.iter().filter_map(|state| state.output).collect();
    let is_moment = |value: ValueId| match graph.origin(value) {
        Origin::State(i) => graph.states[i].role != Role::Parameter,
        _ => false,
    };
    let mut bases: Vec<ValueId> = graph.value_ids().collect();
    let mut most: Option<(usize, String)> = None;
    for id in graph.node_ids() {
        let node = graph.node(id);
        if node.op.is_view() {
            node.outputs.iter().for_each(|v| bases[v.index()] = bases[node.inputs[0].index()]);
            continue;
        }
        if node.outputs.iter().any(|v| updated.contains(v)) || node.reads().any(is_moment) {
            continue;
        }
        let mut reads: Vec<ValueId> = node.reads().map(|v| bases[v.index()]).collect();
        reads.sort_unstable();
        reads.dedup();
        let counts = |v: &&ValueId| with_states || !matches!(graph.origin(**v), Origin::State(_));
        let bytes = reads.iter().filter(counts).map(|v| graph.ty(*v).bytes()).sum();
        if most.as_ref().is_none_or(|(most, _)| bytes > *most) {
            most = Some((bytes, node.layer.to_string()));
        }
    }
    most
}
