//! The loops of conversions: casts, rounding, and between the forms of elements in memory and in registers.

use super::loops::{Arg, fill, map};
use super::number::{Class, Number, to_bf16_bits};
use crate::kernels::float::Float;
use crate::kernels::math::simd_fn;
use plimsoll_tensor::{DType, f16};

simd_fn! {
    /// # Safety
    ///
    /// As for [`map`].
    pub(super) unsafe fn cast_f32(isa: Isa, to: DType, len: usize, target: *mut u8, x: *const f32) {
        // SAFETY: the caller's contract.
        unsafe { cast::<f32>(to, len, target, x) }
    }
}

/// As [`binary_of`](super::loops::binary_of).
///
/// # Safety
///
/// As for [`map`].
#[inline(never)]
pub(super) unsafe fn cast_of(from: Class, to: DType, len: usize, target: *mut u8, x: Arg<u8>) {
    // SAFETY: the caller's contract.
    unsafe {
        match from {
            Class::F32 => cast::<f32>(to, len, target, x.of().ptr),
            Class::F64 => cast::<f64>(to, len, target, x.of().ptr),
            Class::I32 => cast::<i32>(to, len, target, x.of().ptr),
            Class::I64 => cast::<i64>(to, len, target, x.of().ptr),
        }
    }
}

/// # Safety
///
/// As for [`map`].
#[inline(always)]
unsafe fn cast<T: Number>(to: DType, len: usize, target: *mut u8, x: *const T) {
    // SAFETY: the caller's contract.
    unsafe {
        match to {
            DType::F32 => map(len, target.cast(), x, T::to_f32),
            DType::BF16 => map(len, target.cast(), x, T::to_bf16),
            DType::F16 => map(len, target.cast(), x, T::to_f16),
            DType::F64 => map(len, target.cast(), x, T::to_f64),
            DType::I32 => map(len, target.cast(), x, T::to_i32),
            DType::I64 => map(len, target.cast(), x, T::to_i64),
            DType::U8 => map(len, target.cast(), x, |x: T| i32::from(x.to_u8())),
            DType::Bool => map(len, target.cast(), x, |x: T| if x.is_true() { 1.0f32 } else { 0.0 }),
        }
    }
}

simd_fn! {
    /// # Safety
    ///
    /// As for [`map`].
    pub(super) unsafe fn round(isa: Isa, dtype: DType, len: usize, target: *mut u8) {
        let (float, integer) = (target.cast::<f32>(), target.cast::<i32>());
        // SAFETY: the caller's contract.
        unsafe {
            match dtype {
                DType::BF16 => map(len, float, float, f32::to_bf16),
                DType::F16 => map(len, float, float, f32::to_f16),
                DType::U8 => map(len, integer, integer, |x: i32| x.clamp(0, 255)),
                _ => {}
            }
        }
    }
}

simd_fn! {
    /// Reads elements from memory into a register, or broadcasts one.
    ///
    /// # Safety
    ///
    /// As for [`map`].
    pub(super) unsafe fn fetch(isa: Isa, dtype: DType, len: usize, target: *mut u8, from: *const u8, repeat: bool) {
        /// # Safety
        ///
        /// As for [`map`].
        #[inline(always)]
        unsafe fn convert<M: Copy, R: Copy>(
            len: usize, target: *mut u8, from: *const u8, repeat: bool, f: impl Fn(M) -> R,
        ) {
            let (target, from) = (target.cast::<R>(), from.cast::<M>());
            // SAFETY: the caller's contract.
            unsafe {
                if repeat {
                    let value = f(*from);
                    fill(len, target, |_| value);
                } else {
                    map(len, target, from, f);
                }
            }
        }
        // SAFETY: the caller's contract.
        unsafe {
            match dtype {
                DType::F32 | DType::I32 => convert(len, target, from, repeat, |x: u32| x),
                DType::F64 | DType::I64 => convert(len, target, from, repeat, |x: u64| x),
                DType::BF16 => convert(len, target, from, repeat, |x: u16| f32::from_bits(u32::from(x) << 16)),
                DType::F16 => convert(len, target, from, repeat, |x: f16| x.widen()),
                DType::U8 => convert(len, target, from, repeat, |x: u8| i32::from(x)),
                DType::Bool => convert(len, target, from, repeat, |x: u8| if x != 0 { 1.0f32 } else { 0.0 }),
            }
        }
    }
}

simd_fn! {
    /// Writes a register to memory.
    ///
    /// # Safety
    ///
    /// As for [`map`].
    pub(super) unsafe fn store(isa: Isa, dtype: DType, len: usize, target: *mut u8, from: Arg<u8>) {
        /// # Safety
        ///
        /// As for [`map`].
        #[inline(always)]
        unsafe fn convert<T: Copy, M: Copy>(len: usize, target: *mut u8, from: Arg<u8>, f: impl Fn(T) -> M) {
            let target = target.cast::<M>();
            // SAFETY: the caller's contract.
            unsafe {
                if from.scalar {
                    let value = f(*from.ptr.cast::<T>());
                    fill(len, target, |_| value);
                } else {
                    map(len, target, from.ptr.cast::<T>(), f);
                }
            }
        }
        // SAFETY: the caller's contract.
        unsafe {
            match dtype {
                DType::F32 | DType::I32 => convert(len, target, from, |x: u32| x),
                DType::F64 | DType::I64 => convert(len, target, from, |x: u64| x),
                DType::BF16 => convert(len, target, from, to_bf16_bits),
                DType::F16 => convert(len, target, from, f16::narrow),
                DType::U8 => convert(len, target, from, |x: i32| x as u8),
                DType::Bool => convert(len, target, from, |x: f32| u8::from(x != 0.0)),
            }
        }
    }
}
