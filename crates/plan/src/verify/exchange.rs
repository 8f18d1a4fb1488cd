//! Where sums lie that other devices read.

use crate::{Action, BufferId, BufferKind, ExecutionPlan};
use plimsoll_graph::Op;

/// Every sum that passes between devices lies in its accumulator, which is there for the whole step: another device may read it
/// there until the chain comes around, or, once it is shared, until the step ends. So the optimizer step writes to none.
pub(super) fn check(plan: &ExecutionPlan) -> Result<(), String> {
    if !plan.graph.nodes.iter().any(|node| matches!(node.op, Op::Exchange(_))) {
        return Ok(());
    }
    let end = plan.steps.len() - 1;
    let is_accumulator = |id: &BufferId| {
        let buffer = &plan.buffers[id.index()];
        matches!(buffer.kind, BufferKind::Accumulator(_)) && (buffer.first, buffer.last) == (0, end)
    };
    for (index, step) in plan.steps.iter().enumerate() {
        let writes: Vec<BufferId> = match &step.action {
            Action::Run { writes, .. } => writes.clone(),
            Action::ChunkedUpdate { writes, .. } => writes.iter().flatten().copied().collect(),
            Action::Copy { to, .. } | Action::Load { to, .. } => vec![*to],
            Action::Store { .. } => Vec::new(),
        };
        if step.optimizer_step && writes.iter().any(is_accumulator) {
            return Err(format!("step {index} overwrites a sum that another device may read"));
        }
        let Action::Run { node, .. } = step.action else { continue };
        let node = plan.graph.node(node);
        if matches!(node.op, Op::Exchange(_)) && !writes.iter().all(is_accumulator) {
            let (layer, op) = (&node.layer, node.op.name());
            return Err(format!("layer `{layer}`: {op} works on a sum that is in no accumulator"));
        }
    }
    Ok(())
}
