//! Where sums lie that other devices read.

use crate::{Action, BufferKind, ExecutionPlan};
use plimsoll_graph::Op;

/// Every sum that passes between devices lies in its accumulator, which holds nothing else during the step: another device may
/// read it there until the chain comes around.
pub(super) fn check(plan: &ExecutionPlan) -> Result<(), String> {
    for step in &plan.steps {
        let Action::Run { node, writes, .. } = &step.action else { continue };
        let node = plan.graph.node(*node);
        let elsewhere =
            |id: &&crate::BufferId| !matches!(plan.buffers[id.index()].kind, BufferKind::Accumulator(_));
        if let (Op::Exchange(_), Some(id)) = (&node.op, writes.iter().find(elsewhere)) {
            let (layer, op, id) = (&node.layer, node.op.name(), id.0);
            return Err(format!("layer `{layer}`: {op} works in buffer {id}, which is no accumulator"));
        }
    }
    Ok(())
}
