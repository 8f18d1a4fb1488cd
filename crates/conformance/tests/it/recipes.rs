//! Freezing, weight averages, clipping by the global norm, gradient accumulation, plateau schedules.

use plimsoll_conformance::{any_executor, synthetic};
use plimsoll_data::Dataset;
use plimsoll_graph::Role;
use plimsoll_nn::{AVERAGE, AdamW, Clip, Moments, Optimizer, Recipe, Sequential, Sgd, zoo};
use plimsoll_plan::PlanSet;
use plimsoll_train::{Control, Schedule, TrainError, TrainEvent, Trainer};

fn perceptron() -> Sequential {
    zoo::mlp_of(&[64], &[96, 96, 96], 10)
}

fn data() -> Dataset {
    synthetic(&perceptron(), 96, 40, 5)
}

fn trainer(optimizer: impl Optimizer + 'static) -> Trainer {
    Trainer::new(perceptron(), optimizer).executor(any_executor()).line(usize::MAX).batch(32).seed(3)
}

fn plan(optimizer: impl Optimizer + 'static) -> PlanSet {
    trainer(optimizer).plan(&data()).unwrap().into_plans()
}

/// Bytes of the states of a role, and how many there are.
fn states(plans: &PlanSet, role: Role) -> (usize, usize) {
    let own = plans.states.iter().filter(|s| s.role == role);
    own.fold((0, 0), |(bytes, count), s| (bytes + s.ty.bytes(), count + 1))
}

#[test]
fn frozen_layers_have_no_gradients_and_no_moments() {
    let names: Vec<String> = plan(Sgd::new(0.1)).states.iter().map(|s| s.name.clone()).collect();
    let whole = plan(AdamW::new(1e-2));
    let frozen = plan(Recipe::new(AdamW::new(1e-2)).average(0.9).freeze("dense1").freeze("dense*2/kernel"));
    let is_frozen = |name: &str| name.starts_with("dense1/") || name == "dense2/kernel";
    let elements = |plans: &PlanSet, left_out: bool| {
        let parameters = plans.states.iter().filter(|s| s.role == Role::Parameter);
        let own = parameters.filter(|s| !left_out || !is_frozen(&s.name));
        own.map(|s| s.ty.shape.elements()).sum::<usize>()
    };
    assert_eq!(states(&whole, Role::Moment).0, 8 * elements(&whole, false));
    assert_eq!(states(&frozen, Role::Moment).0, 8 * elements(&frozen, true));
    assert_eq!(states(&frozen, Role::Average).0, 4 * elements(&frozen, true));
    assert_eq!(states(&frozen, Role::Parameter), states(&whole, Role::Parameter));
    // Frozen kernels have no weight gradients.
    let products = |plans: &PlanSet| {
        let nodes = &plans.plans[0].graph.nodes;
        nodes.iter().filter(|n| n.op.name() == "matmul").count()
    };
    assert_eq!(
        products(&whole) - products(&frozen),
        3,
        "two weight gradients and the input gradient of the second layer"
    );
    let moments = |plans: &PlanSet| states(plans, Role::Moment).0;
    assert!(
        frozen.plans[0].peak_bytes < whole.plans[0].peak_bytes - (moments(&whole) - moments(&frozen)) / 2
    );
    let trainer = trainer(Recipe::new(AdamW::new(1e-2)).freeze("dense1"));
    let data = data();
    let mut session = trainer.plan(&data).unwrap().start().unwrap();
    let before: Vec<_> = names.iter().map(|name| session.state(name).unwrap()).collect();
    session.fit().unwrap();
    for (name, before) in names.iter().zip(before) {
        let same = session.state(name).unwrap() == before;
        assert_eq!(same, name.starts_with("dense1/"), "{name}");
    }
}

#[test]
fn patterns_that_match_nothing_are_refused() {
    let refused = |optimizer: Recipe| trainer(optimizer).plan(&data()).map(|_| ()).unwrap_err().to_string();
    let recipe = || Recipe::new(AdamW::new(1e-2));
    let text = refused(recipe().freeze("dense9"));
    assert!(text.contains("`dense9`") && text.contains("`dense1/kernel`"), "{text}");
    let text = refused(recipe().freeze("*"));
    assert!(text.contains("every parameter is frozen"), "{text}");
    let decay = plimsoll_nn::Decay::new(0.1).group("nrom*", 0.0);
    let text = refused(Recipe::new(AdamW::new(1e-2).weight_decay(decay)));
    assert!(text.contains("`nrom*`"), "{text}");
}

/// Otherwise a gradient is freed when its parameter is updated.
#[test]
fn clipping_by_the_global_norm_keeps_all_gradients_live() {
    let plain = plan(Sgd::new(0.1));
    let clipped = plan(Recipe::new(Sgd::new(0.1)).clip(Clip::GlobalNorm(1.0)));
    let each = plan(Recipe::new(Sgd::new(0.1)).clip(Clip::Norm(1.0)));
    let gradients = states(&plain, Role::Parameter).0;
    let state_bytes = plain.states.iter().map(|s| s.ty.bytes().next_multiple_of(64)).sum::<usize>();
    assert!(clipped.plans[0].peak_bytes >= state_bytes + gradients, "{}", clipped.plans[0].peak_bytes);
    assert!(plain.plans[0].peak_bytes < clipped.plans[0].peak_bytes);
    assert!(each.plans[0].peak_bytes < clipped.plans[0].peak_bytes);
}

/// Otherwise every micro-batch would dequantise the moments, and keep them until the last.
#[test]
fn moments_are_dequantised_in_the_optimizer_step() {
    let recipe = AdamW::new(1e-2).moments(Moments::Bytes);
    let trainer = trainer(recipe).batch(96).micro_batches(3);
    let plans = trainer.plan(&data()).unwrap();
    let graph = &plans.plans[0].graph;
    let optimizer_step = graph.optimizer_step();
    let in_optimizer_step = |op: &str| {
        let nodes = graph.node_ids().filter(|id| graph.node(*id).op.name() == op);
        nodes.map(|id| optimizer_step[id.index()]).collect::<Vec<_>>()
    };
    assert_eq!(in_optimizer_step("dequantise"), [true; 16]);
    assert_eq!(in_optimizer_step("quantise"), [true; 16]);
    assert!(in_optimizer_step("matmul").contains(&false));
}

#[test]
fn evaluation_and_saved_weights_use_the_averages() {
    let recipe = || Recipe::new(Sgd::new(0.3)).average(0.9);
    let (trainer, data) = (trainer(recipe()).epochs(3), data());
    let mut session = trainer.plan(&data).unwrap().start().unwrap();
    let average = format!("dense1/kernel/{AVERAGE}");
    assert_eq!(session.state("dense1/kernel").unwrap(), session.state(&average).unwrap());
    let report = session.fit().unwrap();
    assert_ne!(session.state("dense1/kernel").unwrap(), session.state(&average).unwrap());
    let path = std::env::temp_dir().join(format!("plimsoll-averages-{}.safetensors", std::process::id()));
    session.save(&path).unwrap();
    let loss = |optimizer: Box<dyn Optimizer>| {
        let other = self::trainer(optimizer);
        let mut other = other.plan(&data).unwrap().start().unwrap();
        other.load(&path).unwrap();
        assert_eq!(other.state("dense1/kernel").unwrap(), session.state(&average).unwrap());
        other.evaluate(&data.test).unwrap().loss
    };
    let (plain, averaged) = (loss(Box::new(Sgd::new(0.1))), loss(Box::new(recipe())));
    std::fs::remove_file(&path).unwrap();
    assert_eq!([plain, averaged], [report.evaluation.loss; 2]);
}

/// The last parameters of a run that may stop after some steps and resume in another session.
fn run_in_parts(stop_after: Option<u64>, at_epoch: bool) -> Vec<u8> {
    let folder = std::env::temp_dir().join(format!(
        "plimsoll-plateau-{}-{}-{at_epoch}",
        std::process::id(),
        stop_after.unwrap_or(0)
    ));
    std::fs::create_dir_all(&folder).unwrap();
    let data = data();
    // A rate at which the loss does not fall in every epoch.
    let schedule = Schedule::Plateau { patience: 0, factor: 0.5 };
    let make = || trainer(Sgd::new(0.3)).epochs(6).schedule(schedule).checkpoints(&folder, Some(1));
    let (first, second) = (make(), make());
    let mut session = first.plan(&data).unwrap().start().unwrap();
    let mut steps = 0;
    let result = session.fit_with(&mut |event| {
        steps += u64::from(matches!(event, TrainEvent::Step { .. }));
        let here = matches!(event, TrainEvent::Validation { .. }) == at_epoch;
        if Some(steps) == stop_after && here { Control::Leave } else { Control::Continue }
    });
    if stop_after.is_none() {
        result.unwrap();
    } else {
        assert!(matches!(result, Err(TrainError::Interrupted { .. })));
        session = second.plan(&data).unwrap().start().unwrap();
        session.resume(&folder).unwrap();
        session.fit().unwrap();
    }
    let lowered = session.train_state().plateau.lowered;
    assert!(lowered > 0, "the rate was never lowered");
    let end = session.state("dense2/kernel").unwrap().as_bytes().to_vec();
    std::fs::remove_dir_all(&folder).unwrap();
    end
}

#[test]
fn a_plateau_schedule_resumes_where_it_stopped() {
    let whole = run_in_parts(None, false);
    // Inside an epoch, at its last step, and after its evaluation.
    for (steps, at_epoch) in [(7, false), (9, false), (9, true)] {
        assert!(run_in_parts(Some(steps), at_epoch) == whole, "{steps} {at_epoch}");
    }
}

#[test]
fn accumulated_batches_are_multiples_of_a_block() {
    let data = data();
    let trainer = |batch| trainer(Sgd::new(0.1)).batch(batch).accumulate(3);
    let plans = trainer(32).plan(&data).unwrap();
    assert_eq!((plans.sheet.plans[0].examples, plans.sheet.plans[0].micro_batches), (96, 3));
    let text = trainer(10).plan(&data).map(|_| ()).unwrap_err().to_string();
    assert!(text.contains("10 examples") && text.contains("multiple of 32"), "{text}");
}
