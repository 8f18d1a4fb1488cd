//! Floats quantised to bytes, block by block.

use super::builder::{CallBuilder, define, parameters};
use super::{Call, Operand};
use plimsoll_graph::op::Quantise;
use plimsoll_plan::KernelQuery;
use plimsoll_tensor::{CODE_BLOCK, DType, code_bounds, code_values};

// A block of threads has a block of codes.
const _: () = assert!(CODE_BLOCK == 256);

pub(super) fn find(op: Quantise, query: &KernelQuery<'_>) -> Option<Call> {
    let n = query.inputs[0].shape.elements();
    let mut builder = CallBuilder::default();
    match op {
        Quantise::Encode { signed } if query.inputs[0].dtype == DType::F32 => {
            let text = [&table("BOUNDS", code_bounds(signed)), include_str!("quantise/encode.cu")].join("\n");
            let source = define(&[("SIGNED", if signed { "true" } else { "false" })], &text);
            let parameters = parameters![Operand::Read(0), Operand::Write(0), Operand::Write(1), n];
            builder.kernel([n.div_ceil(CODE_BLOCK), 1, 1], CODE_BLOCK as u32, source, parameters);
        }
        Quantise::Decode { signed } if query.outputs[0].dtype == DType::F32 => {
            let text = [&table("VALUES", code_values(signed)), include_str!("quantise/decode.cu")].join("\n");
            builder.each(n, text, parameters![Operand::Read(0), Operand::Read(1), Operand::Write(0), n]);
        }
        Quantise::Encode { .. } | Quantise::Decode { .. } => return None,
    }
    Some(builder.finish())
}

/// Floats as a table of their bits in constant memory.
fn table(name: &str, floats: &[f32; 256]) -> String {
    let bits: Vec<String> = floats.iter().map(|x| format!("{:#x}u", x.to_bits())).collect();
    format!("__constant__ u32 {name}[256] = {{{}}};\n", bits.join(", "))
}
