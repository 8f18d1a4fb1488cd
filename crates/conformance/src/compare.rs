//! Tolerances.

use plimsoll_graph::Op;
use plimsoll_graph::op::{
    Attention, Binary, Conv, Elementwise, Index, Loss, Norm, NormAxis, Pool, Quantise, Recurrent, Reduce,
    Resize, ResizeMode, Unary, Windows,
};
use plimsoll_tensor::{DType, Tensor, TensorType};

/// Roundings besides the sum: a math function, a bias, a factor.
const EXTRA_ROUNDINGS: usize = 4;

/// The error allowed to an executor that computes in `dtype`, relative to the largest magnitude of the expected output:
/// n · ε, where n is the number of roundings on the way to one element. Sums of 16-bit floats accumulate in f32 and are
/// rounded as they are stored. Zero for ops that must be exact.
pub fn tolerance(op: &Op, inputs: &[&TensorType], dtype: DType) -> f64 {
    let roundings = roundings(op, inputs);
    if roundings == 0 {
        return 0.0;
    }
    let stored = match op {
        Op::Fused(region) => region.instructions.len(),
        _ => 1,
    };
    match dtype {
        DType::F64 => roundings as f64 * f64::EPSILON,
        DType::BF16 => roundings as f64 * f64::from(f32::EPSILON) + stored as f64 * 2f64.powi(-7),
        DType::F16 => roundings as f64 * f64::from(f32::EPSILON) + stored as f64 * 2f64.powi(-10),
        _ => roundings as f64 * f64::from(f32::EPSILON),
    }
}

/// Compares a result with the expected one: floats within `relative` times the largest finite magnitude expected, other
/// element types exactly. NaN matches NaN only. The error names the worst element.
pub fn compare(found: &Tensor, expected: &Tensor, relative: f64) -> Result<(), String> {
    if found.ty().shape != expected.ty().shape {
        return Err(format!("found {}, expected {}", found.ty(), expected.ty()));
    }
    let (values, wanted) = (found.to_f64(), expected.to_f64());
    let scale = wanted.iter().map(|x| x.abs()).filter(|x| x.is_finite()).fold(0.0, f64::max);
    let allowed = if expected.ty().dtype.is_float() { relative * scale } else { 0.0 };
    let distance = |(a, b): (&f64, &f64)| match a == b || (a.is_nan() && b.is_nan()) {
        true => 0.0,
        false if (a - b).is_nan() => f64::INFINITY,
        false => (a - b).abs(),
    };
    let distances = values.iter().zip(&wanted).map(distance).enumerate();
    match distances.max_by(|a, b| a.1.total_cmp(&b.1)) {
        Some((i, distance)) if distance > allowed => Err(format!(
            "element {i} of {}: found {:e}, expected {:e}, off by {distance:e}, allowed {allowed:e}",
            expected.ty(),
            values[i],
            wanted[i],
        )),
        _ => Ok(()),
    }
}

/// An estimate of the roundings on the way to one element of the output; zero for ops that must be exact.
fn roundings(op: &Op, inputs: &[&TensorType]) -> usize {
    match op {
        Op::Elementwise(op) => elementwise(op),
        Op::Fused(region) => region.instructions.iter().map(|i| elementwise(&i.op)).sum(),
        Op::Movement(_)
        | Op::Random(_)
        | Op::Exchange(_)
        | Op::Prune(_)
        | Op::Int8(_)
        | Op::Quantise(Quantise::Encode { .. })
        | Op::Reduce(
            Reduce::Max { .. } | Reduce::Min { .. } | Reduce::Argmax | Reduce::Argmin | Reduce::TopK { .. },
        )
        | Op::Pool(Pool::Max { .. })
        | Op::Resize(Resize::Forward { mode: ResizeMode::Nearest, .. })
        | Op::Index(Index::Gather | Index::Take | Index::OneHot { .. } | Index::Range { .. }) => 0,
        _ => reduction(op, inputs) + EXTRA_ROUNDINGS,
    }
}

fn elementwise(op: &Elementwise) -> usize {
    match op {
        Elementwise::Unary(Unary::Neg | Unary::Abs | Unary::Relu) => 0,
        Elementwise::Unary(op) if op.is_step() => 0,
        Elementwise::Binary(Binary::Max | Binary::Min) => 0,
        Elementwise::Binary(op) if op.is_comparison() => 0,
        Elementwise::Select | Elementwise::Cast(_) | Elementwise::Constant { .. } => 0,
        Elementwise::Unary(_) | Elementwise::Binary(_) => EXTRA_ROUNDINGS,
    }
}

/// The number of elements that are summed into one.
fn reduction(op: &Op, inputs: &[&TensorType]) -> usize {
    let shape = |i: usize| &inputs[i].shape;
    let last = |i: usize| shape(i).last().copied().unwrap_or(1);
    match op {
        Op::Elementwise(_)
        | Op::Fused(_)
        | Op::Movement(_)
        | Op::Random(_)
        | Op::Quantise(_)
        | Op::Prune(_)
        | Op::Int8(_) => 0,
        // Bytes arrive as they were sent.
        Op::Exchange(_) => 0,
        Op::Reduce(
            Reduce::Sum { start, end }
            | Reduce::SquareSum { start, end }
            | Reduce::Product { start, end }
            | Reduce::ProductGrad { start, end },
        ) => shape(0)[*start..*end].iter().product(),
        Op::Reduce(Reduce::CumulativeSum { axis, .. }) => shape(0)[*axis],
        Op::Reduce(_) => 0,
        Op::MatMul(op) => op.extents(inputs).map_or(0, |(_, _, k)| k),
        Op::Conv(Conv::Forward { .. }) => shape(1)[..3].iter().product(),
        Op::Conv(Conv::InputGrad { geometry, groups, .. }) => {
            geometry.window.iter().product::<usize>() * last(0) / groups
        }
        Op::Conv(Conv::WeightGrad { .. }) => shape(1)[..3].iter().product(),
        Op::Pool(Pool::Max { .. }) => 0,
        Op::Pool(Pool::Average { windows, .. }) => {
            windows.largest([shape(0)[1], shape(0)[2]]).iter().product()
        }
        Op::Pool(Pool::MaxGrad { windows, image } | Pool::AverageGrad { windows, image, .. }) => {
            let over_one = match windows {
                Windows::Sliding(geometry) => geometry.window,
                // Windows per element are elements per window with the roles of image and output swapped.
                Windows::Adaptive { output } => Windows::Adaptive { output: *image }.largest(*output),
            };
            over_one.iter().product()
        }
        // The source coordinate has rounding errors proportional to its distance from the edge.
        Op::Resize(Resize::Forward { .. }) => 4 + shape(0)[1] + shape(0)[2],
        Op::Resize(Resize::Grad { image: [h, w], .. }) => {
            let terms = |axis: usize, extent: usize| 2 * shape(0)[axis].div_ceil(extent) + 1;
            terms(1, *h) * terms(2, *w) + h + w
        }
        Op::Norm(
            Norm::Layer { .. }
            | Norm::LogSumExp
            | Norm::Stats { axis: NormAxis::Row }
            | Norm::Sums { axis: NormAxis::Row },
        ) => last(0),
        Op::Norm(Norm::StatsOfMoments { .. }) => 1,
        Op::Norm(Norm::Batch { .. } | Norm::Stats { .. } | Norm::Moments | Norm::Sums { .. }) => {
            shape(0).elements() / last(0).max(1)
        }
        // A dot product, then a sum over the keys; the gradient does both again, and sums over a group's query heads.
        Op::Attention(Attention::Forward { .. }) => shape(0)[3] + shape(1)[1],
        Op::Attention(Attention::Grad { .. }) => {
            let queries = shape(0)[1] * shape(0)[2] / shape(1)[2].max(1);
            2 * (shape(0)[3] + queries.max(shape(1)[1]))
        }
        Op::Attention(Attention::Rotary { .. }) => 2,
        // Errors of a state go on to the next position.
        Op::Recurrent(Recurrent::Lstm { .. }) => shape(0)[1] * shape(1)[0],
        // So do those of gradients; the slope of a tanh near one has fewer digits.
        Op::Recurrent(Recurrent::LstmGrad { .. }) => shape(3)[1] * (shape(3)[2] + 16),
        Op::Index(Index::ScatterAdd { .. }) => shape(0).elements(),
        Op::Index(Index::Put { .. }) => last(0),
        Op::Index(_) => 0,
        // Over classes, then over rows; the linear forms also compute the logits, and their gradient.
        Op::Loss(Loss::CrossEntropy | Loss::CrossEntropyGrad) => shape(0).iter().sum(),
        Op::Loss(op @ Loss::LinearCrossEntropy { .. }) => {
            shape(0).iter().sum::<usize>() + op.classes(inputs[1])
        }
        Op::Loss(op @ (Loss::LinearCrossEntropyGrad { .. } | Loss::LinearCrossEntropyWithGrad { .. })) => {
            2 * (shape(0).iter().sum::<usize>() + op.classes(inputs[1]))
        }
    }
}
