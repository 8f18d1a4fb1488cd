//! Kernels for the elementwise family.

use super::{Call, Found, Operands, bytes, found};
use crate::cost::Core;
use crate::elementwise::Program;
use crate::isa::{Context, Isa};
use plimsoll_graph::Op;
use plimsoll_graph::op::{Binary, Elementwise, Region, Unary};
use plimsoll_plan::KernelQuery;
use plimsoll_tensor::TensorType;

/// Work of an instruction on a vector, in multiply-adds: its operands and its result pass through the first-level cache.
const SIMPLE: f64 = 5.5;
/// Work of a division or a root.
const DIVISION: f64 = 14.0;
/// Work of an exponential and the like.
const EXPONENTIAL: f64 = 36.0;
/// Work of an error function or a power.
const ERROR_FUNCTION: f64 = 70.0;
/// Nanoseconds that an instruction takes however few elements there are.
const INSTRUCTION: f64 = 25.0;
/// How much of memory's time shows: computing goes on meanwhile.
const MEMORY_SHOWS: f64 = 0.5;

fn work(op: &Elementwise) -> f64 {
    match op {
        Elementwise::Constant { .. } => 0.0,
        Elementwise::Unary(Unary::Erf) | Elementwise::Binary(Binary::Pow) => ERROR_FUNCTION,
        Elementwise::Unary(
            Unary::Exp
            | Unary::Log
            | Unary::Tanh
            | Unary::Sigmoid
            | Unary::Sin
            | Unary::Cos
            | Unary::Log1p
            | Unary::Expm1
            | Unary::Softplus,
        ) => EXPONENTIAL,
        Elementwise::Unary(Unary::Sqrt | Unary::Rsqrt) | Elementwise::Binary(Binary::Div) => DIVISION,
        _ => SIMPLE,
    }
}

fn own(types: &[&TensorType]) -> Vec<TensorType> {
    types.iter().map(|t| (*t).clone()).collect()
}

pub(super) fn single(op: Elementwise, query: &KernelQuery<'_>) -> Found {
    Program::single(op, &own(&query.inputs), query.outputs[0]).ok().and_then(found)
}

pub(super) fn fused(region: &Region, query: &KernelQuery<'_>) -> Found {
    Program::new(region, &own(&query.inputs), &own(&query.outputs)).ok().and_then(found)
}

impl Call for Program {
    fn workspace(&self, _: Isa, threads: usize) -> usize {
        self.workspace(threads)
    }

    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        let (work, instructions) = match query.op {
            Op::Elementwise(op) => (work(op), 1),
            Op::Fused(region) => {
                (region.instructions.iter().map(|i| work(&i.op)).sum::<f64>(), region.instructions.len())
            }
            _ => (0.0, 0),
        };
        let vectors = core.vectors(query.outputs.first().map_or(0, |t| t.shape.elements())) as f64;
        let started = INSTRUCTION * instructions as f64;
        started + vectors * work * core.slot + MEMORY_SHOWS * core.memory(bytes(query))
    }

    fn tasks(&self, _: &KernelQuery<'_>) -> usize {
        self.tasks()
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        // SAFETY: the pointers are the operands'; overlaps are as the target allows.
        unsafe { self.run(ctx, o.reads, o.writes, o.workspace) };
        Ok(())
    }
}
