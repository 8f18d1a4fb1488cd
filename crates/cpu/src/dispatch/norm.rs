//! Kernels for the norm family.

use super::call::{Call, Found, Operands, all_f32, block_rows, bytes, found, read, scratch, write};
use super::cost::Core;
use crate::isa::{Context, Isa};
use crate::kernels::float::{Float, with_float};
use crate::kernels::norm::{self, Normalised};
use plimsoll_graph::op::{Norm, NormAxis};
use plimsoll_plan::KernelQuery;
use plimsoll_tensor::DType;
use std::marker::PhantomData;

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
    let shape = &x[0].shape;
    let width = *shape.last()?;
    let rows = shape[..shape.rank() - 1].iter().product();
    let inside = shape.get(1..shape.rank() - 1).map_or(1, |inner| inner.iter().product());
    let size = Size { rows, width };
    match op {
        Norm::LogSumExp if all_f32(x) => found(LogSumExp(size)),
        Norm::LogSumExp => None,
        Norm::Stats { axis: NormAxis::Row } => {
            with_float!(x[0].dtype, T => found(RowStats::<T>(size, PhantomData)))
        }
        Norm::Stats { axis: NormAxis::Channel } => {
            let block_rows = block_rows(query, inside, rows);
            with_float!(x[0].dtype, T => found(ChannelStats::<T> { size, block_rows, types: PhantomData }))
        }
        Norm::Moments => {
            let (block_rows, accumulate) = (block_rows(query, inside, rows), query.accumulate);
            with_float!(x[0].dtype, T => {
                found(ChannelMoments::<T> { size, block_rows, accumulate, types: PhantomData })
            })
        }
        Norm::StatsOfMoments { dtype: DType::F32 } => found(StatsOfMoments(width)),
        Norm::StatsOfMoments { .. } => None,
        Norm::Sums { .. } if !all_f32(&x[2..]) => None,
        Norm::Sums { axis } => {
            // The axis of the statistics follows from their shape; `[1]` of one row of one channel is both.
            let statistics = if x[2].shape[..] == [width] { NormAxis::Channel } else { NormAxis::Row };
            // Both as they are stored, or the gradient in f32.
            with_float!((x[1].dtype, x[0].dtype), (X, D) => match axis {
                NormAxis::Row => found(RowSums::<D, X> { size, statistics, types: PhantomData }),
                NormAxis::Channel => {
                    let block_rows = block_rows(query, inside, rows);
                    let accumulate = query.accumulate;
                    found(ChannelSums::<D, X> { size, statistics, block_rows, accumulate, types: PhantomData })
                }
            })
        }
        // `decompose` replaces these.
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

/// Elements are stored as `T`.
struct RowStats<T>(Size, PhantomData<T>);

impl<T: Float> Call for RowStats<T> {
    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        over_rows(core, self.0, SUMS, query)
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let Size { rows, width } = self.0;
        let (mean, variance) = (write!(o, 0, rows), write!(o, 1, rows));
        norm::row_stats::<T>(ctx, rows, width, read!(o, 0, rows * width), mean, variance);
        Ok(())
    }
}

/// Elements are stored as `T`.
struct ChannelStats<T> {
    size: Size,
    block_rows: usize,
    types: PhantomData<T>,
}

impl<T: Float> Call for ChannelStats<T> {
    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        over_rows(core, self.size, SUMS, query)
    }

    fn workspace(&self, _: Isa, _: usize) -> usize {
        norm::channel_stats_workspace(self.size.rows, self.size.width, self.block_rows)
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let Size { rows, width } = self.size;
        let (x, mean, variance) = (read!(o, 0, rows * width), write!(o, 0, width), write!(o, 1, width));
        norm::channel_stats::<T>(ctx, rows, width, self.block_rows, x, mean, variance, scratch!(o));
        Ok(())
    }
}

/// Elements are stored as `T`.
struct ChannelMoments<T> {
    size: Size,
    block_rows: usize,
    accumulate: bool,
    types: PhantomData<T>,
}

impl<T: Float> Call for ChannelMoments<T> {
    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        over_rows(core, self.size, SUMS, query)
    }

    fn workspace(&self, _: Isa, _: usize) -> usize {
        norm::channel_stats_workspace(self.size.rows, self.size.width, self.block_rows)
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let Size { rows, width } = self.size;
        let (x, moments) = (read!(o, 0, rows * width), write!(o, 0, 3 * width));
        let (block, accumulate) = (self.block_rows, self.accumulate);
        norm::channel_moments::<T>(ctx, rows, width, block, accumulate, x, moments, scratch!(o));
        Ok(())
    }
}

/// Of so many channels.
struct StatsOfMoments(usize);

impl Call for StatsOfMoments {
    unsafe fn run(&self, _: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let moments = read!(o, 0, 3 * self.0);
        norm::stats_of_moments(self.0, moments, write!(o, 0, self.0), write!(o, 1, self.0));
        Ok(())
    }
}

/// Input, mean and deviation of the sums: operands 1 to 3.
///
/// # Safety
/// As for [`Call::run`], of a call of this size and these statistics.
unsafe fn normalised<'a, X: Float>(o: &'a Operands<'_>, size: Size, axis: NormAxis) -> Normalised<'a, X> {
    let n = size.statistics(axis);
    Normalised { x: read!(o, 1, size.elements()), axis, mean: read!(o, 2, n), rstd: read!(o, 3, n) }
}

/// The gradient is stored as `D`, the input as `X`.
struct RowSums<D, X> {
    size: Size,
    statistics: NormAxis,
    types: PhantomData<(D, X)>,
}

impl<D: Float, X: Float> Call for RowSums<D, X> {
    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        over_rows(core, self.size, SUMS, query)
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let Size { rows, width } = self.size;
        let all = self.size.elements();
        // SAFETY: inside `Call::run`, of this call.
        let normalised = unsafe { normalised(o, self.size, self.statistics) };
        let (sum, with_x) = (write!(o, 0, rows), write!(o, 1, rows));
        norm::row_sums::<D, X>(ctx, rows, width, read!(o, 0, all), normalised, sum, with_x);
        Ok(())
    }
}

/// As [`RowSums`].
struct ChannelSums<D, X> {
    size: Size,
    statistics: NormAxis,
    block_rows: usize,
    accumulate: bool,
    types: PhantomData<(D, X)>,
}

impl<D: Float, X: Float> Call for ChannelSums<D, X> {
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
        let space = scratch!(o);
        norm::channel_sums::<D, X>(ctx, rows, width, block, accumulate, dy, normalised, sum, with_x, space);
        Ok(())
    }
}
