//! A target by a roofline: a kernel takes as long as its arithmetic or its memory traffic, whichever is longer.

use plimsoll_graph::{Op, op::InPlace};
use plimsoll_plan::{Entry, Kernel, KernelQuery, Target, Unsupported};

/// Alignment of buffers in a device's memory.
const ALIGNMENT: usize = 256;
/// The longest that a kernel is said to take, so that sums of many stay numbers: 13 days.
const LONGEST_NS: f64 = (1_u64 << 50) as f64;

/// A space that computes at given rates.
#[derive(Clone, Debug, PartialEq)]
pub struct Roofline {
    /// Its name in load sheets.
    pub name: String,
    /// Floating-point operations per second in f32.
    pub f32_flops: f64,
    /// Floating-point operations per second of products of 16-bit floats.
    pub f16_flops: f64,
    /// Bytes per second from and to its own memory.
    pub bytes_per_second: f64,
    /// Time that a kernel takes to start.
    pub launch_ns: u64,
    /// What driver and libraries take of its memory.
    pub context_bytes: usize,
    /// The most scratch memory of a product, convolution or attention.
    pub workspace_bytes: usize,
}

impl Target for Roofline {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn alignment(&self) -> usize {
        ALIGNMENT
    }

    fn copy_ns_per_mib(&self) -> u64 {
        // Each byte is read and written.
        (2.0 * f64::from(1 << 20) * 1e9 / self.bytes_per_second) as u64
    }

    fn estimates(&self) -> Option<String> {
        Some(
            "Estimates take every kernel to reach the rates of the machine file: steps will be longer."
                .into(),
        )
    }

    fn outside(&self) -> Vec<Entry> {
        vec![Entry::new("context", self.context_bytes, "driver and libraries")]
    }

    fn kernel(&self, query: &KernelQuery<'_>) -> Result<Kernel, Unsupported> {
        let bytes = query.op.bytes(&query.inputs, &query.outputs);
        let flops = query.op.flops(&query.inputs, &query.outputs);
        let product = is_product(query.op);
        let low = product && query.inputs.first().is_some_and(|input| input.dtype.is_low());
        let rate = if low { self.f16_flops } else { self.f32_flops };
        let seconds = (flops as f64 / rate).max(bytes as f64 / self.bytes_per_second);
        Ok(Kernel {
            workspace: if product { self.workspace_bytes.min(bytes as usize) } else { 0 },
            in_place: in_place(query),
            nanoseconds: (self.launch_ns as f64 + seconds * 1e9).min(LONGEST_NS) as u64,
        })
    }
}

/// Whether an op multiplies matrices, for which devices have units of their own and libraries take scratch memory.
fn is_product(op: &Op) -> bool {
    match op {
        Op::MatMul(_) | Op::Conv(_) | Op::Attention(_) | Op::Recurrent(_) | Op::Int8(_) => true,
        Op::Elementwise(_)
        | Op::Fused(_)
        | Op::Movement(_)
        | Op::Reduce(_)
        | Op::Pool(_)
        | Op::Resize(_)
        | Op::Norm(_)
        | Op::Index(_)
        | Op::Loss(_)
        | Op::Random(_)
        | Op::Quantise(_)
        | Op::Prune(_)
        | Op::Exchange(_) => false,
    }
}

/// Elementwise kernels read an element before they write it.
fn in_place(query: &KernelQuery<'_>) -> Vec<(usize, usize)> {
    let elementwise = query.op.properties().in_place == InPlace::Elementwise;
    if elementwise { query.overwritable() } else { Vec::new() }
}
