//! Look-ups by index.

use crate::isa::Context;
use crate::kernels::float::Float;
use crate::kernels::math::{Shared, TASK_ELEMENTS, rows_per_task};

/// An index that names no row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("index {index} at position {position} is not below {rows}")]
pub struct OutOfRange {
    /// The position of the index.
    pub position: usize,
    /// The index.
    pub index: i32,
    /// How many rows there are.
    pub rows: usize,
}

/// Checks that all indices are in `0..rows`.
pub fn check_indices(indices: &[i32], rows: usize) -> Result<(), OutOfRange> {
    let outside = |&index: &i32| usize::try_from(index).map_or(true, |i| i >= rows);
    // Without an early exit, which would keep the compiler from vectorising what nearly always finds nothing.
    if !indices.iter().fold(false, |any, index| any | outside(index)) {
        return Ok(());
    }
    let position = indices.iter().position(outside).unwrap_or(0);
    Err(OutOfRange { position, index: indices[position], rows })
}

/// Row i of y is row `indices[i]` of the table, for rows of any element type with `row_bytes` bytes.
///
/// Nothing is written if an index is out of range.
pub fn gather(
    ctx: Context<'_>,
    rows: usize,
    row_bytes: usize,
    table: &[u8],
    indices: &[i32],
    y: &mut [u8],
) -> Result<(), OutOfRange> {
    assert!(
        table.len() >= rows * row_bytes && y.len() >= indices.len() * row_bytes,
        "operands are too short"
    );
    check_indices(indices, rows)?;
    let group = (4 * TASK_ELEMENTS / row_bytes.max(1)).max(1);
    let y = Shared::new(y);
    ctx.pool.run(indices.len().div_ceil(group), &|task, _| {
        let positions = task * group..((task + 1) * group).min(indices.len());
        // SAFETY: every task has its own rows of the result.
        let y = unsafe { y.part(positions.start * row_bytes, positions.len() * row_bytes) };
        for (&index, y) in indices[positions].iter().zip(y.chunks_exact_mut(row_bytes.max(1))) {
            y.copy_from_slice(&table[index as usize * row_bytes..][..row_bytes]);
        }
    });
    Ok(())
}

/// Columns of the result that a task takes, where rows are wide.
const STRIP: usize = 64;

/// Parts that the result's rows are cut into, where they are narrow: every part reads all indices.
const PARTS: usize = 8;

/// Adds row i of dy to row `indices[i]` of y, `[rows, width]`, in order; y starts at zero unless `accumulate`.
///
/// Nothing is written if an index is out of range.
pub fn scatter_add<T: Float>(
    ctx: Context<'_>,
    rows: usize,
    width: usize,
    indices: &[i32],
    dy: &[T],
    accumulate: bool,
    y: &mut [f32],
) -> Result<(), OutOfRange> {
    assert!(dy.len() >= indices.len() * width && y.len() >= rows * width, "operands are too short");
    check_indices(indices, rows)?;
    let shared = Shared::new(y);
    let by_columns = width >= 4 * STRIP;
    let tasks = if by_columns { width.div_ceil(STRIP) } else { PARTS };
    ctx.pool.run(tasks, &|task, _| {
        let part = rows.div_ceil(PARTS);
        let (targets, columns) = if by_columns {
            (0..rows, task * STRIP..((task + 1) * STRIP).min(width))
        } else {
            ((task * part).min(rows)..((task + 1) * part).min(rows), 0..width)
        };
        // SAFETY: every task has its own columns, or its own rows.
        let row = |r: usize| unsafe { shared.part(r * width + columns.start, columns.len()) };
        if !accumulate {
            targets.clone().for_each(|r| row(r).fill(0.0));
        }
        for (position, &index) in indices.iter().enumerate() {
            if targets.contains(&(index as usize)) {
                let dy = &dy[position * width..][columns.clone()];
                row(index as usize).iter_mut().zip(dy).for_each(|(a, b)| *a += b.widen());
            }
        }
    });
    Ok(())
}

/// Row r of y, `[rows, count]`, has the elements of row r of x, `[rows, extent]`, that row r of the indices names.
///
/// Nothing is written if an index is out of range.
pub fn take<T: Copy + Send + Sync>(
    ctx: Context<'_>,
    extent: usize,
    count: usize,
    x: &[T],
    indices: &[i32],
    y: &mut [T],
) -> Result<(), OutOfRange> {
    let rows = indices.len().checked_div(count).unwrap_or(0);
    assert!(x.len() >= rows * extent && y.len() >= indices.len(), "operands are too short");
    check_indices(indices, extent)?;
    let y = Shared::new(y);
    ctx.pool.run(indices.len().div_ceil(TASK_ELEMENTS), &|task, _| {
        let positions = task * TASK_ELEMENTS..((task + 1) * TASK_ELEMENTS).min(indices.len());
        // SAFETY: every task has its own part of the result.
        let y = unsafe { y.part(positions.start, positions.len()) };
        for (position, y) in positions.zip(y) {
            *y = x[position / count * extent + indices[position] as usize];
        }
    });
    Ok(())
}

/// Adds the elements of each row of dy, `[rows, count]`, to those of the row of y, `[rows, extent]`, that the indices
/// name, in order; y starts at zero.
///
/// Nothing is written if an index is out of range.
pub fn put(
    ctx: Context<'_>,
    rows: usize,
    extent: usize,
    count: usize,
    indices: &[i32],
    dy: &[f32],
    y: &mut [f32],
) -> Result<(), OutOfRange> {
    assert!(
        indices.len() >= rows * count && dy.len() >= rows * count && y.len() >= rows * extent,
        "operands are too short"
    );
    check_indices(indices, extent)?;
    let group = rows_per_task(extent.max(count));
    let y = Shared::new(y);
    ctx.pool.run(rows.div_ceil(group), &|task, _| {
        for r in task * group..((task + 1) * group).min(rows) {
            // SAFETY: every task has its own rows of the result.
            let y = unsafe { y.part(r * extent, extent) };
            y.fill(0.0);
            for position in r * count..(r + 1) * count {
                y[indices[position] as usize] += dy[position];
            }
        }
    });
    Ok(())
}

/// Row r of y, `[indices, classes]`, is `one` at index r and zero bytes elsewhere, for elements of `one.len()` bytes.
///
/// Nothing is written if an index is out of range.
pub fn one_hot(
    ctx: Context<'_>,
    classes: usize,
    one: &[u8],
    indices: &[i32],
    y: &mut [u8],
) -> Result<(), OutOfRange> {
    let row_bytes = classes * one.len();
    assert!(y.len() >= indices.len() * row_bytes, "operands are too short");
    check_indices(indices, classes)?;
    let group = (4 * TASK_ELEMENTS / row_bytes.max(1)).max(1);
    let y = Shared::new(y);
    ctx.pool.run(indices.len().div_ceil(group), &|task, _| {
        let positions = task * group..((task + 1) * group).min(indices.len());
        // SAFETY: every task has its own rows of the result.
        let y = unsafe { y.part(positions.start * row_bytes, positions.len() * row_bytes) };
        y.fill(0);
        for (&index, y) in indices[positions].iter().zip(y.chunks_exact_mut(row_bytes.max(1))) {
            y[index as usize * one.len()..][..one.len()].copy_from_slice(one);
        }
    });
    Ok(())
}

/// `y[i] = i`.
pub fn range(ctx: Context<'_>, y: &mut [i32]) {
    let len = y.len();
    let y = Shared::new(y);
    ctx.pool.run(len.div_ceil(TASK_ELEMENTS), &|task, _| {
        let part = task * TASK_ELEMENTS..((task + 1) * TASK_ELEMENTS).min(len);
        // SAFETY: every task has its own part.
        let y = unsafe { y.part(part.start, part.len()) };
        y.iter_mut().zip(part).for_each(|(y, i)| *y = i as i32);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{assert_bits, below, normal, on_all};

    fn bytes(x: &[f32]) -> Vec<u8> {
        x.iter().flat_map(|x| x.to_ne_bytes()).collect()
    }

    #[test]
    fn gather_takes_rows() {
        for (rows, width, count) in [(1, 1, 1), (10, 3, 0), (7, 0, 5), (50, 17, 1000), (9, 300, 40)] {
            let (table, indices) = (normal(1, rows * width), below(2, count, rows));
            let wanted: Vec<f32> =
                indices.iter().flat_map(|&i| table[i as usize * width..][..width].to_vec()).collect();
            on_all(|ctx| {
                let mut y = vec![0u8; count * width * 4];
                gather(ctx, rows, width * 4, &bytes(&table), &indices, &mut y).expect("in range");
                assert_eq!(y, bytes(&wanted));
                Vec::new()
            });
        }
    }

    #[test]
    fn scatter_add_adds_in_order_and_in_two_calls() {
        for (rows, width, count) in [(1, 1, 9), (10, 3, 0), (7, 20, 500), (5, 300, 60), (3, 256, 33)] {
            let (dy, indices) = (normal(1, count * width), below(2, count, rows));
            let mut wanted = vec![0.0f32; rows * width];
            for (i, &index) in indices.iter().enumerate() {
                for j in 0..width {
                    wanted[index as usize * width + j] += dy[i * width + j];
                }
            }
            let results = on_all(|ctx| {
                let mut y = vec![f32::NAN; rows * width];
                let cut = count / 3;
                scatter_add(ctx, rows, width, &indices[..cut], &dy[..cut * width], false, &mut y)
                    .expect("in range");
                scatter_add(ctx, rows, width, &indices[cut..], &dy[cut * width..], true, &mut y)
                    .expect("in range");
                y
            });
            results.iter().for_each(|y| assert_bits(y, &wanted, &format!("[{rows},{width}] {count}")));
        }
    }

    #[test]
    fn take_and_put_go_row_by_row() {
        for (rows, extent, count) in
            [(1, 1, 1), (0, 3, 2), (4, 3, 0), (7, 5, 9), (300, 17, 3), (3, 2, 20_000), (1, 50_000, 4)]
        {
            let (x, dy) = (normal(1, rows * extent), normal(2, rows * count));
            let indices = below(3, rows * count, extent);
            let mut sums = vec![0.0f32; rows * extent];
            let mut taken = vec![0.0f32; rows * count];
            for (position, &index) in indices.iter().enumerate() {
                let at = position / count * extent + index as usize;
                taken[position] = x[at];
                sums[at] += dy[position];
            }
            let wanted = [taken, sums].concat();
            let results = on_all(|ctx| {
                let (mut taken, mut sums) = (vec![f32::NAN; rows * count], vec![f32::NAN; rows * extent]);
                take(ctx, extent, count, &x, &indices, &mut taken).expect("in range");
                put(ctx, rows, extent, count, &indices, &dy, &mut sums).expect("in range");
                [taken, sums].concat()
            });
            results.iter().for_each(|y| assert_bits(y, &wanted, &format!("[{rows},{extent}] {count}")));
        }
    }

    #[test]
    fn one_hot_rows_and_ranges() {
        for (count, classes) in [(0, 3), (1, 1), (5000, 17), (3, 40_000)] {
            let indices = below(4, count, classes);
            let mut wanted = vec![0.0f32; count * classes];
            indices.iter().enumerate().for_each(|(i, &index)| wanted[i * classes + index as usize] = 1.0);
            on_all(|ctx| {
                let mut y = vec![7u8; 4 * count * classes];
                one_hot(ctx, classes, &1.0f32.to_ne_bytes(), &indices, &mut y).expect("in range");
                assert_eq!(y, bytes(&wanted));
                let mut y = vec![-1; count * classes];
                range(ctx, &mut y);
                assert!(y.iter().enumerate().all(|(i, &v)| v == i as i32));
                Vec::new()
            });
        }
    }

    #[test]
    fn indices_out_of_range_are_named() {
        on_all(|ctx| {
            let mut y = vec![5.0; 6];
            let found = scatter_add(ctx, 3, 2, &[0, 3], &[1.0; 4], false, &mut y);
            assert_eq!(found, Err(OutOfRange { position: 1, index: 3, rows: 3 }));
            assert_eq!(y, [5.0; 6]);
            let found = gather(ctx, 3, 4, &[0; 12], &[2, 0, -1], &mut [0; 12]);
            assert_eq!(found, Err(OutOfRange { position: 2, index: -1, rows: 3 }));
            let found = take(ctx, 3, 2, &[0.0; 6], &[0, 1, 2, 3], &mut [0.0; 4]);
            assert_eq!(found, Err(OutOfRange { position: 3, index: 3, rows: 3 }));
            let found = put(ctx, 2, 3, 2, &[0, -1, 2, 2], &[1.0; 4], &mut y);
            assert_eq!(found, Err(OutOfRange { position: 1, index: -1, rows: 3 }));
            assert_eq!(y, [5.0; 6]);
            let found = one_hot(ctx, 3, &[1], &[4], &mut [9; 3]);
            assert_eq!(found, Err(OutOfRange { position: 0, index: 4, rows: 3 }));
            Vec::new()
        });
    }
}
