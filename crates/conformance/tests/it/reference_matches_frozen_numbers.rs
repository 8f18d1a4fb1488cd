//! The reference executor against golden numbers from PyTorch.

use plimsoll_conformance::{compare, golden_cases, tolerance};
use plimsoll_graph::Op;
use plimsoll_graph::op::{
    Attention, Binary, Conv, Distribution, Elementwise, Index, Int8, Loss, MatMul, Movement, Norm, Pool,
    Prune, Quantise, Random, Recurrent, Reduce, Region, Resize, Unary,
};
use plimsoll_reference::evaluate;
use plimsoll_tensor::TensorType;
use std::collections::BTreeSet;

#[test]
fn every_golden_case_matches() {
    let mut failures = Vec::new();
    for case in golden_cases() {
        let inputs: Vec<_> = case.inputs.iter().collect();
        let types: Vec<&TensorType> = inputs.iter().map(|t| t.ty()).collect();
        let outputs: Vec<&TensorType> = case.outputs.iter().map(|t| t.ty()).collect();
        let relative = tolerance(&case.op, &types, case.dtype);
        let found = match evaluate(&case.op, &inputs, &[], &outputs) {
            Ok(found) => found,
            Err(error) => {
                failures.push(format!("{}: {error}", case.name));
                continue;
            }
        };
        for (i, (found, expected)) in found.iter().zip(&case.outputs).enumerate() {
            if let Err(difference) = compare(found, expected, relative) {
                failures.push(format!("{}: output {i}: {difference}", case.name));
            }
        }
    }
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn case_names_are_unique_and_gradients_have_the_types_of_their_inputs() {
    let mut names = BTreeSet::new();
    for case in golden_cases() {
        assert!(names.insert(case.name.clone()), "{} twice", case.name);
        let Some(upstream) = &case.upstream else { continue };
        assert_eq!(upstream.ty(), case.outputs[0].ty(), "{}", case.name);
        assert_eq!(case.gradients.len(), case.inputs.len(), "{}", case.name);
        for (gradient, input) in case.gradients.iter().zip(&case.inputs) {
            assert_eq!(
                gradient.as_ref().map(|g| g.ty()),
                Some(input.ty()).filter(|t| t.dtype.is_float()),
                "{}",
                case.name
            );
        }
    }
}

/// From one list of patterns and names: all names, and the name of an op. The match has no wildcard, so a missing op does not
/// compile.
macro_rules! variants {
    ($($pattern:pat => $name:expr,)*) => {
        const VARIANTS: &[&str] = &[$($name),*];

        fn variant(op: &Op) -> &'static str {
            match op {
                $($pattern => $name,)*
            }
        }
    };
}

/// What passes between devices has no numbers of its own: `replicas` compares whole runs.
const EXCHANGE: &str = "exchange";

variants! {
    Op::Elementwise(Elementwise::Unary(Unary::Neg)) => "neg",
    Op::Elementwise(Elementwise::Unary(Unary::Abs)) => "abs",
    Op::Elementwise(Elementwise::Unary(Unary::Square)) => "square",
    Op::Elementwise(Elementwise::Unary(Unary::Sqrt)) => "sqrt",
    Op::Elementwise(Elementwise::Unary(Unary::Rsqrt)) => "rsqrt",
    Op::Elementwise(Elementwise::Unary(Unary::Exp)) => "exp",
    Op::Elementwise(Elementwise::Unary(Unary::Log)) => "log",
    Op::Elementwise(Elementwise::Unary(Unary::Tanh)) => "tanh",
    Op::Elementwise(Elementwise::Unary(Unary::Sigmoid)) => "sigmoid",
    Op::Elementwise(Elementwise::Unary(Unary::Erf)) => "erf",
    Op::Elementwise(Elementwise::Unary(Unary::Relu)) => "relu",
    Op::Elementwise(Elementwise::Unary(Unary::Sin)) => "sin",
    Op::Elementwise(Elementwise::Unary(Unary::Cos)) => "cos",
    Op::Elementwise(Elementwise::Unary(Unary::Log1p)) => "log1p",
    Op::Elementwise(Elementwise::Unary(Unary::Expm1)) => "expm1",
    Op::Elementwise(Elementwise::Unary(Unary::Softplus)) => "softplus",
    Op::Elementwise(Elementwise::Unary(Unary::Floor)) => "floor",
    Op::Elementwise(Elementwise::Unary(Unary::Ceil)) => "ceil",
    Op::Elementwise(Elementwise::Unary(Unary::Round)) => "round",
    Op::Elementwise(Elementwise::Unary(Unary::Sign)) => "sign",
    Op::Elementwise(Elementwise::Binary(Binary::Add)) => "add",
    Op::Elementwise(Elementwise::Binary(Binary::Sub)) => "sub",
    Op::Elementwise(Elementwise::Binary(Binary::Mul)) => "mul",
    Op::Elementwise(Elementwise::Binary(Binary::Div)) => "div",
    Op::Elementwise(Elementwise::Binary(Binary::Max)) => "max",
    Op::Elementwise(Elementwise::Binary(Binary::Min)) => "min",
    Op::Elementwise(Elementwise::Binary(Binary::Pow)) => "pow",
    Op::Elementwise(Elementwise::Binary(Binary::Greater)) => "greater",
    Op::Elementwise(Elementwise::Binary(Binary::GreaterEqual)) => "greater_equal",
    Op::Elementwise(Elementwise::Binary(Binary::Equal)) => "equal",
    Op::Elementwise(Elementwise::Select) => "select",
    Op::Elementwise(Elementwise::Cast(_)) => "cast",
    Op::Elementwise(Elementwise::Constant { .. }) => "constant",
    Op::Fused(Region { .. }) => "fused",
    Op::Movement(Movement::Reshape(_)) => "reshape",
    Op::Movement(Movement::Transpose(_)) => "transpose",
    Op::Movement(Movement::Broadcast(_)) => "broadcast",
    Op::Movement(Movement::Slice(_)) => "slice",
    Op::Movement(Movement::Pad { .. }) => "pad",
    Op::Movement(Movement::Concat { .. }) => "concat",
    Op::Movement(Movement::Split { .. }) => "split",
    Op::Movement(Movement::Detach) => "detach",
    Op::Random(Random { distribution: Distribution::Uniform(_), .. }) => "uniform",
    Op::Random(Random { distribution: Distribution::Normal(_), .. }) => "normal",
    Op::Random(Random { distribution: Distribution::Bernoulli(_), .. }) => "bernoulli",
    Op::Quantise(Quantise::Encode { .. }) => "quantise",
    Op::Quantise(Quantise::Decode { .. }) => "dequantise",
    Op::Prune(Prune::Mask) => "prune_mask",
    Op::Prune(Prune::Apply) => "prune",
    Op::Prune(Prune::Expand { .. }) => "expand",
    Op::Int8(Int8::Quantize(_)) => "int8_quantize",
    Op::Int8(Int8::Dequantize(_)) => "int8_dequantize",
    Op::Int8(Int8::Conv { .. }) => "int8_conv2d",
    Op::Int8(Int8::Dense { .. }) => "int8_dense",
    Op::Int8(Int8::Add { .. }) => "int8_add",
    Op::Int8(Int8::Mean { .. }) => "int8_mean",
    Op::Int8(Int8::Mul { .. }) => "int8_mul",
    Op::Int8(Int8::Sigmoid(_)) => "int8_sigmoid",
    Op::Int8(Int8::Swish { .. }) => "int8_swish",
    Op::Int8(Int8::MaxPool { .. }) => "int8_max_pool",
    Op::Int8(Int8::AveragePool { .. }) => "int8_average_pool",
    Op::Int8(Int8::Resize { .. }) => "int8_resize",
    Op::Exchange(_) => EXCHANGE,
    Op::Reduce(Reduce::Sum { .. }) => "sum",
    Op::Reduce(Reduce::SquareSum { .. }) => "square_sum",
    Op::Reduce(Reduce::Max { .. }) => "reduce_max",
    Op::Reduce(Reduce::Min { .. }) => "reduce_min",
    Op::Reduce(Reduce::Product { .. }) => "product",
    Op::Reduce(Reduce::ProductGrad { .. }) => "product_grad",
    Op::Reduce(Reduce::Argmax) => "argmax",
    Op::Reduce(Reduce::Argmin) => "argmin",
    Op::Reduce(Reduce::CumulativeSum { .. }) => "cumulative_sum",
    Op::Reduce(Reduce::TopK { .. }) => "top_k",
    Op::MatMul(MatMul { .. }) => "matmul",
    Op::Conv(Conv::Forward { .. }) => "conv2d",
    Op::Conv(Conv::InputGrad { .. }) => "conv2d_input_grad",
    Op::Conv(Conv::WeightGrad { .. }) => "conv2d_weight_grad",
    Op::Pool(Pool::Max { .. }) => "max_pool",
    Op::Pool(Pool::MaxGrad { .. }) => "max_pool_grad",
    Op::Pool(Pool::Average { .. }) => "average_pool",
    Op::Pool(Pool::AverageGrad { .. }) => "average_pool_grad",
    Op::Resize(Resize::Forward { .. }) => "resize",
    Op::Resize(Resize::Grad { .. }) => "resize_grad",
    Op::Norm(Norm::Layer { .. }) => "layer_norm",
    Op::Norm(Norm::Batch { .. }) => "batch_norm",
    Op::Norm(Norm::LogSumExp) => "logsumexp",
    Op::Norm(Norm::Stats { .. }) => "norm_stats",
    Op::Norm(Norm::Moments) => "norm_moments",
    Op::Norm(Norm::StatsOfMoments { .. }) => "norm_stats_of_moments",
    Op::Norm(Norm::Sums { .. }) => "norm_sums",
    Op::Attention(Attention::Forward { .. }) => "attention",
    Op::Attention(Attention::Grad { .. }) => "attention_grad",
    Op::Attention(Attention::Rotary { .. }) => "rotary",
    Op::Recurrent(Recurrent::Lstm { .. }) => "lstm",
    Op::Recurrent(Recurrent::LstmGrad { .. }) => "lstm_grad",
    Op::Index(Index::Gather) => "gather",
    Op::Index(Index::ScatterAdd { .. }) => "scatter_add",
    Op::Index(Index::Take) => "take",
    Op::Index(Index::Put { .. }) => "put",
    Op::Index(Index::OneHot { .. }) => "one_hot",
    Op::Index(Index::Range { .. }) => "range",
    Op::Loss(Loss::CrossEntropy) => "cross_entropy",
    Op::Loss(Loss::CrossEntropyGrad) => "cross_entropy_grad",
    Op::Loss(Loss::LinearCrossEntropy { .. }) => "linear_cross_entropy",
    Op::Loss(Loss::LinearCrossEntropyGrad { .. }) => "linear_cross_entropy_grad",
    Op::Loss(Loss::LinearCrossEntropyWithGrad { .. }) => "linear_cross_entropy_with_grad",
}

#[test]
fn every_op_has_a_golden_case() {
    let covered: BTreeSet<&str> = golden_cases().iter().map(|case| variant(&case.op)).collect();
    let missing = VARIANTS.iter().filter(|name| **name != EXCHANGE && !covered.contains(*name));
    let missing: Vec<_> = missing.collect();
    assert!(missing.is_empty(), "no golden case for {missing:?}: add some to scripts/freeze_ops.py");
}
