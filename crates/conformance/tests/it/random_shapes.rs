//! Every kernel set against the reference over random shapes and attributes. Inputs are small integers, whose sums and
//! products are exact in any order, so all results but quotients and math functions must be equal to the last bit.

use plimsoll_conformance::{cast, check_op, tolerance};
use plimsoll_graph::Op;
use plimsoll_graph::op::{
    Binary, Conv, Elementwise, Epilogue, Geometry, Index, MatMul, Movement, Pool, Reduce, Span, Unary,
    Windows,
};
use plimsoll_tensor::random::Stream;
use plimsoll_tensor::{DType, Shape, Tensor, TensorType};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::slice::from_ref;

/// The most elements of a tensor, so that many shapes can be tried.
const MAX_ELEMENTS: usize = 5_000;

fn config(cases: u32) -> ProptestConfig {
    let rng_seed = RngSeed::Fixed(7);
    ProptestConfig { cases, failure_persistence: None, rng_seed, ..ProptestConfig::default() }
}

/// Integers from -2 to 2 as floats, or below `bound` in other element types.
fn integers(name: &str, dtype: DType, shape: impl Into<Shape>, bound: usize) -> Tensor {
    let (ty, stream) = (TensorType::new(dtype, shape), Stream::new(1, 0, name));
    let (count, least) = if dtype.is_float() { (5, 2.0) } else { (bound.max(1) as u32, 0.0) };
    let value = |i: u64| f64::from(stream.below(0, i, count)) - least;
    let values: Vec<f64> = (0..ty.shape.elements() as u64).map(value).collect();
    Tensor::from_f64(ty, &values).unwrap()
}

fn check_within(
    relative: f64,
    op: &Op,
    inputs: &[Tensor],
    batched: &[bool],
    block: usize,
) -> Result<Vec<Tensor>, TestCaseError> {
    let types: Vec<&TensorType> = inputs.iter().map(Tensor::ty).collect();
    check_op(op, inputs, batched, block, |_| relative)
        .map_err(|e| TestCaseError::fail(format!("{op:?} of {types:?} {e}")))
}

/// Checks an op that is exact on integers; returns the reference's outputs.
fn check(op: impl Into<Op>, inputs: &[Tensor]) -> Result<Vec<Tensor>, TestCaseError> {
    check_within(0.0, &op.into(), inputs, &[], 1)
}

/// Extents, mostly small; sometimes wider than a vector register, or odd.
fn extent() -> impl Strategy<Value = usize> {
    prop_oneof![12 => 0usize..=6, 1 => Just(17usize), 1 => Just(33usize), 1 => Just(70usize)]
}

/// A shape with this many axes; past [`MAX_ELEMENTS`] axes have extent one.
fn shape(axes: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = Vec<usize>> {
    vec(extent(), axes).prop_map(|mut shape| {
        let mut elements = 1;
        for extent in &mut shape {
            if elements * (*extent).max(1) > MAX_ELEMENTS {
                *extent = 1;
            }
            elements *= (*extent).max(1);
        }
        shape
    })
}

/// A shape that broadcasts to this one.
fn source_of(shape: &[usize]) -> impl Strategy<Value = Vec<usize>> + use<> {
    let shape = shape.to_vec();
    (0..=shape.len(), vec(prop::bool::weighted(0.3), shape.len())).prop_map(move |(dropped, ones)| {
        let kept = shape.iter().zip(&ones).skip(dropped);
        kept.map(|(&extent, &one)| if one { 1 } else { extent }).collect()
    })
}

/// `count` shapes that broadcast to the first.
fn broadcast_shapes(count: usize) -> impl Strategy<Value = Vec<Vec<usize>>> {
    shape(0..=5).prop_flat_map(move |target| {
        vec(source_of(&target), count - 1).prop_map(move |mut others| {
            others.insert(0, target.clone());
            others
        })
    })
}

/// A span inside an axis.
fn span(axis: usize) -> impl Strategy<Value = Span> {
    let step = prop_oneof![Just(1isize), Just(1), -3isize..=-1, 2isize..=3];
    (0..axis.max(1), 0..=axis, step).prop_map(move |(start, extent, step)| {
        let ahead = if step > 0 { (axis - 1).saturating_sub(start) } else { start };
        let most = if axis == 0 { 0 } else { ahead / step.unsigned_abs() + 1 };
        Span { start, extent: extent.min(most), step }
    })
}

/// A span of this extent, and the extent of an axis that holds it.
fn span_around(extent: usize) -> impl Strategy<Value = (Span, usize)> {
    (0usize..=3, 0usize..=3, 1usize..=3, any::<bool>()).prop_map(move |(before, after, step, reverse)| {
        let reach = if extent == 0 { 0 } else { (extent - 1) * step + 1 };
        let start = if reverse { before + reach.saturating_sub(1) } else { before };
        let step = if reverse { -(step as isize) } else { step as isize };
        (Span { start, extent, step }, before + reach + after)
    })
}

/// A shape and a permutation of its axes.
fn with_order() -> impl Strategy<Value = (Vec<usize>, Vec<usize>)> {
    shape(0..=5).prop_flat_map(|shape| {
        let axes: Vec<usize> = (0..shape.len()).collect();
        (Just(shape), Just(axes).prop_shuffle())
    })
}

/// A shape and a span of every axis.
fn with_spans() -> impl Strategy<Value = (Vec<usize>, Vec<Span>)> {
    shape(0..=5).prop_flat_map(|shape| {
        let spans: Vec<_> = shape.iter().map(|&extent| span(extent)).collect();
        (Just(shape), spans)
    })
}

/// A shape and, for every axis, its span in a larger axis and that axis' extent.
fn with_spans_around() -> impl Strategy<Value = (Vec<usize>, Vec<(Span, usize)>)> {
    vec(0usize..=5, 0..=4).prop_flat_map(|shape| {
        let spans: Vec<_> = shape.iter().map(|&extent| span_around(extent)).collect();
        (Just(shape), spans)
    })
}

/// A shape and one of its axes.
fn with_axis() -> impl Strategy<Value = (Vec<usize>, usize)> {
    shape(1..=5).prop_flat_map(|shape| (Just(shape.clone()), 0..shape.len()))
}

fn any_type() -> impl Strategy<Value = DType> {
    prop::sample::select(DType::ALL.to_vec())
}

proptest! {
    #![proptest_config(config(1_000))]

    #[test]
    fn binary_ops(
        op in prop::sample::select(vec![
            Binary::Add, Binary::Sub, Binary::Mul, Binary::Div, Binary::Max, Binary::Min, Binary::Pow,
            Binary::Greater, Binary::GreaterEqual, Binary::Equal,
        ]),
        dtype in any_type(),
        shapes in broadcast_shapes(2),
        swap: bool,
    ) {
        let mut inputs: Vec<Tensor> =
            shapes.iter().enumerate().map(|(i, s)| integers(&format!("x{i}"), dtype, s.clone(), 9)).collect();
        if swap {
            inputs.reverse();
        }
        let types: Vec<&TensorType> = inputs.iter().map(Tensor::ty).collect();
        let op = Op::Elementwise(Elementwise::Binary(op));
        prop_assume!(op.infer(&types).is_ok());
        let exact = !matches!(op, Op::Elementwise(Elementwise::Binary(Binary::Div | Binary::Pow)));
        let relative = if exact { 0.0 } else { tolerance(&op, &types, dtype) };
        check_within(relative, &op, &inputs, &[], 1)?;
    }

    #[test]
    fn select_and_cast(
        shapes in broadcast_shapes(3),
        order in Just([0, 1, 2]).prop_shuffle(),
        (dtype, to) in (any_type(), any_type()),
    ) {
        let of = |i: usize, dtype| integers(&format!("x{i}"), dtype, shapes[order[i]].clone(), 300);
        check(Op::Elementwise(Elementwise::Select), &[of(0, DType::Bool), of(1, dtype), of(2, dtype)])?;
        check(Op::Elementwise(Elementwise::Cast(to)), &[of(1, dtype)])?;
    }

    #[test]
    fn unary_ops(
        op in prop::sample::select(vec![
            Unary::Neg, Unary::Abs, Unary::Square, Unary::Sqrt, Unary::Exp, Unary::Tanh, Unary::Sigmoid,
            Unary::Erf, Unary::Relu, Unary::Sin, Unary::Softplus, Unary::Sign,
        ]),
        dtype in prop::sample::select(vec![DType::F32, DType::BF16, DType::F16, DType::F64]),
        shape in shape(0..=5),
    ) {
        let (op, x) = (Op::Elementwise(Elementwise::Unary(op)), integers("x", dtype, shape, 0));
        let relative = tolerance(&op, &[x.ty()], dtype);
        check_within(relative, &op, &[x], &[], 1)?;
    }

    #[test]
    fn transpose_and_broadcast(
        (shape, axes) in with_order(),
        shapes in broadcast_shapes(2),
        dtype in any_type(),
    ) {
        check(Op::Movement(Movement::Transpose(axes)), &[integers("x", dtype, shape, 9)])?;
        let x = integers("x", dtype, shapes[1].clone(), 9);
        check(Op::Movement(Movement::Broadcast(shapes[0].clone().into())), &[x])?;
    }

    #[test]
    fn slice(
        (shape, spans) in with_spans(),
        dtype in any_type(),
    ) {
        check(Op::Movement(Movement::Slice(spans)), &[integers("x", dtype, shape, 9)])?;
    }

    #[test]
    fn pad(
        (shape, around) in with_spans_around(),
        dtype in any_type(),
        value in -2i32..=2,
    ) {
        let (spans, padded): (Vec<Span>, Vec<usize>) = around.into_iter().unzip();
        let op = Movement::Pad { shape: padded.into(), spans, value: f64::from(value) };
        check(Op::Movement(op), &[integers("x", dtype, shape, 9)])?;
    }

    #[test]
    fn concat_and_split((shape, axis) in with_axis(), extents in vec(extent(), 1..=4), dtype in any_type()) {
        let piece = |(i, &extent): (usize, &usize)| {
            let mut shape = shape.clone();
            shape[axis] = extent.min(6);
            integers(&format!("x{i}"), dtype, shape, 9)
        };
        let inputs: Vec<Tensor> = extents.iter().enumerate().map(piece).collect();
        let joined = check(Op::Movement(Movement::Concat { axis }), &inputs)?;
        let extents = inputs.iter().map(|t| t.ty().shape[axis]).collect();
        let pieces = check(Op::Movement(Movement::Split { axis, extents }), &joined)?;
        for (piece, input) in pieces.iter().zip(&inputs) {
            prop_assert_eq!(piece.as_bytes(), input.as_bytes());
        }
    }

    #[test]
    fn reductions(
        ((shape, axis), length) in (with_axis(), 1usize..=5),
        which in 0usize..9,
        reverse: bool,
        k in 0usize..=6,
    ) {
        let (start, end) = (axis, (axis + length).min(shape.len()));
        let reduced: usize = shape[start..end].iter().product();
        let last = *shape.last().unwrap();
        let ops = [
            Reduce::Sum { start, end },
            Reduce::Max { start, end },
            Reduce::Min { start, end },
            Reduce::Product { start, end },
            Reduce::CumulativeSum { axis, reverse },
            Reduce::Argmax,
            Reduce::Argmin,
            Reduce::TopK { k: k.min(last) },
            Reduce::ProductGrad { start, end },
        ];
        let op = Op::Reduce(ops[which].clone());
        let mut inputs = vec![integers("x", DType::F32, shape.clone(), 0)];
        if which == 8 {
            let mut reduced = shape.clone();
            reduced[start..end].fill(1);
            inputs.push(integers("dy", DType::F32, reduced, 0));
        }
        prop_assume!(op.infer(&inputs.iter().map(Tensor::ty).collect::<Vec<_>>()).is_ok());
        // 2 to this power is finite in f32.
        prop_assume!(reduced <= 120 || ![3, 8].contains(&which));
        check(op, &inputs)?;
    }

    #[test]
    fn integer_max_and_min((shape, axis) in with_axis(), of_bools: bool) {
        let dtype = if of_bools { DType::Bool } else { DType::I32 };
        prop_assume!(shape[axis] > 0);
        let x = [integers("x", dtype, shape, 9)];
        check(Op::Reduce(Reduce::Max { start: axis, end: axis + 1 }), &x)?;
        check(Op::Reduce(Reduce::Min { start: axis, end: axis + 1 }), &x)?;
    }

    #[test]
    fn sums_over_the_batch(shape in shape(1..=4), length in 1usize..=4, block in 1usize..=5) {
        let end = length.min(shape.len());
        let op = Op::Reduce(Reduce::Sum { start: 0, end });
        check_within(0.0, &op, &[integers("x", DType::F32, shape, 0)], &[true], block)?;
    }

    #[test]
    fn matmul(
        lead in vec(0usize..=3, 0..=3),
        (m, n, k) in (extent(), extent(), extent()),
        (transpose_a, transpose_b) in any::<(bool, bool)>(),
        (bias, relu) in any::<(bool, bool)>(),
        block in 1usize..=5,
    ) {
        let epilogue = if lead.is_empty() { Epilogue { bias, relu } } else { Epilogue::default() };
        let op = Op::MatMul(MatMul { transpose_a, transpose_b, epilogue, output: None });
        let of = |name, rows: usize, columns: usize, transposed: bool| {
            let matrix = if transposed { [columns, rows] } else { [rows, columns] };
            integers(name, DType::F32, [&lead[..], &matrix].concat(), 0)
        };
        let mut inputs = vec![of("a", m, k, transpose_a), of("b", k, n, transpose_b)];
        if epilogue.bias {
            inputs.push(integers("bias", DType::F32, [n], 0));
        }
        check(op, &inputs)?;
        if lead.is_empty() {
            let op = Op::MatMul(MatMul { transpose_a: true, ..MatMul::default() });
            let inputs = [of("a", m, k, true), of("b", k, n, false)];
            check_within(0.0, &op, &inputs, &[true, true], block)?;
        }
    }

    #[test]
    fn convolutions(
        examples in 0usize..=3,
        image in [1usize..=9, 1usize..=9],
        groups in 1usize..=4,
        (inside, outside) in (prop_oneof![1usize..=5, Just(17)], prop_oneof![1usize..=5, Just(19)]),
        geometry in geometry(),
        (bias, relu) in any::<(bool, bool)>(),
        block in 1usize..=3,
    ) {
        prop_assume!(geometry.output(image).is_ok());
        let [h, w] = image;
        let [kh, kw] = geometry.window;
        let x = integers("x", DType::F32, [examples, h, w, groups * inside], 0);
        let kernel = integers("kernel", DType::F32, [kh, kw, inside, groups * outside], 0);
        let mut inputs = vec![x.clone(), kernel.clone()];
        if bias {
            inputs.push(integers("bias", DType::F32, [groups * outside], 0));
        }
        let epilogue = Epilogue { bias, relu };
        let y = check(Op::Conv(Conv::Forward { geometry, groups, epilogue, output: None }), &inputs)?;
        let dy = integers("dy", DType::F32, y[0].ty().shape.clone(), 0);
        check(Op::Conv(Conv::InputGrad { geometry, groups, image, output: None }), &[dy.clone(), kernel])?;
        let op = Op::Conv(Conv::WeightGrad { geometry, groups });
        check_within(0.0, &op, &[x, dy], &[true, true], block)?;
    }

    #[test]
    fn pools(
        examples in 0usize..=3,
        image in [1usize..=9, 1usize..=9],
        channels in extent(),
        geometry in geometry(),
        adaptive in prop::option::of([1usize..=6, 1usize..=6]),
        count_padding: bool,
    ) {
        let windows = adaptive.map_or(Windows::Sliding(geometry), |output| Windows::Adaptive { output });
        prop_assume!(windows.output(image).is_ok());
        let x = integers("x", DType::F32, [examples, image[0], image[1], channels], 0);
        let outputs = check(Op::Pool(Pool::Max { windows }), from_ref(&x))?;
        let dy = integers("dy", DType::F32, outputs[0].ty().shape.clone(), 0);
        check(Op::Pool(Pool::MaxGrad { windows, image }), &[dy.clone(), outputs[1].clone()])?;
        // Magnitudes: terms of both signs could cancel, and the relative error would be unbounded.
        let sizes: Vec<f64> = dy.to_f64().into_iter().map(f64::abs).collect();
        let dy = Tensor::from_f64(dy.ty().clone(), &sizes).unwrap();
        for (op, x) in [
            (Op::Pool(Pool::Average { windows, count_padding }), x),
            (Op::Pool(Pool::AverageGrad { windows, count_padding, image }), dy),
        ] {
            let relative = tolerance(&op, &[x.ty()], DType::F32);
            check_within(relative, &op, &[x], &[], 1)?;
        }
    }

    #[test]
    fn index_ops(
        lead in vec(0usize..=5, 0..=3),
        (n, k) in (1usize..=40, extent()),
        dtype in any_type(),
        block in 1usize..=4,
    ) {
        let of = |name, dtype, last: usize| integers(name, dtype, [&lead[..], &[last]].concat(), n);
        let indices = of("indices", DType::I32, k);
        let dy = of("dy", DType::F32, k);
        check(Op::Index(Index::Put { extent: n }), &[indices.clone(), dy.clone()])?;
        check(Op::Index(Index::OneHot { classes: n, dtype }), from_ref(&indices))?;
        for dtype in [DType::F32, DType::I32, DType::Bool] {
            check(Op::Index(Index::Take), &[of("x", dtype, n), indices.clone()])?;
        }
        let table = integers("table", DType::F32, [n, k], 0);
        let rows = integers("rows", DType::I32, lead.clone(), n);
        let gathered = check(Op::Index(Index::Gather), &[table, rows.clone()])?;
        let dy = cast(&gathered[0], DType::F32);
        let batched = [!lead.is_empty(); 2];
        check_within(0.0, &Op::Index(Index::ScatterAdd { rows: n }), &[rows, dy], &batched, block)?;
    }
}

fn geometry() -> impl Strategy<Value = Geometry> {
    let pair = |range: std::ops::RangeInclusive<usize>| [range.clone(), range];
    let padding = [pair(0..=3), pair(0..=3)];
    (pair(1..=4), pair(1..=3), padding, pair(1..=3))
        .prop_map(|(window, stride, padding, dilation)| Geometry { window, stride, padding, dilation })
}
