//! Masks of pruned weights: a threshold by counting, which is exact in any order; one bit per element.

use super::builder::{CallBuilder, define, parameters};
use super::movement::unit_type;
use super::{Call, Fault, Operand};
use plimsoll_graph::op::Prune;
use plimsoll_plan::KernelQuery;
use plimsoll_tensor::{DType, mask_bytes};

/// Counters of a digit of magnitudes, of which there are three.
const COUNTERS: usize = 1 << 11;
const DIGITS: usize = 3;
/// Blocks that share the weights at most: enough to keep a GPU busy, few enough that clearing and adding their counters is short.
const MOST_BLOCKS: usize = 512;
const THREADS: usize = 256;
/// Elements of a block that expands values: 8, a byte of the mask, for each thread.
const EXPANDED: usize = 8 * THREADS;

pub(super) fn find(op: &Prune, query: &KernelQuery<'_>) -> Option<Call> {
    let (count, dtype) = (query.inputs[0].shape.elements(), query.inputs[0].dtype);
    let mut builder = CallBuilder::default();
    match op {
        Prune::Mask if dtype == DType::F32 => {
            let counters = builder.scratch(DIGITS * COUNTERS * size_of::<u32>());
            builder.zero(Operand::Workspace, DIGITS * COUNTERS, DType::F32);
            let blocks = |threads: usize| [threads.div_ceil(8 * THREADS).min(MOST_BLOCKS), 1, 1];
            for digit in ["0", "1", "2"] {
                let source = threshold(&[("DIGIT", digit)], include_str!("prune/count.cu"));
                let parameters = parameters![Operand::Read(0), Operand::Read(2), counters, count];
                builder.kernel(blocks(count), THREADS as u32, source, parameters);
            }
            let masks = [Operand::Read(1), Operand::Write(0)];
            let parameters =
                parameters![Operand::Read(0), masks[0], Operand::Read(2), masks[1], counters, count];
            let source = threshold(&[], include_str!("prune/mask.cu"));
            builder.kernel(blocks(mask_bytes(count)), THREADS as u32, source, parameters);
        }
        Prune::Apply => {
            let source = define(&[("T", unit_type(dtype.bytes()))], include_str!("prune/apply.cu"));
            let parameters = parameters![Operand::Read(0), Operand::Read(1), Operand::Write(0), count];
            builder.each(query.outputs[0].shape.elements(), source, parameters);
        }
        Prune::Expand { shape } => {
            let elements = shape.elements();
            let blocks = elements.div_ceil(EXPANDED);
            let starts = builder.scratch((blocks + 1) * size_of::<u32>());
            let source = include_str!("prune/kept.cu").to_string();
            let parameters = parameters![Operand::Read(1), starts, elements];
            builder.kernel([blocks, 1, 1], THREADS as u32, source, parameters);
            let source = include_str!("prune/starts.cu").to_string();
            builder.kernel([1, 1, 1], THREADS as u32, source, parameters![starts, blocks]);
            let source = define(&[("T", unit_type(dtype.bytes()))], include_str!("prune/expand.cu"));
            let operands = [Operand::Read(0), Operand::Read(1), Operand::Write(0), Operand::Fault];
            let [values, mask, y, fault] = operands;
            let parameters = parameters![values, mask, y, fault, starts, elements, count];
            builder.kernel([blocks.max(1), 1, 1], THREADS as u32, source, parameters);
            return Some(Call { fault: Some(Fault::Values { count }), ..builder.finish() });
        }
        Prune::Mask => return None,
    }
    Some(builder.finish())
}

/// A source behind what finds the threshold.
fn threshold(macros: &[(&str, &str)], text: &str) -> String {
    define(macros, &[include_str!("prune/threshold.cu"), text].concat())
}
