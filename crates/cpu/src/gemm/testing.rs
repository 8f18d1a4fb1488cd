//! What the tests of kernels share.

use crate::isa::Isa;

/// Every instruction set of this machine.
pub(crate) fn isas() -> impl Iterator<Item = Isa> {
    [Isa::Portable, Isa::Avx2, Isa::Avx512].into_iter().filter(|&isa| isa <= Isa::detect())
}

/// Values in -1..1 with full mantissas, the same for the same seed.
pub(crate) fn random(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// Calls `f` with an aligned workspace of exactly so many bytes, full of NaN: a kernel must not read what it
/// has not written.
pub(crate) fn with_workspace<R>(bytes: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    assert!(bytes.is_multiple_of(64));
    let mut space = vec![f32::NAN; bytes / 4 + 16];
    let start = space.as_ptr().align_offset(64);
    f(&mut space[start..start + bytes / 4])
}

/// Each as its bits, so that zeros and NaNs compare exactly.
pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Asserts that all values are near the expected ones, for sums of `terms` terms of about one.
pub(crate) fn assert_near(got: &[f32], expected: &[f64], terms: usize, what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let tolerance = 1e-6 * (4.0 + terms as f64);
    for (i, (&got, &expected)) in got.iter().zip(expected).enumerate() {
        assert!(
            (f64::from(got) - expected).abs() <= tolerance,
            "{what}: element {i} is {got}, not {expected}"
        );
    }
}
