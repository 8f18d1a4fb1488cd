//! Kernels for the pooling family.

use super::call::{Call, Found, Operands, all_f32, bytes, found, read, scratch, write};
use super::cost::Core;
use crate::isa::{Context, Isa};
use crate::kernels::float::{Float, with_float};
use crate::kernels::pooling::{self, Axis, PoolShape, Spacing};
use plimsoll_graph::op::{Pool, Windows};
use plimsoll_plan::KernelQuery;
use std::marker::PhantomData;

/// Nanoseconds of a vector of channels at a place of a window, and of each channel that fills no vector.
const PLACE: [f64; 2] = [0.5, 2.8];
/// The same of a gradient.
const PLACE_GRAD: [f64; 2] = [2.5, 0.8];
/// Channels of a vector.
const LANES: usize = 16;

/// Every place of every window, and memory: nanoseconds on one thread.
fn over_places(core: &Core, s: &PoolShape, [vector, channel]: [f64; 2], query: &KernelQuery<'_>) -> f64 {
    let windows = (s.examples * s.height.output * s.width.output) as f64;
    let places = windows * (s.height.places * s.width.places) as f64;
    let each = (s.channels / LANES) as f64 * vector + (s.channels % LANES) as f64 * channel;
    places * each + core.memory(bytes(query))
}

pub(super) fn find(op: &Pool, query: &KernelQuery<'_>) -> Found {
    let (x, y) = (&query.inputs[..], &query.outputs[..]);
    match *op {
        Pool::Max { windows } => {
            let shape = shape(windows, &x[0].shape, &y[0].shape);
            with_float!(x[0].dtype, T => found(Max::<T> { shape, of: PhantomData }))
        }
        Pool::MaxGrad { windows, .. } => {
            let shape = shape(windows, &y[0].shape, &x[0].shape);
            with_float!(y[0].dtype, T => found(MaxGrad::<T> { shape, of: PhantomData }))
        }
        Pool::Average { windows, count_padding } if all_f32(x) => {
            found(Average { shape: shape(windows, &x[0].shape, &y[0].shape), count_padding })
        }
        Pool::AverageGrad { windows, count_padding, .. } if all_f32(y) => {
            found(AverageGrad { shape: shape(windows, &y[0].shape, &x[0].shape), count_padding })
        }
        Pool::Average { .. } | Pool::AverageGrad { .. } => None,
    }
}

fn shape(windows: Windows, x: &[usize], y: &[usize]) -> PoolShape {
    let places = windows.largest([x[1], x[2]]);
    let [height, width] = [0, 1].map(|a| {
        let spacing = match windows {
            Windows::Sliding(geometry) => {
                let (stride, dilation) = (geometry.stride[a], geometry.dilation[a]);
                Spacing::Sliding { stride, before: geometry.padding[a][0], dilation }
            }
            Windows::Adaptive { .. } => Spacing::Adaptive,
        };
        Axis { input: x[a + 1], output: y[a + 1], places: places[a], spacing }
    });
    PoolShape { examples: x[0], height, width, channels: x[3] }
}

/// Elements of image and result.
fn sizes(s: &PoolShape) -> [usize; 2] {
    let pixels = s.examples * s.channels;
    [pixels * s.height.input * s.width.input, pixels * s.height.output * s.width.output]
}

/// Elements are stored as `T`.
struct Max<T> {
    shape: PoolShape,
    of: PhantomData<T>,
}

impl<T: Float> Call for Max<T> {
    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        over_places(core, &self.shape, PLACE, query)
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let [x, y] = sizes(&self.shape);
        pooling::max_pool::<T>(ctx, &self.shape, read!(o, 0, x), write!(o, 0, y), write!(o, 1, y));
        Ok(())
    }
}

/// As [`Max`].
struct MaxGrad<T> {
    shape: PoolShape,
    of: PhantomData<T>,
}

impl<T: Float> Call for MaxGrad<T> {
    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        over_places(core, &self.shape, PLACE_GRAD, query)
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let [x, y] = sizes(&self.shape);
        pooling::max_pool_grad::<T>(ctx, &self.shape, read!(o, 0, y), read!(o, 1, y), write!(o, 0, x));
        Ok(())
    }
}

struct Average {
    shape: PoolShape,
    count_padding: bool,
}

impl Call for Average {
    fn workspace(&self, _: Isa, threads: usize) -> usize {
        pooling::average_pool_workspace(threads, &self.shape)
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let [x, y] = sizes(&self.shape);
        let (x, y) = (read!(o, 0, x), write!(o, 0, y));
        pooling::average_pool(ctx, &self.shape, self.count_padding, x, y, scratch!(o));
        Ok(())
    }
}

struct AverageGrad {
    shape: PoolShape,
    count_padding: bool,
}

impl Call for AverageGrad {
    fn workspace(&self, _: Isa, threads: usize) -> usize {
        pooling::average_pool_grad_workspace(threads, &self.shape)
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let [x, y] = sizes(&self.shape);
        let (dy, dx) = (read!(o, 0, y), write!(o, 0, x));
        pooling::average_pool_grad(ctx, &self.shape, self.count_padding, dy, dx, scratch!(o));
        Ok(())
    }
}
