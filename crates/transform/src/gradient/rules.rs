//! One rule per op: from the outputs' gradients to the inputs', in ordinary ops.

use plimsoll_graph::op::{
    Attention, Binary, Conv, Elementwise, Epilogue, Index, Loss, MatMul, Movement, Norm, NormAxis, Pool,
    Reduce, Unary,
};
use plimsoll_graph::{Builder, GraphError, Node, Op, ValueId};

type Gradients = Result<Vec<Option<ValueId>>, GraphError>;

/// Gradients of a node's inputs from those of its outputs; `needs` says which are wanted.
pub(super) fn backward(b: &mut Builder, node: &Node, outer: &[Option<ValueId>], needs: &[bool]) -> Gradients {
    let (x, y) = (&node.inputs[..], &node.outputs[..]);
    let dy = outer[0];
    match (&node.op, dy) {
        (Op::Reduce(Reduce::Argmax), _) => Ok(vec![None]),
        (Op::Elementwise(op), Some(dy)) => elementwise(b, *op, x, y[0], dy, needs),
        (Op::Movement(op), Some(dy)) => {
            let dx = match op {
                Movement::Reshape(_) => b.reshape(dy, b.shape(x[0]).clone())?,
                Movement::Broadcast(_) => b.sum_to(dy, &b.shape(x[0]).clone())?,
                Movement::Transpose(axes) => {
                    let mut inverse = vec![0; axes.len()];
                    axes.iter().enumerate().for_each(|(i, &a)| inverse[a] = i);
                    b.one(Op::Movement(Movement::Transpose(inverse)), &[dy])?
                }
            };
            Ok(vec![Some(dx)])
        }
        (Op::Reduce(Reduce::Sum { .. }), Some(dy)) => {
            let shape = b.shape(x[0]).clone();
            Ok(vec![Some(b.one(Op::Movement(Movement::Broadcast(shape)), &[dy])?)])
        }
        (Op::MatMul(op), Some(dy)) if op.epilogue == Epilogue::default() => matmul(b, *op, x, dy, needs),
        (Op::Conv(Conv::Forward { geometry, epilogue }), Some(dy)) if *epilogue == Epilogue::default() => {
            let &[_, h, w, _] = &b.shape(x[0])[..] else { return unsupported(node) };
            let input = Op::Conv(Conv::InputGrad { geometry: *geometry, image: [h, w] });
            let weight = Op::Conv(Conv::WeightGrad { geometry: *geometry });
            Ok(vec![
                if needs[0] { Some(b.one(input, &[dy, x[1]])?) } else { None },
                if needs[1] { Some(b.one(weight, &[x[0], dy])?) } else { None },
            ])
        }
        (Op::Pool(Pool::Max { geometry }), Some(dy)) => {
            let &[_, h, w, _] = &b.shape(x[0])[..] else { return unsupported(node) };
            let op = Op::Pool(Pool::MaxGrad { geometry: *geometry, image: [h, w] });
            Ok(vec![Some(b.one(op, &[dy, y[1]])?)])
        }
        (Op::Norm(Norm::Layer { .. }), Some(dy)) if outer[1..].iter().all(Option::is_none) => {
            layer_norm(b, x, y, dy)
        }
        (Op::Norm(Norm::Batch { .. }), Some(dy)) if outer[1..].iter().all(Option::is_none) => {
            batch_norm(b, x, y, dy)
        }
        (Op::Attention(Attention::Forward { causal }), Some(dy)) if outer[1].is_none() => {
            let op = Op::Attention(Attention::Grad { causal: *causal });
            let grads = b.node(op, &[x[0], x[1], x[2], y[0], y[1], dy])?;
            Ok(grads.into_iter().map(Some).collect())
        }
        (Op::Index(Index::Gather), Some(dy)) => {
            let op = Op::Index(Index::ScatterAdd { rows: b.shape(x[0])[0] });
            Ok(vec![Some(b.one(op, &[x[1], dy])?), None])
        }
        // Row weights are data: a gradient with respect to them is refused rather than left out.
        (Op::Loss(Loss::CrossEntropy), Some(dy)) if outer[1].is_none() && !needs[2] => {
            let dx = b.one(Op::Loss(Loss::CrossEntropyGrad), &[x[0], x[1], x[2], y[1], dy])?;
            Ok(vec![Some(dx), None, None])
        }
        (Op::Loss(Loss::LinearCrossEntropy), Some(dy)) if outer[1].is_none() && !needs[3] => {
            let grads =
                b.node(Op::Loss(Loss::LinearCrossEntropyGrad), &[x[0], x[1], x[2], x[3], y[1], dy])?;
            Ok(vec![Some(grads[0]), Some(grads[1]), None, None])
        }
        _ => unsupported(node),
    }
}

fn unsupported(node: &Node) -> Gradients {
    Err(GraphError::Broken(format!("layer `{}`: {} has no gradient here", node.layer, node.op.name())))
}

fn elementwise(
    b: &mut Builder,
    op: Elementwise,
    x: &[ValueId],
    y: ValueId,
    dy: ValueId,
    needs: &[bool],
) -> Gradients {
    let dtype = b.ty(dy).dtype;
    let mut gradients: Vec<Option<ValueId>> = match op {
        Elementwise::Unary(op) => vec![Some(unary(b, op, x[0], y, dy)?)],
        Elementwise::Binary(op) => binary(b, op, x, y, dy, needs)?,
        Elementwise::Select => {
            let zero = b.constant(0.0, dtype)?;
            vec![None, Some(b.select(x[0], dy, zero)?), Some(b.select(x[0], zero, dy)?)]
        }
        Elementwise::Cast(_) if b.ty(x[0]).dtype.is_float() => vec![Some(b.cast(dy, b.ty(x[0]).dtype)?)],
        Elementwise::Cast(_) => vec![None],
        Elementwise::Constant { .. } => vec![],
    };
    for (gradient, &input) in gradients.iter_mut().zip(x) {
        if let Some(value) = gradient {
            *gradient = Some(b.sum_to(*value, &b.shape(input).clone())?);
        }
    }
    Ok(gradients)
}

fn unary(b: &mut Builder, op: Unary, x: ValueId, y: ValueId, dy: ValueId) -> Result<ValueId, GraphError> {
    let dtype = b.ty(dy).dtype;
    match op {
        Unary::Neg => b.unary(Unary::Neg, dy),
        Unary::Abs => {
            let zero = b.constant(0.0, dtype)?;
            let (positive, negative) =
                (b.binary(Binary::Greater, x, zero)?, b.binary(Binary::Greater, zero, x)?);
            let minus = b.unary(Unary::Neg, dy)?;
            let rest = b.select(negative, minus, zero)?;
            b.select(positive, dy, rest)
        }
        Unary::Square => {
            let double = b.scale(x, 2.0)?;
            b.mul(dy, double)
        }
        Unary::Sqrt => {
            let double = b.scale(y, 2.0)?;
            b.div(dy, double)
        }
        Unary::Rsqrt => {
            let square = b.unary(Unary::Square, y)?;
            let cube = b.mul(square, y)?;
            let slope = b.scale(cube, -0.5)?;
            b.mul(dy, slope)
        }
        Unary::Exp => b.mul(dy, y),
        Unary::Log => b.div(dy, x),
        Unary::Tanh => {
            let square = b.unary(Unary::Square, y)?;
            let one = b.constant(1.0, dtype)?;
            let slope = b.sub(one, square)?;
            b.mul(dy, slope)
        }
        Unary::Sigmoid => {
            let one = b.constant(1.0, dtype)?;
            let rest = b.sub(one, y)?;
            let slope = b.mul(y, rest)?;
            b.mul(dy, slope)
        }
        Unary::Erf => {
            let square = b.unary(Unary::Square, x)?;
            let minus = b.unary(Unary::Neg, square)?;
            let bell = b.unary(Unary::Exp, minus)?;
            let slope = b.scale(bell, std::f64::consts::FRAC_2_SQRT_PI)?;
            b.mul(dy, slope)
        }
        // From the output, so that the input need not be kept.
        Unary::Relu => {
            let zero = b.constant(0.0, dtype)?;
            let positive = b.binary(Binary::Greater, y, zero)?;
            b.select(positive, dy, zero)
        }
    }
}

fn binary(b: &mut Builder, op: Binary, x: &[ValueId], y: ValueId, dy: ValueId, needs: &[bool]) -> Gradients {
    // Only what is wanted is emitted: a product with a constant would else add a large dead value.
    let mut want = |i: usize, rule: &mut dyn FnMut(&mut Builder) -> Result<ValueId, GraphError>| {
        if needs[i] { rule(b).map(Some) } else { Ok(None) }
    };
    Ok(match op {
        Binary::Add => vec![Some(dy), Some(dy)],
        Binary::Sub => vec![Some(dy), want(1, &mut |b| b.unary(Unary::Neg, dy))?],
        Binary::Mul => vec![want(0, &mut |b| b.mul(dy, x[1]))?, want(1, &mut |b| b.mul(dy, x[0]))?],
        Binary::Div => vec![
            want(0, &mut |b| b.div(dy, x[1]))?,
            want(1, &mut |b| {
                let slope = b.div(y, x[1])?;
                let product = b.mul(dy, slope)?;
                b.unary(Unary::Neg, product)
            })?,
        ],
        Binary::Max => {
            vec![want(0, &mut |b| winner(b, x[0], x[1], dy))?, want(1, &mut |b| winner(b, x[1], x[0], dy))?]
        }
        Binary::Min => {
            vec![want(0, &mut |b| loser(b, x[0], x[1], dy))?, want(1, &mut |b| loser(b, x[1], x[0], dy))?]
        }
        Binary::Greater | Binary::Equal => vec![None, None],
    })
}

/// The gradient of the operand `a` of a maximum: all of it where `a` is greater, half where they are equal.
fn winner(b: &mut Builder, a: ValueId, other: ValueId, dy: ValueId) -> Result<ValueId, GraphError> {
    let greater = b.binary(Binary::Greater, a, other)?;
    share(b, greater, a, other, dy)
}

/// The gradient of the operand `a` of a minimum.
fn loser(b: &mut Builder, a: ValueId, other: ValueId, dy: ValueId) -> Result<ValueId, GraphError> {
    let smaller = b.binary(Binary::Greater, other, a)?;
    share(b, smaller, a, other, dy)
}

fn share(
    b: &mut Builder,
    wins: ValueId,
    a: ValueId,
    other: ValueId,
    dy: ValueId,
) -> Result<ValueId, GraphError> {
    let zero = b.constant(0.0, b.ty(dy).dtype)?;
    let half = b.scale(dy, 0.5)?;
    let equal = b.binary(Binary::Equal, a, other)?;
    let tie = b.select(equal, half, zero)?;
    b.select(wins, dy, tie)
}

fn matmul(b: &mut Builder, op: MatMul, x: &[ValueId], dy: ValueId, needs: &[bool]) -> Gradients {
    let product = |transpose_a, transpose_b| {
        Op::MatMul(MatMul { transpose_a, transpose_b, epilogue: Epilogue::default() })
    };
    let (ta, tb) = (op.transpose_a, op.transpose_b);
    // C = A·B: dA = dC·Bᵀ and dB = Aᵀ·dC; a transposed operand's gradient is the transpose, so its factors swap.
    let da = |b: &mut Builder| {
        if ta { b.one(product(tb, true), &[x[1], dy]) } else { b.one(product(false, !tb), &[dy, x[1]]) }
    };
    let db = |b: &mut Builder| {
        if tb { b.one(product(true, ta), &[dy, x[0]]) } else { b.one(product(!ta, false), &[x[0], dy]) }
    };
    Ok(vec![if needs[0] { Some(da(b)?) } else { None }, if needs[1] { Some(db(b)?) } else { None }])
}

/// `x̂ = (x - mean) · rstd`.
fn normal(b: &mut Builder, x: ValueId, mean: ValueId, rstd: ValueId) -> Result<ValueId, GraphError> {
    let centred = b.sub(x, mean)?;
    b.mul(centred, rstd)
}

/// `dx = rstd · (g - (Σ g + x̂ · Σ g·x̂) / n)` over rows with `g = dy · gain`; gain and bias sum over rows.
fn layer_norm(b: &mut Builder, x: &[ValueId], y: &[ValueId], dy: ValueId) -> Gradients {
    let (input, gain, mean, rstd) = (x[0], x[1], y[1], y[2]);
    let width = b.shape(gain)[0];
    let scaled = b.mul(dy, gain)?;
    let row = b.node(Op::Norm(Norm::Sums { axis: NormAxis::Row }), &[scaled, input, mean, rstd])?;
    let channel = b.node(Op::Norm(Norm::Sums { axis: NormAxis::Channel }), &[dy, input, mean, rstd])?;
    let dx = centre(b, [input, mean, rstd], scaled, [row[0], row[1]], width)?;
    Ok(vec![Some(b.mul(dx, rstd)?), Some(channel[1]), Some(channel[0])])
}

/// `dx = gain · rstd · (dy - (Σ dy + x̂ · Σ dy·x̂) / n)` over channels.
fn batch_norm(b: &mut Builder, x: &[ValueId], y: &[ValueId], dy: ValueId) -> Gradients {
    let (input, gain, mean, rstd) = (x[0], x[1], y[1], y[3]);
    let rows = b.shape(input).elements() / b.shape(gain)[0].max(1);
    let sums = b.node(Op::Norm(Norm::Sums { axis: NormAxis::Channel }), &[dy, input, mean, rstd])?;
    let centred = centre(b, [input, mean, rstd], dy, [sums[0], sums[1]], rows)?;
    let factor = b.mul(gain, rstd)?;
    Ok(vec![Some(b.mul(centred, factor)?), Some(sums[1]), Some(sums[0])])
}

/// `g - (s + x̂ · t) / n`.
fn centre(
    b: &mut Builder,
    [x, mean, rstd]: [ValueId; 3],
    g: ValueId,
    [s, t]: [ValueId; 2],
    n: usize,
) -> Result<ValueId, GraphError> {
    let normal = normal(b, x, mean, rstd)?;
    let slope = b.mul(normal, t)?;
    let sum = b.add(slope, s)?;
    let mean = b.scale(sum, 1.0 / n.max(1) as f64)?;
    b.sub(g, mean)
}
