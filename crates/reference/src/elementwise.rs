//! Scalar functions of every element.

use crate::evaluate::Values;
use crate::tensor::Elements;
use plimsoll_graph::op::{Binary, Elementwise, Operand, Region, Unary};
use plimsoll_tensor::round;
use plimsoll_tensor::{Shape, TensorType};

pub(crate) fn evaluate(op: &Elementwise, inputs: &[Elements<'_>], output: &TensorType) -> Values {
    let operands: Vec<Vec<f64>> = inputs.iter().map(|input| input.broadcast(&output.shape)).collect();
    let element = |i: usize| apply(op, &operands.iter().map(|operand| operand[i]).collect::<Vec<_>>());
    Ok(vec![(0..output.shape.elements()).map(element).collect()])
}

pub(crate) fn evaluate_region(region: &Region, inputs: &[Elements<'_>]) -> Values {
    // The common shape is taken from the inputs: a region may have no outputs.
    let shape = inputs.iter().fold(Shape::scalar(), |shape, input| {
        shape.broadcast(input.shape()).expect("the type rule checks the shapes")
    });
    let operands: Vec<Vec<f64>> = inputs.iter().map(|input| input.broadcast(&shape)).collect();
    let mut outputs = vec![Vec::with_capacity(shape.elements()); region.outputs.len()];
    for results in (0..shape.elements()).map(|i| run(region, |k| operands[k][i])) {
        for (output, &instruction) in outputs.iter_mut().zip(&region.outputs) {
            output.push(results[instruction]);
        }
    }
    Ok(outputs)
}

/// The results of a region's instructions for one element, each rounded as if it had been stored.
fn run(region: &Region, input: impl Fn(usize) -> f64) -> Vec<f64> {
    let mut results: Vec<f64> = Vec::with_capacity(region.instructions.len());
    for instruction in &region.instructions {
        let read = |operand: &Operand| match *operand {
            Operand::Input(k) => input(k),
            Operand::Result(k) => results[k],
        };
        let values: Vec<f64> = instruction.operands.iter().map(read).collect();
        results.push(round(apply(&instruction.op, &values), instruction.dtype));
    }
    results
}

/// One element; casts and constants are rounded by whoever stores the result.
fn apply(op: &Elementwise, operands: &[f64]) -> f64 {
    match *op {
        Elementwise::Unary(op) => unary(op, operands[0]),
        Elementwise::Binary(op) => binary(op, operands[0], operands[1]),
        Elementwise::Select => operands[if operands[0] != 0.0 { 1 } else { 2 }],
        Elementwise::Cast(_) => operands[0],
        Elementwise::Constant { value, .. } => value,
    }
}

fn unary(op: Unary, x: f64) -> f64 {
    match op {
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        Unary::Square => x * x,
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => 1.0 / x.sqrt(),
        Unary::Exp => x.exp(),
        Unary::Log => x.ln(),
        Unary::Tanh => x.tanh(),
        Unary::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Unary::Erf => libm::erf(x),
        Unary::Relu => relu(x),
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Log1p => x.ln_1p(),
        Unary::Expm1 => x.exp_m1(),
        Unary::Softplus => relu(x) + (-x.abs()).exp().ln_1p(),
        Unary::Floor => x.floor(),
        Unary::Ceil => x.ceil(),
        Unary::Round => x.round_ties_even(),
        Unary::Sign => sign(x),
    }
}

/// max(x, 0); NaN stays NaN.
pub(crate) fn relu(x: f64) -> f64 {
    if x < 0.0 { 0.0 } else { x }
}

/// -1, 0 or 1; NaN stays NaN.
fn sign(x: f64) -> f64 {
    if x == 0.0 || x.is_nan() { x.abs() } else { x.signum() }
}

fn binary(op: Binary, a: f64, b: f64) -> f64 {
    match op {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        // f64::max drops a NaN; these keep it.
        Binary::Max => {
            if a > b || a.is_nan() {
                a
            } else {
                b
            }
        }
        Binary::Min => {
            if a < b || a.is_nan() {
                a
            } else {
                b
            }
        }
        Binary::Pow => a.powf(b),
        Binary::Greater => f64::from(u8::from(a > b)),
        Binary::GreaterEqual => f64::from(u8::from(a >= b)),
        Binary::Equal => f64::from(u8::from(a == b)),
    }
}
