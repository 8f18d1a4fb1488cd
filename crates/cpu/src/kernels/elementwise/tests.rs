//! Programs against one scalar after the other.

use super::*;
use crate::isa::Isa;
use crate::kernels::math::{erf, exp, ln, sigmoid, tanh};
use crate::kernels::testing::{Workspace, assert_bits, isas, normal};
use crate::threads::Pool;
use plimsoll_graph::op::{Binary, Unary};
use plimsoll_tensor::{Shape, Tensor, bf16};
use std::slice::from_ref;

fn f32s(shape: impl Into<Shape>) -> TensorType {
    TensorType::new(DType::F32, shape)
}

fn tensor(seed: u64, ty: &TensorType) -> Tensor {
    let values: Vec<f64> = normal(seed, ty.shape.elements()).iter().map(|&x| f64::from(x)).collect();
    Tensor::from_f64(ty.clone(), &values).expect("sizes agree")
}

fn op(op: Elementwise, operands: &[Operand], dtype: DType) -> Instruction {
    Instruction { op, operands: operands.to_vec(), dtype }
}

fn unary(f: Unary, a: Operand) -> Instruction {
    op(Elementwise::Unary(f), &[a], DType::F32)
}

fn binary(f: Binary, a: Operand, b: Operand) -> Instruction {
    op(Elementwise::Binary(f), &[a, b], DType::F32)
}

fn constant(value: f64) -> Instruction {
    op(Elementwise::Constant { value, dtype: DType::F32 }, &[], DType::F32)
}

/// Runs a program; `in_place` names the input whose memory an output shares.
fn run_on(
    ctx: Context<'_>,
    program: &Program,
    inputs: &[Tensor],
    outputs: &[TensorType],
    in_place: &[Option<usize>],
) -> Vec<Tensor> {
    // Memory of whole words, so that every element type is aligned.
    let memory = |bytes: &[u8]| -> Vec<u64> {
        let mut words = vec![u64::MAX; bytes.len().div_ceil(8) + 1];
        // SAFETY: the words hold the bytes.
        unsafe { words.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        words
    };
    let mut sources: Vec<Vec<u64>> = inputs.iter().map(|t| memory(t.as_bytes())).collect();
    let mut targets: Vec<Vec<u64>> = outputs.iter().map(|t| memory(&vec![0xff; t.bytes()])).collect();
    let input_ptrs: Vec<*const u8> = sources.iter_mut().map(|s| s.as_mut_ptr().cast_const().cast()).collect();
    let target = |(o, t): (usize, &mut Vec<u64>)| match in_place.get(o).copied().flatten() {
        Some(k) => input_ptrs[k].cast_mut(),
        None => t.as_mut_ptr().cast(),
    };
    let output_ptrs: Vec<*mut u8> = targets.iter_mut().enumerate().map(target).collect();
    let mut workspace = Workspace::new(program.workspace(ctx.pool.threads()));
    // SAFETY: the memory has the operands' sizes and alignment.
    unsafe { program.run(ctx, &input_ptrs, &output_ptrs, workspace.get().as_mut_ptr().cast()) };
    let read = |(ty, ptr): (&TensorType, &*mut u8)| {
        let mut result = Tensor::zeros(ty.clone());
        // SAFETY: the memory has the output's size.
        result.copy_from_bytes(unsafe { std::slice::from_raw_parts(*ptr, ty.bytes()) });
        result
    };
    outputs.iter().zip(&output_ptrs).map(read).collect()
}

/// Runs a region on every instruction set and several numbers of threads; results must agree between threads.
fn run(
    region: &Region,
    inputs: &[Tensor],
    outputs: &[TensorType],
    in_place: &[Option<usize>],
) -> Vec<Vec<Tensor>> {
    let types: Vec<TensorType> = inputs.iter().map(|t| t.ty().clone()).collect();
    let program = Program::new(region, &types, outputs).expect("compiles");
    let pools = [1, 2, 3, 7].map(|threads| Pool::new(threads).expect("threads start"));
    let of = |isa: Isa| {
        let first = run_on(Context { pool: &pools[0], isa }, &program, inputs, outputs, in_place);
        for pool in &pools[1..] {
            let again = run_on(Context { pool, isa }, &program, inputs, outputs, in_place);
            let same = first.iter().zip(&again).all(|(a, b)| a.as_bytes() == b.as_bytes());
            assert!(same, "{} threads give other bits on {isa:?}", pool.threads());
        }
        first
    };
    isas().into_iter().map(of).collect()
}

/// An input's elements, repeated to a shape.
fn broadcast(input: &Tensor, shape: &Shape) -> Vec<f32> {
    let (strides, own, values) = (input.ty().shape.strides_in(shape), shape.strides(), input.to_f64());
    let at = |i: usize| (0..shape.rank()).map(|a| i / own[a] % shape[a] * strides[a]).sum::<usize>();
    (0..shape.elements()).map(|i| values[at(i)] as f32).collect()
}

const INPUT: fn(usize) -> Operand = Operand::Input;
const RESULT: fn(usize) -> Operand = Operand::Result;

#[test]
fn every_broadcast_pattern() {
    let patterns: &[&[&[usize]]] = &[
        &[&[5], &[5], &[], &[1]],
        &[&[3000], &[1], &[3000], &[]],
        &[&[40, 70], &[70], &[40, 1], &[40, 70]],
        &[&[7, 700], &[700], &[7, 1], &[1, 700]],
        &[&[3, 5000], &[3, 1], &[5000], &[3, 5000]],
        &[&[2, 3, 4, 5], &[4, 1], &[3, 1, 5], &[2, 1, 1, 1]],
        &[&[4, 1, 600], &[1, 5, 1], &[4, 1, 1], &[5, 600]],
        &[&[300, 1], &[1, 3], &[3], &[300, 3]],
        &[&[1], &[1], &[], &[1, 1]],
        &[&[0, 4], &[4], &[], &[0, 1]],
        &[&[9, 33, 17], &[33, 1], &[9, 1, 17], &[17]],
    ];
    // ((a - b) · c + d), its relu and the first difference.
    let region = Region {
        instructions: vec![
            binary(Binary::Sub, INPUT(0), INPUT(1)),
            binary(Binary::Mul, RESULT(0), INPUT(2)),
            binary(Binary::Add, RESULT(1), INPUT(3)),
            unary(Unary::Relu, RESULT(2)),
        ],
        outputs: vec![3, 0],
    };
    for dtype in [DType::F32, DType::BF16] {
        let mut region = region.clone();
        region.instructions.iter_mut().for_each(|i| i.dtype = dtype);
        let rounded = |x: f32| if dtype == DType::BF16 { bf16::from_f32(x).to_f32() } else { x };
        for shapes in patterns {
            let inputs: Vec<Tensor> =
                shapes.iter().zip(1..).map(|(s, seed)| tensor(seed, &TensorType::new(dtype, *s))).collect();
            let shape =
                shapes.iter().fold(Shape::scalar(), |all, s| all.broadcast(&Shape::from(*s)).expect("fits"));
            let out = TensorType::new(dtype, shape.clone());
            let operands: Vec<Vec<f32>> = inputs.iter().map(|t| broadcast(t, &shape)).collect();
            let wanted: Vec<[f32; 2]> = (0..shape.elements())
                .map(|i| {
                    let [a, b, c, d] = [0, 1, 2, 3].map(|k| operands[k][i]);
                    let difference = rounded(a - b);
                    [rounded(rounded(difference * c) + d).max(0.0), difference]
                })
                .collect();
            for results in run(&region, &inputs, &[out.clone(), out.clone()], &[]) {
                for (o, result) in results.iter().enumerate() {
                    let found: Vec<f32> = result.to_f64().iter().map(|&x| x as f32).collect();
                    let wanted: Vec<f32> = wanted.iter().map(|w| w[o] + 0.0).collect();
                    let found: Vec<f32> = found.iter().map(|x| x + 0.0).collect();
                    assert_bits(&found, &wanted, &format!("{dtype} {shapes:?}, output {o}"));
                }
            }
        }
    }
}

#[test]
fn unary_functions() {
    let mut values: Vec<f64> = normal(1, 500).iter().map(|&x| f64::from(x) * 3.0).collect();
    values.extend([0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN]);
    let ty = f32s([values.len()]);
    let input = Tensor::from_f64(ty.clone(), &values).expect("sizes agree");
    type Function = (Unary, fn(f32) -> f32, fn(f64) -> f64);
    let functions: [Function; 11] = [
        (Unary::Neg, |x| -x, |x| -x),
        (Unary::Abs, f32::abs, f64::abs),
        (Unary::Square, |x| x * x, |x| x * x),
        (Unary::Sqrt, f32::sqrt, f64::sqrt),
        (Unary::Rsqrt, |x| 1.0 / x.sqrt(), |x| 1.0 / x.sqrt()),
        (Unary::Exp, exp::<true>, libm::exp),
        (Unary::Log, ln::<true>, libm::log),
        (Unary::Tanh, tanh::<true>, libm::tanh),
        (Unary::Sigmoid, sigmoid::<true>, |x| 1.0 / (1.0 + libm::exp(-x))),
        (Unary::Erf, erf::<true>, libm::erf),
        (
            Unary::Relu,
            |x| if x.is_nan() { x } else { x.max(0.0) },
            |x| if x.is_nan() { x } else { x.max(0.0) },
        ),
    ];
    for (f, narrow, wide) in functions {
        let region = Region { instructions: vec![unary(f, INPUT(0))], outputs: vec![0] };
        let results = run(&region, from_ref(&input), from_ref(&ty), &[]);
        for (results, isa) in results.iter().zip(isas()) {
            let found = results[0].as_f32().expect("f32");
            let wanted: Vec<f32> = input.as_f32().expect("f32").iter().map(|&x| narrow(x)).collect();
            // Without fused instructions the elementary functions have other bits.
            if isa != Isa::Portable {
                assert_bits(found, &wanted, &format!("{f:?}"));
            }
        }
        let ty = TensorType::new(DType::F64, [values.len()]);
        let input = Tensor::from_f64(ty.clone(), &values).expect("sizes agree");
        let mut region = region.clone();
        region.instructions[0].dtype = DType::F64;
        for results in run(&region, &[input], &[ty], &[]) {
            for (found, &x) in results[0].to_f64().iter().zip(&values) {
                let wanted = wide(x);
                let near =
                    (found - wanted).abs() <= 1e-14 * wanted.abs() || found.to_bits() == wanted.to_bits();
                assert!(
                    near || found.is_nan() && wanted.is_nan() || *found == wanted,
                    "{f:?} of {x}: {found}, not {wanted}"
                );
            }
        }
    }
}

#[test]
fn binary_functions_of_every_type() {
    let n = 100;
    for dtype in [DType::F32, DType::BF16, DType::F16, DType::F64, DType::I32, DType::I64, DType::U8] {
        let ty = TensorType::new(dtype, [n]);
        let nan = if dtype.is_float() { f64::NAN } else { 0.0 };
        let mut a: Vec<f64> = normal(1, n).iter().map(|&x| (f64::from(x) * 20.0).round()).collect();
        let mut b: Vec<f64> = normal(2, n).iter().map(|&x| (f64::from(x) * 3.0).round()).collect();
        (a[0], b[1], b[2]) = (nan, nan, 0.0);
        let inputs = [&a, &b].map(|v| Tensor::from_f64(ty.clone(), v).expect("sizes agree"));
        let (a, b) = (inputs[0].to_f64(), inputs[1].to_f64());
        for f in [
            Binary::Add,
            Binary::Sub,
            Binary::Mul,
            Binary::Div,
            Binary::Max,
            Binary::Min,
            Binary::Pow,
            Binary::Greater,
            Binary::GreaterEqual,
            Binary::Equal,
        ] {
            if f == Binary::Pow && !dtype.is_float() {
                continue;
            }
            let truth = f.is_comparison();
            let out = TensorType::new(if truth { DType::Bool } else { dtype }, [n]);
            let exact = |(a, b): (&f64, &f64)| {
                let either_nan = a.is_nan() || b.is_nan();
                match f {
                    Binary::Add => a + b,
                    Binary::Sub => a - b,
                    Binary::Mul => a * b,
                    Binary::Div => a / b,
                    Binary::Max => {
                        if either_nan {
                            f64::NAN
                        } else {
                            a.max(*b)
                        }
                    }
                    Binary::Min => {
                        if either_nan {
                            f64::NAN
                        } else {
                            a.min(*b)
                        }
                    }
                    Binary::Pow => a.powf(*b),
                    Binary::Greater => f64::from(u8::from(a > b)),
                    Binary::GreaterEqual => f64::from(u8::from(a >= b)),
                    Binary::Equal => f64::from(u8::from(a == b)),
                }
            };
            let wanted: Vec<f64> = a.iter().zip(&b).map(exact).collect();
            let wanted = Tensor::from_f64(out.clone(), &wanted).expect("sizes agree").to_f64();
            let program = Region {
                instructions: vec![op(Elementwise::Binary(f), &[INPUT(0), INPUT(1)], out.dtype)],
                outputs: vec![0],
            };
            for results in run(&program, &inputs, from_ref(&out), &[]) {
                for (i, (found, wanted)) in results[0].to_f64().iter().zip(&wanted).enumerate() {
                    let same = found == wanted || found.is_nan() && wanted.is_nan();
                    assert!(same, "{f:?} of {dtype} {} and {}: {found}, not {wanted}", a[i], b[i]);
                }
            }
        }
    }
}

#[test]
fn casts_between_all_types() {
    let values: Vec<f64> = (0..200)
        .map(|i| f64::from(i) * 1.37 - 20.0)
        .chain([0.0, 1.0, 300.0, -300.0, 3e9, -3e9, 1.0 + 1.0 / 256.0 + 1e-12])
        .collect();
    for from in DType::ALL {
        for to in DType::ALL {
            let (source, target) =
                (TensorType::new(from, [values.len()]), TensorType::new(to, [values.len()]));
            let input = Tensor::from_f64(source.clone(), &values).expect("sizes agree");
            let wanted = Tensor::from_f64(target.clone(), &input.to_f64()).expect("sizes agree");
            let program =
                Program::single(Elementwise::Cast(to), from_ref(&source), &target).expect("compiles");
            let pool = Pool::new(2).expect("threads start");
            for isa in isas() {
                let found =
                    run_on(Context { pool: &pool, isa }, &program, from_ref(&input), from_ref(&target), &[]);
                assert_eq!(found[0].to_f64(), wanted.to_f64(), "{from} to {to}");
            }
        }
    }
}

#[test]
fn select_chooses_among_vectors_and_scalars() {
    let shape = [90, 30];
    let full = f32s(shape);
    let condition = Tensor::from_f64(
        TensorType::new(DType::Bool, shape),
        &normal(1, 2700).iter().map(|&x| f64::from(u8::from(x > 0.0))).collect::<Vec<_>>(),
    );
    let column =
        Tensor::from_f64(TensorType::new(DType::Bool, [90, 1]), &[vec![0.0; 45], vec![1.0; 45]].concat());
    let scalar = Tensor::from_f64(TensorType::scalar(DType::Bool), &[1.0]);
    for condition in [condition, column, scalar] {
        let condition = condition.expect("sizes agree");
        for (a, b) in [
            (full.clone(), full.clone()),
            (f32s([]), full.clone()),
            (full.clone(), f32s([])),
            (f32s([]), f32s([30])),
        ] {
            let inputs = [condition.clone(), tensor(2, &a), tensor(3, &b)];
            let shape = inputs.iter().fold(Shape::scalar(), |s, t| s.broadcast(&t.ty().shape).expect("fits"));
            let region = Region {
                instructions: vec![op(Elementwise::Select, &[INPUT(0), INPUT(1), INPUT(2)], DType::F32)],
                outputs: vec![0],
            };
            let [condition, a, b] = inputs.each_ref().map(|t| broadcast(t, &shape));
            let pick = |(c, (a, b)): (f32, (f32, f32))| if c != 0.0 { a } else { b };
            let wanted: Vec<f32> = condition.into_iter().zip(a.into_iter().zip(b)).map(pick).collect();
            for results in run(&region, &inputs, &[f32s(shape.clone())], &[]) {
                assert_bits(results[0].as_f32().expect("f32"), &wanted, "select");
            }
        }
    }
}

/// p, m, v, g, and the scalars of step and decay.
fn adamw() -> Region {
    use Binary::{Add, Div, Mul, Sub};
    let (p, m, v, g, rate) = (INPUT(0), INPUT(1), INPUT(2), INPUT(3), INPUT(4));
    Region {
        instructions: vec![
            constant(0.9),
            constant(0.1),
            constant(0.999),
            constant(0.001),
            constant(1e-8),
            binary(Mul, m, RESULT(0)),
            binary(Mul, g, RESULT(1)),
            binary(Add, RESULT(5), RESULT(6)), // 7: m
            unary(Unary::Square, g),
            binary(Mul, v, RESULT(2)),
            binary(Mul, RESULT(8), RESULT(3)),
            binary(Add, RESULT(9), RESULT(10)), // 11: v
            unary(Unary::Sqrt, RESULT(11)),
            binary(Add, RESULT(12), RESULT(4)),
            binary(Div, RESULT(7), RESULT(13)),
            binary(Mul, p, RESULT(3)),
            binary(Add, RESULT(14), RESULT(15)),
            binary(Mul, RESULT(16), rate),
            binary(Sub, p, RESULT(17)), // 18: p
        ],
        outputs: vec![18, 7, 11],
    }
}

#[test]
#[allow(clippy::needless_range_loop, reason = "several vectors go side by side")]
fn an_update_in_place_is_the_update_out_of_place() {
    for n in [1, 31, 5000, 100_000] {
        let ty = f32s([n]);
        let mut inputs: Vec<Tensor> = (1..5).map(|seed| tensor(seed, &ty)).collect();
        inputs[2] =
            Tensor::from_f64(ty.clone(), &inputs[2].to_f64().iter().map(|x| x * x).collect::<Vec<_>>())
                .expect("sizes agree");
        inputs.push(Tensor::from_f64(f32s([]), &[0.01]).expect("one"));
        let outputs = vec![ty; 3];
        let apart = run(&adamw(), &inputs, &outputs, &[]);
        let values = inputs.iter().map(|t| t.as_f32().expect("f32").to_vec()).collect::<Vec<_>>();
        for i in 0..n {
            let [p, m, v, g] = [0, 1, 2, 3].map(|k| values[k][i]);
            let m = m * 0.9f32 + g * 0.1f32;
            let v = v * 0.999f32 + g * g * 0.001f32;
            let p = p - (m / (v.sqrt() + 1e-8) + p * 0.001f32) * 0.01f32;
            let found: Vec<f32> = apart[0].iter().map(|t| t.as_f32().expect("f32")[i]).collect();
            assert_bits(&found, &[p, m, v], "the update");
        }
        for in_place in [[Some(0), Some(1), Some(2)], [Some(1), Some(2), Some(0)], [Some(3), None, Some(1)]] {
            let inside = run(&adamw(), &inputs, &outputs, &in_place);
            for (a, b) in apart.iter().zip(&inside) {
                assert!(a.iter().zip(b).all(|(a, b)| a.as_bytes() == b.as_bytes()), "{in_place:?} of {n}");
            }
        }
    }
}

#[test]
fn outputs_that_are_the_same_for_all_elements() {
    let region = Region {
        instructions: vec![
            constant(2.5),
            unary(Unary::Square, INPUT(1)),
            binary(Binary::Add, INPUT(0), RESULT(0)),
        ],
        outputs: vec![0, 1, 2, 2],
    };
    let (full, column) = (f32s([3, 700]), f32s([3, 1]));
    let inputs = [tensor(1, &full), tensor(2, &column)];
    for results in run(&region, &inputs, &[full.clone(), full.clone(), full.clone(), full.clone()], &[]) {
        assert!(results[0].to_f64().iter().all(|&x| x == 2.5));
        let column = inputs[1].as_f32().expect("f32");
        for (i, &x) in results[1].as_f32().expect("f32").iter().enumerate() {
            assert_eq!(x, column[i / 700] * column[i / 700]);
        }
        assert_eq!(results[2].as_bytes(), results[3].as_bytes());
    }
}

#[test]
fn wrong_types_are_refused() {
    let region = Region { instructions: vec![binary(Binary::Add, INPUT(0), INPUT(1))], outputs: vec![0] };
    assert!(Program::new(&region, &[f32s([3]), f32s([4])], &[f32s([3])]).is_err());
    assert!(Program::new(&region, &[f32s([3]), f32s([3])], &[f32s([4])]).is_err());
    assert!(Program::new(&region, &[f32s([3])], &[f32s([3])]).is_err());
}
