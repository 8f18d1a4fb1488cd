//! What is done around updates: freezing, averages, clipping by the global norm, accumulation, plateaus.

use plimsoll_cpu::Cpu;
use plimsoll_data::{Dataset, Synthetic, SyntheticSpec};
use plimsoll_graph::Role;
use plimsoll_nn::{AVERAGE, AdamW, Clip, Model, Moments, Optimizer, Recipe, Sequential, Sgd, zoo};
use plimsoll_plan::PlanSet;
use plimsoll_train::{Control, Schedule, TrainError, TrainEvent, Trainer};

fn perceptron() -> Sequential {
    zoo::mlp_of(&[64], &[96, 96, 96], 10)
}

fn data(model: &dyn Model, examples: usize) -> Dataset {
    let spec = SyntheticSpec { inputs: model.inputs(), label: model.target() };
    let source = |len, part| Box::new(Synthetic::new(spec.clone(), len, 5, part).unwrap());
    Dataset::new("synthetic", source(examples, 0), source(40, 1))
}

fn trainer(optimizer: impl Optimizer + 'static) -> Trainer {
    Trainer::new(perceptron(), optimizer, Cpu::new(2).unwrap()).batch(32).seed(3)
}

fn plan(optimizer: impl Optimizer + 'static) -> PlanSet {
    trainer(optimizer).plan(&data(&perceptron(), 96)).unwrap()
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
    // The first layers' products for weight gradients are gone.
    let products = |plans: &PlanSet| {
        let nodes = &plans.plans[0].graph.nodes;
        nodes.iter().filter(|n| n.op.name() == "matmul").count()
    };
    assert_eq!(products(&whole) - products(&frozen), 3, "two kernels and the way back to the first layer");
    let moments = |plans: &PlanSet| states(plans, Role::Moment).0;
    assert!(
        frozen.plans[0].peak_bytes < whole.plans[0].peak_bytes - (moments(&whole) - moments(&frozen)) / 2
    );
    let trainer = trainer(Recipe::new(AdamW::new(1e-2)).freeze("dense1"));
    let data = data(&perceptron(), 96);
    let mut session = trainer.prepare(trainer.plan(&data).unwrap(), &data).unwrap();
    let before: Vec<_> = names.iter().map(|name| session.state(name).unwrap()).collect();
    session.fit(&data, &mut |_| Control::Continue).unwrap();
    for (name, before) in names.iter().zip(before) {
        let same = session.state(name).unwrap() == before;
        assert_eq!(same, name.starts_with("dense1/"), "{name}");
    }
}

#[test]
fn names_that_are_not_there_are_refused() {
    let refused = |optimizer: Recipe| {
        trainer(optimizer).plan(&data(&perceptron(), 96)).map(|_| ()).unwrap_err().to_string()
    };
    let recipe = || Recipe::new(AdamW::new(1e-2));
    let text = refused(recipe().freeze("dense9"));
    assert!(text.contains("`dense9`") && text.contains("`dense1/kernel`"), "{text}");
    let text = refused(recipe().freeze("*"));
    assert!(text.contains("every parameter is frozen"), "{text}");
    let decay = plimsoll_nn::Decay::new(0.1).group("nrom*", 0.0);
    let text = refused(Recipe::new(AdamW::new(1e-2).weight_decay(decay)));
    assert!(text.contains("`nrom*`"), "{text}");
}

/// Without it, a gradient is freed when its parameter is updated.
#[test]
fn the_global_norm_keeps_all_gradients_in_the_plan() {
    let plain = plan(Sgd::new(0.1));
    let clipped = plan(Recipe::new(Sgd::new(0.1)).clip(Clip::GlobalNorm(1.0)));
    let each = plan(Recipe::new(Sgd::new(0.1)).clip(Clip::Norm(1.0)));
    let gradients = states(&plain, Role::Parameter).0;
    let state_bytes = plain.states.iter().map(|s| s.ty.bytes().next_multiple_of(64)).sum::<usize>();
    assert!(clipped.plans[0].peak_bytes >= state_bytes + gradients, "{}", clipped.plans[0].peak_bytes);
    assert!(plain.plans[0].peak_bytes < clipped.plans[0].peak_bytes);
    assert!(each.plans[0].peak_bytes < clipped.plans[0].peak_bytes);
}

/// Else every micro-batch would look up the moments again, and hold them until the last.
#[test]
fn what_updates_make_of_states_alone_runs_after_the_last_micro_batch() {
    let recipe = AdamW::new(1e-2).moments(Moments::Bytes);
    let trainer = trainer(recipe).batch(96).micro_batches(3);
    let plans = trainer.plan(&data(&perceptron(), 96)).unwrap();
    let graph = &plans.plans[0].graph;
    let tail = graph.optimizer_step();
    let late = |op: &str| {
        let own = graph.node_ids().filter(|id| graph.node(*id).op.name() == op);
        own.map(|id| tail[id.index()]).collect::<Vec<_>>()
    };
    assert_eq!(late("dequantise"), [true; 16]);
    assert_eq!(late("quantise"), [true; 16]);
    assert!(late("matmul").contains(&false));
}

#[test]
fn evaluation_and_saved_weights_are_those_of_the_averages() {
    let recipe = || Recipe::new(Sgd::new(0.3)).average(0.9);
    let (trainer, data) = (trainer(recipe()).epochs(3), data(&perceptron(), 96));
    let mut session = trainer.prepare(trainer.plan(&data).unwrap(), &data).unwrap();
    let average = format!("dense1/kernel/{AVERAGE}");
    assert_eq!(session.state("dense1/kernel").unwrap(), session.state(&average).unwrap());
    let report = session.fit(&data, &mut |_| Control::Continue).unwrap();
    assert_ne!(session.state("dense1/kernel").unwrap(), session.state(&average).unwrap());
    let path = std::env::temp_dir().join(format!("plimsoll-averages-{}.safetensors", std::process::id()));
    session.save(&path).unwrap();
    let loss = |optimizer: Box<dyn Optimizer>| {
        let other = self::trainer(optimizer);
        let mut other = other.prepare(other.plan(&data).unwrap(), &data).unwrap();
        other.load(&path).unwrap();
        assert_eq!(other.state("dense1/kernel").unwrap(), session.state(&average).unwrap());
        other.evaluate(&data.test).unwrap().loss
    };
    let (plain, averaged) = (loss(Box::new(Sgd::new(0.1))), loss(Box::new(recipe())));
    std::fs::remove_file(&path).unwrap();
    assert_eq!([plain, averaged], [report.evaluation.loss; 2]);
}

/// The last parameters of a run that stops after some steps, if any, and goes on in another session.
fn run_in_parts(stop_after: Option<u64>, at_epoch: bool) -> Vec<u8> {
    let folder = std::env::temp_dir().join(format!(
        "plimsoll-plateau-{}-{}-{at_epoch}",
        std::process::id(),
        stop_after.unwrap_or(0)
    ));
    std::fs::create_dir_all(&folder).unwrap();
    let data = data(&perceptron(), 96);
    // A rate at which the loss does not fall in every epoch.
    let schedule = Schedule::Plateau { patience: 0, factor: 0.5 };
    let make = || trainer(Sgd::new(0.3)).epochs(6).schedule(schedule).checkpoints(&folder, Some(1));
    let (first, second) = (make(), make());
    let mut session = first.prepare(first.plan(&data).unwrap(), &data).unwrap();
    let mut steps = 0;
    let result = session.fit(&data, &mut |event| {
        steps += u64::from(matches!(event, TrainEvent::Step { .. }));
        let here = matches!(event, TrainEvent::Validation { .. }) == at_epoch;
        if Some(steps) == stop_after && here { Control::Leave } else { Control::Continue }
    });
    if stop_after.is_none() {
        result.unwrap();
    } else {
        assert!(matches!(result, Err(TrainError::Interrupted { .. })));
        session = second.prepare(second.plan(&data).unwrap(), &data).unwrap();
        session.resume(&folder).unwrap();
        session.fit(&data, &mut |_| Control::Continue).unwrap();
    }
    let lowered = session.train_state().plateau.lowered;
    assert!(lowered > 0, "the rate was never lowered");
    let end = session.state("dense2/kernel").unwrap().as_bytes().to_vec();
    std::fs::remove_dir_all(&folder).unwrap();
    end
}

#[test]
fn a_plateau_goes_on_where_it_stopped() {
    let whole = run_in_parts(None, false);
    // Inside an epoch, at its last step, and after its evaluation.
    for (steps, at_epoch) in [(7, false), (9, false), (9, true)] {
        assert!(run_in_parts(Some(steps), at_epoch) == whole, "{steps} {at_epoch}");
    }
}

#[test]
fn batches_that_are_accumulated_end_at_blocks() {
    let data = data(&perceptron(), 96);
    let trainer = |batch| trainer(Sgd::new(0.1)).batch(batch).accumulate(3);
    let plans = trainer(32).plan(&data).unwrap();
    assert_eq!((plans.sheet.plans[0].examples, plans.sheet.plans[0].micro_batches), (96, 3));
    let text = trainer(10).plan(&data).map(|_| ()).unwrap_err().to_string();
    assert!(text.contains("10 examples") && text.contains("multiple of 32"), "{text}");
}
