//! Kernels for the pooling family.

use super::{Call, Found, Operands, all_f32, found, read, write};
use crate::isa::Context;
use crate::pooling::{self, PoolShape};
use plimsoll_graph::op::{Geometry, Pool};
use plimsoll_plan::KernelQuery;

pub(super) fn find(op: &Pool, query: &KernelQuery<'_>) -> Found {
    let (x, y) = (&query.inputs[..], &query.outputs[..]);
    match op {
        Pool::Max { geometry } if all_f32(x) => {
            found(Max { shape: shape(geometry, &x[0].shape, &y[0].shape) })
        }
        Pool::MaxGrad { geometry, .. } if all_f32(y) => {
            found(MaxGrad { shape: shape(geometry, &y[0].shape, &x[0].shape) })
        }
        _ => None,
    }
}

fn shape(geometry: &Geometry, x: &[usize], y: &[usize]) -> PoolShape {
    PoolShape {
        examples: x[0],
        in_h: x[1],
        in_w: x[2],
        channels: x[3],
        out_h: y[1],
        out_w: y[2],
        window_h: geometry.window[0],
        window_w: geometry.window[1],
        stride_h: geometry.stride[0],
        stride_w: geometry.stride[1],
        pad_top: geometry.padding[0][0],
        pad_left: geometry.padding[1][0],
    }
}

/// Elements of image and result.
fn sizes(s: &PoolShape) -> [usize; 2] {
    [s.examples * s.in_h * s.in_w * s.channels, s.examples * s.out_h * s.out_w * s.channels]
}

struct Max {
    shape: PoolShape,
}

impl Call for Max {
    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let [x, y] = sizes(&self.shape);
        pooling::max_pool(ctx, &self.shape, read!(o, 0, x), write!(o, 0, y), write!(o, 1, y));
        Ok(())
    }
}

struct MaxGrad {
    shape: PoolShape,
}

impl Call for MaxGrad {
    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let [x, y] = sizes(&self.shape);
        pooling::max_pool_grad(ctx, &self.shape, read!(o, 0, y), read!(o, 1, y), write!(o, 0, x));
        Ok(())
    }
}
