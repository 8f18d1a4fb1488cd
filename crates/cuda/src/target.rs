//! What every target with these kernels states.

use plimsoll_graph::op::Attention;
use plimsoll_graph::{Epilogues, Numerics, Op, ProductType};
use plimsoll_plan::{KernelQuery, Unsupported};

/// Alignment of buffers: that of the driver's allocations, and more than a vector load needs.
pub const ALIGNMENT: usize = 256;

/// What graphs are built by. Blocks of a fold are as long as products need to keep a GPU busy.
pub fn numerics() -> Numerics {
    Numerics {
        block_rows: 8192,
        epilogues: Epilogues { bias: None, relu: false, rounding: true },
        product_before_bias: ProductType::AsOperands,
        input_gradient: ProductType::AsOperands,
        loss_with_gradient: true,
        recurrences: false,
        ..Numerics::default()
    }
}

/// The (output, input) pairs that a node's kernels compute in place: the output may share the input's buffer. Never more
/// than the op itself allows.
pub fn in_place(query: &KernelQuery<'_>) -> Vec<(usize, usize)> {
    let reads_before_writing = match query.op {
        // A thread reads its elements of every input before it writes those of an output.
        Op::Elementwise(_) | Op::Fused(_) => true,
        // A thread has both elements of a pair.
        Op::Attention(op) => matches!(op, Attention::Rotary { .. }),
        Op::Movement(_)
        | Op::Recurrent(_)
        | Op::Reduce(_)
        | Op::MatMul(_)
        | Op::Conv(_)
        | Op::Pool(_)
        | Op::Resize(_)
        | Op::Norm(_)
        | Op::Index(_)
        | Op::Loss(_)
        | Op::Random(_)
        | Op::Quantise(_) => false,
    };
    if !reads_before_writing {
        return Vec::new();
    }
    let rule = query.op.properties().in_place;
    let allowed = |o: usize, i: usize| {
        let (output, input) = (query.outputs[o], query.inputs[i]);
        let same_layout = output.shape == input.shape && output.dtype.bytes() == input.dtype.bytes();
        same_layout && rule.allows(output, input)
    };
    let pairs = (0..query.outputs.len()).flat_map(|o| (0..query.inputs.len()).map(move |i| (o, i)));
    pairs.filter(|&(o, i)| allowed(o, i)).collect()
}

/// The error for a node without kernels.
pub fn unsupported(target: String, query: &KernelQuery<'_>) -> Unsupported {
    let types = query.inputs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    Unsupported { target, op: query.op.name(), types }
}
