//! Kernels for the norm family.

use super::{Call, Found, Operands, all_f32, block_rows, bytes, found, read, scratch, write};
use crate::cost::Core;
use crate::isa::{Context, Isa};
use crate::norm::{self, Normalised};
use plimsoll_graph::op::{Norm, NormAxis};
use plimsoll_plan::KernelQuery;

/// Multiply-adds that the sums over a vector take.
const SUMS: f64 = 3.0;
/// Multiply-adds that the exponentials of a vector take.
const EXPONENTIALS: f64 = 36.0;

/// So many multiply-adds for each vector, and memory: nanoseconds on one thread.
fn over_rows(core: &Core, size: Size, work: f64, query: &KernelQuery<'_>) -> f64 {
    (size.rows * core.vectors(size.width)) as f64 * work * core.slot + core.memory(bytes(query))
}

pub(super) fn find(op: &Norm, query: &KernelQuery<'_>) -> Found {
    let x = &query.inputs[..];
    if !all_f32(x) {
        return None;
    }
    let shape = &x[0].shape;
    let width = *shape.last()?;
    let rows = shape[..shape.rank() - 1].iter().product();
    let inside = shape.get(1..shape.rank() - 1).map_or(1, |inner| inner.iter().product());
    let size = Size { rows, width };
    match op {
        Norm::LogSumExp => found(LogSumExp(size)),
        Norm::Stats { axis: NormAxis::Row } => found(RowStats(size)),
        Norm::Stats { axis: NormAxis::Channel } => found(ChannelStats(size)),
        Norm::Sums { axis } => {
            // Whose statistics they are shows in their shape; `[1]` of one row of one channel is both.
            let statistics = if x[2].shape[..] == [width] { NormAxis::Channel } else { NormAxis::Row };
            match axis {
                NormAxis::Row => found(RowSums { size, statistics }),
                NormAxis::Channel => {
                    let block_rows = block_rows(query, inside, rows);
                    found(ChannelSums { size, statistics, block_rows, accumulate: query.accumulate })
                }
            }
        }
        // `decompose` has turned them into the others.
        Norm::Layer { .. } | Norm::Batch { .. } => None,
    }
}

#[derive(Clone, Copy)]
struct Size {
    rows: usize,
    width: usize,
}

impl Size {
    fn elements(self) -> usize {
        self.rows * self.width
    }

    /// Number of statistics.
    fn statistics(self, axis: NormAxis) -> usize {
        match axis {
            NormAxis::Row => self.rows,
            NormAxis::Channel => self.width,
        }
    }
}

struct LogSumExp(Size);

impl Call for LogSumExp {
    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        over_rows(core, self.0, EXPONENTIALS, query)
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let Size { rows, width } = self.0;
        norm::log_sum_exp(ctx, rows, width, read!(o, 0, rows * width), write!(o, 0, rows));
        Ok(())
    }
}

struct RowStats(Size);

impl Call for RowStats {
    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        over_rows(core, self.0, SUMS, query)
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let Size { rows, width } = self.0;
        let (mean, variance) = (write!(o, 0, rows), write!(o, 1, rows));
        norm::row_stats(ctx, rows, width, read!(o, 0, rows * width), mean, variance);
        Ok(())
    }
}

struct ChannelStats(Size);

impl Call for ChannelStats {
    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        over_rows(core, self.0, SUMS, query)
    }

    fn workspace(&self, _: Isa, _: usize) -> usize {
        norm::channel_stats_workspace(self.0.rows, self.0.width)
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let Size { rows, width } = self.0;
        let (mean, variance) = (write!(o, 0, width), write!(o, 1, width));
        norm::channel_stats(ctx, rows, width, read!(o, 0, rows * width), mean, variance, scratch!(o));
        Ok(())
    }
}

/// Input, mean and deviation of the sums: operands 1 to 3.
///
/// # Safety
/// As for [`Call::run`], of a call of this size and these statistics.
unsafe fn normalised<'a>(o: &'a Operands<'_>, size: Size, axis: NormAxis) -> Normalised<'a> {
    let n = size.statistics(axis);
    Normalised { x: read!(o, 1, size.elements()), axis, mean: read!(o, 2, n), rstd: read!(o, 3, n) }
}

struct RowSums {
    size: Size,
    statistics: NormAxis,
}

impl Call for RowSums {
    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        over_rows(core, self.size, SUMS, query)
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let Size { rows, width } = self.size;
        let all = self.size.elements();
        // SAFETY: inside `Call::run`, of this call.
        let normalised = unsafe { normalised(o, self.size, self.statistics) };
        let (sum, with_x) = (write!(o, 0, rows), write!(o, 1, rows));
        norm::row_sums(ctx, rows, width, read!(o, 0, all), normalised, sum, with_x);
        Ok(())
    }
}

struct ChannelSums {
    size: Size,
    statistics: NormAxis,
    block_rows: usize,
    accumulate: bool,
}

impl Call for ChannelSums {
    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        over_rows(core, self.size, SUMS, query)
    }

    fn workspace(&self, _: Isa, _: usize) -> usize {
        norm::channel_sums_workspace(self.size.rows, self.size.width, self.block_rows)
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let Size { rows, width } = self.size;
        let all = self.size.elements();
        // SAFETY: inside `Call::run`, of this call.
        let normalised = unsafe { normalised(o, self.size, self.statistics) };
        let (dy, sum, with_x) = (read!(o, 0, all), write!(o, 0, width), write!(o, 1, width));
        let (block, accumulate) = (self.block_rows, self.accumulate);
        norm::channel_sums(ctx, rows, width, block, accumulate, dy, normalised, sum, with_x, scratch!(o));
        Ok(())
    }
}
