//! Storage types of floats: f32, and the 16-bit ones that kernels widen as they read and round as they write.
//!
//! Conversions are integer arithmetic without branches, so that loops over them are vector code, and their results do not
//! depend on the instruction set.

use crate::kernels::math::simd_fn;
use plimsoll_tensor::{DType, bf16, f16};

/// A storage type of floats.
///
/// # Safety
///
/// Kernels see memory that holds elements of [`Float::DTYPE`] as values of the type, and values of a type that is not
/// [`Float::LOW`] as f32: it must be as large and as aligned as that element, every bit pattern must be a value of it, and
/// only f32 may be not low.
pub unsafe trait Float: Copy + Send + Sync + PartialEq + std::fmt::Debug + 'static {
    /// Its element type.
    const DTYPE: DType;
    /// Whether it holds fewer bits than f32.
    const LOW: bool = Self::DTYPE.is_low();
    /// Zero.
    const ZERO: Self;
    /// The same number in f32.
    fn widen(self) -> f32;
    /// The nearest number, ties to even; NaN stays NaN.
    fn narrow(x: f32) -> Self;
}

// SAFETY: it is the element type that `DTYPE` names, and every bit pattern is a number or NaN.
unsafe impl Float for f32 {
    const DTYPE: DType = DType::F32;
    const ZERO: Self = 0.0;

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    fn narrow(x: f32) -> Self {
        x
    }
}

// SAFETY: it is the element type that `DTYPE` names, and every bit pattern is a number or NaN.
unsafe impl Float for bf16 {
    const DTYPE: DType = DType::BF16;
    const ZERO: Self = Self::ZERO;

    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn narrow(x: f32) -> Self {
        let bits = x.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
        let quiet = bits | 0x0040_0000;
        Self::from_bits(((if x.is_nan() { quiet } else { rounded }) >> 16) as u16)
    }
}

// SAFETY: it is the element type that `DTYPE` names, and every bit pattern is a number or NaN.
unsafe impl Float for f16 {
    const DTYPE: DType = DType::F16;
    const ZERO: Self = Self::ZERO;

    #[inline(always)]
    fn widen(self) -> f32 {
        let bits = u32::from(self.to_bits());
        let (sign, magnitude) = ((bits & 0x8000) << 16, bits & 0x7fff);
        // Shifts exponent and fraction and corrects the exponent's bias: exact, also for subnormal numbers. Infinity and
        // NaN have the largest exponent in both.
        let number = f32::from_bits(magnitude << 13) * f32::from_bits(0x7780_0000);
        let extreme = 0x7f80_0000 | magnitude << 13;
        let wide = if magnitude >= 0x7c00 { extreme } else { number.to_bits() };
        f32::from_bits(sign | wide)
    }

    #[inline(always)]
    fn narrow(x: f32) -> Self {
        let bits = x.to_bits();
        let (sign, magnitude) = (bits & 0x8000_0000, bits & 0x7fff_ffff);
        // A subnormal result: adding 0.5 leaves its bits at the end of the fraction, rounded by the addition.
        let small = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
        let odd = (magnitude >> 13) & 1;
        let normal = magnitude.wrapping_sub(0x3800_0000).wrapping_add(0x0fff + odd) >> 13;
        let nan = 0x7e00 | (magnitude >> 13 & 0x1ff);
        let finite = if magnitude < 0x3880_0000 { small } else { normal };
        // Rounding up past the largest number carries into infinity's exponent; everything beyond is infinity.
        let bounded = if magnitude >= 0x4780_0000 { 0x7c00 } else { finite };
        let narrow = if magnitude > 0x7f80_0000 { nan } else { bounded };
        Self::from_bits((sign >> 16 | narrow) as u16)
    }
}

simd_fn! {
    /// Widens elements, as many as the shorter slice has.
    pub(crate) fn widen<T: Float>(isa: Isa, from: &[T], to: &mut [f32]) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = from.widen());
    }
}

simd_fn! {
    /// Rounds elements, as many as the shorter slice has.
    pub(crate) fn narrow<T: Float>(isa: Isa, from: &[f32], to: &mut [T]) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = T::narrow(*from));
    }
}

/// A kernel for a float type: `$T` is that type in `$body`. Of two types, the second is the first or f32.
macro_rules! with_float {
    (($dtype:expr, $other:expr), ($T:ident, $U:ident) => $body:expr) => {{
        let same = $dtype == $other;
        with_float!($dtype, $T => {
            if same {
                type $U = $T;
                $body
            } else if $other == plimsoll_tensor::DType::F32 {
                type $U = f32;
                $body
            } else {
                None
            }
        })
    }};
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            plimsoll_tensor::DType::F32 => {
                type $T = f32;
                $body
            }
            plimsoll_tensor::DType::BF16 => {
                type $T = plimsoll_tensor::bf16;
                $body
            }
            plimsoll_tensor::DType::F16 => {
                type $T = plimsoll_tensor::f16;
                $body
            }
            _ => None,
        }
    };
}
pub(crate) use with_float;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_16_bit_float_widens_as_half_has_it() {
        for bits in 0..=u16::MAX {
            let (a, b) = (f16::from_bits(bits), bf16::from_bits(bits));
            let same = |x: f32, y: f32| x.to_bits() == y.to_bits() || (x.is_nan() && y.is_nan());
            assert!(same(a.widen(), a.to_f32()), "{a:?}");
            assert!(same(b.widen(), b.to_f32()), "{b:?}");
            assert!(a.is_nan() || f16::narrow(a.widen()) == a);
            assert!(b.is_nan() || bf16::narrow(b.widen()) == b);
        }
    }

    #[test]
    fn rounding_is_to_nearest_even() {
        // Every exponent with fractions around every kind of tie.
        for high in 0..=u16::MAX {
            for low in [0, 1, 0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x7fff, 0x8000, 0x8001, 0xf000, 0xffff]
            {
                let x = f32::from_bits(u32::from(high) << 16 | low);
                let (a, b) = (f16::narrow(x), bf16::narrow(x));
                assert!(
                    a.to_bits() == f16::from_f32(x).to_bits() || x.is_nan() && a.is_nan(),
                    "{x:e}: {a:?}"
                );
                assert!(
                    b.to_bits() == bf16::from_f32(x).to_bits() || x.is_nan() && b.is_nan(),
                    "{x:e}: {b:?}"
                );
            }
        }
    }
}
