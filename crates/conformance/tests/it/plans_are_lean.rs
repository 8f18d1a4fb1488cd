//! The memory that the passes save, and placement against the peak of live bytes, on four models.

use plimsoll_conformance::any_executor;
use plimsoll_cpu::{CpuTarget, isa::Isa};
use plimsoll_graph::{JoinedLoss, Numerics, Op};
use plimsoll_nn::{AdamW, Model, Policy, Precision, step, zoo};
use plimsoll_plan::{Budget, Executor, PlanSet, Target, plan, verify};
use plimsoll_reference::Reference;
use plimsoll_transform::{Pass, optimize};

fn models() -> Vec<(Box<dyn Model>, usize)> {
    let batches = [("mlp", 512), ("lenet", 64), ("resnet20", 128), ("gpt", 16)];
    let make =
        |name: &str| zoo::ZOO.iter().find(|e| e.name == name).map(|e| (e.make)(&Default::default())).unwrap();
    batches.into_iter().map(|(name, batch)| (make(name), batch)).collect()
}

fn planned(model: &dyn Model, batch: usize, target: &dyn Target, without: &[Pass]) -> PlanSet {
    let train = step::training(model, &AdamW::new(1e-3), batch).unwrap();
    let rest = step::training(model, &AdamW::new(1e-3), batch / 2 + 1).unwrap();
    let test = step::evaluation(model, batch, step::Report::Classes).unwrap();
    let graphs = [("train", train), ("rest", rest), ("evaluate", test)];
    let graphs: Vec<_> =
        graphs.map(|(n, g)| (n.to_string(), optimize(g, &target.numerics(), without).unwrap())).into();
    let plans = plan(&graphs, target, &Budget::new(usize::MAX, Vec::new())).unwrap();
    verify(&plans).unwrap();
    plans
}

#[test]
fn placement_is_within_three_percent_of_the_peak_of_live_bytes() {
    for (model, batch) in models() {
        for target in [
            &CpuTarget::new(Isa::Avx512, 2) as &dyn Target,
            &CpuTarget::new(Isa::Avx2, 7),
            Reference.target(),
        ] {
            for plan in &planned(model.as_ref(), batch, target, &[]).plans {
                let gap = plan.peak_bytes as f64 / plan.live_bytes as f64 - 1.0;
                assert!(gap <= 0.03, "{} {}: {:.2} % above the bound", model.name(), plan.name, gap * 100.0);
            }
        }
    }
}

#[test]
fn a_plan_is_the_same_on_every_run() {
    let target = CpuTarget::new(Isa::Avx512, 2);
    for (model, batch) in models() {
        let (a, b) =
            (planned(model.as_ref(), batch, &target, &[]), planned(model.as_ref(), batch, &target, &[]));
        assert_eq!(a.sheet, b.sheet);
        for (a, b) in a.plans.iter().zip(&b.plans) {
            assert!(a.steps == b.steps && a.buffers == b.buffers, "{}", model.name());
        }
    }
}

/// `save` keeps fewer activations.
#[test]
fn save_makes_the_arena_smaller() {
    let executor = any_executor();
    let least = [("mlp", 0.0), ("lenet", 0.2), ("resnet20", 0.3), ("gpt", 0.2)];
    for ((model, batch), (name, saved)) in models().into_iter().zip(least) {
        assert_eq!(model.name(), name);
        let [with, unsaved] = [vec![], vec![Pass::Save]].map(|without| {
            let plans = planned(model.as_ref(), batch, executor.target(), &without);
            let states: usize = plans.states.iter().map(|s| s.ty.bytes()).sum();
            (plans.arena_bytes - states) as f64
        });
        println!(
            "{name}: {:.1} MiB besides the states, {:.1} without `save`",
            with / 1048576.0,
            unsaved / 1048576.0
        );
        assert!(with <= unsaved * (1.0 - saved), "{name}: {with} with `save`, {unsaved} without");
    }
}

/// A training step computes the logits of a language model's head once where the target says so, by default in f32 alone; for others
/// it has the loss and its gradients apart.
#[test]
fn the_logits_of_a_training_step_are_computed_once() {
    let (model, _) = models().pop().unwrap();
    let joined = Numerics::default();
    let apart = Numerics { loss_with_gradient: JoinedLoss::Never, ..joined };
    let always = Numerics { loss_with_gradient: JoinedLoss::Always, ..joined };
    let both = vec!["linear_cross_entropy", "linear_cross_entropy_grad"];
    for (precision, numerics, wanted) in [
        (Precision::F32, joined, vec!["linear_cross_entropy_with_grad"]),
        (Precision::F32, apart, both.clone()),
        (Precision::F16, joined, both),
        (Precision::F16, always, vec!["linear_cross_entropy_with_grad"]),
    ] {
        let policy = Policy { precision, ..Policy::default() };
        let step = step::training_as(&policy, &numerics, model.as_ref(), &AdamW::new(1e-3), 2).unwrap();
        let step = optimize(step, &numerics, &[]).unwrap();
        let losses: Vec<_> =
            step.nodes.iter().filter(|n| matches!(n.op, Op::Loss(_))).map(|n| n.op.name()).collect();
        assert_eq!(losses, wanted, "{precision:?}");
    }
}
