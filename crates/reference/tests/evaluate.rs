//! What the golden numbers do not cover: accumulators, errors, NaN, rounding inside regions.

use plimsoll_graph::Op;
use plimsoll_graph::op::{
    Binary, Conv, Elementwise, Epilogue, Geometry, Index, Instruction, Loss, MatMul, Norm, NormAxis, Operand,
    Pool, Reduce, Region, Unary, Windows,
};
use plimsoll_reference::{EvaluateError, evaluate};
use plimsoll_tensor::{DType, Tensor, TensorType};

fn tensor(ty: &str, values: &[f64]) -> Tensor {
    Tensor::from_f64(ty.parse().unwrap(), values).unwrap()
}

fn run(op: &Op, inputs: &[&Tensor], sums: &[&Tensor]) -> Result<Vec<Vec<f64>>, EvaluateError> {
    let types: Vec<&TensorType> = inputs.iter().map(|t| t.ty()).collect();
    let outputs = op.infer(&types).unwrap();
    let outputs = evaluate(op, inputs, sums, &outputs.iter().collect::<Vec<_>>())?;
    Ok(outputs.iter().map(Tensor::to_f64).collect())
}

#[test]
fn folding_outputs_are_added_to_their_accumulators() {
    let x = tensor("f64[2,2]", &[1.0, 2.0, 3.0, 4.0]);
    let dy = tensor("f64[2,2]", &[1.0, 1.0, 0.0, 2.0]);
    let sum = tensor("f64[1,2]", &[10.0, 20.0]);
    assert_eq!(run(&Op::Reduce(Reduce::Sum { start: 0, end: 1 }), &[&x], &[&sum]).unwrap(), [[14.0, 26.0]]);

    let matrix = tensor("f64[2,2]", &[100.0; 4]);
    let product = Op::MatMul(MatMul { transpose_a: true, ..MatMul::default() });
    assert_eq!(run(&product, &[&x, &dy], &[&matrix]).unwrap(), [[101.0, 107.0, 102.0, 110.0]]);

    let (zeros, ones) = (tensor("f64[2]", &[0.0; 2]), tensor("f64[2]", &[1.0; 2]));
    let sums = Op::Norm(Norm::Sums { axis: NormAxis::Channel });
    let result = run(&sums, &[&dy, &x, &zeros, &ones], &[&ones, &zeros]).unwrap();
    assert_eq!(result, [[2.0, 4.0], [1.0, 10.0]]);

    let indices = tensor("i32[2]", &[0.0, 0.0]);
    let scatter = Op::Index(Index::ScatterAdd { rows: 2 });
    assert_eq!(run(&scatter, &[&indices, &x], &[&matrix]).unwrap(), [[104.0, 106.0, 100.0, 100.0]]);

    let geometry = Geometry { window: [1, 1], stride: [1, 1], padding: [[0; 2]; 2], dilation: [1; 2] };
    let (image, gradient) = (tensor("f64[1,1,2,1]", &[1.0, 2.0]), tensor("f64[1,1,2,1]", &[3.0, 4.0]));
    let kernel = tensor("f64[1,1,1,1]", &[0.5]);
    let weight = Op::Conv(Conv::WeightGrad { geometry, groups: 1 });
    assert_eq!(run(&weight, &[&image, &gradient], &[&kernel]).unwrap(), [[11.5]]);
}

#[test]
fn a_linear_loss_folds_its_kernel_gradient_and_its_sum() {
    // Two classes with equal logits, so that the softmax is a half each.
    let x = tensor("f64[2,2]", &[1.0, 2.0, 3.0, 4.0]);
    let kernel = tensor("f64[2,2]", &[0.0; 4]);
    let labels = tensor("i32[2]", &[0.0, 1.0]);
    let weights = tensor("f64[2]", &[1.0, 1.0]);
    let lse = tensor("f64[2]", &[2f64.ln(); 2]);
    let (one, loss) = (tensor("f64[]", &[1.0]), tensor("f64[]", &[5.0]));
    let forward = run(
        &Op::Loss(Loss::LinearCrossEntropy { transposed: false }),
        &[&x, &kernel, &labels, &weights],
        &[&loss],
    )
    .unwrap();
    assert_eq!(forward[0], [5.0 + 2.0 * 2f64.ln()]);
    // dx and dkernel have one type here; the accumulator belongs to dkernel.
    let sum = tensor("f64[2,2]", &[100.0; 4]);
    let inputs = [&x, &kernel, &labels, &weights, &lse, &one];
    let gradients =
        run(&Op::Loss(Loss::LinearCrossEntropyGrad { transposed: false }), &inputs, &[&sum]).unwrap();
    assert_eq!(gradients[0], [0.0; 4]);
    let near = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-12);
    assert!(near(&gradients[1], &[101.0, 99.0, 101.0, 99.0]), "{:?}", gradients[1]);
}

#[test]
fn accumulators_are_refused_where_nothing_folds() {
    let x = tensor("f64[2,2]", &[1.0; 4]);
    let bias = tensor("f64[2]", &[1.0; 2]);
    let neg = Op::Elementwise(Elementwise::Unary(Unary::Neg));
    assert!(matches!(run(&neg, &[&x], &[&x]), Err(EvaluateError::Accumulators { .. })));
    let epilogue = Epilogue { bias: true, relu: false };
    let product = Op::MatMul(MatMul { epilogue, ..MatMul::default() });
    assert!(matches!(run(&product, &[&x, &x, &bias], &[&x]), Err(EvaluateError::Accumulators { .. })));
    let product = Op::MatMul(MatMul::default());
    assert!(matches!(run(&product, &[&x, &x], &[&bias]), Err(EvaluateError::Accumulators { .. })));
}

#[test]
fn wrong_types_are_refused_by_name() {
    let (x, y) = (tensor("f64[2,3]", &[0.0; 6]), tensor("f64[2,2]", &[0.0; 4]));
    let product = Op::MatMul(MatMul::default());
    let error = evaluate(&product, &[&x, &y], &[], &[]).unwrap_err();
    assert_eq!(error.to_string(), "matmul(f64[2,3], f64[2,2]): inner extents differ: 3 and 2");
    let refused = |op: Op, inputs: &[&Tensor], words: &str| {
        let error = evaluate(&op, inputs, &[], &[]).unwrap_err().to_string();
        assert!(error.contains(words), "no `{words}` in: {error}");
    };
    let (many, fewer) = (tensor("f64[2,1,3]", &[0.0; 6]), tensor("f64[1,3,1]", &[0.0; 3]));
    refused(product, &[&many, &fewer], "extents before the last two differ");
    let with_relu = MatMul { epilogue: Epilogue { bias: false, relu: true }, ..MatMul::default() };
    refused(Op::MatMul(MatMul { transpose_b: true, ..with_relu }), &[&many, &many], "can have an epilogue");
    let empty = tensor("f64[2,0]", &[]);
    refused(Op::Reduce(Reduce::Max { start: 1, end: 2 }), &[&empty], "nothing to choose from");
    refused(Op::Reduce(Reduce::Argmin), &[&empty], "no last axis to search");
    refused(Op::Reduce(Reduce::TopK { k: 3 }), &[&y], "at least 3");
    refused(Op::Reduce(Reduce::CumulativeSum { axis: 2, reverse: false }), &[&y], "no axis 2");
    refused(Op::Reduce(Reduce::ProductGrad { start: 0, end: 1 }), &[&x, &y], "the gradient must be f64[1,3]");
    let index = tensor("i32[3,1]", &[0.0; 3]);
    refused(Op::Index(Index::Take), &[&x, &index], "does not have a row for each row");
    refused(Op::Index(Index::Put { extent: 4 }), &[&index, &x], "a float for each index");
    refused(Op::Index(Index::Range { extent: 1 << 31 }), &[], "past the range of i32");

    let neg = Op::Elementwise(Elementwise::Unary(Unary::Neg));
    let error = evaluate(&neg, &[&x], &[], &[y.ty()]).unwrap_err();
    assert_eq!(error.to_string(), "neg gives (f64[2,3]), not (f64[2,2])");
}

#[test]
fn indices_and_labels_outside_their_range_are_named() {
    let table = tensor("f32[3,2]", &[0.0; 6]);
    let indices = tensor("i32[2,2]", &[0.0, 2.0, 3.0, 1.0]);
    let error = run(&Op::Index(Index::Gather), &[&table, &indices], &[]).unwrap_err();
    assert_eq!(error.to_string(), "gather: index 3 at position 2 is outside 0..3");

    let rows = tensor("f32[2,2,1]", &[0.0; 4]);
    let error = run(&Op::Index(Index::ScatterAdd { rows: 3 }), &[&indices, &rows], &[]).unwrap_err();
    assert_eq!(error.to_string(), "scatter_add: index 3 at position 2 is outside 0..3");

    let columns = tensor("f32[2,3]", &[0.0; 6]);
    let error = run(&Op::Index(Index::Take), &[&columns, &indices], &[]).unwrap_err();
    assert_eq!(error.to_string(), "take: index 3 at position 2 is outside 0..3");
    let dy = tensor("f32[2,2]", &[0.0; 4]);
    let error = run(&Op::Index(Index::Put { extent: 3 }), &[&indices, &dy], &[]).unwrap_err();
    assert_eq!(error.to_string(), "put: index 3 at position 2 is outside 0..3");
    let one_hot = Op::Index(Index::OneHot { classes: 3, dtype: DType::F32 });
    let error = run(&one_hot, &[&indices], &[]).unwrap_err();
    assert_eq!(error.to_string(), "one_hot: index 3 at position 2 is outside 0..3");

    let labels = tensor("i32[3]", &[0.0, 1.0, -1.0]);
    let weights = tensor("f32[3]", &[1.0; 3]);
    let error = run(&Op::Loss(Loss::CrossEntropy), &[&table, &labels, &weights], &[]).unwrap_err();
    assert_eq!(error.to_string(), "cross_entropy: label -1 at position 2 is outside 0..2");

    let geometry = Geometry { window: [2, 2], stride: [2, 2], padding: [[0; 2]; 2], dilation: [1; 2] };
    let (dy, index) = (tensor("f32[1,1,1,1]", &[1.0]), tensor("u8[1,1,1,1]", &[4.0]));
    let op = Op::Pool(Pool::MaxGrad { windows: Windows::Sliding(geometry), image: [2, 2] });
    let error = run(&op, &[&dy, &index], &[]).unwrap_err();
    assert_eq!(error.to_string(), "max_pool_grad: window index 4 at position 0 is outside 0..4");
}

#[test]
fn nan_is_largest_and_never_lost() {
    let x = tensor("f64[4]", &[1.0, f64::NAN, 7.0, f64::NAN]);
    assert_eq!(run(&Op::Reduce(Reduce::Argmax), &[&x], &[]).unwrap(), [[1.0]]);
    assert_eq!(run(&Op::Reduce(Reduce::Argmin), &[&x], &[]).unwrap(), [[1.0]]);
    let best = run(&Op::Reduce(Reduce::TopK { k: 3 }), &[&x], &[]).unwrap();
    assert!(best[0][0].is_nan() && best[0][1].is_nan() && best[0][2] == 7.0);
    assert_eq!(best[1], [1.0, 3.0, 2.0]);
    for op in [Reduce::Max { start: 0, end: 1 }, Reduce::Min { start: 0, end: 1 }] {
        assert!(run(&Op::Reduce(op), &[&x], &[]).unwrap()[0][0].is_nan());
    }
    let one = tensor("f64[]", &[1.0]);
    for op in [Binary::Max, Binary::Min] {
        let op = Op::Elementwise(Elementwise::Binary(op));
        assert!(run(&op, &[&x, &one], &[]).unwrap()[0][1].is_nan());
        assert!(run(&op, &[&one, &x], &[]).unwrap()[0][1].is_nan());
    }
    assert!(run(&Op::Elementwise(Elementwise::Unary(Unary::Relu)), &[&x], &[]).unwrap()[0][1].is_nan());

    let image = tensor("f64[1,2,2,1]", &[1.0, f64::NAN, 7.0, f64::NAN]);
    let geometry = Geometry { window: [2, 2], stride: [2, 2], padding: [[0; 2]; 2], dilation: [1; 2] };
    let op = Op::Pool(Pool::Max { windows: Windows::Sliding(geometry) });
    let pooled = run(&op, &[&image], &[]).unwrap();
    assert!(pooled[0][0].is_nan());
    assert_eq!(pooled[1], [1.0]);

    let logits = tensor("f64[1,2]", &[f64::NAN, f64::NAN]);
    let (label, weight) = (tensor("i32[1]", &[0.0]), tensor("f64[1]", &[1.0]));
    assert!(run(&Op::Loss(Loss::CrossEntropy), &[&logits, &label, &weight], &[]).unwrap()[0][0].is_nan());
}

#[test]
fn a_region_has_the_bits_of_its_ops_run_one_by_one() {
    let x = tensor("bf16[3]", &[1.0, 1.0078125, -3.015625]);
    let y = tensor("bf16[]", &[1.0234375]);
    let instruction =
        |op, operands: &[Operand]| Instruction { op, operands: operands.to_vec(), dtype: DType::BF16 };
    let (square, product) = (Elementwise::Unary(Unary::Square), Elementwise::Binary(Binary::Mul));
    let region = Op::Fused(Region {
        instructions: vec![
            instruction(square, &[Operand::Input(0)]),
            instruction(product, &[Operand::Result(0), Operand::Input(1)]),
        ],
        outputs: vec![1, 0],
    });
    let fused = run(&region, &[&x, &y], &[]).unwrap();
    let first = run(&Op::Elementwise(square), &[&x], &[]).unwrap();
    let rounded = tensor("bf16[3]", &first[0]);
    let second = run(&Op::Elementwise(product), &[&rounded, &y], &[]).unwrap();
    assert_eq!(fused, [second[0].clone(), first[0].clone()]);
}

#[test]
fn empty_tensors_give_empty_results() {
    let x = tensor("f64[0,3]", &[]);
    assert_eq!(run(&Op::Reduce(Reduce::Sum { start: 0, end: 1 }), &[&x], &[]).unwrap(), [[0.0; 3]]);
    let stats = run(&Op::Norm(Norm::Stats { axis: NormAxis::Row }), &[&x], &[]).unwrap();
    assert_eq!(stats, [[0.0; 0], [0.0; 0]]);
}
