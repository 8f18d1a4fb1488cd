//! Rounding f64 results to element types.

use crate::{DType, bf16, f16};

/// Rounds to an element type: floats to nearest even, integers towards zero and saturating, NaN to integer zero.
pub fn round(x: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F64 => x,
        DType::F32 => f64::from(x as f32),
        DType::BF16 => bf16::from_f32(narrow(x)).to_f64(),
        DType::F16 => f16::from_f32(narrow(x)).to_f64(),
        DType::I32 => f64::from(x as i32),
        DType::I64 => x as i64 as f64,
        DType::U8 => f64::from(x as u8),
        DType::Bool => f64::from(u8::from(x != 0.0)),
    }
}

/// Rounds to odd, so that rounding the result to a 16-bit float is the same as rounding `x` to it directly: no value
/// lands on a tie, or leaves one.
pub(crate) fn narrow(x: f64) -> f32 {
    let nearest = x as f32;
    if f64::from(nearest) == x || !nearest.is_finite() || nearest.to_bits() & 1 == 1 {
        return nearest;
    }
    // x lies between two neighbours; the nearest is even, so the other one is odd.
    if (f64::from(nearest) < x) == (x > 0.0) {
        f32::from_bits(nearest.to_bits() + 1)
    } else {
        f32::from_bits(nearest.to_bits() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hair_above_a_tie_rounds_up_in_16_bit_floats() {
        let hair = f64::EPSILON;
        for (dtype, ulp) in [(DType::BF16, 2f64.powi(-7)), (DType::F16, 2f64.powi(-10))] {
            assert_eq!(round(1.0 + ulp / 2.0, dtype), 1.0);
            assert_eq!(round(1.0 + ulp / 2.0 + hair, dtype), 1.0 + ulp);
            assert_eq!(round(1.0 + ulp * 1.5 - hair, dtype), 1.0 + ulp);
            assert_eq!(round(-1.0 - ulp / 2.0 - hair, dtype), -1.0 - ulp);
        }
    }

    #[test]
    fn integers_truncate_and_saturate() {
        assert_eq!(round(-2.9, DType::I32), -2.0);
        assert_eq!(round(3e9, DType::I32), f64::from(i32::MAX));
        assert_eq!(round(-1.0, DType::U8), 0.0);
        assert_eq!(round(f64::NAN, DType::I64), 0.0);
    }

    #[test]
    fn overflow_becomes_infinite_and_underflow_zero() {
        assert_eq!(round(1e300, DType::BF16), f64::INFINITY);
        assert_eq!(round(-7e4, DType::F16), f64::NEG_INFINITY);
        assert_eq!(round(1e-300, DType::BF16), 0.0);
        assert!(round(f64::NAN, DType::F16).is_nan());
    }
}
