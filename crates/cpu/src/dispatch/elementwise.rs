//! Kernels for the elementwise family.

use super::call::{Call, Found, Operands, bytes, found};
use super::cost::Core;
use crate::isa::{Context, Isa};
use crate::kernels::elementwise::Program;
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
/// The part of memory's time that is not hidden behind computation.
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
        Elementwise::Unary(
            Unary::Neg
            | Unary::Abs
            | Unary::Square
            | Unary::Relu
            | Unary::Floor
            | Unary::Ceil
            | Unary::Round
            | Unary::Sign,
        )
        | Elementwise::Binary(
            Binary::Add
            | Binary::Sub
            | Binary::Mul
            | Binary::Max
            | Binary::Min
            | Binary::Greater
            | Binary::GreaterEqual
            | Binary::Equal,
        )
        | Elementwise::Select
        | Elementwise::Cast(_) => SIMPLE,
    }
}

fn own(types: &[&TensorType]) -> Vec<TensorType> {
    types.iter().map(|t| (*t).clone()).collect()
}

pub(super) fn single(op: Elementwise, query: &KernelQuery<'_>) -> Found {
    let program = Program::single(op, &own(&query.inputs), query.outputs[0]).ok()?;
    found(Instructions { program, work: work(&op), count: 1 })
}

pub(super) fn fused(region: &Region, query: &KernelQuery<'_>) -> Found {
    let program = Program::new(region, &own(&query.inputs), &own(&query.outputs)).ok()?;
    let work = region.instructions.iter().map(|i| work(&i.op)).sum();
    found(Instructions { program, work, count: region.instructions.len() })
}

struct Instructions {
    program: Program,
    /// Work of all of them on a vector, in multiply-adds.
    work: f64,
    count: usize,
}

impl Call for Instructions {
    fn workspace(&self, _: Isa, threads: usize) -> usize {
        self.program.workspace(threads)
    }

    fn cost(&self, core: &Core, query: &KernelQuery<'_>) -> f64 {
        let vectors = core.vectors(query.outputs.first().map_or(0, |t| t.shape.elements())) as f64;
        let started = INSTRUCTION * self.count as f64;
        started + vectors * self.work * core.slot + MEMORY_SHOWS * core.memory(bytes(query))
    }

    fn tasks(&self, _: &KernelQuery<'_>) -> usize {
        self.program.tasks()
    }

    unsafe fn run(&self, ctx: Context<'_>, o: &Operands<'_>) -> Result<(), String> {
        // SAFETY: the pointers are the operands'; an output overlaps an input only where `in_place` allows it.
        unsafe { self.program.run(ctx, o.reads, o.writes, o.workspace) };
        Ok(())
    }
}
