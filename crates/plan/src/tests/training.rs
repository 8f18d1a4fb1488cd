//! Plans and errors of whole training steps.

use super::{FOLD, plan_with, planned, ty};
use crate::{
    Action, Budget, BufferKind, Entry, Kernel, KernelQuery, NullTarget, PlanError, Target, Unsupported, plan,
    verify,
};
use plimsoll_graph::op::{Binary, MatMul, Unary};
use plimsoll_graph::{Builder, Graph, Init, Op, Role, ValueId};
use plimsoll_tensor::{DType, TensorType};

/// A perceptron's step: forward, backward, update with momentum. All layers have `width`, with relu between them.
pub(super) fn perceptron(layers: usize, examples: usize, width: usize, train: bool) -> Graph {
    let mut b = Builder::new(examples, 1);
    let x = b.batch_input("x", TensorType::new(DType::F32, [examples, width]));
    let matrix = TensorType::new(DType::F32, [width, width]);
    let mut values = vec![x];
    let mut kernels = Vec::new();
    for i in 0..layers {
        let kernel = b.named_state(format!("layer{i}/kernel"), matrix.clone(), Role::Parameter, Init::Zeros);
        kernels.push(kernel);
        b.scope(&format!("layer{i}"), |b| {
            let y = b.matmul(values[i], kernel).unwrap();
            values.push(b.unary(Unary::Relu, y).unwrap());
        });
    }
    b.output("y", values[layers]);
    if !train {
        return b.finish().unwrap();
    }
    let rate = b.setting("rate", ty("f32[]"));
    let mut gradient: ValueId = b.unary(Unary::Square, values[layers]).unwrap();
    for i in (0..layers).rev() {
        let moment = b.named_state(format!("layer{i}/moment"), matrix.clone(), Role::Moment, Init::Zeros);
        b.scope(&format!("layer{i}"), |b| {
            let zero = b.constant(0.0, DType::F32).unwrap();
            let open = b.binary(Binary::Greater, values[i + 1], zero).unwrap();
            let blocked = b.select(open, gradient, zero).unwrap();
            let kernel_gradient = b.one(FOLD, &[values[i], blocked]).unwrap();
            let transposed = MatMul { transpose_b: true, ..MatMul::default() };
            gradient = b.one(Op::MatMul(transposed), &[blocked, kernels[i]]).unwrap();
            let new_moment = b.add(moment, kernel_gradient).unwrap();
            let update = b.mul(new_moment, rate).unwrap();
            let new_kernel = b.sub(kernels[i], update).unwrap();
            b.set_state(moment, new_moment);
            b.set_state(kernels[i], new_kernel);
        });
    }
    b.finish().unwrap()
}

#[test]
fn training_steps_are_placed_without_fragmentation() {
    for (layers, examples, width) in [(2, 8, 16), (10, 64, 32), (40, 16, 24), (200, 8, 8)] {
        let graph = perceptron(layers, examples, width, true);
        for workspace in [0, 1_000, 100_000] {
            let plans = plan_with(&NullTarget { workspace, ..NullTarget::default() }, &graph);
            assert_eq!(verify(&plans), Ok(()));
            let train = &plans.plans[0];
            assert_eq!(train.peak_bytes, train.live_bytes, "{layers} layers, workspace {workspace}");
        }
    }
}

#[test]
fn updates_run_inside_backward_and_in_place() {
    let graph = perceptron(10, 4, 64, true);
    let plans = planned(&graph);
    let train = &plans.plans[0];
    assert!(train.steps.iter().all(|s| matches!(s.action, Action::Run { .. })), "nothing is copied");
    // At most two gradients of 16 KiB exist at a time, next to the states and the small activations.
    let states = plans.states.last().map(|s| s.arena_range().end).unwrap();
    assert!(
        train.peak_bytes - states < 2 * 16_384 + 16 * 1_024,
        "{} above the states",
        train.peak_bytes - states
    );
}

#[test]
fn states_have_the_same_offsets_in_every_plan() {
    let batches = [
        ("predict".to_string(), perceptron(3, 4, 16, false)),
        ("train".to_string(), perceptron(3, 32, 16, true)),
    ];
    let budget = Budget::new(1 << 30, vec![Entry::new("code", 1_000, "")]);
    let plans = plan(&batches, &NullTarget::default(), &budget).unwrap();
    assert_eq!(verify(&plans), Ok(()));
    let names: Vec<&str> = plans.states.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names[..3], ["layer0/kernel", "layer1/kernel", "layer2/kernel"]);
    assert_eq!(names[3..], ["layer2/moment", "layer1/moment", "layer0/moment"]);
    for plan in &plans.plans {
        for buffer in &plan.buffers {
            match buffer.kind {
                BufferKind::State(i) => assert_eq!(buffer.offset, plans.states[i].arena_range().start),
                _ => assert!(buffer.offset >= 6 * 1_024, "nothing else lies among the states"),
            }
        }
    }
    let sheet = &plans.sheet;
    assert_eq!(sheet.total_bytes, plans.arena_bytes + 1_000);
    assert_eq!(sheet.peak.plan, "train");
    let entry = |name: &str| sheet.arena.iter().find(|e| e.name == name).map(|e| e.bytes);
    assert_eq!(entry("parameters"), Some(3 * 1_024));
    assert_eq!(entry("optimizer state"), Some(3 * 1_024));
    assert_eq!(sheet.arena.iter().map(|e| e.bytes).sum::<usize>(), plans.arena_bytes);
    assert_eq!(sheet.plans.iter().map(|r| r.peak_bytes).max(), Some(plans.arena_bytes));
}

#[test]
fn a_plan_without_values_still_covers_all_states() {
    let mut b = Builder::new(1, 1);
    let kernel = b.named_state("layer0/kernel".into(), ty("f32[16,16]"), Role::Parameter, Init::Zeros);
    b.output("kernel", kernel);
    let batches =
        [("look".to_string(), b.finish().unwrap()), ("train".to_string(), perceptron(3, 4, 16, true))];
    let budget = Budget::new(usize::MAX, Vec::new());
    let plans = plan(&batches, &NullTarget::default(), &budget).unwrap();
    assert_eq!(verify(&plans), Ok(()));
    assert_eq!(plans.plans[0].peak_bytes, 6 * 1_024);
}

#[test]
fn an_infeasible_line_reports_the_missing_bytes() {
    let batches = [("train".to_string(), perceptron(3, 32, 16, true))];
    let budget = |line_bytes| Budget::new(line_bytes, vec![Entry::new("stacks", 5_000, "")]);
    let needed = plan(&batches, &NullTarget::default(), &budget(usize::MAX)).unwrap().sheet.total_bytes;
    assert!(plan(&batches, &NullTarget::default(), &budget(needed)).is_ok());
    let Err(PlanError::Infeasible(infeasible)) =
        plan(&batches, &NullTarget::default(), &budget(needed - 1_536))
    else {
        panic!("it fits")
    };
    assert_eq!((infeasible.missing_bytes, infeasible.needed_bytes), (1_536, needed));
    let text = infeasible.to_string();
    for part in
        ["1.5 KiB too low", "peak is in train", "of `layer", "f32[", "stacks 4.9 KiB", &needed.to_string()]
    {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
}

#[test]
fn rejects_graphs_that_disagree_on_a_state_by_its_name() {
    let batches = [
        ("train".to_string(), perceptron(2, 4, 16, true)),
        ("predict".to_string(), perceptron(2, 4, 24, false)),
    ];
    let budget = Budget::new(usize::MAX, Vec::new());
    match plan(&batches, &NullTarget::default(), &budget) {
        Err(PlanError::States { name, first_plan, second_plan, .. }) => {
            assert_eq!(
                (name.as_str(), first_plan.as_str(), second_plan.as_str()),
                ("layer0/kernel", "train", "predict")
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn reports_the_layer_of_an_op_without_a_kernel() {
    struct NoProducts;
    impl Target for NoProducts {
        fn name(&self) -> String {
            "no products".into()
        }
        fn alignment(&self) -> usize {
            64
        }
        fn kernel(&self, query: &KernelQuery<'_>) -> Result<Kernel, Unsupported> {
            match query.op {
                Op::MatMul(_) => Err(Unsupported { target: self.name(), op: "matmul", types: "f32".into() }),
                _ => Ok(Kernel::default()),
            }
        }
    }
    let budget = Budget::new(usize::MAX, Vec::new());
    match plan(&[("train".to_string(), perceptron(2, 4, 16, true))], &NoProducts, &budget) {
        Err(PlanError::Unsupported { layer, .. }) => assert_eq!(layer, "layer0"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn rejects_values_larger_than_the_address_space() {
    let mut b = Builder::new(1, 1);
    let x = b.batch_input("x", TensorType::new(DType::F32, [1, usize::MAX / 2, 8]));
    b.output("x", x);
    let batches = [("train".to_string(), b.finish().unwrap())];
    let budget = Budget::new(usize::MAX, Vec::new());
    assert!(matches!(plan(&batches, &NullTarget::default(), &budget), Err(PlanError::TooLarge { .. })));
}

#[test]
fn an_empty_set_of_batch_types_has_an_empty_arena() {
    let budget = Budget::new(0, Vec::new());
    let none: &[(String, Graph)] = &[];
    let plans = plan(none, &NullTarget::default(), &budget).unwrap();
    assert_eq!((plans.arena_bytes, verify(&plans)), (0, Ok(())));
}
