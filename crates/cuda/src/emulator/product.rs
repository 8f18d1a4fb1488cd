//! Matrix products as plain loops.

use crate::{Matrix, Product};
use plimsoll_tensor::{DType, bf16, f16};

/// The first elements of a product's matrices.
pub(super) struct Starts {
    pub a: *const u8,
    pub b: *const u8,
    pub c: *mut u8,
    /// If there is one.
    pub bias: *const u8,
}

/// Computes products. Sums are f32 and rounded once as they are stored; f64 of f64.
///
/// # Safety
/// The matrices are valid for the product's sizes, and C overlaps neither factor.
pub(super) unsafe fn run(product: &Product, starts: &Starts) {
    let Product { m, n, k, a, b, c, accumulate, count, bias, tf32 } = *product;
    let wide = a.dtype == DType::F64;
    for p in 0..count {
        for i in 0..m {
            for j in 0..n {
                let at = c.place(p, i, j);
                // SAFETY: inside the matrices, by the caller's promise.
                let value = |r: usize| unsafe {
                    (load(a.dtype, starts.a, a.place(p, i, r)), load(b.dtype, starts.b, b.place(p, r, j)))
                };
                let rounded = |x: f64| if tf32 { f64::from(to_tf32(x as f32)) } else { x };
                let mut sum: f64 = 0.0;
                for (a, b) in (0..k).map(value).map(|(a, b)| (rounded(a), rounded(b))) {
                    sum =
                        if wide { sum + a * b } else { f64::from((a as f32).mul_add(b as f32, sum as f32)) };
                }
                if accumulate {
                    // SAFETY: as above.
                    let before = unsafe { load(c.dtype, starts.c, at) };
                    sum = if wide { before + sum } else { f64::from(before as f32 + sum as f32) };
                }
                if bias.is_some() {
                    // SAFETY: as above.
                    let bias = unsafe { load(c.dtype, starts.bias, j) };
                    sum = if wide { sum + bias } else { f64::from(sum as f32 + bias as f32) };
                }
                // SAFETY: as above.
                unsafe { store(c.dtype, starts.c, at, sum) };
            }
        }
    }
}

/// The nearest number with 10 bits behind the binary point; of two, the larger in magnitude.
fn to_tf32(x: f32) -> f32 {
    const DROPPED: u32 = 13;
    let half = 1 << (DROPPED - 1);
    if x.is_finite() { f32::from_bits((x.to_bits() + half) >> DROPPED << DROPPED) } else { x }
}

impl Matrix {
    /// The place of an element, in elements after the start.
    fn place(&self, product: usize, row: usize, column: usize) -> usize {
        let (row, column) = if self.transposed { (column, row) } else { (row, column) };
        product * self.stride + row * self.row_stride + column
    }
}

/// # Safety
/// There is an element of this type at that place.
unsafe fn load(dtype: DType, start: *const u8, at: usize) -> f64 {
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            DType::F32 => f64::from(*start.cast::<f32>().add(at)),
            DType::BF16 => f64::from(*start.cast::<bf16>().add(at)),
            DType::F16 => f64::from(*start.cast::<f16>().add(at)),
            DType::F64 => *start.cast::<f64>().add(at),
            DType::I32 | DType::I64 | DType::U8 | DType::Bool => f64::NAN,
        }
    }
}

/// # Safety
/// There is an element of this type at that place.
unsafe fn store(dtype: DType, start: *mut u8, at: usize, value: f64) {
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            DType::F32 => *start.cast::<f32>().add(at) = value as f32,
            DType::BF16 => *start.cast::<bf16>().add(at) = bf16::from_f32(value as f32),
            DType::F16 => *start.cast::<f16>().add(at) = f16::from_f32(value as f32),
            DType::F64 => *start.cast::<f64>().add(at) = value,
            DType::I32 | DType::I64 | DType::U8 | DType::Bool => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::to_tf32;

    #[test]
    fn numbers_are_rounded_to_the_nearest_of_tf32() {
        let ulp = 2_f32.powi(-10);
        for (x, expected) in [
            (0.0, 0.0),
            (1.0 + ulp, 1.0 + ulp),
            (1.0 + 0.49 * ulp, 1.0),
            (1.0 + 0.5 * ulp, 1.0 + ulp),
            (-1.0 - 0.5 * ulp, -1.0 - ulp),
            (2.0 - 0.25 * ulp, 2.0),
            (f32::MAX, f32::INFINITY),
            (f32::INFINITY, f32::INFINITY),
        ] {
            assert_eq!(to_tf32(x), expected, "{x}");
        }
        assert!(to_tf32(f32::NAN).is_nan());
    }
}
