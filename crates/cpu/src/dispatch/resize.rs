//! Kernels for resizing.

use super::call::{Call, Found, Operands, all_f32, bytes, found, read, scratch, write};
use super::cost::Core;
use crate::isa::{Context, Isa};
use crate::kernels::resize::{self, ResizeShape};
use plimsoll_graph::op::Resize;
use plimsoll_plan::KernelQuery;

/// Times that memory takes: an element is computed from several.
const MEMORY: f64 = 1.5;

pub(super) fn find(op: &Resize, query: &KernelQuery<'_>) -> Found {
    let (given, made) = (query.inputs[0], query.outputs[0]);
    if !all_f32(&[given]) {
        return None;
    }
    let shape = |mode, x: &[usize], y: &[usize]| ResizeShape {
        mode,
        examples: x[0],
        from: [x[1], x[2]],
        to: [y[1], y[2]],
        channels: x[3],
    };
    match *op {
        Resize::Forward { mode, .. } => found(Forward { shape: shape(mode, &given.shape, &made.shape) }),
        Resize::Grad { mode, .. } => found(Grad { shape: shape(mode, &made.shape, &given.shape) }),
    }
}

struct Forward {
    shape: ResizeShape,
}

impl Call for Forward {
    fn workspace(&self, _: Isa, threads: usize) -> usize {
        resize::resize_workspace(threads, &self.shape)
    }

    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        MEMORY * core.memory(bytes(query))
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let [x, y] = self.shape.floats();
        resize::resize(ctx, &self.shape, read!(o, 0, x), write!(o, 0, y), scratch!(o));
        Ok(())
    }
}

struct Grad {
    shape: ResizeShape,
}

impl Call for Grad {
    fn workspace(&self, _: Isa, threads: usize) -> usize {
        resize::resize_grad_workspace(threads, &self.shape)
    }

    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        MEMORY * core.memory(bytes(query))
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        let [x, y] = self.shape.floats();
        resize::resize_grad(ctx, &self.shape, read!(o, 0, y), write!(o, 0, x), scratch!(o));
        Ok(())
    }
}
