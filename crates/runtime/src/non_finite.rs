//! The search for the node that first makes a number that is not finite.

use super::device::Memory;
use super::lower::Region;
use plimsoll_graph::op::Attention;
use plimsoll_graph::{NodeId, Op, ValueId};
use plimsoll_plan::{Action, BufferId, ExecutionPlan};
use plimsoll_tensor::{DType, all_finite};

/// The node of a step that has just run, if one of its outputs has a number that is not finite.
///
/// # Safety
/// No step runs and no load is in flight.
pub unsafe fn non_finite_node(
    arena: &impl Memory,
    plan: &ExecutionPlan,
    step: usize,
    micro_batch: usize,
) -> Result<Option<NodeId>, String> {
    let (id, writes): (NodeId, Vec<Option<BufferId>>) = match &plan.steps[step].action {
        Action::Run { node, writes, .. } => (*node, writes.iter().copied().map(Some).collect()),
        Action::ChunkedUpdate { node, writes, .. } => (*node, writes.clone()),
        Action::Copy { .. } | Action::Load { .. } | Action::Store { .. } => return Ok(None),
    };
    let node = plan.graph.node(id);
    let is_bad =
        |(output, (&value, &buffer)): (usize, (&ValueId, &Option<BufferId>))| -> Result<bool, String> {
            let Some(region) = buffer.map(|id| Region::of(plan, id)) else { return Ok(false) };
            let ty = plan.graph.ty(value);
            let offset = region.offset + micro_batch * region.stride;
            let mut bytes = vec![0_u8; region.bytes.min(ty.bytes())];
            // SAFETY: nothing writes to the arena, by the caller's promise.
            unsafe { arena.read(offset, &mut bytes)? };
            Ok(if ty.dtype == DType::F32 && may_be_negative_infinity(&node.op, output) {
                let mut floats = bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
                !floats.all(|x| x.is_finite() || x == f32::NEG_INFINITY)
            } else {
                !all_finite(ty.dtype, &bytes)
            })
        };
    for output in node.outputs.iter().zip(&writes).enumerate() {
        if is_bad(output)? {
            return Ok(Some(id));
        }
    }
    Ok(None)
}

/// Whether negative infinity is a regular value of an output.
fn may_be_negative_infinity(op: &Op, output: usize) -> bool {
    match op {
        // The log-sum-exp of a query whose keys are all masked.
        Op::Attention(Attention::Forward { .. }) => output > 0,
        Op::Attention(Attention::Grad { .. } | Attention::Rotary { .. })
        | Op::Elementwise(_)
        | Op::Fused(_)
        | Op::Movement(_)
        | Op::Reduce(_)
        | Op::MatMul(_)
        | Op::Conv(_)
        | Op::Pool(_)
        | Op::Resize(_)
        | Op::Norm(_)
        | Op::Recurrent(_)
        | Op::Index(_)
        | Op::Loss(_)
        | Op::Random(_)
        | Op::Quantise(_)
        | Op::Prune(_)
        | Op::Int8(_)
        | Op::Exchange(_) => false,
    }
}
