//! Helpers of the kernels' tests.

use crate::isa::{Context, Isa};
use crate::threads::Pool;
use plimsoll_tensor::random::Stream;
use plimsoll_testing::or_skip;

/// The instruction sets that this machine has; says which are skipped.
pub(crate) fn isas() -> Vec<Isa> {
    Isa::ALL.into_iter().filter_map(|isa| or_skip(isa.available())).collect()
}

/// Standard normal numbers, the same for the same seed.
pub(crate) fn normal(seed: u64, len: usize) -> Vec<f32> {
    let stream = Stream::new(seed, 0, "kernels");
    (0..len as u64).map(|i| stream.normal(0, i)).collect()
}

/// Numbers in -1..1 with full mantissas, the same for the same seed.
pub(crate) fn uniform(seed: u64, len: usize) -> Vec<f32> {
    let stream = Stream::new(seed, 2, "kernels");
    (0..).flat_map(|block| stream.uniform_block(0, block)).map(|x| 2.0 * x - 1.0).take(len).collect()
}

/// Integers in `0..bound`, the same for the same seed.
pub(crate) fn below(seed: u64, len: usize, bound: usize) -> Vec<i32> {
    let stream = Stream::new(seed, 1, "kernels");
    (0..len as u64).map(|i| stream.below(0, i, bound as u32) as i32).collect()
}

/// Aligned memory of so many bytes, filled with NaN to catch reads of what was never written.
pub(crate) struct Workspace {
    memory: Vec<f32>,
    start: usize,
    floats: usize,
}

impl Workspace {
    pub(crate) fn new(bytes: usize) -> Self {
        assert!(bytes.is_multiple_of(64), "a workspace is whole cache lines");
        let memory = vec![f32::NAN; bytes / 4 + 16];
        let start = memory.as_ptr().align_offset(64);
        Self { memory, start, floats: bytes / 4 }
    }

    pub(crate) fn get(&mut self) -> &mut [f32] {
        &mut self.memory[self.start..][..self.floats]
    }
}

/// Calls `f` with a workspace of exactly so many bytes.
pub(crate) fn with_workspace<R>(bytes: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    f(Workspace::new(bytes).get())
}

/// Runs a kernel on every instruction set with several numbers of threads, demands the same bits of all numbers of
/// threads, and returns the results, one for each instruction set.
pub(crate) fn on_all(run: impl Fn(Context<'_>) -> Vec<f32>) -> Vec<Vec<f32>> {
    let pools = [1, 2, 3, 7].map(|threads| Pool::new(threads).expect("threads start"));
    let of = |isa| {
        let results = pools.each_ref().map(|pool| run(Context { pool, isa }));
        for (result, pool) in results[1..].iter().zip(&pools[1..]) {
            assert_bits(result, &results[0], &format!("{} threads, {isa:?}", pool.threads()));
        }
        let [first, ..] = results;
        first
    };
    isas().into_iter().map(of).collect()
}

/// Demands equal bits.
pub(crate) fn assert_bits(found: &[f32], wanted: &[f32], what: &str) {
    assert_eq!(found.len(), wanted.len(), "{what}");
    for (i, (a, b)) in found.iter().zip(wanted).enumerate() {
        assert!(
            a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(),
            "{what}: element {i} is {a:e}, not {b:e}"
        );
    }
}

/// Demands that results are near exact ones, relative to the larger of their magnitude and `scale`.
pub(crate) fn assert_near(found: &[f32], exact: &[f64], scale: f64, tolerance: f64, what: &str) {
    assert_eq!(found.len(), exact.len(), "{what}");
    for (i, (&a, &b)) in found.iter().zip(exact).enumerate() {
        let (error, bound) = ((f64::from(a) - b).abs(), tolerance * b.abs().max(scale));
        assert!(
            error <= bound,
            "{what}: element {i} is {a:e}, not {b:e} (off by {error:e}, allowed {bound:e})"
        );
    }
}

/// Demands that sums of `terms` terms of about one are near exact ones.
pub(crate) fn assert_near_sums(found: &[f32], exact: &[f64], terms: usize, what: &str) {
    assert_eq!(found.len(), exact.len(), "{what}");
    let tolerance = 1e-6 * (4.0 + terms as f64);
    for (i, (&a, &b)) in found.iter().zip(exact).enumerate() {
        assert!((f64::from(a) - b).abs() <= tolerance, "{what}: element {i} is {a}, not {b}");
    }
}

/// Each as its bits, so that zeros and NaNs compare exactly.
pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}
