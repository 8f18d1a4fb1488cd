//! The largest elements of each row.

use crate::isa::Context;
use crate::kernels::math::{Shared, rows_per_task};

/// Row r of `values` and `indices`, `[rows, k]`, are the k largest elements of row r of x, `[rows, width]`, and their
/// indices: largest first, of equal ones the first first. NaN counts as largest.
pub fn top_k(
    ctx: Context<'_>,
    rows: usize,
    width: usize,
    k: usize,
    x: &[f32],
    values: &mut [f32],
    indices: &mut [i32],
) {
    assert!(k <= width, "there are not so many elements");
    assert!(
        x.len() >= rows * width && values.len() >= rows * k && indices.len() >= rows * k,
        "operands are shorter than their shapes"
    );
    if k == 0 {
        return;
    }
    let group = rows_per_task(width);
    let (values, indices) = (Shared::new(values), Shared::new(indices));
    ctx.pool.run(rows.div_ceil(group), &|task, _| {
        for r in task * group..((task + 1) * group).min(rows) {
            // SAFETY: every task has its own rows.
            let (values, indices) = unsafe { (values.part(r * k, k), indices.part(r * k, k)) };
            Heap { values, indices }.take_largest(&x[r * width..(r + 1) * width]);
        }
    });
}

/// A heap of the best elements so far: the root is the worst of them, and no element is worse than its parent.
struct Heap<'a> {
    values: &'a mut [f32],
    indices: &'a mut [i32],
}

impl Heap<'_> {
    fn take_largest(&mut self, row: &[f32]) {
        let k = self.values.len();
        for (i, &value) in row[..k].iter().enumerate() {
            (self.values[i], self.indices[i]) = (value, i as i32);
        }
        (0..k / 2).rev().for_each(|i| self.sink(i, k));
        let mut worst = order(self.values[0]);
        for (i, &value) in row.iter().enumerate().skip(k) {
            // An equal element has a larger index than all in the heap.
            if order(value) > worst {
                (self.values[0], self.indices[0]) = (value, i as i32);
                self.sink(0, k);
                worst = order(self.values[0]);
            }
        }
        // The worst goes last, then the worst of the rest before it.
        for end in (1..k).rev() {
            self.values.swap(0, end);
            self.indices.swap(0, end);
            self.sink(0, end);
        }
    }

    /// Moves an element down among the first `len` until none below it is worse.
    fn sink(&mut self, mut at: usize, len: usize) {
        let (value, index, own) = (self.values[at], self.indices[at], self.key(at));
        while 2 * at + 1 < len {
            let (first, second) = (2 * at + 1, (2 * at + 2).min(len - 1));
            let child = if self.key(second) < self.key(first) { second } else { first };
            if self.key(child) > own {
                break;
            }
            (self.values[at], self.indices[at]) = (self.values[child], self.indices[child]);
            at = child;
        }
        (self.values[at], self.indices[at]) = (value, index);
    }

    /// The key of comparisons: the larger element, and of equal ones the first, has the larger key.
    fn key(&self, at: usize) -> i64 {
        i64::from(order(self.values[at])) << 32 | i64::from(!self.indices[at] as u32)
    }
}

/// A number that is larger for larger floats, equal for both zeros, and largest for NaN.
fn order(value: f32) -> i32 {
    if value.is_nan() {
        return i32::MAX;
    }
    let bits = (value + 0.0).to_bits() as i32;
    // The other bits of a negative float grow with its magnitude.
    bits ^ (((bits >> 31) as u32) >> 1) as i32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{assert_bits, normal, on_all};

    #[test]
    fn the_largest_come_first_and_ties_in_order() {
        for (rows, width, k) in [
            (0, 3, 2),
            (5, 0, 0),
            (1, 1, 1),
            (7, 5, 0),
            (9, 5, 5),
            (50, 64, 7),
            (3, 5000, 100),
            (1, 1 << 20, 3),
        ] {
            // Rounded, so that there are ties.
            let mut x: Vec<f32> = normal(1, rows * width).iter().map(|v| (v * 4.0).round()).collect();
            if x.len() > 60 {
                x[11] = f32::NAN;
                x[13] = f32::NAN;
                x[20] = f32::INFINITY;
                x[40] = f32::NEG_INFINITY;
                x[41..45].fill(-0.0);
                x[45..48].fill(0.0);
            }
            let mut wanted = Vec::new();
            for row in x.chunks(width.max(1)) {
                let mut order: Vec<usize> = (0..row.len()).collect();
                let above = |a: f32, b: f32| a > b || a.is_nan() && !b.is_nan();
                order.sort_by(|&a, &b| match (above(row[a], row[b]), above(row[b], row[a])) {
                    (true, _) => std::cmp::Ordering::Less,
                    (_, true) => std::cmp::Ordering::Greater,
                    _ => a.cmp(&b),
                });
                wanted.extend(order[..k].iter().flat_map(|&i| [row[i], i as f32]));
            }
            let results = on_all(|ctx| {
                let (mut values, mut indices) = (vec![0.5; rows * k], vec![-1; rows * k]);
                top_k(ctx, rows, width, k, &x, &mut values, &mut indices);
                values.iter().zip(&indices).flat_map(|(&v, &i)| [v, i as f32]).collect()
            });
            results.iter().for_each(|y| assert_bits(y, &wanted, &format!("{k} of [{rows},{width}]")));
        }
    }
}
