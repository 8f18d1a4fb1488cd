//! The checked mode: finds kernels that write outside their buffers or read dead ones, by a second copy of the arena and
//! NaN in all dead memory.

use super::device::Memory;
use super::step_name;
use plimsoll_plan::{Action, Buffer, BufferKind, ExecuteError, ExecutionPlan, PlanSet};

/// What dead memory is filled with: a NaN in every float type, and a large negative index.
const POISON: u8 = 0xFF;

/// A copy of the arena from before a step.
pub struct ShadowArena {
    copy: Vec<u8>,
    /// What the arena holds after a step.
    now: Vec<u8>,
}

impl ShadowArena {
    /// Poisons everything above the states.
    pub fn new(arena: &impl Memory, plans: &PlanSet) -> Result<Self, String> {
        let states = plans.states.iter().map(|s| s.arena_range().end).max().unwrap_or(0);
        fill(arena, states, arena.bytes() - states)?;
        Ok(Self { copy: vec![0; arena.bytes()], now: vec![0; arena.bytes()] })
    }

    /// Copies the arena.
    pub fn before(&mut self, arena: &impl Memory) -> Result<(), String> {
        // SAFETY: no step runs, so nothing writes to the arena.
        unsafe { arena.read(0, &mut self.copy) }
    }

    /// Checks that the step wrote only to its own buffers, and poisons those that are dead after it.
    pub fn after(
        &mut self,
        arena: &impl Memory,
        plan: &ExecutionPlan,
        step: usize,
        micro_batch: usize,
    ) -> Result<(), ExecuteError> {
        let mut allowed: Vec<(usize, usize)> = Vec::new();
        let range = |b: &Buffer| (b.offset, b.offset + b.bytes);
        match &plan.steps[step].action {
            Action::Run { writes, workspace, .. } => {
                allowed.extend(writes.iter().chain(workspace).map(|id| range(&plan.buffers[id.index()])));
            }
            Action::ChunkedUpdate { writes, workspace, .. } => {
                let touched = writes.iter().flatten().chain([workspace]);
                allowed.extend(touched.map(|id| range(&plan.buffers[id.index()])));
            }
            Action::Copy { to, .. } | Action::Load { to, .. } => {
                allowed.push(range(&plan.buffers[to.index()]));
            }
            Action::Store { .. } => {}
        }
        allowed.sort_unstable();
        // SAFETY: no step runs, so nothing writes to the arena.
        unsafe { arena.read(0, &mut self.now) }.map_err(ExecuteError::Device)?;
        let now = &self.now;
        let mut from = 0;
        for (start, end) in allowed.into_iter().chain([(arena.bytes(), arena.bytes())]) {
            if start > from && now[from..start] != self.copy[from..start] {
                let byte = (from..start).find(|&i| now[i] != self.copy[i]).unwrap_or(from);
                let (layer, op) = step_name(plan, step);
                let reason = format!("step {step} wrote to byte {byte}, outside its buffers");
                return Err(ExecuteError::Step { layer: layer.into(), op, reason });
            }
            from = from.max(end);
        }
        let last_micro_batch = micro_batch + 1 == plan.graph.micro_batches || plan.steps[step].optimizer_step;
        for buffer in plan.buffers.iter().filter(|b| b.last == step) {
            let live = match buffer.kind {
                BufferKind::State(_) => true,
                BufferKind::Input(_) | BufferKind::Accumulator(_) => !last_micro_batch,
                BufferKind::Value | BufferKind::Workspace => false,
            };
            // The caller reads outputs after the last step.
            if !live && step + 1 < plan.steps.len() {
                fill(arena, buffer.offset, buffer.bytes).map_err(ExecuteError::Device)?;
            }
        }
        Ok(())
    }
}

fn fill(arena: &impl Memory, offset: usize, bytes: usize) -> Result<(), String> {
    // SAFETY: no step runs, and the range is dead.
    unsafe { arena.fill(offset, bytes, POISON) }
}
