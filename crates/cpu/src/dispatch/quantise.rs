//! Kernels for floats as bytes.

use super::call::{Call, Found, Operands, found, read, write};
use super::cost::Core;
use crate::isa::Context;
use crate::kernels::quantise;
use plimsoll_graph::op::Quantise;
use plimsoll_plan::KernelQuery;
use plimsoll_tensor::{CODE_BLOCK, DType};

/// Nanoseconds to find an element's code, and to look one up.
const ENCODE: f64 = 2.0;
const DECODE: f64 = 0.6;

pub(super) fn find(op: Quantise, query: &KernelQuery<'_>) -> Found {
    let elements = query.inputs[0].shape.elements();
    let floats = match op {
        Quantise::Encode { .. } => query.inputs[0],
        Quantise::Decode { .. } => query.outputs[0],
    };
    (floats.dtype == DType::F32).then_some(Blocks { op, elements }).and_then(found)
}

struct Blocks {
    op: Quantise,
    elements: usize,
}

impl Call for Blocks {
    fn cost(&self, _: &Core, _: &KernelQuery<'_>) -> f64 {
        let each = match self.op {
            Quantise::Encode { .. } => ENCODE,
            Quantise::Decode { .. } => DECODE,
        };
        self.elements as f64 * each
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let (n, blocks) = (self.elements, self.elements.div_ceil(CODE_BLOCK));
        match self.op {
            Quantise::Encode { signed } => {
                quantise::encode(ctx, signed, read!(o, 0, n), write!(o, 0, n), write!(o, 1, blocks));
            }
            Quantise::Decode { signed } => {
                quantise::decode(ctx, signed, read!(o, 0, n), read!(o, 1, blocks), write!(o, 0, n));
            }
        }
        Ok(())
    }
}
