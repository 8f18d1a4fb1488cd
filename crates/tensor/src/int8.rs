//! Integer arithmetic of quantised layers, as TFLite defines it.

/// A sum times a fixed-point factor, `multiplier · 2^(shift - 31)`, rounded to the nearest, half up. The multiplier is at least zero,
/// the shift at most 30 and at least -31.
///
/// ```
/// use plimsoll_tensor::fixed_point;
/// assert_eq!(fixed_point(1000, 1 << 30, 0), 500);
/// assert_eq!((fixed_point(3, 1 << 30, 0), fixed_point(-3, 1 << 30, 0)), (2, -1));
/// ```
pub fn fixed_point(sum: i32, multiplier: i32, shift: i32) -> i32 {
    let bits = 31 - shift.clamp(-31, 30);
    let product = i64::from(sum) * i64::from(multiplier);
    ((product + (1 << (bits - 1))) >> bits).clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32
}

/// The multiplier and the shift of a factor at or above zero, for [`fixed_point`].
///
/// ```
/// use plimsoll_tensor::{fixed_point, fixed_point_of};
/// assert_eq!(fixed_point_of(0.5), (1 << 30, 0));
/// let (multiplier, shift) = fixed_point_of(0.0123);
/// assert_eq!(fixed_point(100_000, multiplier, shift), 1230);
/// ```
pub fn fixed_point_of(factor: f64) -> (i32, i32) {
    if !(factor > 0.0 && factor.is_finite()) {
        return (0, 0);
    }
    // `factor = fraction · 2^shift` with a fraction from a half to one.
    let mut shift = factor.log2().floor() as i32 + 1;
    let mut fraction = (factor * 2f64.powi(-shift) * 2f64.powi(31)).round();
    if fraction >= 2f64.powi(31) {
        (fraction, shift) = (fraction / 2.0, shift + 1);
    }
    match shift {
        ..-31 => (0, 0),
        31.. => (i32::MAX, 30),
        _ => (fraction as i32, shift),
    }
}

/// The code of a number on a grid: `number / scale + zero`, rounded half to even, within a byte. NaN is the code of zero.
pub fn grid_code(number: f32, scale: f32, zero: u8) -> u8 {
    let code = (number / scale).round_ties_even() + f32::from(zero);
    if code.is_nan() { zero } else { code as u8 }
}

/// The distance between two codes of a sigmoid, whose code of zero is 0: its grid is the same whatever it is of.
pub const SIGMOID_SCALE: f32 = 1.0 / 256.0;

/// The code of the sigmoid of each code of a grid, as TFLite's tables have them.
///
/// ```
/// use plimsoll_tensor::sigmoid_codes;
/// let codes = sigmoid_codes(0.1, 128);
/// assert_eq!((codes[0], codes[128], codes[255]), (0, 128, 255));
/// ```
pub fn sigmoid_codes(scale: f32, zero: u8) -> [u8; 256] {
    std::array::from_fn(|code| {
        let x = f64::from(scale) * (code as f64 - f64::from(zero));
        ((1.0 + (-x).exp()).recip() / f64::from(SIGMOID_SCALE)).round() as u8
    })
}
