//! Tests of the whole planner, and what they share: helpers and random graphs.

mod corrupted;
mod exchange;
mod hazard_checker;
mod hazards;
mod in_place;
mod lines;
mod optimal;
mod order_evaluation;
mod random;
mod record;
mod state_aliasing;
mod tiers;
mod training;

use crate::choice::TEST_DISK;
use crate::{Budget, Link, NullTarget, PlanSet, TierSpec, Tiers, plan, verify};
use plimsoll_graph::op::{Binary, Elementwise, Instruction, MatMul, Norm, Operand, Region, Unary};
use plimsoll_graph::{Builder, Graph, Init, Op, Role, ValueId};
use plimsoll_tensor::random::Lcg;
use plimsoll_tensor::{DType, TensorType};

/// A type from its text form.
fn ty(text: &str) -> TensorType {
    text.parse().unwrap()
}

/// Plans one graph without a line and checks the plan.
fn planned(graph: &Graph) -> PlanSet {
    let plans = plan_with(&NullTarget::default(), graph);
    assert_eq!(verify(&plans), Ok(()), "{graph}\n{:#?}", plans.plans[0].steps);
    plans
}

/// Sets of tiers to offload to: a file alone, host memory alone, and a little host memory before a file.
fn tier_sets() -> [Tiers; 3] {
    let disk = Tiers::disk(TEST_DISK, 0);
    let link = Link { load_ns_per_mib: 20_000, store_ns_per_mib: 25_000, latency_ns: 10, ..Link::default() };
    let host = |capacity_bytes| Some(TierSpec { capacity_bytes, link, staging_bytes: 0 });
    [disk, Tiers { host: host(u64::MAX), file: None }, Tiers { host: host(3 * 4096), ..disk }]
}

/// Plans one graph for a target, without a line.
fn plan_with(target: &NullTarget, graph: &Graph) -> PlanSet {
    let budget = Budget::new(usize::MAX, Vec::new());
    plan(&[("test".to_string(), graph.clone())], target, &budget).unwrap()
}

/// `matmul(aᵀ, b)`: reduced over the batch.
const FOLD: Op = Op::MatMul(MatMul {
    transpose_a: true,
    transpose_b: false,
    epilogue: plimsoll_graph::op::Epilogue { bias: false, relu: false },
    output: None,
});

/// `(a, b) → (a + b, exp(a + b))` in one pass.
fn fused() -> Op {
    let instruction =
        |op, operands: &[Operand]| Instruction { op, operands: operands.to_vec(), dtype: DType::F32 };
    Op::Fused(Region {
        instructions: vec![
            instruction(Elementwise::Binary(Binary::Add), &[Operand::Input(0), Operand::Input(1)]),
            instruction(Elementwise::Unary(Unary::Exp), &[Operand::Result(0)]),
        ],
        outputs: vec![0, 1],
    })
}

/// The state of `Lcg::new(0)`.
const LCG_START: u64 = 0x9e37_79b9_7f4a_7c15;

/// Random choices.
struct Choices(Lcg);

impl Choices {
    /// From a generator's state.
    fn new(state: u64) -> Self {
        Self(Lcg::new(state ^ LCG_START))
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0.below(limit)
    }

    fn one(&mut self, values: &[ValueId]) -> ValueId {
        values[self.below(values.len())]
    }
}

/// A random graph of `nodes` nodes: elementwise ops, views, ops with several outputs, reductions, accumulators over
/// micro-batches, states whose new version is any value of their type, and any values as outputs.
fn random_graph(seed: u64, nodes: usize, micro_batches: usize) -> Graph {
    let mut c = Choices::new(seed);
    let mut b = Builder::new(4, 4);
    b.set_micro_batches(micro_batches);
    let shapes = ["f32[4,16]", "f32[4,32]", "f32[16,4]", "f32[16]"];
    let mut values: Vec<ValueId> = vec![b.batch_input("x", ty(shapes[0])), b.batch_input("y", ty(shapes[1]))];
    values.push(b.setting("rate", ty("f32[]")));
    let states: Vec<ValueId> = (0..1 + c.below(4))
        .map(|i| b.named_state(format!("state{i}"), ty(shapes[c.below(4)]), Role::Parameter, Init::Zeros))
        .collect();
    values.extend(&states);
    let mut sums: Vec<(ValueId, ValueId)> = Vec::new();
    if micro_batches > 1 || c.below(4) == 0 {
        let accumulator = b.accumulator(ty("f32[16,32]"));
        sums.push((accumulator, accumulator));
        values.extend((c.below(3) == 0).then_some(accumulator));
    }
    for i in 0..nodes {
        b.scope(&format!("layer{i}"), |b| values.extend(random_node(b, &mut c, &values, &mut sums)));
    }
    for (accumulator, sum) in sums {
        let same: Vec<ValueId> = values.iter().copied().filter(|v| b.ty(*v) == b.ty(accumulator)).collect();
        let anything = c.below(6) == 0 && !same.is_empty();
        let end = if anything { c.one(&same) } else { sum };
        b.set_accumulator(accumulator, end);
        // Readers of a finished sum belong to the optimizer step.
        let read = b.unary(Unary::Exp, end).unwrap();
        let scalar = b.sum(read, &[0, 1], true).unwrap();
        let scalar = b.reshape(scalar, []).unwrap();
        for &state in &states {
            if c.below(2) == 0 {
                values.push(b.add(state, scalar).unwrap());
            }
        }
        b.output("sum", end);
    }
    let mut taken = Vec::new();
    for &state in &states {
        let same =
            |v: &ValueId| b.ty(*v).shape.elements() == b.ty(state).shape.elements() && !taken.contains(v);
        let ends: Vec<ValueId> = values.iter().copied().filter(same).collect();
        if c.below(5) > 0 && !ends.is_empty() {
            let end = c.one(&ends);
            taken.push(end);
            let end = b.reshape(end, b.shape(state).clone()).unwrap();
            b.set_state(state, end);
        }
    }
    for i in 0..1 + c.below(3) {
        let value = c.one(&values);
        b.output(&format!("output{i}"), value);
    }
    let graph = b.graph().clone();
    // By chance two states may get the same new version, which is not a valid graph.
    b.finish().unwrap_or_else(|_| {
        let mut graph = graph;
        graph.states.iter_mut().for_each(|s| s.output = None);
        graph
    })
}

fn random_node(
    b: &mut Builder,
    c: &mut Choices,
    values: &[ValueId],
    sums: &mut [(ValueId, ValueId)],
) -> Vec<ValueId> {
    // Mostly recent values, so that chains form.
    let x = match c.below(3) {
        0 => c.one(values),
        _ => c.one(&values[values.len().saturating_sub(4)..]),
    };
    let same: Vec<ValueId> = values.iter().copied().filter(|v| b.ty(*v) == b.ty(x)).collect();
    let other = c.one(&same);
    let made = match c.below(9) {
        0 => b.unary(Unary::Relu, x).map(|v| vec![v]),
        1 | 2 => b.binary(Binary::Sub, x, other).map(|v| vec![v]),
        3 => b.node(fused(), &[x, other]),
        4 => b.reshape(x, [b.shape(x).elements()]).map(|v| vec![v]),
        5 if b.shape(x).rank() == 2 => b.sum(x, &[1], true).map(|v| vec![v]),
        6 if b.shape(x).rank() == 2 => {
            let channels = TensorType::new(DType::F32, [b.shape(x)[1]]);
            let scales: Vec<ValueId> = values.iter().copied().filter(|v| *b.ty(*v) == channels).collect();
            if scales.is_empty() {
                return Vec::new();
            }
            b.node(Op::Norm(Norm::Layer { eps: 1e-5 }), &[x, scales[0], c.one(&scales)])
        }
        7 if !sums.is_empty() => {
            let matrices =
                |shape: &str| values.iter().copied().filter(|v| *b.ty(*v) == ty(shape)).collect::<Vec<_>>();
            let (x, y) = (c.one(&matrices("f32[4,16]")), c.one(&matrices("f32[4,32]")));
            let at = c.below(sums.len());
            // Sometimes onto the accumulator itself instead of the latest sum: then both stay needed.
            let onto = if c.below(5) == 0 { sums[at].0 } else { sums[at].1 };
            let made = b.accumulating(FOLD, &[x, y], &[onto]).unwrap();
            sums[at].1 = made[0];
            return if c.below(3) == 0 { made } else { Vec::new() };
        }
        _ => b.constant(2.0, DType::F32).map(|v| vec![v]),
    };
    made.unwrap_or_default()
}
