//! Whether ids name something and steps have the operands of their nodes.

use crate::{Action, BufferId, ExecutionPlan, Offloaded, PlanSet, StateHome, TIER_ALIGNMENT};
use plimsoll_graph::{NodeId, State, ValueId};

/// Every id names something, and every step has as many operands as its node.
pub(super) fn check(set: &PlanSet, plan: &ExecutionPlan) -> Result<(), String> {
    let exists = |b: BufferId| match plan.buffers.get(b.index()) {
        Some(_) => Ok(()),
        None => Err(format!("there is no buffer {}", b.index())),
    };
    for (i, step) in plan.steps.iter().enumerate() {
        match &step.action {
            Action::Run { node, reads, writes, workspace } => {
                let Some(found) = plan.graph.nodes.get(node.index()) else {
                    return Err(format!("step {i} runs node {}, which does not exist", node.index()));
                };
                let counts = (reads.len(), writes.len());
                let wanted = (found.inputs.len() + found.accumulate.len(), found.outputs.len());
                if counts != wanted {
                    return Err(format!(
                        "step {i} has {counts:?} operands, {} takes {wanted:?}",
                        found.op.name()
                    ));
                }
                reads.iter().chain(writes).chain(workspace).try_for_each(|&b| exists(b))?;
            }
            Action::ChunkedUpdate { node, reads, writes, workspace, chunk_elements } => {
                check_chunked_update(set, plan, *node, reads, writes, *chunk_elements)
                    .map_err(|e| format!("step {i} {e}"))?;
                let buffers = reads.iter().chain(writes).flatten().chain([workspace]);
                buffers.copied().try_for_each(exists)?;
            }
            Action::Copy { value, from, to } => {
                if value.index() >= plan.graph.value_count() {
                    return Err(format!("step {i} copies {value}, which does not exist"));
                }
                exists(*from).and_then(|()| exists(*to))?;
            }
            Action::Load { what: Offloaded::Value(value), tier, to: buffer }
            | Action::Store { what: Offloaded::Value(value), tier, from: buffer } => {
                let Some(offloaded) = plan.offloaded.get(*value) else {
                    return Err(format!("step {i} moves offloaded value {value}, which does not exist"));
                };
                if offloaded.tier != *tier {
                    let (has, says) = (offloaded.tier.name(), tier.name());
                    return Err(format!("step {i} moves offloaded value {value} of {has} to or from {says}"));
                }
                exists(*buffer)?;
            }
            Action::Load { what: Offloaded::State(state), tier, to: buffer }
            | Action::Store { what: Offloaded::State(state), tier, from: buffer } => {
                let placed = set.states.get(*state);
                let is_there = |home| matches!(home, StateHome::Offloaded { tier: has, .. } if has == *tier);
                if !placed.is_some_and(|s| is_there(s.home)) {
                    return Err(format!("step {i} moves state {state}, which is not in {}", tier.name()));
                }
                let known = placed.is_some_and(|p| plan.graph.states.iter().any(|s| s.name == p.name));
                if !known {
                    return Err(format!("step {i} moves state {state}, which the graph does not have"));
                }
                exists(*buffer)?;
            }
        }
    }
    if plan.outputs.len() != plan.graph.outputs.len() {
        return Err(format!(
            "{} outputs are placed, the graph has {}",
            plan.outputs.len(),
            plan.graph.outputs.len()
        ));
    }
    plan.outputs.iter().try_for_each(|&b| exists(b))
}

/// Only an elementwise node whose kernel works in place runs in chunks, of whole pages. Operands without a buffer are offloaded
/// states, and their new versions.
fn check_chunked_update(
    set: &PlanSet,
    plan: &ExecutionPlan,
    id: NodeId,
    reads: &[Option<BufferId>],
    writes: &[Option<BufferId>],
    chunk: usize,
) -> Result<(), String> {
    let graph = &plan.graph;
    let Some(node) = graph.nodes.get(id.index()) else {
        return Err(format!("runs node {}, which does not exist", id.index()));
    };
    let elements = node.outputs.first().map_or(0, |v| graph.ty(*v).shape.elements());
    let chunkable = |v: &ValueId| graph.ty(*v).shape.elements() == elements;
    let scalar = |v: &ValueId| graph.ty(*v).shape.is_empty();
    let elementwise = set.numerics.may_run_in_chunks(&node.op) && node.accumulate.is_empty();
    let fits = node.outputs.iter().all(chunkable) && node.inputs.iter().all(|v| chunkable(v) || scalar(v));
    if !elementwise || !fits {
        return Err(format!("runs {} of `{}` in chunks", node.op.name(), node.layer));
    }
    if (reads.len(), writes.len()) != (node.inputs.len(), node.outputs.len()) {
        return Err(format!("has {} and {} operands", reads.len(), writes.len()));
    }
    if chunk == 0 || !chunk.is_multiple_of(TIER_ALIGNMENT as usize) {
        return Err(format!("has chunks of {chunk} elements"));
    }
    let offloaded = |name: &str| {
        set.states.iter().any(|s| s.name == name && matches!(s.home, StateHome::Offloaded { .. }))
    };
    let chunked: Vec<&State> = (node.inputs.iter().zip(reads))
        .filter(|(_, buffer)| buffer.is_none())
        .filter_map(|(v, _)| graph.states.iter().find(|s| s.input == *v && offloaded(&s.name)))
        .collect();
    let unread = reads.iter().filter(|b| b.is_none()).count() - chunked.len();
    let mut rewritten = node.outputs.iter().zip(writes).filter(|(_, buffer)| buffer.is_none());
    let known = rewritten.all(|(v, _)| chunked.iter().any(|s| s.output == Some(*v)));
    if unread > 0 || !known || writes.iter().filter(|b| b.is_none()).count() != chunked.len() {
        return Err("has operands without a buffer that are not offloaded states".to_string());
    }
    Ok(())
}
