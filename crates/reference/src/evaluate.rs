//! One op: checks, the family's loops, accumulators, rounding.

use crate::tensor::Elements;
use crate::{
    EvaluateError, attention, conv, elementwise, index, int8, loss, matmul, movement, norm, pool, prune,
    quantise, random, recurrent, reduce, resize,
};
use plimsoll_graph::Op;
use plimsoll_graph::op::Norm;
use plimsoll_tensor::{Tensor, TensorType};

/// What a family computes: the elements of each output, before accumulation and rounding.
pub(crate) type Values = Result<Vec<Vec<f64>>, EvaluateError>;

/// Evaluates one op. `accumulate` holds the accumulators of its folding outputs (see [`Node::accumulate`]), or is empty:
/// such an output is its accumulator plus the op's sum, rounded once.
///
/// [`Node::accumulate`]: plimsoll_graph::Node::accumulate
pub fn evaluate(
    op: &Op,
    inputs: &[&Tensor],
    accumulate: &[&Tensor],
    outputs: &[&TensorType],
) -> Result<Vec<Tensor>, EvaluateError> {
    check_types(op, inputs, outputs)?;
    let folds = check_accumulators(op, accumulate, outputs)?;
    let tensors: Vec<Elements<'_>> = inputs.iter().map(|input| Elements::new(input)).collect();
    let mut values = match op {
        Op::Elementwise(op) => elementwise::evaluate(op, &tensors, outputs[0]),
        Op::Fused(region) => elementwise::evaluate_region(region, &tensors),
        Op::Movement(op) => movement::evaluate(op, &tensors, outputs),
        Op::Reduce(op) => reduce::evaluate(op, &tensors, outputs[0]),
        Op::MatMul(op) => matmul::evaluate(op, &tensors),
        Op::Conv(op) => conv::evaluate(op, &tensors, outputs[0]),
        Op::Pool(op) => pool::evaluate(op, &tensors, outputs[0]),
        Op::Resize(op) => resize::evaluate(op, &tensors, outputs[0]),
        Op::Norm(op) => norm::evaluate(op, &tensors, outputs),
        Op::Attention(op) => attention::evaluate(op, &tensors),
        Op::Recurrent(op) => recurrent::evaluate(*op, &tensors),
        Op::Index(op) => index::evaluate(op, &tensors, outputs[0]),
        Op::Loss(op) => loss::evaluate(op, &tensors),
        Op::Random(op) => random::evaluate(op, inputs),
        Op::Quantise(op) => quantise::evaluate(*op, &tensors),
        Op::Prune(op) => prune::evaluate(op, &tensors),
        Op::Int8(op) => int8::evaluate(op, &tensors, outputs[0]),
        Op::Exchange(_) => Err(EvaluateError::Devices { op: op.name() }),
    }?;
    for (&output, sum) in folds.iter().zip(accumulate) {
        if matches!(op, Op::Norm(Norm::Moments)) {
            norm::combine_moments(&sum.to_f64(), &mut values[output]);
            continue;
        }
        values[output].iter_mut().zip(sum.to_f64()).for_each(|(value, sum)| *value += sum);
    }
    Ok(values.into_iter().zip(outputs).map(|(values, ty)| host(&values, ty)).collect())
}

fn host(values: &[f64], ty: &TensorType) -> Tensor {
    let rounded: Vec<f64> = values.iter().map(|&x| plimsoll_tensor::round(x, ty.dtype)).collect();
    Tensor::from_f64(ty.clone(), &rounded).expect("every family fills its outputs")
}

fn check_types(op: &Op, inputs: &[&Tensor], outputs: &[&TensorType]) -> Result<(), EvaluateError> {
    let types: Vec<&TensorType> = inputs.iter().map(|input| input.ty()).collect();
    let given = op.infer(&types).map_err(|reason| EvaluateError::Type {
        op: op.name(),
        inputs: types.into_iter().cloned().collect(),
        reason,
    })?;
    if given.iter().eq(outputs.iter().copied()) {
        return Ok(());
    }
    Err(EvaluateError::Outputs {
        op: op.name(),
        given,
        asked: outputs.iter().map(|&ty| ty.clone()).collect(),
    })
}

/// The outputs that the accumulators belong to, all of them or none.
fn check_accumulators(
    op: &Op,
    accumulate: &[&Tensor],
    outputs: &[&TensorType],
) -> Result<&'static [usize], EvaluateError> {
    let folds = op.folds();
    let types = || folds.iter().map(|&output| outputs[output]);
    if accumulate.is_empty() || types().eq(accumulate.iter().map(|sum| sum.ty())) {
        return Ok(folds);
    }
    Err(EvaluateError::Accumulators {
        op: op.name(),
        folds: types().cloned().collect(),
        accumulators: accumulate.iter().map(|sum| sum.ty().clone()).collect(),
    })
}
