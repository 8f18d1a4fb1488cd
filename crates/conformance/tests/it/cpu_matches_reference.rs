//! Every kernel set against the reference: the golden cases, and shapes that are empty, single, odd and broadcast.

use plimsoll_conformance::{
    Harness, cast, check_op, compare, executors, golden_cases, random, reference_op, run_op, tolerance,
};
use plimsoll_graph::op::{
    Attention, Binary, Codes, Conv, Elementwise, Epilogue, Factor, Geometry, Grid, Index, Int8, Loss, MatMul,
    Movement, Norm, NormAxis, Pool, Reduce, Resize, ResizeMode, Unary, Windows,
};
use plimsoll_graph::{Builder, Op};
use plimsoll_plan::{Budget, Executor, plan};
use plimsoll_tensor::{DType, Tensor, TensorType};

/// Composites that only the reference runs: `decompose` replaces them before another executor sees the graph.
fn is_composite(op: &Op) -> bool {
    matches!(op, Op::Norm(Norm::Layer { .. } | Norm::Batch { .. }))
}

/// Ops that only processors have kernels of, where the executors are GPUs: bytes are multiplied there.
fn is_missing(op: &Op) -> bool {
    let missing = matches!(op, Op::Int8(_) | Op::Norm(Norm::Moments | Norm::StatsOfMoments { .. }));
    missing && executors().iter().any(|entry| entry.name.contains("cuda"))
}

/// Runs an op on every kernel set and compares with the reference on the same inputs.
fn check(name: &str, op: &Op, inputs: &[Tensor], batched: &[bool], block: usize) {
    let types: Vec<&TensorType> = inputs.iter().map(Tensor::ty).collect();
    // Kernels compute in f32, whatever float they store; math functions may be off by a few units in the last place.
    let dtype = types.iter().map(|t| t.dtype).find(|d| d.is_float()).unwrap_or(DType::F32);
    let allowed = 2.0 * tolerance(op, &types, dtype);
    check_op(op, inputs, batched, block, |_| allowed).unwrap_or_else(|e| panic!("{name} {e}"));
}

#[test]
pub(super) fn golden_cases_match_in_f32() {
    let mut checked = 0;
    for case in golden_cases().iter().filter(|c| !is_composite(&c.op) && !is_missing(&c.op)) {
        if case.inputs.iter().any(|t| matches!(t.ty().dtype, DType::BF16 | DType::F16 | DType::I64)) {
            continue;
        }
        let op = match &case.op {
            Op::Elementwise(Elementwise::Constant { value, dtype: DType::F64 }) => {
                Op::Elementwise(Elementwise::Constant { value: *value, dtype: DType::F32 })
            }
            Op::Elementwise(Elementwise::Cast(DType::F64)) => Op::Elementwise(Elementwise::Cast(DType::F32)),
            Op::Fused(_) => continue,
            // Moments are f64, whatever they are moments of.
            Op::Norm(Norm::StatsOfMoments { .. }) => {
                let op = Op::Norm(Norm::StatsOfMoments { dtype: DType::F32 });
                let types: Vec<&TensorType> = case.inputs.iter().map(Tensor::ty).collect();
                let allowed = 2.0 * tolerance(&op, &types, DType::F32);
                check_op(&op, &case.inputs, &[], 1, |_| allowed)
                    .unwrap_or_else(|e| panic!("{} {e}", case.name));
                continue;
            }
            op => op.clone(),
        };
        let inputs: Vec<Tensor> = case.inputs.iter().map(|t| cast(t, DType::F32)).collect();
        check(&case.name, &op, &inputs, &[], 1);
        checked += 1;
    }
    assert!(checked > 150, "only {checked} cases");
}

/// Inputs by their types; integers are below `bound`.
fn inputs(name: &str, types: &[&str], bound: u32) -> Vec<Tensor> {
    let make = |(i, ty): (usize, &&str)| random(&format!("{name} {i}"), &ty.parse().unwrap(), bound);
    types.iter().enumerate().map(make).collect()
}

/// Checks an op on random inputs, once for each list of input types.
fn each(op: Op, cases: &[&[&str]]) {
    for types in cases {
        let name = format!("{} {types:?}", op.name());
        check(&name, &op, &inputs(&name, types, 3), &[], 1);
    }
}

#[test]
pub(super) fn elementwise_over_awkward_shapes() {
    for op in
        [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div, Binary::Max, Binary::Greater, Binary::Equal]
    {
        each(
            Op::Elementwise(Elementwise::Binary(op)),
            &[
                &["f32[]", "f32[]"],
                &["f32[0]", "f32[0]"],
                &["f32[1]", "f32[7]"],
                &["f32[3,1]", "f32[1,5]"],
                &["f32[2,3,33]", "f32[33]"],
                &["f32[4,1,9]", "f32[3,1]"],
                &["f32[0,5]", "f32[5]"],
                &["f32[2049]", "f32[]"],
                &["f32[67,31]", "f32[67,1]"],
                &["f32[1000,3]", "f32[3]"],
                &["f32[9,8]", "f32[8]"],
            ],
        );
    }
    for op in [
        Unary::Exp,
        Unary::Tanh,
        Unary::Erf,
        Unary::Sigmoid,
        Unary::Relu,
        Unary::Square,
        Unary::Neg,
        Unary::Abs,
    ] {
        each(
            Op::Elementwise(Elementwise::Unary(op)),
            &[&["f32[]"], &["f32[0,4]"], &["f32[1]"], &["f32[13,77]"]],
        );
    }
    each(
        Op::Elementwise(Elementwise::Select),
        &[
            &["bool[5]", "f32[5]", "f32[5]"],
            &["bool[4,1]", "f32[3]", "f32[]"],
            &["bool[0]", "f32[0]", "f32[1]"],
        ],
    );
}

#[test]
pub(super) fn movement_and_reductions_over_awkward_shapes() {
    each(
        Op::Movement(Movement::Transpose(vec![2, 0, 1])),
        &[&["f32[3,4,5]"], &["i32[1,7,2]"], &["u8[0,2,3]"]],
    );
    each(Op::Movement(Movement::Broadcast([4, 3, 5].into())), &[&["f32[3,1]"], &["f32[]"], &["bool[4,3,5]"]]);
    for (start, end) in [(0, 1), (1, 2), (0, 2), (1, 3), (2, 3), (0, 3)] {
        let shapes: &[&[&str]] =
            &[&["f32[3,4,5]"], &["f32[1,1,1]"], &["f32[130,3,17]"], &["f32[2,0,3]"], &["f32[5,300,1]"]];
        each(Op::Reduce(Reduce::Sum { start, end }), shapes);
        each(Op::Reduce(Reduce::SquareSum { start, end }), shapes);
    }
    each(Op::Reduce(Reduce::Argmax), &[&["f32[7]"], &["f32[5,1]"], &["f32[0,3]"], &["f32[33,65]"]]);
}

#[test]
pub(super) fn matmul_over_awkward_shapes() {
    for (transpose_a, transpose_b) in [(false, false), (true, false), (false, true), (true, true)] {
        for (m, n, k) in
            [(1, 1, 1), (0, 3, 2), (3, 0, 2), (2, 3, 0), (5, 17, 3), (31, 33, 300), (1, 65, 513), (70, 1, 19)]
        {
            for epilogue in [Epilogue::default(), Epilogue { bias: true, relu: true }] {
                let op = Op::MatMul(MatMul { transpose_a, transpose_b, epilogue, output: None });
                let a = if transpose_a { format!("f32[{k},{m}]") } else { format!("f32[{m},{k}]") };
                let b = if transpose_b { format!("f32[{n},{k}]") } else { format!("f32[{k},{n}]") };
                let bias = format!("f32[{n}]");
                let types: Vec<&str> = if epilogue.bias { vec![&a, &b, &bias] } else { vec![&a, &b] };
                each(op, &[&types]);
            }
        }
    }
}

#[test]
pub(super) fn convolutions_and_pools_over_awkward_shapes() {
    let geometry = |window, stride, padding| Geometry { window, stride, padding, dilation: [1, 1] };
    let geometries = [
        geometry([1, 1], [1, 1], [[0, 0], [0, 0]]),
        geometry([3, 3], [1, 1], [[1, 1], [1, 1]]),
        geometry([3, 2], [2, 1], [[0, 1], [1, 0]]),
        geometry([5, 5], [2, 3], [[2, 2], [1, 3]]),
        geometry([1, 1], [2, 2], [[0, 0], [0, 0]]),
        Geometry { dilation: [2, 1], ..geometry([2, 3], [1, 1], [[1, 1], [1, 1]]) },
        Geometry { dilation: [2, 3], ..geometry([3, 2], [2, 2], [[2, 0], [1, 3]]) },
        Geometry { dilation: [3, 2], ..geometry([2, 3], [2, 4], [[3, 3], [3, 3]]) },
    ];
    for g in geometries {
        for (n, h, w, ci, co, groups) in [
            (1, 5, 5, 1, 1, 1),
            (2, 7, 9, 3, 5, 1),
            (3, 6, 5, 17, 2, 1),
            (0, 6, 6, 2, 3, 1),
            (2, 8, 6, 4, 33, 1),
            // Two groups of more and of fewer channels than a vector has; depthwise with one output per channel and with
            // two; no examples.
            (2, 7, 6, 40, 36, 2),
            (3, 6, 5, 6, 9, 3),
            (2, 7, 9, 21, 21, 21),
            (2, 6, 5, 5, 10, 5),
            (0, 6, 6, 4, 4, 4),
            (0, 6, 6, 4, 6, 2),
        ] {
            let [oh, ow] = g.output([h, w]).unwrap();
            let x = format!("f32[{n},{h},{w},{ci}]");
            let y = format!("f32[{n},{oh},{ow},{co}]");
            let kernel = format!("f32[{},{},{},{co}]", g.window[0], g.window[1], ci / groups);
            let bias = format!("f32[{co}]");
            let epilogue = Epilogue { bias: true, relu: true };
            let forward = |epilogue| Op::Conv(Conv::Forward { geometry: g, groups, epilogue, output: None });
            each(forward(Epilogue::default()), &[&[&x, &kernel]]);
            each(forward(epilogue), &[&[&x, &kernel, &bias]]);
            each(
                Op::Conv(Conv::InputGrad { geometry: g, groups, image: [h, w], output: None }),
                &[&[&y, &kernel]],
            );
            each(Op::Conv(Conv::WeightGrad { geometry: g, groups }), &[&[&x, &y]]);
            if groups == 1 && Windows::Sliding(g).output([h, w]).is_ok() {
                pools(Windows::Sliding(g), [n, h, w, ci]);
            }
        }
    }
    for output in [[1, 1], [2, 3], [5, 4], [7, 9]] {
        for image in [[1, 5, 5, 1], [2, 7, 9, 3], [3, 1, 1, 17], [0, 6, 6, 2], [2, 8, 6, 33]] {
            pools(Windows::Adaptive { output }, image);
        }
    }
}

/// Larger than what kernels compute at once: patches of images, parts of a sum over pixels.
#[test]
pub(super) fn large_convolutions_match() {
    let geometry = Geometry { window: [5, 5], stride: [1, 1], padding: [[2, 2]; 2], dilation: [1, 1] };
    let strided = Geometry { stride: [2, 2], ..geometry };
    for (geometry, groups, x, kernel, y) in [
        (geometry, 1, "f32[1,80,80,64]", "f32[5,5,64,1]", "f32[1,80,80,1]"),
        (geometry, 1, "f32[1,80,80,1]", "f32[5,5,1,64]", "f32[1,80,80,64]"),
        (strided, 1, "f32[2,96,96,1]", "f32[5,5,1,200]", "f32[2,48,48,200]"),
        (geometry, 4, "f32[1,80,80,4]", "f32[5,5,1,4]", "f32[1,80,80,4]"),
    ] {
        let image: TensorType = x.parse().unwrap();
        let image = [image.shape[1], image.shape[2]];
        let epilogue = Epilogue::default();
        each(Op::Conv(Conv::Forward { geometry, groups, epilogue, output: None }), &[&[x, kernel]]);
        each(Op::Conv(Conv::InputGrad { geometry, groups, image, output: None }), &[&[y, kernel]]);
        each(Op::Conv(Conv::WeightGrad { geometry, groups }), &[&[x, y]]);
    }
}

/// More queries than kernels of causal attention compute at once.
#[test]
pub(super) fn large_attention_matches() {
    attention(true, &["f32[1,600,2,4]", "f32[1,600,1,4]", "f32[1,600,1,4]"]);
    attention(true, &["f32[1,530,1,4]", "f32[1,700,1,4]", "f32[1,700,1,4]"]);
}

/// Every pooling op over these windows, with its gradient.
fn pools(windows: Windows, [n, h, w, c]: [usize; 4]) {
    let image = [h, w];
    let [oh, ow] = windows.output(image).unwrap();
    let (x, y) = (format!("f32[{n},{h},{w},{c}]"), format!("f32[{n},{oh},{ow},{c}]"));
    let [max, max_grad] = [Pool::Max { windows }, Pool::MaxGrad { windows, image }].map(Op::Pool);
    each(max.clone(), &[&[&x]]);
    with_gradient(max, max_grad, &[&x], &[1], &|_, saved, dy| [vec![dy], saved].concat());
    for count_padding in [false, true] {
        each(Op::Pool(Pool::Average { windows, count_padding }), &[&[&x]]);
        each(Op::Pool(Pool::AverageGrad { windows, count_padding, image }), &[&[&y]]);
    }
}

#[test]
pub(super) fn resizing_over_awkward_shapes() {
    let modes = [
        ResizeMode::Nearest,
        ResizeMode::Bilinear { align_corners: false },
        ResizeMode::Bilinear { align_corners: true },
    ];
    for mode in modes {
        for (from, to) in
            [([1, 1], [1, 1]), ([1, 1], [4, 3]), ([6, 5], [1, 1]), ([5, 7], [13, 3]), ([9, 4], [4, 16])]
        {
            for (n, c) in [(2, 1), (1, 17), (0, 3), (3, 64)] {
                let [x, y] = [from, to].map(|[h, w]| format!("f32[{n},{h},{w},{c}]"));
                each(Op::Resize(Resize::Forward { mode, output: to }), &[&[&x]]);
                each(Op::Resize(Resize::Grad { mode, image: from }), &[&[&y]]);
            }
        }
    }
}

#[test]
pub(super) fn norms_gathers_and_losses_over_awkward_shapes() {
    let shapes: &[&[&str]] =
        &[&["f32[1,1]"], &["f32[5,3]"], &["f32[2,3,65]"], &["f32[300,17]"], &["f32[2,1,4,16]"]];
    for axis in [NormAxis::Row, NormAxis::Channel] {
        each(Op::Norm(Norm::Stats { axis }), shapes);
        for (x, row, channel) in [
            ("f32[5,3]", "f32[5,1]", "f32[3]"),
            ("f32[2,3,65]", "f32[2,3,1]", "f32[65]"),
            ("f32[301,17]", "f32[301,1]", "f32[17]"),
        ] {
            each(Op::Norm(Norm::Sums { axis }), &[&[x, x, row, row], &[x, x, channel, channel]]);
        }
    }
    each(
        Op::Index(Index::Gather),
        &[&["f32[3,5]", "i32[7]"], &["f32[4,1]", "i32[2,3]"], &["f32[3,2]", "i32[0]"]],
    );
    each(Op::Index(Index::ScatterAdd { rows: 4 }), &[&["i32[9]", "f32[9,5]"], &["i32[2,3]", "f32[2,3,1]"]]);
    each(
        Op::Loss(Loss::CrossEntropy),
        &[
            &["f32[1,3]", "i32[1]", "f32[1]"],
            &["f32[70,13]", "i32[70]", "f32[70]"],
            &["f32[5,129]", "i32[5]", "f32[5]"],
        ],
    );
    each(
        Op::Loss(Loss::LinearCrossEntropy { transposed: false }),
        &[
            &["f32[1,2]", "f32[2,3]", "i32[1]", "f32[1]"],
            &["f32[300,9]", "f32[9,37]", "i32[300]", "f32[300]"],
        ],
    );
    for (transposed, kernels) in [(false, ["f32[2,3]", "f32[9,37]"]), (true, ["f32[3,2]", "f32[37,9]"])] {
        each(
            Op::Loss(Loss::LinearCrossEntropyWithGrad { transposed }),
            &[
                &["f32[1,2]", kernels[0], "i32[1]", "f32[1]", "f32[]"],
                &["f32[300,9]", kernels[1], "i32[300]", "f32[300]", "f32[]"],
            ],
        );
    }
    each(
        Op::Loss(Loss::LinearCrossEntropy { transposed: true }),
        &[
            &["f32[1,2]", "f32[3,2]", "i32[1]", "f32[1]"],
            &["f32[300,9]", "f32[37,9]", "i32[300]", "f32[300]"],
        ],
    );
}

/// Checks a gradient op on the outputs of its forward op, with a random gradient of the first. `operands` arranges inputs,
/// saved outputs and that gradient.
fn with_gradient(
    forward: Op,
    backward: Op,
    types: &[&str],
    saved: &[usize],
    operands: &dyn Fn(Vec<Tensor>, Vec<Tensor>, Tensor) -> Vec<Tensor>,
) {
    let name = format!("{} {types:?}", backward.name());
    let given = inputs(&name, types, 3);
    let outputs = reference_op(&forward, &given).unwrap();
    let dy = random(&format!("{name} dy"), outputs[0].ty(), 3);
    let saved = saved.iter().map(|&i| outputs[i].clone()).collect();
    check(&name, &backward, &operands(given, saved, dy), &[], 1);
}

#[test]
pub(super) fn gradient_ops_over_awkward_shapes() {
    let all = |x: Vec<Tensor>, saved: Vec<Tensor>, dy: Tensor| [x, saved, vec![dy]].concat();
    for types in [
        ["f32[1,3]", "i32[1]", "f32[1]"],
        ["f32[70,13]", "i32[70]", "f32[70]"],
        ["f32[5,129]", "i32[5]", "f32[5]"],
    ] {
        with_gradient(Op::Loss(Loss::CrossEntropy), Op::Loss(Loss::CrossEntropyGrad), &types, &[1], &all);
    }
    for (transposed, types) in [
        (false, ["f32[1,2]", "f32[2,3]", "i32[1]", "f32[1]"]),
        (false, ["f32[300,9]", "f32[9,37]", "i32[300]", "f32[300]"]),
        (false, ["f32[3,40]", "f32[40,5]", "i32[3]", "f32[3]"]),
        (true, ["f32[300,9]", "f32[37,9]", "i32[300]", "f32[300]"]),
        (true, ["f32[3,40]", "f32[5,40]", "i32[3]", "f32[3]"]),
    ] {
        let forward = Loss::LinearCrossEntropy { transposed };
        let backward = Loss::LinearCrossEntropyGrad { transposed };
        with_gradient(Op::Loss(forward), Op::Loss(backward), &types, &[1], &all);
    }
    for (window, stride, padding, [h, w]) in [(2, 2, 0, [6, 7]), (3, 1, 1, [5, 4]), (3, 2, 1, [1, 9])] {
        let geometry = Geometry {
            window: [window; 2],
            stride: [stride; 2],
            padding: [[padding; 2]; 2],
            dilation: [1; 2],
        };
        pools(Windows::Sliding(geometry), [2, h, w, 5]);
    }
}

/// Attention and its gradient; a fourth type is the mask's.
fn attention(causal: bool, types: &[&str]) {
    attention_in(causal, None, types);
}

fn attention_in(causal: bool, window: Option<usize>, types: &[&str]) {
    let masked = types.len() == 4;
    let [forward, backward] =
        [Attention::Forward { causal, window, masked }, Attention::Grad { causal, window, masked }]
            .map(Op::Attention);
    let name = format!("attention {types:?}, causal {causal}, window {window:?}");
    let given: Vec<Tensor> = inputs(&name, types, 3).iter().map(coarse).collect();
    check(&name, &forward, &given, &[], 1);
    let outputs = reference_op(&forward, &given).unwrap();
    let dy = coarse(&random(&format!("{name} dy"), outputs[0].ty(), 3));
    check(&name, &backward, &[&given[..3], &outputs[..], &[dy], &given[3..]].concat(), &[], 1);
}

/// Multiples of 1/16: sums of their products are exact, so a gradient that is zero because there is only one key stays zero.
fn coarse(tensor: &Tensor) -> Tensor {
    if !tensor.ty().dtype.is_float() {
        return tensor.clone();
    }
    let values: Vec<f64> = tensor.to_f64().iter().map(|x| (x * 16.0).round() / 16.0).collect();
    Tensor::from_f64(tensor.ty().clone(), &values).unwrap()
}

#[test]
pub(super) fn attention_over_awkward_shapes() {
    for causal in [false, true] {
        for q in ["f32[1,1,1,1]", "f32[2,5,3,7]", "f32[1,70,2,16]", "f32[3,65,1,33]", "f32[0,4,2,8]"] {
            attention(causal, &[q, q, q]);
        }
        for (q, k) in [
            ("f32[2,1,3,7]", "f32[2,70,3,7]"),
            ("f32[2,70,2,9]", "f32[2,1,2,9]"),
            ("f32[2,70,2,9]", "f32[2,33,2,9]"),
            ("f32[1,33,2,9]", "f32[1,70,2,9]"),
            ("f32[2,70,6,5]", "f32[2,33,2,5]"),
            ("f32[1,65,4,16]", "f32[1,130,1,16]"),
            ("f32[0,3,4,8]", "f32[0,5,2,8]"),
            ("f32[2,0,4,8]", "f32[2,5,2,8]"),
            ("f32[2,3,4,8]", "f32[2,0,2,8]"),
        ] {
            attention(causal, &[q, k, k]);
        }
    }
}

/// With windows that begin in a tile, and queries that see no key.
#[test]
pub(super) fn attention_with_windows() {
    for window in [1, 7, 64, 100] {
        for (q, k) in [
            ("f32[2,5,3,7]", "f32[2,5,3,7]"),
            ("f32[1,130,2,16]", "f32[1,130,1,16]"),
            ("f32[1,150,2,9]", "f32[1,33,2,9]"),
            ("f32[1,33,2,9]", "f32[1,70,2,9]"),
        ] {
            attention_in(true, Some(window), &[q, k, k]);
        }
        attention_in(
            true,
            Some(window),
            &["f32[2,70,4,3]", "f32[2,33,2,3]", "f32[2,33,2,3]", "bool[2,1,70,33]"],
        );
    }
}

/// With masks that hide every key from some queries.
#[test]
pub(super) fn masked_attention_over_awkward_shapes() {
    for causal in [false, true] {
        for ones in 0..8 {
            for (n, queries, keys) in [(3, 5, 2), (2, 70, 33), (1, 1, 65), (0, 3, 4)] {
                let extent = |axis: usize, whole: usize| if ones >> axis & 1 == 1 { 1 } else { whole };
                let mask = format!("bool[{},{},{},{keys}]", extent(0, n), extent(1, 4), extent(2, queries));
                let (q, k) = (format!("f32[{n},{queries},4,3]"), format!("f32[{n},{keys},2,3]"));
                attention(causal, &[&q, &k, &k, &mask]);
            }
        }
    }
}

#[test]
pub(super) fn rotary_embeddings_over_awkward_shapes() {
    for (inverse, start) in [(false, 0), (true, 0), (false, 5)] {
        each(
            Op::Attention(Attention::Rotary { base: 10_000.0, inverse, start }),
            &[
                &["f32[1,1,1,2]"],
                &["f32[3,65,2,34]"],
                &["f32[2,7,3,16]"],
                &["f32[0,4,2,8]"],
                &["f32[2,0,1,4]"],
            ],
        );
    }
}

/// However many rotations follow each other, one value is live besides the input.
#[test]
pub(super) fn rotary_embeddings_work_in_place() {
    let x_type: TensorType = "f32[3,65,2,34]".parse().unwrap();
    let mut b = Builder::new(1, 1);
    let x = b.input("x", x_type.clone(), false);
    let mut y = b.one(Op::Elementwise(Elementwise::Unary(Unary::Neg)), &[x]).unwrap();
    for inverse in [false, true] {
        let op = Op::Attention(Attention::Rotary { base: 10_000.0, inverse, start: 2 });
        y = b.one(op, &[y]).unwrap();
    }
    b.output("y", y);
    let graph = b.finish().unwrap();
    let x = random("x", &x_type, 1);
    let expected: Vec<f64> = x.to_f64().iter().map(|x| -x).collect();
    let expected = Tensor::from_f64(x.ty().clone(), &expected).unwrap();
    for entry in executors() {
        let executor = entry.checked(2);
        let budget = Budget::new(usize::MAX, Vec::new());
        let plans = plan(&[("test".into(), graph.clone())], executor.target(), &budget).unwrap();
        let value = x_type.bytes();
        assert!(plans.arena_bytes < 3 * value, "{} for values of {value}", plans.arena_bytes);
        let found = Harness::new(&executor, graph.clone()).unwrap().run(std::slice::from_ref(&x)).unwrap();
        compare(&found[0], &expected, 1e-6).unwrap();
    }
}

/// However many functions of codes follow each other, one value is live besides the input.
#[test]
fn functions_of_codes_work_in_place() {
    let ty: TensorType = "u8[3,65,2,34]".parse().unwrap();
    let grid = Grid { scale: 0.05, zero: 100 };
    let factor = Factor { multiplier: 1 << 30, shift: -6 };
    let swish = Int8::Swish { from: grid, factor, output: Codes { zero: 20, low: 0, high: 255 } };
    let ops = [Int8::Sigmoid(grid), swish.clone(), swish].map(Op::Int8);
    if ops.iter().any(is_missing) {
        return;
    }
    let mut b = Builder::new(1, 1);
    let x = b.input("x", ty.clone(), false);
    let y = ops.iter().fold(x, |y, op| b.one(op.clone(), &[y]).unwrap());
    b.output("y", y);
    let graph = b.finish().unwrap();
    let x = random("x", &ty, 256);
    let tables = ops.each_ref().map(|op| if let Op::Int8(op) = op { op.table().unwrap() } else { [0; 256] });
    let found = |code: &f64| tables.iter().fold(*code as usize, |code, table| table[code].into()) as f64;
    let expected: Vec<f64> = x.to_f64().iter().map(found).collect();
    let expected = Tensor::from_f64(ty.clone(), &expected).unwrap();
    for entry in executors() {
        let executor = entry.checked(2);
        let budget = Budget::new(usize::MAX, Vec::new());
        let plans = plan(&[("test".into(), graph.clone())], executor.target(), &budget).unwrap();
        assert!(plans.arena_bytes < 3 * ty.bytes(), "{} for values of {}", plans.arena_bytes, ty.bytes());
        let found = Harness::new(&executor, graph.clone()).unwrap().run(std::slice::from_ref(&x)).unwrap();
        compare(&found[0], &expected, 0.0).unwrap();
    }
}

/// An example has its bits in any batch, whether the mask is per example or shared.
#[test]
pub(super) fn attention_of_an_example_does_not_depend_on_its_batch() {
    let masks = [(true, "bool[5,1,7,9]"), (false, "bool[1,4,1,9]")];
    for (entry, (per_example, mask)) in executors().iter().flat_map(|e| masks.map(|mask| (e, mask))) {
        let op = Op::Attention(Attention::Forward { causal: false, window: None, masked: true });
        let all = inputs("batch", &["f32[5,7,4,6]", "f32[5,9,2,6]", "f32[5,9,2,6]", mask], 3);
        let batched = [true, true, true, per_example];
        let executor = entry.on(2);
        let whole = run_op(&executor, &op, &all, &batched, 1).unwrap();
        for example in 0..5 {
            let one: Vec<Tensor> = all
                .iter()
                .zip(batched)
                .map(|(t, batched)| if batched { row(t, example) } else { t.clone() })
                .collect();
            let alone = run_op(&executor, &op, &one, &batched, 1).unwrap();
            for (whole, alone) in whole.iter().zip(&alone) {
                assert_eq!(row(whole, example).as_bytes(), alone.as_bytes());
            }
        }
    }
}

/// One example of a tensor, as a batch of its own.
fn row(tensor: &Tensor, example: usize) -> Tensor {
    let mut extents = tensor.ty().shape.to_vec();
    let elements = tensor.ty().shape.elements() / extents[0];
    extents[0] = 1;
    let values = &tensor.to_f64()[example * elements..][..elements];
    Tensor::from_f64(TensorType::new(tensor.ty().dtype, &extents[..]), values).unwrap()
}

/// Sums over the batch fold in blocks: another order, the same sum.
#[test]
pub(super) fn sums_over_the_batch_match_for_every_block() {
    for block in [1, 2, 8, 64] {
        let run = |op: Op, types: &[&str]| {
            let name = format!("{} {types:?} in blocks of {block}", op.name());
            check(&name, &op, &inputs(&name, types, 3), &vec![true; types.len()], block);
        };
        run(Op::Reduce(Reduce::Sum { start: 0, end: 1 }), &["f32[50,9]"]);
        run(Op::Reduce(Reduce::Sum { start: 0, end: 2 }), &["f32[50,3,9]"]);
        let transposed = MatMul { transpose_a: true, ..MatMul::default() };
        run(Op::MatMul(transposed), &["f32[50,9]", "f32[50,33]"]);
        let geometry =
            Geometry { window: [3, 3], stride: [1, 1], padding: [[1, 1], [1, 1]], dilation: [1, 1] };
        let weight_grad = |groups| Op::Conv(Conv::WeightGrad { geometry, groups });
        run(weight_grad(1), &["f32[10,6,6,3]", "f32[10,6,6,5]"]);
        run(weight_grad(3), &["f32[10,6,6,6]", "f32[10,6,6,9]"]);
        run(weight_grad(20), &["f32[10,6,6,20]", "f32[10,6,6,20]"]);
        run(Op::Index(Index::ScatterAdd { rows: 3 }), &["i32[50]", "f32[50,4]"]);
        run(
            Op::Norm(Norm::Sums { axis: NormAxis::Channel }),
            &["f32[50,7]", "f32[50,7]", "f32[50,1]", "f32[50,1]"],
        );
        run(
            Op::Norm(Norm::Sums { axis: NormAxis::Channel }),
            &["f32[50,24]", "f32[50,24]", "f32[50,1]", "f32[50,1]"],
        );
        run(Op::Loss(Loss::CrossEntropy), &["f32[50,3]", "i32[50]", "f32[50]"]);
        if !is_missing(&Op::Norm(Norm::Moments)) {
            run(Op::Norm(Norm::Moments), &["f32[50,3,7]"]);
        }
    }
}

#[test]
pub(super) fn an_index_out_of_range_is_an_error_that_names_it() {
    let table = random("table", &"f32[3,2]".parse().unwrap(), 1);
    let index = Tensor::from_f64("i32[2]".parse().unwrap(), &[1.0, 3.0]).unwrap();
    let inputs = [table, index];
    for entry in executors() {
        let error = run_op(&entry.on(1), &Op::Index(Index::Gather), &inputs, &[], 1).unwrap_err();
        assert!(error.contains("gather") && error.contains('3'), "{error}");
    }
}

#[test]
pub(super) fn reductions_of_every_kind_over_awkward_shapes() {
    for (start, end) in [(0, 1), (1, 2), (0, 2), (1, 3), (2, 3), (0, 3)] {
        let shapes: &[&[&str]] =
            &[&["f32[3,4,5]"], &["f32[1,1,1]"], &["f32[130,3,17]"], &["f32[5,300,1]"], &["f32[2,7,300]"]];
        each(Op::Reduce(Reduce::Product { start, end }), shapes);
        each(Op::Reduce(Reduce::Product { start, end }), &[&["f32[2,0,3]"]]);
        for op in [Reduce::Max { start, end }, Reduce::Min { start, end }] {
            each(Op::Reduce(op.clone()), shapes);
            each(Op::Reduce(op), &[&["i32[3,4,65]"], &["bool[5,2,9]"], &["bool[70,1,66]"]]);
        }
        for x in ["f32[3,4,5]", "f32[1,1,1]", "f32[9,3,17]", "f32[2,0,3]", "f32[2,5,300]"] {
            let forward = Op::Reduce(Reduce::Product { start, end });
            let backward = Op::Reduce(Reduce::ProductGrad { start, end });
            with_gradient(forward, backward, &[x], &[], &|x, _, dy| [x, vec![dy]].concat());
        }
    }
    // An empty maximum is refused, but not if there are no maxima to compute.
    each(Op::Reduce(Reduce::Max { start: 1, end: 2 }), &[&["f32[0,3]"], &["bool[0,3,2]"]]);
    for axis in 0..3 {
        for reverse in [false, true] {
            each(
                Op::Reduce(Reduce::CumulativeSum { axis, reverse }),
                &[&["f32[3,4,5]"], &["f32[1,1,1]"], &["f32[2,0,3]"], &["f32[33,2,300]"], &["f32[2,700,1]"]],
            );
        }
    }
    each(Op::Reduce(Reduce::Argmin), &[&["f32[7]"], &["f32[5,1]"], &["f32[0,3]"], &["f32[33,65]"]]);
    for k in [0, 1, 3] {
        each(Op::Reduce(Reduce::TopK { k }), &[&["f32[3]"], &["f32[5,7]"], &["f32[0,3]"], &["f32[2,9,65]"]]);
    }
    each(Op::Reduce(Reduce::TopK { k: 65 }), &[&["f32[3,65]"]]);
}

#[test]
pub(super) fn large_reductions_match() {
    let large: &[&[&str]] = &[&["f32[1000003]"], &["f32[1000,1000]"], &["f32[7,150001]"]];
    for op in [
        Reduce::Sum { start: 0, end: 1 },
        Reduce::Max { start: 0, end: 1 },
        Reduce::Min { start: 0, end: 1 },
        Reduce::Product { start: 0, end: 1 },
        Reduce::Argmin,
        Reduce::CumulativeSum { axis: 0, reverse: true },
        Reduce::TopK { k: 100 },
    ] {
        each(Op::Reduce(op), large);
    }
}

/// Floats with many ties, infinities and NaN.
fn difficult(ty: &str) -> Tensor {
    let ty: TensorType = ty.parse().unwrap();
    let values = [0.0, -0.0, 1.0, 1.0, -1.0, -1.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    let picks = random("difficult", &TensorType::new(DType::I32, ty.shape.clone()), 200).to_f64();
    // Mostly the first six, so that some rows have no infinities or NaN.
    let pick = |p: f64| values[if p < 9.0 { p as usize } else { p as usize % 6 }];
    Tensor::from_f64(ty, &picks.into_iter().map(pick).collect::<Vec<_>>()).unwrap()
}

#[test]
pub(super) fn ties_infinities_and_nan_match() {
    for ty in ["f32[40,5]", "f32[9,33]", "f32[5,300]", "f32[3,2,70]"] {
        let x = [difficult(ty)];
        let last = x[0].ty().shape.rank() - 1;
        for op in [
            Reduce::Max { start: 0, end: 1 },
            Reduce::Min { start: 0, end: 1 },
            Reduce::Max { start: last, end: last + 1 },
            Reduce::Min { start: last, end: last + 1 },
            Reduce::Argmax,
            Reduce::Argmin,
            Reduce::CumulativeSum { axis: last, reverse: false },
            Reduce::TopK { k: 5 },
        ] {
            check(&format!("{op:?} of {ty}"), &Op::Reduce(op), &x, &[], 1);
        }
    }
}

#[test]
pub(super) fn take_put_and_one_hot_over_awkward_shapes() {
    each(
        Op::Index(Index::Take),
        &[
            &["f32[3]", "i32[5]"],
            &["f32[2,3]", "i32[2,1]"],
            &["f32[0,3]", "i32[0,2]"],
            &["f32[2,3]", "i32[2,0]"],
            &["i32[5,4,7]", "i32[5,4,33]"],
            &["bool[2,5]", "i32[2,9]"],
            &["f32[300,70]", "i32[300,3]"],
        ],
    );
    for extent in [3, 17] {
        each(
            Op::Index(Index::Put { extent }),
            &[
                &["i32[5]", "f32[5]"],
                &["i32[2,1]", "f32[2,1]"],
                &["i32[0,2]", "f32[0,2]"],
                &["i32[2,0]", "f32[2,0]"],
                &["i32[50,4,33]", "f32[50,4,33]"],
            ],
        );
    }
    for dtype in DType::ALL {
        each(
            Op::Index(Index::OneHot { classes: 5, dtype }),
            &[&["i32[]"], &["i32[0]"], &["i32[3,7]"], &["i32[900]"]],
        );
    }
    for extent in [0, 1, 5, 40_000] {
        each(Op::Index(Index::Range { extent }), &[&[]]);
    }
}

#[test]
pub(super) fn batched_matmul_over_awkward_shapes() {
    for (transpose_a, transpose_b) in [(false, false), (true, false), (false, true), (true, true)] {
        let op = Op::MatMul(MatMul { transpose_a, transpose_b, ..MatMul::default() });
        for (lead, m, n, k) in [
            ("1", 1, 1, 1),
            ("0", 3, 4, 5),
            ("2", 0, 3, 2),
            ("2", 2, 3, 0),
            ("5", 17, 3, 9),
            ("2,3", 31, 33, 20),
            ("100", 4, 5, 6),
            ("2", 130, 70, 300),
            ("2,1,9", 40, 50, 60),
        ] {
            let a = if transpose_a { format!("f32[{lead},{k},{m}]") } else { format!("f32[{lead},{m},{k}]") };
            let b = if transpose_b { format!("f32[{lead},{n},{k}]") } else { format!("f32[{lead},{k},{n}]") };
            each(op.clone(), &[&[&a, &b]]);
        }
    }
}

#[test]
pub(super) fn every_index_op_names_an_index_out_of_range() {
    let index = Tensor::from_f64("i32[2,2]".parse().unwrap(), &[1.0, 0.0, 2.0, -7.0]).unwrap();
    let floats = |ty: &str| random("floats", &ty.parse().unwrap(), 1);
    for (op, inputs) in [
        (Index::Take, vec![floats("f32[2,3]"), index.clone()]),
        (Index::Put { extent: 3 }, vec![index.clone(), floats("f32[2,2]")]),
        (Index::OneHot { classes: 3, dtype: DType::F32 }, vec![index.clone()]),
    ] {
        for entry in executors() {
            let error = run_op(&entry.on(1), &Op::Index(op), &inputs, &[], 1).unwrap_err();
            let named = error.contains(Op::Index(op).name()) && error.contains("-7 at position 3");
            assert!(named, "{error}");
        }
    }
}
