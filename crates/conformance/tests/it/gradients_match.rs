//! Gradient rules against golden numbers and finite differences.

use plimsoll_conformance::{Case, Harness, compare, golden_cases, random, tolerance};
use plimsoll_graph::op::{Conv, Epilogue, Loss, Pool};
use plimsoll_graph::{Builder, Graph, GraphError, Numerics, Op, ValueId};
use plimsoll_reference::{Reference, evaluate};
use plimsoll_tensor::{DType, Tensor, TensorType};
use plimsoll_transform::gradient;

/// The scalar `Σ y · upstream` of an op's first output, with the gradients of its float inputs as outputs.
pub(super) fn graph_of(case: &Case, upstream: &Tensor, numerics: &Numerics) -> Result<Graph, GraphError> {
    let mut b = Builder::new(1, 1);
    let inputs: Vec<ValueId> =
        (case.inputs.iter().enumerate()).map(|(i, t)| b.setting(&format!("x{i}"), t.ty().clone())).collect();
    let dy = b.setting("upstream", upstream.ty().clone());
    let y = b.node(case.op.clone(), &inputs)?[0];
    let product = b.mul(y, dy)?;
    let rank = b.shape(product).rank();
    let sum = b.sum(product, &(0..rank).collect::<Vec<_>>(), true)?;
    let loss = b.reshape(sum, [])?;
    let wanted =
        inputs.iter().enumerate().filter(|(i, _)| case.gradients[*i].is_some() && has_rule(&case.op, *i));
    let wanted: Vec<ValueId> = wanted.map(|(_, &v)| v).collect();
    for (i, value) in gradient(&mut b, numerics, loss, &wanted)?.into_iter().enumerate() {
        b.output(&format!("dx{i}"), value);
    }
    b.finish()
}

/// Whether `gradient` has a rule for this input: row weights of losses have none.
pub(super) fn has_rule(op: &Op, input: usize) -> bool {
    !matches!((op, input), (Op::Loss(Loss::CrossEntropy), 2) | (Op::Loss(Loss::LinearCrossEntropy { .. }), 3))
}

/// Cases with golden gradients. Regions and epilogues have no rules: `fuse` makes them after `gradient`.
pub(super) fn differentiable() -> Vec<Case> {
    let plain = |op: &Op| match op {
        Op::MatMul(op) => op.epilogue == Epilogue::default(),
        Op::Conv(Conv::Forward { epilogue, .. }) => *epilogue == Epilogue::default(),
        Op::Fused(_) => false,
        _ => true,
    };
    let with_gradients = |c: &Case| c.upstream.is_some() && c.gradients.iter().any(Option::is_some);
    golden_cases().into_iter().filter(|c| with_gradients(c) && plain(&c.op)).collect()
}

#[test]
fn gradient_rules_give_the_golden_gradients() {
    let cases = differentiable();
    assert!(cases.len() > 30, "only {} cases have gradients", cases.len());
    for case in cases {
        let upstream = case.upstream.clone().unwrap();
        let graph = graph_of(&case, &upstream, &Numerics::default());
        let graph = graph.unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let mut inputs = case.inputs.clone();
        inputs.push(upstream);
        let found = Harness::new(&Reference, graph).and_then(|mut h| h.run(&inputs));
        let found = found.unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let types: Vec<&TensorType> = case.inputs.iter().map(Tensor::ty).collect();
        // Backward sums as many terms as forward, and broadcasting adds a sum over the output.
        let terms = case.outputs[0].ty().shape.elements() as f64 * f64::EPSILON;
        let allowed = 8.0 * (tolerance(&case.op, &types, DType::F64) + terms + f64::EPSILON);
        let expected = case.gradients.iter().enumerate().filter(|(i, _)| has_rule(&case.op, *i));
        for (found, expected) in found.iter().zip(expected.filter_map(|(_, g)| g.as_ref())) {
            compare(found, expected, allowed).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        }
    }
}

/// The directional derivative along a random direction, by the rule and by a central difference.
#[test]
fn gradient_rules_agree_with_finite_differences() {
    for case in differentiable() {
        // A maximum has kinks; its golden gradients are checked above.
        if matches!(case.op, Op::Pool(Pool::Max { .. }))
            || case.inputs.iter().any(|t| t.ty().dtype != DType::F64 && t.ty().dtype.is_float())
        {
            continue;
        }
        let upstream = case.upstream.clone().unwrap();
        let directions: Vec<Option<Tensor>> = (case.inputs.iter().zip(&case.gradients).enumerate())
            .map(|(i, (t, g))| {
                let differentiable = g.is_some() && has_rule(&case.op, i);
                differentiable.then(|| random(&format!("{} {i}", case.name), t.ty(), 1))
            })
            .collect();
        let value = |shift: f64| -> f64 {
            let moved: Vec<Tensor> = (case.inputs.iter().zip(&directions))
                .map(|(x, d)| match d {
                    Some(d) => {
                        let values: Vec<f64> =
                            x.to_f64().iter().zip(d.to_f64()).map(|(x, d)| x + shift * d).collect();
                        Tensor::from_f64(x.ty().clone(), &values).unwrap()
                    }
                    None => x.clone(),
                })
                .collect();
            let inputs: Vec<&Tensor> = moved.iter().collect();
            let types: Vec<&TensorType> = case.outputs.iter().map(Tensor::ty).collect();
            let y = evaluate(&case.op, &inputs, &[], &types).unwrap();
            y[0].to_f64().iter().zip(upstream.to_f64()).map(|(y, u)| y * u).sum()
        };
        let step = 1e-5;
        let numeric = (value(step) - value(-step)) / (2.0 * step);
        let mut operands = case.inputs.clone();
        operands.push(upstream.clone());
        let graph = graph_of(&case, &upstream, &Numerics::default());
        let graph = graph.unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let rule = Harness::new(&Reference, graph).and_then(|mut h| h.run(&operands)).unwrap();
        let exact: f64 = (rule.iter().zip(directions.iter().flatten()))
            .flat_map(|(g, d)| g.to_f64().into_iter().zip(d.to_f64()))
            .map(|(g, d)| g * d)
            .sum();
        // No input is within a step of a kink of relu, abs, max or min.
        let scale = exact.abs().max(1.0);
        assert!((numeric - exact).abs() <= 1e-6 * scale, "{}: {numeric} and {exact}", case.name);
    }
}
