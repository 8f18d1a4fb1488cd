//! Fused regions and elementary functions.

use crate::{aligned, random, space, time};
use plimsoll_cpu::isa::Context;
use plimsoll_cpu::kernels::elementwise::Program;
use plimsoll_graph::op::{Binary, Elementwise, Instruction, Operand, Region, Unary};
use plimsoll_tensor::{DType, TensorType};

fn f32s(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

fn binary(op: Binary, a: Operand, b: Operand) -> Instruction {
    Instruction { op: Elementwise::Binary(op), operands: vec![a, b], dtype: DType::F32 }
}

fn unary(op: Unary, a: Operand) -> Instruction {
    Instruction { op: Elementwise::Unary(op), operands: vec![a], dtype: DType::F32 }
}

fn constant(value: f64) -> Instruction {
    Instruction {
        op: Elementwise::Constant { value, dtype: DType::F32 },
        operands: vec![],
        dtype: DType::F32,
    }
}

/// Runs a region; its first `in_place` outputs share the memory of the inputs of the same index.
fn region(
    ctx: Context<'_>,
    name: &str,
    region: &Region,
    inputs: &[TensorType],
    output: &TensorType,
    in_place: usize,
) {
    let outputs = vec![output.clone(); region.outputs.len()];
    let program = Program::new(region, inputs, &outputs).expect("compiles");
    let mut sources: Vec<Vec<f32>> = inputs.iter().map(|t| random(t.shape.elements())).collect();
    let mut targets: Vec<Vec<f32>> =
        outputs[in_place..].iter().map(|t| vec![0.0; t.shape.elements()]).collect();
    let from: Vec<*const u8> = sources.iter_mut().map(|s| s.as_mut_ptr().cast_const().cast()).collect();
    let to: Vec<*mut u8> = from[..in_place]
        .iter()
        .map(|p| p.cast_mut())
        .chain(targets.iter_mut().map(|t| t.as_mut_ptr().cast()))
        .collect();
    let mut memory = space(program.workspace(ctx.threads()));
    let memory = aligned(&mut memory).as_mut_ptr();
    let bytes: usize = inputs.iter().chain(&outputs).map(TensorType::bytes).sum();
    // SAFETY: the memory has the operands' sizes.
    time(name, bytes, || unsafe { program.run(ctx, &from, &to, memory.cast()) });
}

pub fn elementwise(ctx: Context<'_>) {
    use Operand::{Input, Result};
    let bias_relu = Region {
        instructions: vec![binary(Binary::Add, Input(0), Input(1)), unary(Unary::Relu, Result(0))],
        outputs: vec![1],
    };
    for (rows, columns) in [(16384, 1024), (131_072, 64), (524_288, 16)] {
        let (x, bias) = (f32s(&[rows, columns]), f32s(&[columns]));
        region(
            ctx,
            &format!("bias + relu [{rows},{columns}]"),
            &bias_relu,
            &[x.clone(), bias.clone()],
            &x,
            0,
        );
        region(
            ctx,
            &format!("bias + relu [{rows},{columns}] in place"),
            &bias_relu,
            &[x.clone(), bias],
            &x,
            1,
        );
    }
    let adamw = Region {
        instructions: vec![
            constant(0.9),
            constant(0.1),
            constant(0.999),
            constant(0.001),
            constant(1e-8),
            binary(Binary::Mul, Input(1), Result(0)),
            binary(Binary::Mul, Input(3), Result(1)),
            binary(Binary::Add, Result(5), Result(6)),
            unary(Unary::Square, Input(3)),
            binary(Binary::Mul, Input(2), Result(2)),
            binary(Binary::Mul, Result(8), Result(3)),
            binary(Binary::Add, Result(9), Result(10)),
            unary(Unary::Sqrt, Result(11)),
            binary(Binary::Add, Result(12), Result(4)),
            binary(Binary::Div, Result(7), Result(13)),
            binary(Binary::Mul, Input(0), Result(3)),
            binary(Binary::Add, Result(14), Result(15)),
            binary(Binary::Mul, Result(16), Input(4)),
            binary(Binary::Sub, Input(0), Result(17)),
        ],
        outputs: vec![18, 7, 11],
    };
    let p = f32s(&[1 << 23]);
    let inputs = [p.clone(), p.clone(), p.clone(), p.clone(), f32s(&[])];
    region(ctx, "AdamW of 8M parameters, in place", &adamw, &inputs, &p, 3);
    let apply = Region {
        instructions: vec![
            binary(Binary::Sub, Input(0), Input(1)),
            binary(Binary::Mul, Result(0), Input(2)),
            binary(Binary::Mul, Result(1), Input(3)),
            binary(Binary::Add, Result(2), Input(4)),
        ],
        outputs: vec![3],
    };
    for (rows, columns) in [(16384, 768), (65536, 128)] {
        let (x, stat, channel) = (f32s(&[rows, columns]), f32s(&[rows, 1]), f32s(&[columns]));
        let inputs = [x.clone(), stat.clone(), stat, channel.clone(), channel];
        region(ctx, &format!("layer norm's elementwise part [{rows},{columns}]"), &apply, &inputs, &x, 0);
    }
    let x = f32s(&[1 << 22]);
    for op in [Unary::Exp, Unary::Log, Unary::Tanh, Unary::Sigmoid, Unary::Erf] {
        let one = Region { instructions: vec![unary(op, Input(0))], outputs: vec![0] };
        region(ctx, &format!("{op:?} of 4M"), &one, std::slice::from_ref(&x), &x, 0);
    }
}
