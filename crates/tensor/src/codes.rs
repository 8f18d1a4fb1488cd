//! The 8-bit code book of quantised states: dynamic tree quantisation (Dettmers et al. 2022), as in bitsandbytes.
//!
//! A code is zero, one, or a number in one of seven decades below one. Each decade has twice as many equal cells as the
//! one below it; a code's value is the middle of its cell.

use std::sync::LazyLock;

/// Elements that share one scale.
pub const CODE_BLOCK: usize = 256;

/// Decades below one.
const DECADES: u32 = 7;

/// The values of the codes, ascending, and the bounds between them.
struct Codes {
    values: [f32; 256],
    /// `bounds[i]` is half-way between values i and i + 1; the last is infinite.
    bounds: [f32; 256],
}

static SIGNED: LazyLock<Codes> = LazyLock::new(|| Codes::new(true));
static UNSIGNED: LazyLock<Codes> = LazyLock::new(|| Codes::new(false));

impl Codes {
    fn new(signed: bool) -> Self {
        let mut values = [0.0; 256];
        let mut count = 0;
        let mut add = |value: f64| {
            values[count] = value as f32;
            count += 1;
        };
        for decade in 0..DECADES {
            // Signed: half of the codes are negative.
            let cells = 1 << (decade + u32::from(!signed));
            let top = 10f64.powi(decade as i32 + 1 - DECADES as i32);
            for cell in 0..cells {
                let middle = top * (0.1 + 0.9 * (f64::from(cell) + 0.5) / f64::from(cells));
                add(middle);
                if signed {
                    add(-middle);
                }
            }
        }
        add(0.0);
        add(1.0);
        values.sort_by(f32::total_cmp);
        let mut bounds = [f32::INFINITY; 256];
        for (bound, pair) in bounds.iter_mut().zip(values.windows(2)) {
            *bound = (pair[0] + pair[1]) * 0.5;
        }
        Self { values, bounds }
    }
}

fn codes(signed: bool) -> &'static Codes {
    if signed { &SIGNED } else { &UNSIGNED }
}

/// The values of the 256 codes, ascending.
///
/// ```
/// use plimsoll_tensor::code_values;
/// assert_eq!(code_values(true)[127], 0.0);
/// assert_eq!((code_values(false)[0], code_values(false)[255]), (0.0, 1.0));
/// ```
pub fn code_values(signed: bool) -> &'static [f32; 256] {
    &codes(signed).values
}

/// The bounds between the values: a number's code is the count of bounds below it. The last bound is infinite.
pub fn code_bounds(signed: bool) -> &'static [f32; 256] {
    &codes(signed).bounds
}

/// The code nearest to an element divided by its block's scale; a tie goes to the lower code. Unsigned codes keep positive
/// numbers above zero.
///
/// ```
/// use plimsoll_tensor::code_of;
/// assert_eq!((code_of(0.0, true), code_of(1.0, true), code_of(-1.0, true)), (127, 255, 0));
/// assert_eq!((code_of(0.0, false), code_of(1e-12, false)), (0, 1));
/// ```
pub fn code_of(ratio: f32, signed: bool) -> u8 {
    let below = code_bounds(signed).partition_point(|&bound| bound < ratio);
    if !signed && ratio > 0.0 { below.max(1) as u8 } else { below as u8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoding_a_code_value_gives_its_code() {
        for signed in [false, true] {
            for (code, &value) in code_values(signed).iter().enumerate() {
                assert_eq!(usize::from(code_of(value, signed)), code, "{value}");
            }
        }
    }

    #[test]
    fn encoding_picks_the_nearest_value() {
        for i in 0..20_000 {
            let ratio = (f64::from(i) / 10_000.0 - 1.0) as f32;
            let found = code_values(true)[usize::from(code_of(ratio, true))];
            let least = code_values(true).iter().map(|v| (v - ratio).abs()).fold(f32::INFINITY, f32::min);
            assert!((found - ratio).abs() <= least + 1e-7, "{ratio}: {found}");
        }
    }
}
