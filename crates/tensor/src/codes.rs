//! What the bytes of quantised states stand for: dynamic tree quantisation (Dettmers et al. 2022), as bitsandbytes has it.
//!
//! A byte stands for zero, for one, or for a number in one of seven decades below one. The larger a decade, the more
//! equal cells it is cut into; a number stands in the middle of its cell.

use std::sync::LazyLock;

/// Elements that share one scale.
pub const CODE_BLOCK: usize = 256;

/// Decades below one that codes tell apart.
const DECADES: u32 = 7;

/// The numbers that bytes stand for, ascending, and the bounds between them.
struct Codes {
    values: [f32; 256],
    /// `bounds[i]` lies half-way between the values i and i + 1; the last is never passed.
    bounds: [f32; 256],
}

static SIGNED: LazyLock<Codes> = LazyLock::new(|| Codes::new(true));
static UNSIGNED: LazyLock<Codes> = LazyLock::new(|| Codes::new(false));

impl Codes {
    fn new(signed: bool) -> Self {
        let mut values = [0.0; 256];
        let mut place = 0;
        let mut add = |value: f64| {
            values[place] = value as f32;
            place += 1;
        };
        for decade in 0..DECADES {
            // With a sign, half of the codes are left for each side.
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

/// The numbers that bytes stand for, ascending.
///
/// ```
/// use plimsoll_tensor::code_values;
/// assert_eq!(code_values(true)[127], 0.0);
/// assert_eq!((code_values(false)[0], code_values(false)[255]), (0.0, 1.0));
/// ```
pub fn code_values(signed: bool) -> &'static [f32; 256] {
    &codes(signed).values
}

/// The bounds between the numbers that bytes stand for: a number's code is how many bounds lie below it. The last is
/// infinite.
pub fn code_bounds(signed: bool) -> &'static [f32; 256] {
    &codes(signed).bounds
}

/// The code of a share of its block's scale: the nearest, the lower one of two. Without a sign, what is above zero does
/// not become zero.
///
/// ```
/// use plimsoll_tensor::code_of;
/// assert_eq!((code_of(0.0, true), code_of(1.0, true), code_of(-1.0, true)), (127, 255, 0));
/// assert_eq!((code_of(0.0, false), code_of(1e-12, false)), (0, 1));
/// ```
pub fn code_of(share: f32, signed: bool) -> u8 {
    let below = code_bounds(signed).partition_point(|&bound| bound < share);
    if !signed && share > 0.0 { below.max(1) as u8 } else { below as u8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_the_code_of_its_value() {
        for signed in [false, true] {
            for (code, &value) in code_values(signed).iter().enumerate() {
                assert_eq!(usize::from(code_of(value, signed)), code, "{value}");
            }
        }
    }

    #[test]
    fn codes_are_the_nearest() {
        for i in 0..20_000 {
            let share = (f64::from(i) / 10_000.0 - 1.0) as f32;
            let found = code_values(true)[usize::from(code_of(share, true))];
            let least = code_values(true).iter().map(|v| (v - share).abs()).fold(f32::INFINITY, f32::min);
            assert!((found - share).abs() <= least + 1e-7, "{share}: {found}");
        }
    }
}
