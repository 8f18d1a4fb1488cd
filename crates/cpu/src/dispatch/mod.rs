//! Which kernel runs a node, on which sizes, with how much scratch, and what it costs.
//!
//! Target and executor both call [`find`], so the workspace planned is the workspace used. Each family of ops has its
//! file: it picks the kernel for a node's types, calls it, and predicts its time.

mod attention;
mod call;
mod conv;
pub(crate) mod cost;
mod elementwise;
mod index;
mod int8;
mod loss;
mod matmul;
mod movement;
mod norm;
mod pooling;
mod prune;
mod quantise;
mod random;
mod recurrent;
mod reduce;
mod resize;
mod target;

pub(crate) use call::{Call, Found};
pub use target::CpuTarget;

use plimsoll_graph::Op;
use plimsoll_graph::op::Int8;
use plimsoll_plan::KernelQuery;

/// The kernel for a node, if there is one.
pub(crate) fn find(query: &KernelQuery<'_>) -> Found {
    match query.op {
        Op::Elementwise(op) => elementwise::single(*op, query),
        Op::Fused(region) => elementwise::fused(region, query),
        Op::Movement(op) => movement::find(op, query),
        Op::Reduce(op) => reduce::find(op, query),
        Op::MatMul(op) => matmul::find(op, query),
        Op::Conv(op) => conv::find(op, query),
        Op::Pool(op) => pooling::find(op, query),
        Op::Resize(op) => resize::find(op, query),
        Op::Norm(op) => norm::find(op, query),
        Op::Attention(op) => attention::find(op, query),
        Op::Recurrent(op) => recurrent::find(*op, query),
        Op::Index(op) => index::find(op, query),
        Op::Loss(op) => loss::find(op, query),
        Op::Random(op) => random::find(op, query),
        Op::Quantise(op) => quantise::find(*op, query),
        Op::Prune(op) => prune::find(op, query),
        Op::Int8(op) => int8::find(op, query),
        // The runtime itself runs them, with a transport.
        Op::Exchange(_) => None,
    }
}

/// The (output, input) pairs that a node's kernel computes in place: the output may share the input's buffer. Never more
/// than the op itself allows.
fn in_place(query: &KernelQuery<'_>) -> Vec<(usize, usize)> {
    let reads_before_writing = match query.op {
        // A chunk of every input is read before the same chunk of an output is written.
        Op::Elementwise(_) | Op::Fused(_) => true,
        Op::Attention(op) => attention::in_place(op),
        // A unit's gates are read before they are written, and the first cells before the gradient of the first state.
        Op::Recurrent(_) => true,
        // A new mask reads the weights, and the old one only to copy it; eight weights are read before they are written.
        Op::Prune(_) => true,
        // A code is looked up before what was found is written there.
        Op::Int8(Int8::Sigmoid(_) | Int8::Swish { .. }) => true,
        Op::Movement(_)
        | Op::Reduce(_)
        | Op::MatMul(_)
        | Op::Conv(_)
        | Op::Pool(_)
        | Op::Resize(_)
        | Op::Norm(_)
        | Op::Index(_)
        | Op::Loss(_)
        | Op::Random(_)
        | Op::Quantise(_)
        | Op::Int8(_)
        | Op::Exchange(_) => false,
    };
    if reads_before_writing { query.overwritable() } else { Vec::new() }
}
