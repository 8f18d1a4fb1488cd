//! The element types of registers, and their arithmetic.

use crate::kernels::float::Float;
use plimsoll_tensor::{DType, bf16, f16};

/// The type of a register's elements. Narrower types are held exactly; truth values are 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// f32, bf16, f16 and truth values.
    F32,
    F64,
    /// i32 and u8.
    I32,
    I64,
}

impl Class {
    pub(super) fn of(dtype: DType) -> Self {
        match dtype {
            DType::F32 | DType::BF16 | DType::F16 | DType::Bool => Self::F32,
            DType::F64 => Self::F64,
            DType::I32 | DType::U8 => Self::I32,
            DType::I64 => Self::I64,
        }
    }

    pub(super) fn bytes(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F64 | Self::I64 => 8,
        }
    }
}

/// Whether elements of this type have the same form in memory and in registers.
pub(super) fn is_register_type(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64 | DType::I32 | DType::I64)
}

/// A constant, rounded to its type, as a register of its class holds it.
pub(super) fn constant_bytes(value: f64, dtype: DType) -> [u8; 8] {
    let narrow = |bytes: [u8; 4]| {
        let mut all = [0; 8];
        all[..4].copy_from_slice(&bytes);
        all
    };
    match dtype {
        DType::F32 => narrow((value as f32).to_ne_bytes()),
        DType::BF16 | DType::F16 => narrow(rounded(value, dtype).to_ne_bytes()),
        DType::Bool => narrow(f32::from(u8::from(value != 0.0)).to_ne_bytes()),
        DType::I32 => narrow((value as i32).to_ne_bytes()),
        DType::U8 => narrow(i32::from(value as u8).to_ne_bytes()),
        DType::F64 => value.to_ne_bytes(),
        DType::I64 => (value as i64).to_ne_bytes(),
    }
}

/// Rounds to a 16-bit float in one step: through f32 a value could be rounded onto a tie.
fn rounded(x: f64, dtype: DType) -> f32 {
    plimsoll_tensor::round(x, dtype) as f32
}

/// Rounds to bf16: to nearest, ties to even; NaN stays NaN.
#[inline(always)]
pub(super) fn round_bf16(x: f32) -> f32 {
    bf16::narrow(x).widen()
}

/// The bits of the nearest bf16.
#[inline(always)]
pub(super) fn to_bf16_bits(x: f32) -> u16 {
    bf16::narrow(x).to_bits()
}

/// Arithmetic of a class.
pub(super) trait Number: Copy {
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
    /// Floats alone, by the type rule.
    fn pow(self, other: Self) -> Self;
    fn greater(self, other: Self) -> bool;
    fn greater_equal(self, other: Self) -> bool;
    fn equal(self, other: Self) -> bool;

    fn to_f32(self) -> f32;
    fn to_f64(self) -> f64;
    fn to_i32(self) -> i32;
    fn to_i64(self) -> i64;
    fn to_u8(self) -> u8;
    fn is_true(self) -> bool;
    /// Rounded once, never through f32.
    fn to_bf16(self) -> f32;
    fn to_f16(self) -> f32;
}

macro_rules! conversions {
    ($zero:literal) => {
        #[inline(always)]
        fn to_f32(self) -> f32 {
            self as f32
        }
        #[inline(always)]
        fn to_f64(self) -> f64 {
            self as f64
        }
        #[inline(always)]
        fn to_i64(self) -> i64 {
            self as i64
        }
        #[inline(always)]
        fn is_true(self) -> bool {
            self != $zero
        }
    };
}

macro_rules! float {
    ($ty:ty, $round_bf16:expr, $round_f16:expr) => {
        impl Number for $ty {
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                self - other
            }
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            fn div(self, other: Self) -> Self {
                self / other
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                if self > other || self.is_nan() { self } else { other }
            }
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                if self < other || self.is_nan() { self } else { other }
            }
            #[inline(always)]
            fn pow(self, other: Self) -> Self {
                self.powf(other)
            }
            #[inline(always)]
            fn greater(self, other: Self) -> bool {
                self > other
            }
            #[inline(always)]
            fn greater_equal(self, other: Self) -> bool {
                self >= other
            }
            #[inline(always)]
            fn equal(self, other: Self) -> bool {
                self == other
            }
            #[inline(always)]
            fn to_bf16(self) -> f32 {
                $round_bf16(self)
            }
            #[inline(always)]
            fn to_f16(self) -> f32 {
                $round_f16(self)
            }
            #[inline(always)]
            fn to_i32(self) -> i32 {
                self as i32
            }
            #[inline(always)]
            fn to_u8(self) -> u8 {
                self as u8
            }
            conversions!(0.0);
        }
    };
}
float!(f32, round_bf16, |x| f16::narrow(x).widen());
float!(f64, |x| rounded(x, DType::BF16), |x| rounded(x, DType::F16));

macro_rules! integer {
    ($ty:ty) => {
        /// Saturating; a quotient by zero is the end of the range, 0 / 0 is 0.
        impl Number for $ty {
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.saturating_add(other)
            }
            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                self.saturating_sub(other)
            }
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self.saturating_mul(other)
            }
            #[inline(always)]
            fn div(self, other: Self) -> Self {
                match other {
                    0 => self.signum().saturating_mul(Self::MAX).saturating_sub(Self::from(self < 0)),
                    _ => self.saturating_div(other),
                }
            }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                Ord::max(self, other)
            }
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                Ord::min(self, other)
            }
            #[inline(always)]
            fn pow(self, other: Self) -> Self {
                self.saturating_pow(other as u32)
            }
            #[inline(always)]
            fn greater(self, other: Self) -> bool {
                self > other
            }
            #[inline(always)]
            fn greater_equal(self, other: Self) -> bool {
                self >= other
            }
            #[inline(always)]
            fn equal(self, other: Self) -> bool {
                self == other
            }
            #[inline(always)]
            fn to_bf16(self) -> f32 {
                rounded(self as f64, DType::BF16)
            }
            #[inline(always)]
            fn to_f16(self) -> f32 {
                rounded(self as f64, DType::F16)
            }
            #[inline(always)]
            fn to_i32(self) -> i32 {
                self.clamp(i32::MIN as Self, i32::MAX as Self) as i32
            }
            #[inline(always)]
            fn to_u8(self) -> u8 {
                self.clamp(0, 255) as u8
            }
            conversions!(0);
        }
    };
}
integer!(i32);
integer!(i64);

/// The error function in f64: its Taylor series around e^-x², whose terms are all positive.
pub(super) fn erf_f64(x: f64) -> f64 {
    let magnitude = x.abs();
    if magnitude.is_nan() || magnitude > 6.0 {
        return if x.is_nan() { x } else { 1f64.copysign(x) };
    }
    let (mut term, mut sum, mut n) = (magnitude, magnitude, 1.0);
    while term > sum * 1e-17 {
        n += 2.0;
        term *= 2.0 * magnitude * magnitude / n;
        sum += term;
    }
    (std::f64::consts::FRAC_2_SQRT_PI * (-magnitude * magnitude).exp() * sum).copysign(x)
}
