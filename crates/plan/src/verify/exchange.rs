//! Where sums lie that other devices read.

use crate::{Action, BufferId, BufferKind, ExecutionPlan};
use plimsoll_graph::op::Exchange;
use plimsoll_graph::{Node, Op};

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
        // Nobody reads a turn, and what is taken is this device's own.
        let is_shared = match &node.op {
            Op::Exchange(op) => !matches!(op, Exchange::Take { .. } | Exchange::Give { .. }),
            _ => false,
        };
        if is_shared && !writes.iter().all(is_accumulator) {
            let (layer, op) = (&node.layer, node.op.name());
            return Err(format!("layer `{layer}`: {op} works on a sum that is in no accumulator"));
        }
    }
    check_meetings(plan)?;
    check_turns(plan)
}

/// Where devices wait until what they give is taken, all wait in the order of the graph, which they have in common; what does not wait
/// comes no later than there.
fn check_turns(plan: &ExecutionPlan) -> Result<(), String> {
    let graph = &plan.graph;
    let gives = |node: &Node| matches!(node.op, Op::Exchange(Exchange::Take { .. } | Exchange::Give { .. }));
    if !graph.nodes.iter().any(gives) {
        return Ok(());
    }
    let waits = |node: &Node| match node.op {
        Op::Exchange(Exchange::Send { .. }) => Some(false),
        Op::Exchange(_) => Some(true),
        _ => None,
    };
    let mut waited = 0;
    let mut turns = vec![0; graph.nodes.len()];
    for (at, node) in graph.nodes.iter().enumerate() {
        turns[at] = waited;
        waited += usize::from(waits(node) == Some(true));
    }
    waited = 0;
    for step in &plan.steps {
        let Action::Run { node: id, .. } = step.action else { continue };
        let node = graph.node(id);
        let (turn, in_turn) = (turns[id.index()], waits(node));
        if in_turn.is_some_and(|waits| waited > turn || waits && waited != turn) {
            return Err(format!("layer `{}`: {} is out of turn", node.layer, node.op.name()));
        }
        waited += usize::from(in_turn == Some(true));
    }
    Ok(())
}

/// Every exchange is on the same side of every meeting of all devices as in the graph, whose order all devices have in common: a device
/// that waits in a meeting has sent what another one needs to come there, too.
fn check_meetings(plan: &ExecutionPlan) -> Result<(), String> {
    let is_meeting = |node: &Node| {
        matches!(node.op, Op::Exchange(Exchange::Synchronise { .. } | Exchange::AllReduce { .. }))
    };
    let mut meetings = 0;
    let mut in_graph = vec![0; plan.graph.nodes.len()];
    for (at, node) in plan.graph.nodes.iter().enumerate() {
        in_graph[at] = meetings;
        meetings += usize::from(is_meeting(node));
    }
    meetings = 0;
    for step in &plan.steps {
        let Action::Run { node: id, .. } = step.action else { continue };
        let node = plan.graph.node(id);
        if matches!(node.op, Op::Exchange(_)) && in_graph[id.index()] != meetings {
            let (layer, op) = (&node.layer, node.op.name());
            return Err(format!("layer `{layer}`: {op} is on the wrong side of where all devices meet"));
        }
        meetings += usize::from(is_meeting(node));
    }
    Ok(())
}
