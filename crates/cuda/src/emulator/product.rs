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
    let Product { m, n, k, a, b, c, accumulate, count, bias } = *product;
    let wide = a.dtype == DType::F64;
    for p in 0..count {
        for i in 0..m {
            for j in 0..n {
                let at = c.place(p, i, j);
                // SAFETY: inside the matrices, by the caller's promise.
                let value = |r: usize| unsafe {
                    (load(a.dtype, starts.a, a.place(p, i, r)), load(b.dtype, starts.b, b.place(p, r, j)))
                };
                let mut sum: f64 = 0.0;
                for (a, b) in (0..k).map(value) {
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
