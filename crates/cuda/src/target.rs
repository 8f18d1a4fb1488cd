//! The planner's view of a GPU, and what every target with these kernels states.

use crate::driver::Gpu;
use crate::kernels::{Launch, find};
use crate::rates::Rates;
use plimsoll_graph::op::{Attention, Prune};
use plimsoll_graph::{Epilogues, JoinedLoss, Numerics, Op, ProductType};
use plimsoll_plan::{Entry, Kernel, KernelQuery, Link, Target, Unsupported};
use plimsoll_tensor::DType;

/// Alignment of buffers: that of the driver's allocations, and more than a vector load needs.
pub const ALIGNMENT: usize = 256;

/// What graphs are built by. Blocks of a fold are as long as products need to keep a GPU busy.
pub fn numerics() -> Numerics {
    Numerics {
        block_rows: 8192,
        epilogues: Epilogues { bias: Some(ProductType::AsOperands), relu: false, rounding: true },
        product_before_bias: ProductType::Wide,
        input_gradient: ProductType::AsOperands,
        loss_with_gradient: JoinedLoss::Always,
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
        // Likewise with its byte of a mask, or its element.
        Op::Prune(op) => matches!(op, Prune::Mask | Prune::Apply),
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
        | Op::Quantise(_)
        | Op::Int8(_)
        | Op::Exchange(_) => false,
    };
    if reads_before_writing { query.overwritable() } else { Vec::new() }
}

/// The revision of the kernels' arithmetic: it rises where a change to a kernel changes the bits of results on purpose.
const ARITHMETIC: u32 = 4;

/// The time of a launch.
const LAUNCH_NS: f64 = 3_000.0;

/// Multiplications and additions of a multiprocessor in a clock: of f32 and f64 by its lanes, of 16-bit floats by its tensor
/// cores.
const F32_FLOPS_PER_CLOCK: f64 = 256.0;
const F64_FLOPS_PER_CLOCK: f64 = 128.0;

/// What products reach in TF32 of what they reach in 16-bit floats: tensor cores are half as fast, and weight gradients are slower than that.
const TF32_RATE: f64 = 0.36;

/// What large products and copies reach of the peaks, where nobody measured it: what an H200 was measured to reach.
const USUAL_F32: f64 = 0.76;
const USUAL_HALF: f64 = 0.69;
const USUAL_MEMORY: f64 = 0.87;

/// What products and other kernels reach of the peaks of a GPU that reaches so much in large products and copies.
const PRODUCT_EFFICIENCY: f64 = 0.65;
/// What convolutions reach whose patches are gathered as they are multiplied. On an H200, 0.22 to 0.35.
const IMPLICIT_EFFICIENCY: f64 = 0.28;
/// What our own kernels for attention of 16-bit floats reach of the tensor cores' peak, by the products of an algorithm that computes
/// none of them twice.
const ATTENTION_EFFICIENCY: f64 = 0.17;
const MEMORY_EFFICIENCY: f64 = 0.75;

/// What the driver takes of the device's memory where nobody tells. On an H200, with a stack of 256 bytes, 330 MiB were measured.
pub(crate) const CONTEXT_BYTES: usize = 400 << 20;

/// The code of kernels that are loaded, ours and those of the library, and streams of transfers, or graphs where there are none
/// (`recording::GRAPH_BYTES`). Measured before there were graphs: 3 to 7 MiB for GPT-2 in bf16, 14 MiB for ResNet-50 at its smallest line; with
/// graphs, 25 MiB for GPT-2 in f32.
const KERNEL_BYTES: usize = 32 << 20;
/// The same in TF32, for which the library has more and larger kernels, and all that are tried stay loaded: up to 79 MiB were measured for GPT-2.
const TF32_KERNEL_BYTES: usize = 112 << 20;

/// Page-locked memory is mapped in pages of the host, with an entry in the device's page tables for each, and some for tables of tables.
const HOST_PAGE_BYTES: u64 = 4 << 10;
const PAGE_TABLE_ENTRY_BYTES: u64 = 10;

/// A GPU by its clocks and its memory: a kernel takes as long as its arithmetic or its memory traffic, whichever is longer.
#[derive(Clone, Debug, PartialEq)]
pub struct CudaTarget {
    /// Which GPU it is.
    pub gpu: Gpu,
    /// What decides bits beside the kernels' sources, like `NVRTC 13.0, cuBLASLt 130101`.
    pub libraries: String,
    /// What the driver takes of the device's memory.
    pub context_bytes: Option<usize>,
    /// The way to host memory.
    pub link: Link,
    /// Whether products round f32 to TF32.
    pub tf32: bool,
    /// What it reaches, where that was measured.
    pub rates: Option<Rates>,
}

impl CudaTarget {
    fn flops_per_ns(&self, dtype: DType) -> f64 {
        let per_clock = match dtype {
            DType::BF16 | DType::F16 => self.tensor_flops_per_clock(),
            DType::F64 => F64_FLOPS_PER_CLOCK,
            _ => F32_FLOPS_PER_CLOCK,
        };
        let peak = per_clock * f64::from(self.gpu.multiprocessors) * f64::from(self.gpu.clock_khz) * 1e-6;
        match (self.rates, dtype) {
            (Some(rates), DType::BF16 | DType::F16) => rates.half / USUAL_HALF,
            (Some(rates), DType::F32) => rates.f32 / USUAL_F32,
            _ => peak,
        }
    }

    /// Bytes that kernels read and write in a nanosecond.
    fn bytes_per_ns(&self) -> f64 {
        let peak = self.gpu.memory_bytes_per_second * 1e-9;
        self.rates.map_or(peak, |rates| rates.memory / USUAL_MEMORY) * MEMORY_EFFICIENCY
    }

    /// Of 16-bit floats in a clock of a multiprocessor, dense, by generation.
    fn tensor_flops_per_clock(&self) -> f64 {
        match self.gpu.capability.0 {
            ..=7 => 1024.0,
            8 => 2048.0,
            _ => 4096.0,
        }
    }

    /// The predicted time of a node.
    fn nanoseconds(&self, query: &KernelQuery<'_>, launches: &[Launch]) -> u64 {
        let bytes = query.op.bytes(&query.inputs, &query.outputs) as f64;
        let memory = bytes / self.bytes_per_ns();
        let flops = query.op.flops(&query.inputs, &query.outputs) as f64;
        let convolution = matches!(query.op, Op::Conv(_));
        let rate = launches.iter().find_map(|launch| match launch {
            Launch::Product(product) if product.tf32 => {
                Some(self.flops_per_ns(DType::BF16) * TF32_RATE * PRODUCT_EFFICIENCY)
            }
            Launch::Product(product) => Some(self.flops_per_ns(product.a.dtype) * PRODUCT_EFFICIENCY),
            Launch::Kernel(kernel) if convolution && kernel.source.contains("mma.sync") => {
                Some(self.flops_per_ns(query.inputs[0].dtype) * IMPLICIT_EFFICIENCY)
            }
            Launch::Kernel(_) => None,
        });
        let operands = query.inputs.first().map_or(DType::F32, |input| input.dtype);
        let rate = rate.unwrap_or_else(|| match query.op {
            Op::Attention(_) if operands.is_low() => self.flops_per_ns(operands) * ATTENTION_EFFICIENCY,
            _ => self.flops_per_ns(DType::F32) * PRODUCT_EFFICIENCY,
        });
        (LAUNCH_NS * launches.len() as f64 + memory.max(flops / rate)) as u64
    }
}

impl Target for CudaTarget {
    fn name(&self) -> String {
        format!("cuda:{}, {}", self.gpu.index, self.gpu.name)
    }

    fn instructions(&self) -> String {
        let (major, minor) = self.gpu.capability;
        format!("cuda {major}.{minor}, {}, arithmetic {ARITHMETIC}", self.libraries)
    }

    fn numerics(&self) -> Numerics {
        Numerics { tf32: self.tf32, ..numerics() }
    }

    fn alignment(&self) -> usize {
        ALIGNMENT
    }

    fn copy_ns_per_mib(&self) -> u64 {
        // Each byte is read and written.
        (2.0 * f64::from(1 << 20) / self.bytes_per_ns()) as u64
    }

    fn estimates(&self) -> Option<String> {
        Some(match self.rates {
            Some(rates) => format!("Estimates follow what this GPU was measured to reach: {rates}."),
            None => "Estimates take clocks and generation of the GPU, and what an H200 reaches of its peaks: nothing \
                     was measured on this one."
                .into(),
        })
    }

    fn outside(&self) -> Vec<Entry> {
        let kernels = if self.tf32 { TF32_KERNEL_BYTES } else { KERNEL_BYTES };
        vec![
            Entry::new("context", self.context_bytes.unwrap_or(CONTEXT_BYTES), "the driver's"),
            Entry::new("kernels", kernels, "code on the device"),
        ]
    }

    /// The device's page tables. On an H200, 26 MiB for 11 GiB were measured.
    fn host_mapping_bytes(&self, bytes: u64) -> usize {
        (bytes.div_ceil(HOST_PAGE_BYTES) * PAGE_TABLE_ENTRY_BYTES) as usize
    }

    fn kernel(&self, query: &KernelQuery<'_>) -> Result<Kernel, Unsupported> {
        if let Some(exchange) = query.exchange_over(self.link) {
            return Ok(exchange);
        }
        let call = find(query).ok_or_else(|| query.unsupported(self.name()))?.in_tf32(self.tf32);
        Ok(Kernel {
            workspace: call.workspace,
            in_place: in_place(query),
            nanoseconds: self.nanoseconds(query, &call.launches),
        })
    }
}
