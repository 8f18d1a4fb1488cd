//! The cost model: the predicted time of a call is the sum of its product tiles, vector work and memory traffic.
//!
//! Every family counts these in its file of this folder. The constants are what the kernels reach on a typical core with
//! the instruction set's ceilings; nothing is measured while planning.

use super::target::CpuTarget;
use crate::isa::Isa;
use crate::kernels::float::Float;
use crate::kernels::gemm::kernel::Kernels;
use crate::kernels::gemm::{self, GemmSpec, Passes};
use plimsoll_tensor::DType;

/// Nanoseconds that a call takes whatever its size.
const CALL_NS: f64 = 300.0;
/// Nanoseconds to hand work to the other threads.
const WAKE_NS: f64 = 3_000.0;
/// Bytes that stay in a core's L1 cache from one step to the next, and how much faster than memory that is.
const L1_BYTES: f64 = 32768.0;
const L1_SPEED_UP: f64 = 4.0;
/// Bytes that stay in a core's L2 cache from one step to the next.
const L2_BYTES: f64 = 1048576.0;
/// Bytes that stay in the L3 cache, which cores share.
const L3_BYTES: f64 = 12.0 * 1048576.0;
/// How much faster than memory these are, for one thread and for several: what another has written is in its cache.
const SPEED_UP: [[f64; 3]; 2] = [[2.0, 1.5, 1.0], [1.5, 1.5, 1.0]];
/// Bytes up to which one thread does all the work.
const SINGLE_THREAD_BYTES: f64 = 131072.0;
/// Multiply-adds that must be in flight to hide their latency.
const LATENCY: usize = 8;

/// Multiply-adds that pass while a vector comes from the L2 cache, and how many more where rows start at multiples of a page:
/// the vectors of a panel then conflict there.
const L2_LATENCY: usize = 3;
const L2_CONFLICT_LATENCY: [usize; 2] = [1, 2];
const PAGE: usize = 4096;
/// Multiply-adds that pass while an element of the first operand is packed.
const PACK: f64 = 1.5;
/// Times that memory takes for each byte of a tile's results in a product, by cache level.
const PRODUCT_TOUCH: [f64; 3] = [0.7, 1.2, 2.2];
/// How much longer it takes where rows do not fill whole vectors, and every store touches two cache lines.
const UNALIGNED_STORE: f64 = 3.2;

/// Rows, columns and k of a block of tiles.
const BLOCK: usize = 32;
/// Multiply-adds of vectors that pass while the sums of a block of tiles gain their products.
const TILES_BLOCK: f64 = 160.0;
/// The same while an element of the first operand is packed for tiles, and one of the second.
const TILES_PACK: [f64; 2] = [0.75, 1.5];
/// The same while an element of the result leaves the tiles.
pub(crate) const TILES_RESULT: f64 = 1.5;

/// One thread of a target.
pub(crate) struct Core {
    /// The instruction set.
    pub isa: Isa,
    /// Rows of a tile, and columns of a vector.
    mr: usize,
    lanes: usize,
    /// Nanoseconds of a multiply-add of vectors: the unit of work.
    pub slot: f64,
    /// Nanoseconds of a byte from or to memory.
    pub byte: f64,
    /// Threads of the target.
    pub threads: usize,
}

impl Core {
    pub(crate) fn of(target: &CpuTarget) -> Self {
        let kernels = Kernels::of(target.isa);
        Self {
            isa: target.isa,
            mr: kernels.mr,
            lanes: kernels.lanes,
            slot: 2.0 * kernels.lanes as f64 / target.flops_per_ns,
            byte: 1.0 / target.bytes_per_ns,
            threads: target.threads.max(1),
        }
    }

    /// Whether so many columns are one full panel, which needs no packing.
    pub(crate) fn is_panel(&self, columns: usize) -> bool {
        columns == self.lanes || columns == 2 * self.lanes
    }

    /// Whether so many columns do not fill whole vectors.
    pub(crate) fn is_ragged(&self, columns: usize) -> bool {
        !columns.is_multiple_of(self.lanes)
    }

    /// Vectors that so many contiguous elements take.
    pub(crate) fn vectors(&self, elements: usize) -> usize {
        elements.div_ceil(self.lanes)
    }

    /// Nanoseconds to move so many bytes once: a few are still in a cache.
    pub(crate) fn memory(&self, bytes: f64) -> f64 {
        let shared = self.threads > 1 && bytes > SINGLE_THREAD_BYTES;
        let speed_up =
            if bytes <= L1_BYTES { L1_SPEED_UP } else { SPEED_UP[usize::from(shared)][level(bytes)] };
        bytes * self.byte / speed_up
    }

    /// Tiles of at most the kernels' height: full ones, and what is left.
    pub(crate) fn full_tiles(&self, rows: usize) -> [(usize, usize); 2] {
        [(self.mr, rows / self.mr), (rows % self.mr, 1)]
    }

    /// Tiles of at most the kernels' height, as even as possible.
    pub(crate) fn even_tiles(&self, rows: usize) -> [(usize, usize); 2] {
        let tiles = rows.div_ceil(self.mr).max(1);
        [(rows / tiles, tiles - rows % tiles), (rows / tiles + 1, rows % tiles)]
    }

    /// The work of tiles, given as (rows, how many), over all panels of `columns` columns and a sum of length `k` that
    /// is cut into so many chunks.
    pub(crate) fn tiles(&self, tiles: [(usize, usize); 2], columns: usize, k: usize, chunks: usize) -> Tiles {
        let panel = 2 * self.lanes;
        let rest = columns % panel;
        let panels = [(2, columns / panel), (self.vectors(rest), 1)];
        let mut work = Tiles::default();
        for (rows, times) in tiles {
            for (vectors, panels) in panels {
                if rows == 0 || vectors == 0 {
                    continue;
                }
                let tiles = times as f64 * panels as f64;
                // Each k loads the panel's vectors and a number for every row.
                let busy = (rows * vectors).max(rows + vectors).max(LATENCY);
                work.slots += tiles * k as f64 * busy as f64;
                work.visits += tiles * chunks as f64;
                work.touched += tiles * chunks as f64 * (2 * 4 * rows * vectors * self.lanes) as f64;
            }
        }
        work
    }

    /// A product of a few rows that is not packed: every tile reads the second operand again, from the core's own cache
    /// if it fits there.
    pub(crate) fn direct_product(&self, [m, n, k]: [usize; 3], bytes: f64) -> f64 {
        let more = L2_CONFLICT_LATENCY[usize::from((4 * n).is_multiple_of(PAGE))];
        let rows = self.even_tiles(m).map(|(rows, times)| ((rows + more).max(L2_LATENCY) * times) as f64);
        let slots = rows.iter().sum::<f64>() * k as f64 * self.vectors(n) as f64;
        let second = 4.0 * k as f64 * n as f64;
        let far = if level(second) > 0 { second } else { 0.0 };
        slots * self.slot + self.memory(bytes - second + far)
    }

    /// Whether operands of a type are multiplied in tiles.
    pub(crate) fn multiplies_tiles(&self, ty: DType) -> bool {
        Kernels::multiplying(self.isa, ty).packing.is_tiles()
    }

    /// A matrix product of operands of one type to a result of another.
    pub(crate) fn product_of<T: Float, C: Float>(&self, [m, n, k]: [usize; 3], bytes: f64) -> f64 {
        if !self.multiplies_tiles(T::DTYPE) {
            return self.product([m, n, k], bytes);
        }
        let spec = GemmSpec::new(m, n, k);
        let Passes { packed, runs, .. } = gemm::passes::<C>(T::DTYPE, self.isa, self.threads, &spec);
        let [first, second] = TILES_PACK;
        let slots = self.tile_blocks([m, n, k])
            + first * packed as f64
            + second * k as f64 * n as f64
            + TILES_RESULT * m as f64 * n as f64;
        slots * self.slot + self.memory(bytes) + self.waits(runs)
    }

    /// Nanoseconds in which every thread waits while tasks are distributed; the first time is part of any call.
    fn waits(&self, runs: usize) -> f64 {
        if self.threads == 1 { 0.0 } else { runs.saturating_sub(1) as f64 * WAKE_NS * self.threads as f64 }
    }

    /// Multiply-adds of vectors that pass while tiles are multiplied.
    pub(crate) fn tile_blocks(&self, sizes: [usize; 3]) -> f64 {
        TILES_BLOCK * sizes.map(|size| size.div_ceil(BLOCK) as f64).iter().product::<f64>()
    }

    /// A matrix product of one thread, all of whose operands together have so many bytes.
    pub(crate) fn product(&self, [m, n, k]: [usize; 3], bytes: f64) -> f64 {
        let spec = GemmSpec::new(m, n, k);
        let Passes { packed, runs, blocks } = gemm::passes::<f32>(DType::F32, self.isa, self.threads, &spec);
        let tiles = self.tiles(self.full_tiles(m), n, k, blocks);
        let result = 4.0 * m as f64 * n as f64;
        let lies = level(result);
        let ragged = if self.is_ragged(n) && lies > 0 { UNALIGNED_STORE } else { 1.0 };
        let touch = PRODUCT_TOUCH[lies] * ragged;
        let slots = tiles.slots + PACK * packed as f64;
        // The second operand is packed: read, written, and read again.
        let second = 4.0 * k as f64 * n as f64;
        let operands = self.memory((bytes - result).max(0.0)) + 2.0 * self.memory(second);
        let memory = touch * tiles.touched * self.byte + operands;
        slots * self.slot + memory + self.waits(runs)
    }
}

/// The work of a product's tiles.
#[derive(Clone, Copy, Default)]
pub(crate) struct Tiles {
    /// Multiply-adds of vectors, including idle ones.
    pub slots: f64,
    /// Calls of a micro-kernel.
    pub visits: f64,
    /// Bytes of results read and written.
    pub touched: f64,
}

impl Tiles {
    /// Adds other work, so many times.
    pub(crate) fn add(&mut self, other: Self, times: f64) {
        self.slots += times * other.slots;
        self.visits += times * other.visits;
        self.touched += times * other.touched;
    }
}

/// Where recently used bytes are: 0 a core's own cache, 1 a shared one, 2 memory.
pub(crate) fn level(bytes: f64) -> usize {
    usize::from(bytes > L2_BYTES) + usize::from(bytes > L3_BYTES)
}

/// The longest predicted time of a kernel: two weeks. Sums over a step do not overflow.
const LONGEST_NS: u64 = 1 << 50;

/// The time of a call of so many tasks on all threads, from that of its work on one.
pub(crate) fn on_threads(work: f64, tasks: usize, threads: usize) -> u64 {
    // Work done before the other threads wake is not shared.
    let nanoseconds = CALL_NS + work.min(WAKE_NS + work / threads.min(tasks).max(1) as f64);
    (nanoseconds as u64).min(LONGEST_NS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use plimsoll_graph::Op;
    use plimsoll_graph::op::{
        Attention, Conv, Elementwise, Epilogue, Geometry, MatMul, Norm, NormAxis, Unary,
    };
    use plimsoll_plan::{KernelQuery, Target};
    use plimsoll_tensor::TensorType;

    fn microseconds(threads: usize, op: &Op, inputs: &[&str]) -> f64 {
        let inputs: Vec<TensorType> = inputs.iter().map(|t| t.parse().unwrap()).collect();
        let inputs: Vec<&TensorType> = inputs.iter().collect();
        let outputs = op.infer(&inputs).unwrap();
        let outputs = outputs.iter().collect();
        let query = KernelQuery { op, inputs, outputs, accumulate: false, fold_rows: 0, mixed: false };
        CpuTarget::new(Isa::Avx512, threads).kernel(&query).unwrap().nanoseconds as f64 / 1e3
    }

    fn product() -> Op {
        Op::MatMul(MatMul::default())
    }

    fn conv(kernel: usize, groups: usize) -> Op {
        let around = [kernel / 2; 2];
        let geometry =
            Geometry { window: [kernel; 2], stride: [1, 1], padding: [around; 2], dilation: [1, 1] };
        Op::Conv(Conv::Forward { geometry, groups, epilogue: Epilogue::default(), output: None })
    }

    /// What kernels took on one core with AVX-512, in microseconds.
    #[test]
    fn predictions_are_near_what_kernels_took() {
        let check = |op: Op, inputs: &[&str], took: f64| {
            let ratio = microseconds(1, &op, inputs) / took;
            assert!((0.6..1.4).contains(&ratio), "{} {inputs:?}: {ratio:.2} of the time it took", op.name());
        };
        check(product(), &["f32[4096,256]", "f32[256,1024]"], 18_600.0);
        for (rows, took) in [(1, 14.0), (2, 17.0), (4, 19.8), (8, 33.7), (16, 73.5), (32, 132.0)] {
            check(product(), &[&format!("f32[{rows},256]"), "f32[256,1024]"], took);
        }
        for (rows, took) in [(1, 11.4), (2, 14.0), (4, 17.0), (8, 29.7), (16, 55.9), (32, 115.0)] {
            check(product(), &[&format!("f32[{rows},1024]"), "f32[1024,256]"], took);
        }
        let by_columns = Op::MatMul(MatMul { transpose_a: true, ..MatMul::default() });
        for (rows, took) in [(64, 287.0), (128, 548.0), (512, 2_187.0), (2048, 9_100.0)] {
            check(by_columns.clone(), &[&format!("f32[{rows},256]"), &format!("f32[{rows},1024]")], took);
        }
        check(conv(3, 1), &["f32[128,32,32,16]", "f32[3,3,16,16]"], 5_330.0);
        check(conv(3, 1), &["f32[128,8,8,64]", "f32[3,3,64,64]"], 3_830.0);
        check(conv(3, 1), &["f32[2,16,16,1024]", "f32[3,3,1024,512]"], 80_300.0);
        check(conv(1, 1), &["f32[16,64,64,16]", "f32[1,1,16,96]"], 5_140.0);
        check(conv(3, 32), &["f32[16,64,64,32]", "f32[3,3,1,32]"], 1_390.0);
        let attention = Op::Attention(Attention::Forward { causal: true, window: None, masked: false });
        check(attention, &["f32[16,256,4,64]"; 3], 14_700.0);
        let statistics = Op::Norm(Norm::Stats { axis: NormAxis::Channel });
        check(statistics, &["f32[8,64,64,64]"], 727.0);
    }

    #[test]
    fn small_operands_reach_less_and_threads_share_the_work() {
        let per_row = |rows: usize| {
            let x = format!("f32[{rows},512]");
            microseconds(1, &product(), &[&x, "f32[512,512]"]) / rows as f64
        };
        assert!(per_row(1) > 2.0 * per_row(56) && per_row(100) > per_row(1400));
        let tanh = Op::Elementwise(Elementwise::Unary(Unary::Tanh));
        let relu = Op::Elementwise(Elementwise::Unary(Unary::Relu));
        let one = |op: &Op, n: usize| microseconds(1, op, &[&format!("f32[{n}]")]);
        assert!(one(&tanh, 1 << 20) > 1.5 * one(&relu, 1 << 20), "a function costs more than memory");
        assert!(one(&relu, 1 << 24) > 150.0 * one(&relu, 1 << 17), "memory is slower than a cache");
        let on = |threads: usize| microseconds(threads, &product(), &["f32[4096,512]", "f32[512,512]"]);
        assert!((1.9..2.0).contains(&(on(1) / on(2))));
        let alone = |threads: usize| microseconds(threads, &tanh, &["f32[64,64]"]);
        assert_eq!(alone(1), alone(2), "a task is not shared");
    }
}
