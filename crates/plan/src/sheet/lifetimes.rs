//! When each value of a plan is made and last used.

use super::words::op_in_words;
use crate::{Action, ExecutionPlan, in_words};
use plimsoll_graph::{Graph, NodeId, ValueId};
use serde::Serialize;
use std::fmt;

/// A value of a plan: from the step that makes it to the last that uses it. Its memory is free after that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lifetime {
    /// The layer, or the name of an input.
    pub layer: String,
    /// What it is, like `conv2d f32[128,32,32,16]`.
    pub what: String,
    /// How many bytes.
    pub bytes: usize,
    /// The step that makes it; 0 for inputs, which are there before.
    pub made: usize,
    /// The last step that uses it; the plan's last for its outputs.
    pub last_use: usize,
}

impl fmt::Display for Lifetime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { layer, what, bytes, made, last_use } = self;
        let of = if layer.is_empty() { String::new() } else { format!(" of `{layer}`") };
        write!(f, "{what}{of}, {}: steps {} to {}", in_words(*bytes), made + 1, last_use + 1)
    }
}

impl ExecutionPlan {
    /// Inputs and computed values, in the order in which they are made. A value that is rematerialized is listed once for each
    /// time; states, which live from step to step, are not.
    pub fn lifetimes(&self) -> Vec<Lifetime> {
        let graph = &self.graph;
        let bases = bases(graph);
        let mut found: Vec<Lifetime> = Vec::new();
        // The entry of the run of each value that is in memory now.
        let mut current: Vec<Option<usize>> = vec![None; graph.value_count()];
        for input in &graph.inputs {
            current[input.value.index()] = Some(found.len());
            found.push(lifetime(graph, input.value, input.label(), "input".into(), 0));
        }
        for (i, step) in self.steps.iter().enumerate() {
            let (Action::Run { node, .. } | Action::ChunkedUpdate { node, .. }) = step.action else {
                continue;
            };
            for value in graph.node(node).reads() {
                if let Some(entry) = current[bases[value.index()].index()] {
                    found[entry].last_use = i;
                }
            }
            for &value in &graph.node(node).outputs {
                current[value.index()] = Some(found.len());
                let (layer, op) = words(graph, node);
                found.push(lifetime(graph, value, layer, op, i));
            }
        }
        for output in &graph.outputs {
            if let Some(entry) = current[bases[output.value.index()].index()] {
                found[entry].last_use = self.steps.len().saturating_sub(1);
            }
        }
        found
    }
}

fn lifetime(graph: &Graph, value: ValueId, layer: String, op: String, step: usize) -> Lifetime {
    let ty = graph.ty(value);
    Lifetime { layer, what: format!("{op} {ty}"), bytes: ty.bytes(), made: step, last_use: step }
}

fn words(graph: &Graph, node: NodeId) -> (String, String) {
    let node = graph.node(node);
    (node.layer.to_string(), op_in_words(node.op.name()))
}

/// For each value the one whose memory it is: views have none of their own.
fn bases(graph: &Graph) -> Vec<ValueId> {
    let mut bases: Vec<ValueId> = graph.value_ids().collect();
    for node in graph.nodes.iter().filter(|node| node.op.is_view()) {
        let Some(base) = node.inputs.first().map(|v| bases[v.index()]) else { continue };
        node.outputs.iter().for_each(|v| bases[v.index()] = base);
    }
    bases
}
