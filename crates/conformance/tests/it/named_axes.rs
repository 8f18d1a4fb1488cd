//! The builder's reductions over any axes and its einsum, against plain loops.

use plimsoll_conformance::{Harness, any_executor, cast, compare, executors, random};
use plimsoll_graph::op::Unary;
use plimsoll_graph::{Builder, Graph, GraphError, Numerics, ValueId};
use plimsoll_plan::Executor;
use plimsoll_reference::Reference;
use plimsoll_tensor::random::Stream;
use plimsoll_tensor::{DType, Tensor, TensorType};
use plimsoll_transform::{accumulate, fuse};

/// Builds a graph on these inputs and runs it.
fn run(
    executor: &dyn Executor,
    inputs: &[Tensor],
    build: impl FnOnce(&mut Builder, &[ValueId]) -> Result<Vec<ValueId>, GraphError>,
) -> Vec<Tensor> {
    let mut b = Builder::new(1, 1);
    let inputs_of = |(i, t): (usize, &Tensor)| (format!("x{i}"), t.ty().clone());
    let named: Vec<(String, TensorType)> = inputs.iter().enumerate().map(inputs_of).collect();
    let values: Vec<ValueId> = named.into_iter().map(|(name, ty)| b.setting(&name, ty)).collect();
    let outputs = build(&mut b, &values).unwrap_or_else(|e| panic!("{e}"));
    outputs.into_iter().enumerate().for_each(|(i, v)| b.output(&format!("y{i}"), v));
    let graph = b.finish().unwrap();
    let text = graph.to_string();
    Harness::new(executor, graph).and_then(|mut h| h.run(inputs)).unwrap_or_else(|e| panic!("{e} in\n{text}"))
}

fn tensor(shape: &[usize], values: &[f64]) -> Tensor {
    Tensor::from_f64(TensorType::new(DType::F64, shape), values).unwrap()
}

/// Every index of a shape, in row-major order.
fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for &extent in shape {
        all = all.iter().flat_map(|i| (0..extent).map(move |n| [&i[..], &[n]].concat())).collect();
    }
    all
}

/// The shape of a reduction's result, and the elements that are reduced into each of its elements, in order.
fn groups(x: &Tensor, axes: &[usize]) -> (Vec<usize>, Vec<Vec<f64>>) {
    let shape = &x.ty().shape;
    let kept: Vec<usize> = (0..shape.rank()).filter(|axis| !axes.contains(axis)).collect();
    let left: Vec<usize> = kept.iter().map(|&axis| shape[axis]).collect();
    let mut groups = vec![Vec::new(); left.iter().product()];
    for (index, value) in indices(shape).into_iter().zip(x.to_f64()) {
        let at = kept.iter().fold(0, |at, &axis| at * shape[axis] + index[axis]);
        groups[at].push(value);
    }
    (left, groups)
}

const SHAPE: [usize; 4] = [3, 2, 4, 3];

fn subsets() -> Vec<Vec<usize>> {
    (0..16usize).map(|bits| (0..4).filter(|axis| bits >> axis & 1 == 1).collect()).collect()
}

type Definition<'a> = &'a dyn Fn(&[f64]) -> f64;
type Reduction = fn(&mut Builder, ValueId, &[usize], bool) -> Result<ValueId, GraphError>;

#[test]
fn reductions_over_every_set_of_axes() {
    let variance = |values: &[f64], less: f64| {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (values.len() as f64 - less)
    };
    let cases: [(&str, Reduction, Definition<'_>); 8] = [
        ("sum", Builder::sum, &|v| v.iter().sum()),
        ("mean", Builder::mean, &|v| v.iter().sum::<f64>() / v.len() as f64),
        ("product", Builder::product, &|v| v.iter().product()),
        ("max", Builder::max, &|v| v.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
        ("min", Builder::min, &|v| v.iter().copied().fold(f64::INFINITY, f64::min)),
        ("logsumexp", Builder::logsumexp, &|v| v.iter().map(|x| x.exp()).sum::<f64>().ln()),
        ("variance", |b, x, axes, keep| b.variance(x, axes, keep, false), &|v| variance(v, 0.0)),
        ("unbiased", |b, x, axes, keep| b.variance(x, axes, keep, true), &|v| variance(v, 1.0)),
    ];
    let x = random("x", &TensorType::new(DType::F64, SHAPE), 1);
    for (name, build, definition) in cases {
        for mut axes in subsets().into_iter().filter(|axes| !axes.is_empty()) {
            // The order in which axes are named does not matter.
            axes.rotate_left(1);
            let (left, groups) = groups(&x, &axes);
            let values: Vec<f64> = groups.iter().map(|group| definition(group)).collect();
            let expected = tensor(&left, &values);
            let kept: Vec<usize> =
                (0..4).map(|axis| if axes.contains(&axis) { 1 } else { SHAPE[axis] }).collect();
            let found = run(&Reference, std::slice::from_ref(&x), |b, v| {
                Ok(vec![build(b, v[0], &axes, false)?, build(b, v[0], &axes, true)?])
            });
            compare(&found[0], &expected, 1e-12).unwrap_or_else(|e| panic!("{name} over {axes:?}: {e}"));
            compare(&found[1], &tensor(&kept, &values), 1e-12)
                .unwrap_or_else(|e| panic!("{name} {axes:?}: {e}"));
        }
    }
    let same = run(&Reference, std::slice::from_ref(&x), |b, v| Ok(vec![b.max(v[0], &[], false)?]));
    assert_eq!(same[0], x);
}

#[test]
fn any_and_all_over_every_set_of_axes() {
    let ty = TensorType::new(DType::Bool, SHAPE);
    let integers: Vec<f64> = random("truth", &TensorType::new(DType::I32, SHAPE), 5).to_f64();
    for inverted in [false, true] {
        let values: Vec<f64> = integers.iter().map(|&v| f64::from((v == 0.0) != inverted)).collect();
        let x = Tensor::from_f64(ty.clone(), &values).unwrap();
        for axes in subsets() {
            let (_, groups) = groups(&x, &axes);
            let found = run(&Reference, std::slice::from_ref(&x), |b, v| {
                Ok(vec![b.any(v[0], &axes, false)?, b.all(v[0], &axes, false)?])
            });
            let any: Vec<f64> = groups.iter().map(|g| f64::from(g.contains(&1.0))).collect();
            let all: Vec<f64> = groups.iter().map(|g| f64::from(!g.contains(&0.0))).collect();
            assert_eq!((found[0].to_f64(), found[1].to_f64()), (any, all), "{axes:?}");
        }
    }
}

#[test]
fn argmax_top_k_and_cumulative_sums_along_every_axis() {
    // Rounded, so that there are ties.
    let values: Vec<f64> = random("order", &TensorType::new(DType::F64, SHAPE), 1)
        .to_f64()
        .iter()
        .map(|v| (v * 2.0).round() + 0.0)
        .collect();
    let x = tensor(&SHAPE, &values);
    for axis in 0..4 {
        let (_, groups) = groups(&x, &[axis]);
        let order = |group: &[f64], sign: f64| {
            let mut order: Vec<usize> = (0..group.len()).collect();
            order.sort_by(|&a, &b| (sign * group[b]).total_cmp(&(sign * group[a])).then(a.cmp(&b)));
            order
        };
        let found = run(&Reference, std::slice::from_ref(&x), |b, v| {
            let (values, places) = b.top_k(v[0], 2, axis)?;
            let sums = [b.cumulative_sum(v[0], axis, false)?, b.cumulative_sum(v[0], axis, true)?];
            Ok(vec![b.argmax(v[0], axis)?, b.argmin(v[0], axis)?, values, places, sums[0], sums[1]])
        });
        // The elements along the axis, for each index of the other axes.
        let along = |t: &Tensor| self::groups(t, &[axis]).1;
        for (i, group) in groups.iter().enumerate() {
            let (down, up) = (order(group, 1.0), order(group, -1.0));
            assert_eq!(found[0].to_f64()[i], down[0] as f64, "argmax along {axis}");
            assert_eq!(found[1].to_f64()[i], up[0] as f64, "argmin along {axis}");
            let best: Vec<f64> = down[..2].iter().map(|&p| group[p]).collect();
            let places: Vec<f64> = down[..2].iter().map(|&p| p as f64).collect();
            assert_eq!((&along(&found[2])[i], &along(&found[3])[i]), (&best, &places), "top 2 along {axis}");
            let total: f64 = group.iter().sum();
            let mut sum = 0.0;
            for (r, value) in group.iter().enumerate() {
                assert_eq!(along(&found[5])[i][r], total - sum, "sums from the end along {axis}");
                sum += value;
                assert_eq!(along(&found[4])[i][r], sum, "sums along {axis}");
            }
        }
    }
}

/// An einsum of two operands by its definition: a sum over every index of every axis.
fn naive(a: (&Tensor, &str), b: (&Tensor, &str), output: &str) -> Tensor {
    let mut labels: Vec<(char, usize)> = Vec::new();
    for (t, names) in [a, b] {
        for (label, &extent) in names.chars().zip(t.ty().shape.iter()) {
            if !labels.iter().any(|(l, _)| *l == label) {
                labels.push((label, extent));
            }
        }
    }
    let extent = |label: char| labels.iter().find(|(l, _)| *l == label).unwrap().1;
    let shape: Vec<usize> = output.chars().map(extent).collect();
    let mut y = vec![0.0; shape.iter().product()];
    let [left, right] = [a.0.to_f64(), b.0.to_f64()];
    let extents: Vec<usize> = labels.iter().map(|l| l.1).collect();
    for index in indices(&extents) {
        let at = |names: &str| {
            names.chars().fold(0, |at, label| {
                let place = labels.iter().position(|(l, _)| *l == label).unwrap();
                at * extents[place] + index[place]
            })
        };
        y[at(output)] += left[at(a.1)] * right[at(b.1)];
    }
    tensor(&shape, &y)
}

#[test]
fn einsum_is_the_sum_over_all_indices() {
    let draw = Stream::new(7, 0, "einsum");
    let executors: Vec<_> = executors().iter().map(|entry| (entry.name, entry.on(2))).collect();
    let mut kinds = std::collections::BTreeSet::new();
    for case in 0..300u64 {
        let mut next = 0;
        let mut below = |bound: u32| {
            next += 1;
            draw.below(case, next, bound)
        };
        // Each label is in some of: the first operand, the second, the result; at least in one operand.
        let (mut a, mut b, mut output) = (String::new(), String::new(), String::new());
        let mut extents = Vec::new();
        for label in "ijklm".chars().take(1 + below(5) as usize) {
            let kind = below(6);
            kinds.insert(kind);
            let (in_a, in_b, in_output) = [
                (true, true, true),
                (true, true, false),
                (true, false, true),
                (false, true, true),
                (true, false, false),
                (false, true, false),
            ][kind as usize];
            for (names, present) in [(&mut a, in_a), (&mut b, in_b), (&mut output, in_output)] {
                if present {
                    let place = below(names.len() as u32 + 1) as usize;
                    names.insert(place, label);
                }
            }
            // Sometimes empty.
            extents.push((label, if below(20) == 0 { 0 } else { 1 + below(4) as usize }));
        }
        let typed = |names: &str, name: &str| {
            let extent = |label| extents.iter().find(|(l, _)| *l == label).unwrap().1;
            let shape: Vec<usize> = names.chars().map(extent).collect();
            random(&format!("{name} {case}"), &TensorType::new(DType::F64, shape), 1)
        };
        let (x, y) = (typed(&a, "a"), typed(&b, "b"));
        let spec = format!("{a}, {b} -> {output}");
        let expected = naive((&x, &a), (&y, &b), &output);
        let found = run(&Reference, &[x.clone(), y.clone()], |g, v| Ok(vec![g.einsum(&spec, v[0], v[1])?]));
        compare(&found[0], &expected, 1e-12).unwrap_or_else(|e| panic!("`{spec}` {extents:?}: {e}"));
        let single = [x, y].map(|t| cast(&t, DType::F32));
        for (name, executor) in &executors {
            let found = run(executor, &single, |g, v| Ok(vec![g.einsum(&spec, v[0], v[1])?]));
            compare(&found[0], &expected, 1e-4)
                .unwrap_or_else(|e| panic!("`{spec}` {extents:?} on {name}: {e}"));
        }
    }
    assert_eq!(kinds.len(), 6);
}

#[test]
fn einsum_of_one_operand_transposes_and_sums() {
    let x = random("one", &TensorType::new(DType::F64, [2, 3, 4]), 1);
    let one = tensor(&[], &[1.0]);
    for output in ["ijk", "kji", "ki", "j", "", "jik"] {
        let expected = naive((&x, "ijk"), (&one, ""), output);
        let found = run(&Reference, std::slice::from_ref(&x), |b, v| {
            Ok(vec![b.einsum1(&format!("ijk->{output}"), v[0])?])
        });
        compare(&found[0], &expected, 1e-12).unwrap_or_else(|e| panic!("{output}: {e}"));
    }
}

/// Batched products, their sum over the batch and a batch mean: the same bits whole and in micro-batches.
#[test]
fn batched_products_and_batch_means_can_be_split() {
    let build = |examples: usize| {
        let mut b = Builder::new(examples, 2);
        let x = b.batch_input("x", TensorType::new(DType::F32, [examples, 3, 5]));
        let w = b.setting("w", TensorType::new(DType::F32, [5, 4]));
        let y = b.einsum("bij,bkj->bik", x, x).unwrap();
        let (most, _) = b.top_k(y, 2, 1).unwrap();
        let z = b.einsum("bij,jk->bik", x, w).unwrap();
        let folded = b.einsum("bti,btk->ik", y, z).unwrap();
        b.output("folded", folded);
        let mean = b.mean(most, &[0, 1], false).unwrap();
        b.output("mean", mean);
        b.finish().unwrap()
    };
    let x = random("x", &"f32[8,3,5]".parse().unwrap(), 1);
    let w = random("w", &"f32[5,4]".parse().unwrap(), 1);
    let inputs = [x, w];
    let reference = Harness::new(&Reference, build(8)).unwrap().run(&inputs).unwrap();
    for executor in executors() {
        let whole = Harness::new(&executor.on(3), build(8)).unwrap().run(&inputs).unwrap();
        for (examples, parts) in [(4, 2), (2, 4)] {
            let split = accumulate(&build(examples), parts).unwrap();
            let found = Harness::new(&executor.checked(2), split).unwrap().run(&inputs).unwrap();
            assert_eq!(found, whole, "{parts} micro-batches on {}", executor.name);
        }
        compare(&whole[1], &reference[1], 1e-6).unwrap();
    }
}

#[test]
fn ops_that_mix_the_batch_cannot_be_split() {
    type Build = fn(&mut Builder, ValueId) -> Result<ValueId, GraphError>;
    let mixed: [(&str, Build); 6] = [
        ("reduce_max", |b, x| b.max(x, &[0], true)),
        ("product", |b, x| b.product(x, &[0], true)),
        ("cumulative_sum", |b, x| b.cumulative_sum(x, 0, false)),
        ("sub", |b, x| b.variance(x, &[0], true, false)),
        ("transpose", |b, x| b.argmin(x, 0)),
        ("matmul", |b, x| {
            let w = b.setting("w", TensorType::new(DType::F32, [4, 3, 2]));
            let x = b.reshape(x, [4, 1, 3])?;
            b.matmul(x, w)
        }),
    ];
    for (op, build) in mixed {
        let mut b = Builder::new(4, 2);
        let x = b.batch_input("x", TensorType::new(DType::F32, [4, 3]));
        let y = b.scope("layer", |b| build(b, x)).unwrap();
        b.output("y", y);
        let error = accumulate(&b.finish().unwrap(), 2).unwrap_err().to_string();
        assert!(error.contains("mixes the examples") && error.contains(op), "{op}: {error}");
    }
}

/// Bias and relu are fused into products of two matrices only.
#[test]
fn batched_matmul_gets_no_epilogue() {
    let build = |lead: &[usize]| {
        let mut b = Builder::new(2, 1);
        let x = b.batch_input("x", TensorType::new(DType::F32, [lead, &[2, 3]].concat()));
        let bias = b.setting("bias", TensorType::new(DType::F32, [2]));
        let y = b.matmul_transposed(x, x, false, true).unwrap();
        let y = b.add(y, bias).unwrap();
        let y = b.unary(Unary::Relu, y).unwrap();
        b.output("y", y);
        b.finish().unwrap()
    };
    let ops = |graph: &Graph| graph.nodes.iter().map(|n| n.op.name()).collect::<Vec<_>>();
    assert_eq!(ops(&fuse(build(&[]), &|_| Numerics::default()).unwrap()), ["matmul"]);
    let graph = build(&[2]);
    assert_eq!(ops(&fuse(graph.clone(), &|_| Numerics::default()).unwrap()), ["matmul", "fused"]);
    let inputs =
        [random("x", &"f32[2,2,3]".parse().unwrap(), 1), random("bias", &"f32[2]".parse().unwrap(), 1)];
    let run = |graph| Harness::new(&any_executor(), graph).unwrap().run(&inputs).unwrap();
    assert_eq!(run(fuse(graph.clone(), &|_| Numerics::default()).unwrap()), run(graph));
}
