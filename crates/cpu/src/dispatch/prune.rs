//! Kernels for masks of pruned weights.

use super::call::{Call, Found, Operands, bytes, found, read, write};
use super::cost::Core;
use crate::isa::{Context, Isa};
use crate::kernels::prune;
use plimsoll_graph::op::Prune;
use plimsoll_plan::KernelQuery;
use plimsoll_tensor::{DType, mask_bytes};

/// Nanoseconds to put an element in its place.
const EXPAND: f64 = 1.0;

pub(super) fn find(op: &Prune, query: &KernelQuery<'_>) -> Found {
    if query.inputs[0].dtype != DType::F32 {
        return None;
    }
    match op {
        Prune::Mask => found(Mask { elements: query.inputs[0].shape.elements() }),
        Prune::Apply => found(Apply { elements: query.inputs[0].shape.elements() }),
        Prune::Expand { shape } => {
            found(Expand { elements: shape.elements(), values: query.inputs[0].shape.elements() })
        }
    }
}

struct Mask {
    elements: usize,
}

impl Call for Mask {
    fn workspace(&self, _: Isa, _: usize) -> usize {
        prune::MASK_WORKSPACE
    }

    /// Most steps keep the mask.
    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        core.memory(query.outputs[0].bytes() as f64)
    }

    unsafe fn run(&self, _: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let (weights, sparsity) = (read!(o, 0, self.elements), read!(o, 2, 1));
        let (old, new) = (o.reads[1], o.writes[0]);
        // SAFETY: the plan gives each step its own workspace, which is aligned and has the bytes of `workspace`.
        let counters = unsafe { std::slice::from_raw_parts_mut(o.workspace.cast(), o.workspace_bytes / 4) };
        // SAFETY: the masks have the node's bytes; the new one does not overlap the old one or, in place, is the same memory.
        unsafe { prune::mask(weights, sparsity[0], old, new, counters) };
        Ok(())
    }
}

struct Apply {
    elements: usize,
}

impl Call for Apply {
    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let mask = read!(o, 1, mask_bytes(self.elements));
        // SAFETY: the operands are the node's; y does not overlap x or, in place, is the same memory.
        unsafe { prune::apply(ctx, self.elements, o.reads[0].cast(), mask, o.writes[0].cast()) };
        Ok(())
    }
}

struct Expand {
    elements: usize,
    values: usize,
}

impl Call for Expand {
    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        core.memory(bytes(query)) + self.elements as f64 * EXPAND
    }

    fn tasks(&self, _: &KernelQuery<'_>) -> usize {
        1
    }

    unsafe fn run(&self, _: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let (values, mask) = (read!(o, 0, self.values), read!(o, 1, mask_bytes(self.elements)));
        prune::expand(values, mask, write!(o, 0, self.elements))
    }
}
