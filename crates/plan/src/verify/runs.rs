//! Which nodes run, how often, and in which phase of the step.

use super::{At, VerifyError};
use crate::{Action, ExecutionPlan};
use plimsoll_graph::{Graph, ValueId};
use std::collections::BTreeSet;

/// Every needed node runs, in its phase; only pure ones may be rematerialized.
pub(super) fn check(plan: &ExecutionPlan) -> Result<(), VerifyError> {
    let graph = &plan.graph;
    let needed = needed(graph);
    let in_optimizer_step = graph.optimizer_step();
    let finals: BTreeSet<ValueId> =
        graph.states.iter().filter_map(|s| s.output).map(|v| source(graph, v)).collect();
    let mut runs = vec![0_usize; graph.nodes.len()];
    let mut optimizer_step_begun = false;
    for (i, step) in plan.steps.iter().enumerate() {
        let phase = |reason: &str| VerifyError::Phase { at: At::step(plan, i), reason: reason.to_string() };
        if optimizer_step_begun && !step.optimizer_step {
            return Err(phase("a step of the body comes after the optimizer step began"));
        }
        // Loads of the optimizer step may be prefetched in the last micro-batch.
        optimizer_step_begun |= step.optimizer_step && !matches!(step.action, Action::Load { .. });
        if let Action::Run { node, .. } | Action::ChunkedUpdate { node, .. } = step.action {
            let node = node.index();
            if in_optimizer_step[node] && !step.optimizer_step {
                return Err(phase("needs finished accumulators, but runs in every micro-batch"));
            }
            // A node of the body may run in the optimizer step only to be rematerialized.
            if !in_optimizer_step[node] && step.optimizer_step && runs[node] == 0 {
                return Err(phase("belongs to every micro-batch, but runs only after the last"));
            }
            runs[node] += 1;
        }
    }
    for (id, node) in graph.nodes.iter().enumerate() {
        let expected = usize::from(needed[id] && !node.op.is_view());
        let pure = node.accumulate.is_empty() && !node.outputs.iter().any(|v| finals.contains(v));
        if runs[id] < expected || (runs[id] > expected && (expected == 0 || !pure)) {
            return Err(VerifyError::Runs {
                plan: plan.name.clone(),
                layer: node.layer.to_string(),
                op: node.op.name().to_string(),
                node: id,
                runs: runs[id],
                expected,
            });
        }
    }
    Ok(())
}

/// Which nodes a state's new version, an accumulator or an output depends on.
fn needed(graph: &Graph) -> Vec<bool> {
    let mut needed = vec![false; graph.nodes.len()];
    let mut stack: Vec<ValueId> = graph.outputs.iter().map(|o| o.value).collect();
    stack.extend(graph.states.iter().filter_map(|s| s.output));
    stack.extend(graph.accumulators.iter().map(|c| c.output));
    while let Some(value) = stack.pop() {
        if let Some(node) = graph.producer(value)
            && !std::mem::replace(&mut needed[node.index()], true)
        {
            stack.extend(graph.node(node).reads());
        }
    }
    needed
}

/// The value that a value is a view of; itself if it is none.
pub(super) fn source(graph: &Graph, mut value: ValueId) -> ValueId {
    while let Some(node) = graph.producer(value).map(|n| graph.node(n)).filter(|n| n.op.is_view()) {
        value = node.inputs[0];
    }
    value
}
