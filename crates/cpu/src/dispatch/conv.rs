//! Kernels for the conv family.

mod cost;

use super::call::{Call, Found, Operands, bytes, found, read, scratch, write};
use super::cost::Core;
use super::matmul::{finish, takes_bias};
use crate::isa::{Context, Isa};
use crate::kernels::conv::{self, ConvShape};
use crate::kernels::float::{Float, with_float};
use plimsoll_graph::op::{Conv, Epilogue, Geometry};
use plimsoll_plan::KernelQuery;
use std::marker::PhantomData;

/// Output pixels that a block of a weight gradient should have.
const BLOCK_PIXELS: usize = 256;

pub(super) fn find(op: &Conv, query: &KernelQuery<'_>) -> Found {
    let (x, y) = (&query.inputs[..], &query.outputs[..]);
    let (operands, result) = (x[0].dtype, y[0].dtype);
    match op {
        Conv::Forward { geometry, groups, epilogue, .. } => {
            let (shape, epilogue) = (shape(geometry, *groups, &x[0].shape, &y[0].shape), *epilogue);
            takes_bias(epilogue, query).then_some(())?;
            with_float!((operands, result), (T, C) => {
                found(Forward::<T, C> { shape, epilogue, types: PhantomData })
            })
        }
        Conv::InputGrad { geometry, groups, .. } => {
            let shape = shape(geometry, *groups, &y[0].shape, &x[0].shape);
            with_float!((operands, result), (T, C) => found(InputGrad::<T, C> { shape, types: PhantomData }))
        }
        Conv::WeightGrad { geometry, groups } => {
            let shape = shape(geometry, *groups, &x[0].shape, &x[1].shape);
            let pixels = (shape.out_h * shape.out_w).max(1);
            let wanted = (BLOCK_PIXELS / pixels).max(1).next_power_of_two();
            // A divisor of the block of examples, so that splits at blocks fall between these, too.
            let block_examples = greatest_common_divisor(query.fold_rows, wanted).max(1);
            let accumulate = query.accumulate;
            with_float!(operands, T => {
                found(WeightGrad::<T> { shape, block_examples, accumulate, types: PhantomData })
            })
        }
    }
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

fn shape(geometry: &Geometry, groups: usize, x: &[usize], y: &[usize]) -> ConvShape {
    ConvShape {
        examples: x[0],
        in_h: x[1],
        in_w: x[2],
        in_c: x[3],
        out_h: y[1],
        out_w: y[2],
        out_c: y[3],
        kernel_h: geometry.window[0],
        kernel_w: geometry.window[1],
        stride_h: geometry.stride[0],
        stride_w: geometry.stride[1],
        pad_top: geometry.padding[0][0],
        pad_left: geometry.padding[1][0],
        dilation_h: geometry.dilation[0],
        dilation_w: geometry.dilation[1],
        groups,
    }
}

/// Elements of image, kernel and result.
fn sizes(s: &ConvShape) -> [usize; 3] {
    [
        s.examples * s.in_h * s.in_w * s.in_c,
        s.kernel_h * s.kernel_w * (s.in_c / s.groups) * s.out_c,
        s.examples * s.out_h * s.out_w * s.out_c,
    ]
}

/// Operands are stored as `T`, the result as `C`.
struct Forward<T, C> {
    shape: ConvShape,
    epilogue: Epilogue,
    types: PhantomData<(T, C)>,
}

impl<T: Float, C: Float> Call for Forward<T, C> {
    fn workspace(&self, isa: Isa, threads: usize) -> usize {
        conv::conv2d_workspace::<T, C>(isa, threads, &self.shape)
    }

    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        cost::gather::<T>(core, &self.shape, false, bytes(query))
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let [x, w, y] = sizes(&self.shape);
        let bias = if self.epilogue.bias { Some(read!(o, 2, self.shape.out_c)) } else { None };
        let (x, w, y) = (read!(o, 0, x), read!(o, 1, w), write!(o, 0, y));
        conv::conv2d::<T, C>(ctx, &self.shape, x, w, y, finish(self.epilogue, bias), scratch!(o));
        Ok(())
    }
}

struct InputGrad<T, C> {
    shape: ConvShape,
    types: PhantomData<(T, C)>,
}

impl<T: Float, C: Float> Call for InputGrad<T, C> {
    fn workspace(&self, isa: Isa, threads: usize) -> usize {
        conv::conv2d_input_grad_workspace::<T, C>(isa, threads, &self.shape)
    }

    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        cost::gather::<T>(core, &self.shape, true, bytes(query))
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let [x, w, y] = sizes(&self.shape);
        let (dy, w, dx) = (read!(o, 0, y), read!(o, 1, w), write!(o, 0, x));
        conv::conv2d_input_grad::<T, C>(ctx, &self.shape, dy, w, dx, scratch!(o));
        Ok(())
    }
}

struct WeightGrad<T> {
    shape: ConvShape,
    block_examples: usize,
    accumulate: bool,
    types: PhantomData<T>,
}

impl<T: Float> Call for WeightGrad<T> {
    fn workspace(&self, isa: Isa, threads: usize) -> usize {
        conv::conv2d_weight_grad_workspace::<T>(isa, threads, &self.shape, self.block_examples)
    }

    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        cost::weight_grad::<T>(core, &self.shape, self.block_examples, bytes(query))
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let [x, w, y] = sizes(&self.shape);
        let (x, dy, dw) = (read!(o, 0, x), read!(o, 1, y), write!(o, 0, w));
        let (block, accumulate) = (self.block_examples, self.accumulate);
        conv::conv2d_weight_grad::<T>(ctx, &self.shape, x, dy, dw, accumulate, block, scratch!(o));
        Ok(())
    }
}
