//! Elementary functions of f32 without branches, so that loops over them become vector code.
//!
//! `FMA` says whether a fused multiply-add is an instruction. Where it is not, a multiplication and an addition stand
//! in for it: the bits differ, within the same bounds.

#![allow(clippy::excessive_precision, reason = "coefficients stand as they were published")]

use std::f32::consts::{FRAC_1_SQRT_2, LOG2_E};

/// ln 2 in two parts: the first has so few bits that its product with an exponent is exact.
const LN2_HIGH: f32 = 0.693_359_375;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// 1.5 · 2^23: adding it rounds to an integer, which is then in the low bits.
const ROUND: f32 = 12_582_912.0;

/// `a · b + c`, in one rounding if the instruction exists.
#[inline(always)]
fn fma<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// A polynomial by Horner's rule, coefficients from the highest power down.
#[inline(always)]
fn polynomial<const FMA: bool, const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    let mut sum = coefficients[0];
    for c in &coefficients[1..] {
        sum = fma::<FMA>(sum, x, *c);
    }
    sum
}

/// 2^n for a normal result.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// e^x as a number and n, by whose power of two it is to be multiplied.
#[inline(always)]
fn exp_parts<const FMA: bool>(x: f32) -> (f32, i32) {
    let rounded = fma::<FMA>(x, LOG2_E, ROUND);
    let n = (rounded.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let whole = rounded - ROUND;
    let r = fma::<FMA>(whole, -LN2_LOW, fma::<FMA>(whole, -LN2_HIGH, x));
    // Cephes' minimax polynomial of (e^r - 1 - r) / r² over |r| <= ln 2 / 2.
    let tail = polynomial::<FMA, 6>(
        r,
        [1.987_569_2e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5.000_000_1e-1],
    );
    (fma::<FMA>(tail, r * r, r) + 1.0, n)
}

/// The product of the parts in two steps: 2^n itself may be subnormal or infinite.
#[inline(always)]
fn scaled((power, n): (f32, i32)) -> f32 {
    let half = n >> 1;
    power * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

/// e^x, within 2 ulp; results below the normal numbers are rounded once more.
#[inline(always)]
pub fn exp<const FMA: bool>(x: f32) -> f32 {
    // Comparisons are false for NaN, which so passes through. Beyond the bounds the result is 0 or infinite.
    let x = if x > 89.0 { 89.0 } else { x };
    scaled(exp_parts::<FMA>(if x < -104.0 { -104.0 } else { x }))
}

/// The natural logarithm, within 2 ulp; -infinity at 0, NaN below.
#[inline(always)]
pub fn ln<const FMA: bool>(x: f32) -> f32 {
    let tiny = x < f32::MIN_POSITIVE;
    let scaled = if tiny { x * 8_388_608.0 } else { x };
    let bits = (scaled.to_bits() as i32).wrapping_sub(FRAC_1_SQRT_2.to_bits() as i32);
    let e = (bits >> 23) as f32 - if tiny { 23.0 } else { 0.0 };
    // The mantissa between √½ and √2, less one.
    let m = f32::from_bits(((bits & 0x007f_ffff) + FRAC_1_SQRT_2.to_bits() as i32) as u32) - 1.0;
    let square = m * m;
    // Cephes' minimax polynomial of (ln(1 + m) - m + m² / 2) / m³.
    let p = polynomial::<FMA, 9>(
        m,
        [
            7.037_683_6e-2,
            -1.151_461e-1,
            1.167_699_9e-1,
            -1.242_014_1e-1,
            1.424_932_3e-1,
            -1.666_805_8e-1,
            2.000_071_5e-1,
            -2.499_999_4e-1,
            3.333_333_1e-1,
        ],
    );
    let tail = fma::<FMA>(e, LN2_LOW, p * (square * m));
    let result = fma::<FMA>(e, LN2_HIGH, m + fma::<FMA>(-0.5, square, tail));
    let result = if x < f32::INFINITY { result } else { x };
    let result = if x == 0.0 { f32::NEG_INFINITY } else { result };
    if x < 0.0 { f32::NAN } else { result }
}

/// The hyperbolic tangent, within 4 ulp.
#[inline(always)]
pub fn tanh<const FMA: bool>(x: f32) -> f32 {
    let magnitude = x.abs();
    let square = x * x;
    // Cephes' minimax polynomial below 0.625, where the other form cancels.
    let p = polynomial::<FMA, 5>(
        square,
        [-5.704_988_7e-3, 2.063_908_9e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328_2e-1],
    );
    let near = fma::<FMA>(p * square, x, x);
    // From 40 on the quotient is lost beside 1, and up to there 2^n is a normal number.
    let double = 2.0 * magnitude;
    let (power, n) = exp_parts::<FMA>(if double > 40.0 { 40.0 } else { double });
    let far = 1.0 - 2.0 / (power * power_of_two(n) + 1.0);
    (if magnitude < 0.625 { near } else { far }).copysign(x)
}

/// 1 / (1 + e^-x), within 4 ulp.
#[inline(always)]
pub fn sigmoid<const FMA: bool>(x: f32) -> f32 {
    // From e^-|x|, which cannot overflow: the negative half keeps its small results.
    let below = -x.abs();
    let e = scaled(exp_parts::<FMA>(if below < -104.0 { -104.0 } else { below }));
    let upper = 1.0 / (1.0 + e);
    if x < 0.0 { e * upper } else { upper }
}

/// The error function, within 4 ulp.
#[inline(always)]
pub fn erf<const FMA: bool>(x: f32) -> f32 {
    let square = x * x;
    // Minimax polynomials in the form of N. Juffa's erff: of erf(x) / x - 1 below 0.9277, of ln(1 - erf) above.
    let p = polynomial::<FMA, 6>(
        square,
        [-5.967_617e-4, 4.991_194_2e-3, -2.676_813_5e-2, 1.128_199_25e-1, -3.761_253_4e-1, 1.283_791_66e-1],
    );
    let near = fma::<FMA>(p, x, x);
    let magnitude = x.abs();
    // Past 4 the result is 1; the polynomial is not made for more.
    let t = if magnitude > 4.0 { 4.0 } else { magnitude };
    let high = fma::<FMA>(-1.728_534_7e-5, t, 3.831_971_3e-4);
    let low = fma::<FMA>(-3.883_964_4e-3, t, 2.425_462_2e-2);
    let q = polynomial::<FMA, 4>(
        t,
        [fma::<FMA>(high, t * t, low), -1.067_778_8e-1, -6.348_467e-1, -1.287_175_1e-1],
    );
    let far = (1.0 - exp::<FMA>(fma::<FMA>(q, t, -t))).copysign(x);
    if magnitude > 0.927_734_4 { far } else { near }
}

/// ln(1 + x), within 4 ulp.
#[inline(always)]
pub fn ln_1p<const FMA: bool>(x: f32) -> f32 {
    let above = 1.0 + x;
    // What the sum lost: ln(1 + x) = ln(above) + lost / above, to first order.
    let lost = x - (above - 1.0);
    let sum = ln::<FMA>(above) + lost / above;
    // Near zero the logarithm has no digits of its own: a series in x.
    let tail = polynomial::<FMA, 7>(
        x,
        [1.0 / 9.0, -1.0 / 8.0, 1.0 / 7.0, -1.0 / 6.0, 1.0 / 5.0, -1.0 / 4.0, 1.0 / 3.0],
    );
    let square = x * x;
    let series = fma::<FMA>(fma::<FMA>(tail, x, -0.5), square, x);
    let result = if x.abs() < 0.1 { series } else { sum };
    // The lost part is NaN where the sum is infinite or zero.
    if above < f32::INFINITY && above > 0.0 { result } else { ln::<FMA>(above) }
}

/// e^x - 1, within 4 ulp.
#[inline(always)]
pub fn exp_m1<const FMA: bool>(x: f32) -> f32 {
    // Taylor's series below 0.35, where the difference cancels.
    let tail = polynomial::<FMA, 8>(
        x,
        [
            1.0 / 362_880.0,
            1.0 / 40_320.0,
            1.0 / 5_040.0,
            1.0 / 720.0,
            1.0 / 120.0,
            1.0 / 24.0,
            1.0 / 6.0,
            1.0 / 2.0,
        ],
    );
    let near = fma::<FMA>(tail, x * x, x);
    if x.abs() < 0.35 { near } else { exp::<FMA>(x) - 1.0 }
}

/// ln(1 + e^x), within 4 ulp.
#[inline(always)]
pub fn softplus<const FMA: bool>(x: f32) -> f32 {
    let above = if x < 0.0 { 0.0 } else { x };
    above + ln_1p::<FMA>(exp::<FMA>(-x.abs()))
}

/// How far from zero [`sin`] and [`cos`] keep their bounds.
pub const REACH: f32 = 1e5;

/// sin(x + quarter · π / 2).
#[inline(always)]
fn turned<const FMA: bool>(x: f32, quarter: i64) -> f32 {
    /// π / 2 in two parts, the first of 33 bits: its product with a count of quarters is exact.
    const HIGH: f64 = 1.570_796_326_734_125_6;
    const LOW: f64 = 6.077_100_506_506_192e-11;
    /// 1.5 · 2^52: adding it rounds to an integer, which is then in the low bits.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    let wide = f64::from(x);
    let rounded = wide * std::f64::consts::FRAC_2_PI + ROUND;
    let n = (rounded.to_bits() as i64).wrapping_add(quarter);
    let whole = rounded - ROUND;
    let r = ((wide - whole * HIGH) - whole * LOW) as f32;
    let square = r * r;
    // Cephes' minimax polynomials over |r| <= π / 4.
    let s = polynomial::<FMA, 3>(square, [-1.951_529_6e-4, 8.332_161e-3, -1.666_665_5e-1]);
    let s = fma::<FMA>(s * square, r, r);
    let c = polynomial::<FMA, 3>(square, [2.443_315_7e-5, -1.388_731_6e-3, 4.166_664_6e-2]);
    let c = fma::<FMA>(c, square * square, fma::<FMA>(-0.5, square, 1.0));
    let value = if n & 1 == 0 { s } else { c };
    if n & 2 == 0 { value } else { -value }
}

/// The sine, within 2 ulp up to [`REACH`].
#[inline(always)]
pub fn sin<const FMA: bool>(x: f32) -> f32 {
    // The sign of zero is lost on the way.
    if x == 0.0 { x } else { turned::<FMA>(x, 0) }
}

/// The cosine, within 2 ulp up to [`REACH`].
#[inline(always)]
pub fn cos<const FMA: bool>(x: f32) -> f32 {
    turned::<FMA>(x, 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::isas;

    type Function = (&'static str, f64, fn(f64) -> f64);

    const FUNCTIONS: [Function; 10] = [
        ("exp", 2.0, libm::exp),
        ("ln", 2.0, libm::log),
        ("tanh", 4.0, libm::tanh),
        ("sigmoid", 4.0, |x| 1.0 / (1.0 + libm::exp(-x))),
        ("erf", 4.0, libm::erf),
        ("ln_1p", 4.0, libm::log1p),
        ("exp_m1", 4.0, libm::expm1),
        ("softplus", 4.0, |x| x.max(0.0) + libm::log1p(libm::exp(-x.abs()))),
        ("sin", 2.0, libm::sin),
        ("cos", 2.0, libm::cos),
    ];

    simd_fn! {
        fn apply(isa: Isa, function: usize, x: &[f32], y: &mut [f32]) {
            let pairs = x.iter().zip(y);
            match function {
                0 => pairs.for_each(|(x, y)| *y = exp::<FMA>(*x)),
                1 => pairs.for_each(|(x, y)| *y = ln::<FMA>(*x)),
                2 => pairs.for_each(|(x, y)| *y = tanh::<FMA>(*x)),
                3 => pairs.for_each(|(x, y)| *y = sigmoid::<FMA>(*x)),
                4 => pairs.for_each(|(x, y)| *y = erf::<FMA>(*x)),
                5 => pairs.for_each(|(x, y)| *y = ln_1p::<FMA>(*x)),
                6 => pairs.for_each(|(x, y)| *y = exp_m1::<FMA>(*x)),
                7 => pairs.for_each(|(x, y)| *y = softplus::<FMA>(*x)),
                8 => pairs.for_each(|(x, y)| *y = sin::<FMA>(*x)),
                _ => pairs.for_each(|(x, y)| *y = cos::<FMA>(*x)),
            }
        }
    }

    /// The error in ulp of the exact result; infinite where one of them is not finite and they differ.
    fn error(found: f32, exact: f64) -> f64 {
        if found == exact as f32 || found.is_nan() && exact.is_nan() {
            return 0.0;
        }
        // The spacing of f32 at the exact result, at least that of the subnormal numbers.
        let spacing = 2f64.powi((exact.abs().max(f64::from(f32::MIN_POSITIVE)).log2().floor() as i32) - 23);
        let error = (f64::from(found) - exact).abs() / spacing;
        if error.is_nan() { f64::INFINITY } else { error }
    }

    #[test]
    fn functions_keep_their_error_bounds() {
        let everywhere = (0..=u32::MAX).step_by(9973);
        let near_one = (0.05f32.to_bits()..20f32.to_bits()).step_by(331);
        let below_zero = ((-0.05f32).to_bits()..(-110f32).to_bits()).step_by(331);
        let x: Vec<f32> = everywhere.chain(near_one).chain(below_zero).map(f32::from_bits).collect();
        let mut y = vec![0.0; x.len()];
        for (function, (name, bound, exact)) in FUNCTIONS.into_iter().enumerate() {
            let exact: Vec<f64> = x.iter().map(|x| exact(f64::from(*x))).collect();
            for isa in isas() {
                apply(isa, function, &x, &mut y);
                let reach = if ["sin", "cos"].contains(&name) { REACH } else { f32::INFINITY };
                for (i, found) in y.iter().enumerate().filter(|(i, _)| x[*i].is_nan() || x[*i].abs() <= reach)
                {
                    let error = error(*found, exact[i]);
                    assert!(error <= bound, "{name} on {isa:?} is off by {error:.2} ulp at {:e}", x[i]);
                }
            }
        }
    }

    /// What is left out of e^x inside of them changes no bit.
    #[test]
    fn tanh_and_sigmoid_have_the_bits_of_their_formulas() {
        fn of<const FMA: bool>(x: f32) {
            let same = |found: f32, wanted: f32| {
                assert!(found.to_bits() == wanted.to_bits() || found.is_nan() && wanted.is_nan(), "{x:e}");
            };
            let e = exp::<FMA>(-x.abs());
            same(sigmoid::<FMA>(x), if x < 0.0 { e * (1.0 / (1.0 + e)) } else { 1.0 / (1.0 + e) });
            if x.abs() >= 0.625 {
                same(tanh::<FMA>(x), (1.0 - 2.0 / (exp::<FMA>(2.0 * x.abs()) + 1.0)).copysign(x));
            }
        }
        for x in (0..=u32::MAX).step_by(9973).chain((0.6f32.to_bits()..110f32.to_bits()).step_by(331)) {
            for x in [f32::from_bits(x), -f32::from_bits(x)] {
                of::<true>(x);
                of::<false>(x);
            }
        }
    }

    #[test]
    fn special_values() {
        fn of<const FMA: bool>() {
            let inf = f32::INFINITY;
            for f in [exp::<FMA>, ln::<FMA>, tanh::<FMA>, sigmoid::<FMA>, erf::<FMA>] {
                assert!(f(f32::NAN).is_nan());
            }
            assert_eq!([exp::<FMA>(0.0), exp::<FMA>(inf), exp::<FMA>(-inf)], [1.0, inf, 0.0]);
            assert_eq!(
                [ln::<FMA>(0.0), ln::<FMA>(-0.0), ln::<FMA>(1.0), ln::<FMA>(inf)],
                [-inf, -inf, 0.0, inf]
            );
            assert!(ln::<FMA>(-1.0).is_nan() && ln::<FMA>(-inf).is_nan());
            assert_eq!([tanh::<FMA>(inf), tanh::<FMA>(-inf)], [1.0, -1.0]);
            assert_eq!([sigmoid::<FMA>(0.0), sigmoid::<FMA>(inf), sigmoid::<FMA>(-inf)], [0.5, 1.0, 0.0]);
            assert_eq!([erf::<FMA>(inf), erf::<FMA>(-inf)], [1.0, -1.0]);
            for f in [tanh::<FMA>, erf::<FMA>] {
                assert_eq!(f(-0.0).to_bits(), (-0.0f32).to_bits());
            }
        }
        of::<true>();
        of::<false>();
    }
}
