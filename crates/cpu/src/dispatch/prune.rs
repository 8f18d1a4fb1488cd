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
    let (elements, dtype) = (query.inputs[0].shape.elements(), query.inputs[0].dtype);
    match (op, dtype) {
        (Prune::Mask, DType::F32) => found(Mask { elements }),
        (Prune::Apply, DType::F32) => found(Apply { elements }),
        (Prune::Expand { shape }, DType::F32) => {
            found(Expand { elements: shape.elements(), values: elements, bytes: false })
        }
        (Prune::Expand { shape }, DType::U8) => {
            found(Expand { elements: shape.elements(), values: elements, bytes: true })
        }
        _ => None,
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
    /// Whether the values are bytes; else they are `f32`.
    bytes: bool,
}

impl Call for Expand {
    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        core.memory(bytes(query)) + self.elements as f64 * EXPAND
    }

    fn tasks(&self, _: &KernelQuery<'_>) -> usize {
        1
    }

    unsafe fn run(&self, _: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let mask = read!(o, 1, mask_bytes(self.elements));
        match self.bytes {
            true => prune::expand::<u8>(read!(o, 0, self.values), mask, write!(o, 0, self.elements)),
            false => prune::expand::<f32>(read!(o, 0, self.values), mask, write!(o, 0, self.elements)),
        }
    }
}
