//! Eager tensors beside graphs: composites and gradients. (`check_op` runs every other op on them, too.)

use super::gradients_match::{differentiable, graph_of, has_rule};
use plimsoll_conformance::{
    Case, Harness, cast, compare, eager_op, golden_cases, kernel_sets, reference_op, tolerance,
};
use plimsoll_eager::{Eager, Tape};
use plimsoll_graph::op::Norm;
use plimsoll_graph::{Builder, Numerics, Op};
use plimsoll_tensor::{DType, Tensor, TensorType};
use plimsoll_transform::gradient;

#[test]
pub(super) fn golden_norms_match_whole() {
    let whole = |op: &Op| matches!(op, Op::Norm(Norm::Layer { .. } | Norm::Batch { .. }));
    let cases: Vec<Case> = golden_cases().into_iter().filter(|c| whole(&c.op)).collect();
    assert!(cases.len() > 3);
    for entry in kernel_sets() {
        let eager = entry.eager(2);
        for case in &cases {
            let inputs: Vec<Tensor> = case.inputs.iter().map(|t| cast(t, DType::F32)).collect();
            let types: Vec<&TensorType> = inputs.iter().map(Tensor::ty).collect();
            let allowed = 4.0 * tolerance(&case.op, &types, DType::F32);
            let found = eager_op(&eager, &case.op, &inputs, &[], 1).unwrap();
            for (found, expected) in found.iter().zip(reference_op(&case.op, &inputs).unwrap()) {
                compare(found, &expected, allowed)
                    .unwrap_or_else(|e| panic!("{} on {}: {e}", case.name, entry.name));
            }
        }
    }
}

/// The gradients of `Σ y · upstream`, by a tape.
fn tape_gradients(eager: &Eager, case: &Case, upstream: &Tensor) -> plimsoll_eager::Result<Vec<Tensor>> {
    let inputs = case.inputs.iter().map(|t| eager.tensor(t.clone()));
    let inputs = inputs.collect::<plimsoll_eager::Result<Vec<_>>>()?;
    let upstream = eager.tensor(upstream.clone())?;
    let tape = Tape::new();
    let wanted: Vec<_> = (inputs.iter().enumerate())
        .filter(|(i, _)| case.gradients[*i].is_some() && has_rule(&case.op, *i))
        .map(|(_, tensor)| tensor)
        .collect();
    wanted.iter().for_each(|tensor| tape.watch(tensor));
    let y = plimsoll_eager::op(&case.op, &inputs.iter().collect::<Vec<_>>())?.remove(0);
    let axes: Vec<usize> = (0..y.shape().rank()).collect();
    let loss = (&y * &upstream).sum(&axes, true).reshape([]);
    tape.gradient(loss, &wanted)?.iter().map(plimsoll_eager::Tensor::to_host).collect()
}

/// As graphs, to the last bit, and as the golden ones, within the error of f32.
#[test]
pub(super) fn tapes_give_the_golden_gradients() {
    let plain =
        |case: &Case| !case.inputs.iter().any(|t| t.ty().dtype.is_low() || t.ty().dtype == DType::I64);
    let mut cases: Vec<Case> = differentiable().into_iter().filter(plain).collect();
    assert!(cases.len() > 30, "only {} cases", cases.len());
    for case in &mut cases {
        case.inputs = case.inputs.iter().map(|t| cast(t, DType::F32)).collect();
    }
    for entry in kernel_sets() {
        let (eager, executor) = (entry.eager(2), entry.on(2));
        for case in &cases {
            let upstream = cast(case.upstream.as_ref().unwrap(), DType::F32);
            let types: Vec<&TensorType> = case.inputs.iter().map(Tensor::ty).collect();
            let terms = case.outputs[0].ty().shape.elements() as f64 * f64::from(f32::EPSILON);
            let allowed = 32.0 * (tolerance(&case.op, &types, DType::F32) + terms + f64::from(f32::EPSILON));
            let name = format!("{} on {}", case.name, entry.name);
            let found = tape_gradients(&eager, case, &upstream).unwrap_or_else(|e| panic!("{name}: {e}"));
            let expected = case.gradients.iter().enumerate().filter(|(i, _)| has_rule(&case.op, *i));
            for (found, expected) in found.iter().zip(expected.filter_map(|(_, g)| g.as_ref())) {
                compare(found, expected, allowed).unwrap_or_else(|e| panic!("{name}: {e}"));
            }
            // Plans take norms apart before they run.
            if !matches!(case.op, Op::Norm(Norm::Layer { .. } | Norm::Batch { .. })) {
                let graph = graph_of(case, &upstream, &executor.target().numerics()).unwrap();
                let mut graph = Harness::new(&executor, graph).unwrap();
                let inputs = [&case.inputs[..], std::slice::from_ref(&upstream)].concat();
                let bits =
                    |tensors: &[Tensor]| tensors.iter().map(|t| t.as_bytes().to_vec()).collect::<Vec<_>>();
                assert_eq!(bits(&found), bits(&graph.run(&inputs).unwrap()), "{name}");
            }
        }
    }
}

/// A small network over a batch that is longer than a block, with a value in it that is reduced over the batch.
#[test]
pub(super) fn marked_batches_have_the_bits_of_a_graph() {
    let types = ["f32[70,12]", "f32[12,9]", "f32[9]"];
    let inputs: Vec<Tensor> =
        types.iter().map(|ty| plimsoll_conformance::random(ty, &ty.parse().unwrap(), 1)).collect();
    let graph = |numerics: &Numerics, block: usize| {
        let mut b = Builder::new(70, block);
        let x = b.batch_input("x", types[0].parse().unwrap());
        let [w, bias] = [1, 2].map(|i| b.setting(types[i], types[i].parse().unwrap()));
        let h = b.math([x, w, bias], |[x, w, bias]| (x.matmul(w) + bias).tanh()).unwrap();
        let centred = b.math([h], |[h]| h - h.mean(&[0], true)).unwrap();
        let loss = b.math([h, centred], |[h, c]| {
            (c.square().sum(&[1], false) + h.exp().mean(&[1], false)).sum(&[0], false)
        });
        let loss = loss.unwrap();
        let gradients = gradient(&mut b, numerics, loss, &[w, bias, x]).unwrap();
        let outputs = [&[loss][..], &gradients].concat();
        outputs.iter().enumerate().for_each(|(i, &v)| b.output(&format!("y{i}"), v));
        b.finish().unwrap()
    };
    for entry in kernel_sets() {
        let (e, executor) = (entry.eager(2), entry.on(2));
        let numerics = executor.target().numerics();
        let run = |mark: fn(&plimsoll_eager::Tensor) -> plimsoll_eager::Tensor| -> plimsoll_eager::Result<Vec<Tensor>> {
            let [x, w, bias] = [0, 1, 2].map(|i| e.tensor(inputs[i].clone()).unwrap());
            let x = mark(&x);
            let tape = Tape::new();
            [&x, &w, &bias].into_iter().for_each(|t| tape.watch(t));
            let h = (x.matmul(&w) + &bias).tanh().get()?;
            let centred = (&h - h.mean(&[0], true)).get()?;
            let rows = centred.square().sum(&[1], false) + h.exp().mean(&[1], false);
            let loss = rows.sum(&[0], false).get()?;
            let gradients = tape.gradient(&loss, &[&w, &bias, &x])?;
            [vec![loss], gradients].concat().iter().map(plimsoll_eager::Tensor::to_host).collect()
        };
        let in_graph =
            |block| Harness::new(&executor, graph(&numerics, block)).unwrap().run(&inputs).unwrap();
        let wanted = in_graph(numerics.block_rows.next_power_of_two());
        assert_eq!(run(plimsoll_eager::Tensor::batch).unwrap(), wanted, "{}", entry.name);
        assert_eq!(run(|x| x.batch_in_blocks(16)).unwrap(), in_graph(16), "{}", entry.name);
        for (found, wanted) in run(Clone::clone).unwrap().iter().zip(&wanted) {
            compare(found, wanted, 1e-4).unwrap();
        }
    }
}
