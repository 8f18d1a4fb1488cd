//! Layers placed on logical devices: the bits of one device, each device under its own line, values that pass in one order, and
//! mistakes that say what to do.

use crate::replicas::{Failing, diverged};
use crate::support::{data, deep};
use plimsoll_cpu::Cpu;
use plimsoll_data::{Cursor, Dataset, Synthetic, SyntheticSpec};
use plimsoll_graph::Op;
use plimsoll_graph::op::Exchange;
use plimsoll_nn::zoo::{Gpt, lenet, mlp_of, resnet20_of};
use plimsoll_nn::{AdamW, Clip, Dense, Dropout, Model, Policy, Precision, Recipe, Sequential};
use plimsoll_plan::{Executor, PlanError, Size, check_passes};
use plimsoll_testing::Scratch;
use plimsoll_train::{
    DeviceName, LogicalDevices, Placement, Reduction, Session, Shard, TrainError, Trainer, TrainingPlan,
};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// GPT-2, whose head reads the table of its embedding.
const TIED: Gpt = Gpt {
    layers: 3,
    width: 32,
    heads: 2,
    context: 16,
    vocabulary: 64,
    gpt2: true,
    key_heads: None,
    window: None,
};

fn examples(model: &dyn Model, count: usize) -> Dataset {
    let spec = SyntheticSpec { inputs: model.inputs(), label: model.target() };
    let source = |part| Box::new(Synthetic::new(spec.clone(), count, 3, part).unwrap());
    Dataset::new("synthetic", source(0), source(1))
}

fn trainer(model: impl Model + 'static, precision: Precision, batch: usize) -> Trainer {
    Trainer::new(model, AdamW::new(1e-2)).precision(Policy::new(precision)).batch(batch).epochs(1)
}

fn placed(trainer: Trainer, rules: &[&str]) -> Trainer {
    let placement = Placement::new(rules).unwrap();
    let devices = LogicalDevices::cpu(placement.devices().len(), 1).unwrap();
    trainer.place(&devices, placement)
}

/// The losses of a run, every state after it, an evaluation, and the predictions of a batch.
fn bits(session: &mut Session, names: &[String]) -> Vec<Vec<u8>> {
    let mut found = vec![Vec::new()];
    let report = session.fit_with(&mut |event| {
        if let plimsoll_train::TrainEvent::Step { loss, .. } = event {
            found[0].extend(loss.to_ne_bytes());
        }
        plimsoll_train::Control::Continue
    });
    report.unwrap();
    found.extend(names.iter().map(|name| session.state(name).unwrap().as_bytes().to_vec()));
    let test = session.data().test.clone();
    let evaluation = session.evaluate(&test).unwrap();
    found.push(evaluation.loss.to_ne_bytes().to_vec());
    found.push(evaluation.accuracy.unwrap_or(0.0).to_ne_bytes().to_vec());
    let mut batches = test.batch(24).start(Cursor::default()).unwrap();
    let outputs = session.predict(batches.next().unwrap().unwrap()).unwrap();
    found.extend(outputs.iter().map(|output| output.as_bytes().to_vec()));
    found
}

/// What a run on one device leaves, and the names of its states.
fn one(trainer: Trainer, data: &Dataset) -> (Vec<Vec<u8>>, Vec<String>) {
    let mut session = trainer.threads(2).line(usize::MAX).plan(data).unwrap().start().unwrap();
    let names: Vec<String> = session.plans().states.iter().map(|state| state.name.clone()).collect();
    (bits(&mut session, &names), names)
}

fn plan(trainer: Trainer, rules: &[&str], data: &Dataset) -> TrainingPlan {
    placed(trainer.line(usize::MAX), rules).plan(data).unwrap()
}

/// Runs with each of these placements end in the bits of one device, whole and in micro-batches.
fn check<M: Model + 'static>(
    model: impl Fn() -> M,
    batch: usize,
    rest: usize,
    splits: &[usize],
    placements: &[&[&str]],
) {
    let data = examples(&model(), 2 * batch + rest);
    for precision in [Precision::F32, Precision::BF16] {
        let run = || trainer(model(), precision, batch);
        let (one, names) = one(run(), &data);
        for rules in placements {
            for &parts in splits {
                let found =
                    bits(&mut plan(run().micro_batches(parts), rules, &data).start().unwrap(), &names);
                let differs = found.iter().zip(&one).position(|(found, one)| found != one);
                assert!(
                    differs.is_none() && found.len() == one.len(),
                    "{precision}, {rules:?}, {parts}: {differs:?}"
                );
            }
        }
    }
}

#[test]
fn a_placed_mlp_has_the_bits_of_one_device() {
    let placements: [&[&str]; 5] = [
        &["auto"],
        &["*1=cpu:0", "*=cpu:1"],
        &["*1=cpu:1", "*=cpu:0"],
        &["*[12]=cpu:0", "dense3=cpu:1", "*=cpu:2"],
        &["dense*=cpu:0", "relu*=cpu:1", "loss=cpu:2", "*=cpu:0"],
    ];
    check(|| mlp_of(&[20], &[32, 32], 5), 128, 37, &[1, 2], &placements);
}

#[test]
fn a_placed_convolutional_network_has_the_bits_of_one_device() {
    check(lenet, 64, 0, &[1, 2], &[&["*[12]=cpu:0", "*=cpu:1"], &["conv*=cpu:0", "dense*=cpu:1", "*=cpu:2"]]);
}

#[test]
fn a_placed_transformer_with_a_tied_embedding_has_the_bits_of_one_device() {
    let rules: [&[&str]; 3] = [
        &["auto=cpu:0-2"],
        &["block[1-2].*=cpu:0", "tokens=cpu:0", "*=cpu:1"],
        &["block1=cpu:0", "block2=cpu:1", "*=cpu:2"],
    ];
    check(|| TIED, 24, 5, &[1, 3], &rules);
}

#[test]
fn placed_batch_norm_has_the_bits_of_one_device() {
    let normed = || resnet20_of([8, 8, 3], 10);
    check(
        normed,
        48,
        7,
        &[1],
        &[&["stage3=cpu:1", "head=cpu:1", "*=cpu:0"], &["stage1=cpu:1", "stage2=cpu:2", "*=cpu:0"]],
    );
}

#[test]
fn clipping_accumulation_dropout_and_f16_have_the_bits_of_one_device() {
    let model = || {
        Sequential::classifier([24], 5)
            .layer("dense1", Dense::new(40))
            .layer("dropout1", Dropout::new(0.4))
            .layer("dense2", Dense::new(40))
            .layer("dropout2", Dropout::new(0.4))
            .layer("head", Dense::new(5))
    };
    let data = examples(&model(), 384);
    for precision in [Precision::F32, Precision::F16] {
        for clip in [Clip::GlobalNorm(0.05), Clip::Norm(0.05)] {
            let run = || {
                let optimizer = Recipe::new(AdamW::new(1e-2)).clip(clip).average(0.9);
                Trainer::new(model(), optimizer).precision(Policy::new(precision)).batch(64).accumulate(2)
            };
            let (one, names) = one(run(), &data);
            for rules in [&["*1=cpu:0", "*=cpu:1"][..], &["*1=cpu:2", "*2=cpu:0", "*=cpu:1"]] {
                for flows in [false, true] {
                    let found = bits(&mut plan(run().overlap(flows), rules, &data).start().unwrap(), &names);
                    assert!(found == one, "{precision} {clip:?} {rules:?} {flows}");
                }
            }
        }
    }
}

/// The micro-batches that the training steps of all devices have in one body; one where they are a loop.
fn flowing(plan: &TrainingPlan) -> usize {
    let counts: Vec<usize> = plan.devices().map(|set| set.plans[0].graph.unrolled).collect();
    assert!(counts.iter().all(|count| *count == counts[0]), "{counts:?}");
    counts[0]
}

/// On two and three devices, with a last batch that is smaller.
#[test]
fn micro_batches_that_flow_through_devices_have_the_bits_of_one_device() {
    let (two, three) =
        (["block[12]=cpu:0", "tokens=cpu:0", "*=cpu:1"], ["block1=cpu:0", "block2=cpu:1", "*=cpu:2"]);
    let mlp = || mlp_of(&[20], &[32, 32], 5);
    let (texts, rows) = (examples(&TIED, 2 * 24 + 5), examples(&mlp(), 2 * 256 + 64));
    for precision in [Precision::F32, Precision::BF16] {
        let (alone, names) = one(trainer(TIED, precision, 24), &texts);
        for (rules, parts) in [(&two, 3), (&three, 3), (&three, 6)] {
            let plan = plan(trainer(TIED, precision, 24).micro_batches(parts).overlap(true), rules, &texts);
            assert_eq!(flowing(&plan), parts);
            assert_eq!(plan.load_sheet().plans[0].micro_batches, parts);
            assert!(bits(&mut plan.start().unwrap(), &names) == alone, "{precision}, {rules:?}, {parts}");
        }
        let (alone, names) = one(trainer(mlp(), precision, 256), &rows);
        for rules in [&["*1=cpu:1", "*=cpu:0"][..], &["dense1=cpu:0", "*2=cpu:1", "*=cpu:2"]] {
            for parts in [2, 4, 8] {
                let plan =
                    plan(trainer(mlp(), precision, 256).micro_batches(parts).overlap(true), rules, &rows);
                assert_eq!(flowing(&plan), parts);
                assert!(bits(&mut plan.start().unwrap(), &names) == alone, "{precision}, {rules:?}, {parts}");
            }
        }
    }
}

/// Each device holds its line, down to the smallest: what it saves ahead is recomputed where that is short, in the same bits.
#[test]
fn devices_hold_their_lines_while_micro_batches_flow_through_them() {
    let (batch, data) = (512, examples(&deep(12), 1024));
    let run = || trainer(deep(12), Precision::F32, batch).micro_batches(4).line(usize::MAX);
    let rules = ["dense[0-5]=cpu:0", "tanh[0-5]=cpu:0", "*=cpu:1"];
    let free = plan(run().overlap(true), &rules, &data);
    let loops = plan(run().overlap(false), &rules, &data);
    let bytes = |plan: &TrainingPlan| plan.load_sheet().devices[0].total_bytes;
    assert!(flowing(&free) == 4 && flowing(&loops) == 1 && bytes(&free) > bytes(&loops));
    assert!(free.load_sheet().plans[0].predicted_us < loops.load_sheet().plans[0].predicted_us);
    let (alone, names) = one(run(), &data);
    let least = {
        let devices = LogicalDevices::cpu(2, 1).unwrap();
        devices.set_memory("cpu:0", Size::Bytes(1)).unwrap();
        match run().place(&devices, Placement::new(rules).unwrap()).plan(&data) {
            Err(TrainError::Plan(PlanError::Infeasible(short))) => short.needed_bytes,
            found => panic!("a line of a byte: {found:?}"),
        }
    };
    assert!(least < bytes(&loops));
    for line in [bytes(&free) - 1, least] {
        let devices = LogicalDevices::cpu(2, 1).unwrap();
        devices.set_memory("cpu:0", Size::Bytes(line)).unwrap();
        let low = run().overlap(true).place(&devices, Placement::new(rules).unwrap()).plan(&data).unwrap();
        assert!(low.load_sheet().devices[0].total_bytes <= line && flowing(&low) == 4, "{line}");
        assert!(bits(&mut low.start().unwrap(), &names) == alone, "{line}");
    }
}

#[test]
fn each_device_holds_its_own_layers_under_its_own_line() {
    let (batch, data) = (512, examples(&deep(12), 1024));
    let run = || trainer(deep(12), Precision::F32, batch).micro_batches(1).line(usize::MAX);
    let rules = ["*[0-5]=cpu:0", "*=cpu:1"];
    let free = plan(run(), &rules, &data);
    let of = |plan: &TrainingPlan, device: usize| plan.devices().nth(device).unwrap().clone();
    for (device, own, other) in [(0, "dense0/kernel", "head/kernel"), (1, "head/kernel", "dense0/kernel")] {
        let states = of(&free, device).states;
        assert!(
            states.iter().any(|state| state.name == own) && !states.iter().any(|state| state.name == other)
        );
        assert!(
            states.iter().any(|state| state.name.starts_with(own) && state.name != own),
            "moments are there"
        );
    }
    let line = of(&free, 1).sheet.total_bytes * 9 / 10;
    let devices = LogicalDevices::cpu(2, 1).unwrap();
    devices.set_memory("cpu:1", Size::Bytes(line)).unwrap();
    let low = run().place(&devices, Placement::new(rules).unwrap()).plan(&data).unwrap();
    let again: Vec<usize> = low.devices().map(|set| set.plans[0].rematerialized().count()).collect();
    assert!(again[0] == 0 && again[1] > 0, "{again:?}");
    let row = &low.load_sheet().devices[1];
    assert!(row.total_bytes <= line && row.line_bytes == line && row.received_bytes > 0, "{row:?}");
    // The graphs are those without a line: where a layer is does not depend on it.
    assert!(low.devices().zip(free.devices()).all(|(low, free)| low.plans[0].graph == free.plans[0].graph));
    let (one, names) = one(run(), &data);
    assert!(bits(&mut low.start().unwrap(), &names) == one);
    let devices = LogicalDevices::cpu(2, 1).unwrap();
    devices.set_memory("cpu:1", Size::Bytes(1 << 10)).unwrap();
    let short = run().place(&devices, Placement::new(rules).unwrap()).plan(&data);
    let Err(TrainError::Plan(PlanError::Infeasible(short))) = short else { panic!("it fits") };
    assert_eq!(short.sheet.device.as_deref(), Some("cpu:1"));
}

/// Layers are cut in order, into even shares, by the training step alone: neither lines nor threads move one.
#[test]
fn an_automatic_placement_is_even_and_does_not_depend_on_lines() {
    let data = examples(&deep(12), 1024);
    let run = || trainer(deep(12), Precision::F32, 256).line(usize::MAX);
    let auto = || Placement::auto(3).unwrap();
    let on = |devices: &LogicalDevices| run().place(devices, auto());
    let free = on(&LogicalDevices::cpu(3, 1).unwrap());
    let rules = free.placement().unwrap().unwrap();
    let found: Vec<DeviceName> = (0..12).map(|i| rules.device(&format!("dense{i}")).unwrap()).collect();
    let ends = [found[0], rules.device("head").unwrap()];
    assert!(found.is_sorted() && ends == [0, 2].map(DeviceName::Cpu), "{rules}");
    assert_eq!(Placement::new(rules.to_string().split(',')).unwrap(), rules);
    let free = free.plan(&data).unwrap();
    let arenas: Vec<usize> = free.devices().map(|device| device.arena_bytes).collect();
    let whole = run().threads(1).plan(&data).unwrap().arena_bytes;
    assert!(arenas.iter().all(|&arena| arena * 2 < whole), "{arenas:?} of {whole}");
    let low = LogicalDevices::cpu(3, 2).unwrap();
    low.set_memory("cpu:0", Size::Bytes(free.devices().next().unwrap().sheet.total_bytes * 9 / 10)).unwrap();
    assert_eq!(on(&low).placement().unwrap(), Some(rules));
    // The first two layers hold almost everything: shares are of bytes, not of layers.
    let uneven = trainer(mlp_of(&[20], &[512, 512, 8, 8, 8, 8, 8, 8, 8, 8], 5), Precision::F32, 64);
    let uneven = uneven.place(&LogicalDevices::cpu(2, 1).unwrap(), Placement::auto(2).unwrap());
    let rules = uneven.placement().unwrap().unwrap();
    assert_eq!(
        [2, 5].map(|i| rules.device(&format!("dense{i}"))),
        [0, 1].map(|at| Some(DeviceName::Cpu(at))),
        "{rules}"
    );
    let few = trainer(mlp_of(&[20], &[], 5), Precision::F32, 64);
    let error = few.place(&LogicalDevices::cpu(9, 1).unwrap(), Placement::auto(9).unwrap()).placement();
    assert!(error.unwrap_err().to_string().contains("too few for 9 devices"));
}

#[test]
fn the_line_of_the_process_covers_every_device() {
    let data = examples(&deep(12), 1024);
    let run = || trainer(deep(12), Precision::F32, 512).steps(3);
    let rules = ["*[0-5]=cpu:0", "*=cpu:1"];
    let free = plan(run(), &rules, &data);
    let line = free.load_sheet().total_bytes * 4 / 5;
    let low = placed(run().line(line), &rules).plan(&data).unwrap();
    let arenas: usize = low.devices().map(|set| set.arena_bytes).sum();
    assert!(low.load_sheet().total_bytes <= line && arenas <= line);
    let short = placed(run().line(line / 20), &rules).plan(&data);
    assert!(matches!(short, Err(TrainError::Plan(PlanError::Infeasible(_)))));
}

#[test]
fn devices_give_and_take_in_one_order() {
    let data = examples(&TIED, 24);
    let run = |flows| trainer(TIED, Precision::F32, 24).micro_batches(3).overlap(flows);
    let rules = ["block[12]=cpu:0", "*=cpu:1"];
    let flowing = plan(run(true), &rules, &data);
    let parts: Vec<_> = flowing.devices().map(|set| set.plans[0].graph.as_ref()).collect();
    assert_eq!(check_passes(&parts), Ok(()));
    let plan = plan(run(false), &rules, &data);
    let graphs: Vec<_> = plan.devices().map(|set| set.plans[0].graph.as_ref().clone()).collect();
    assert_eq!(check_passes(&graphs.iter().collect::<Vec<_>>()), Ok(()));
    let mut swapped = graphs.clone();
    let numbers: Vec<usize> = (0..swapped[0].nodes.len())
        .filter(|&at| matches!(swapped[0].nodes[at].op, Op::Exchange(Exchange::Give { .. })))
        .collect();
    let op = swapped[0].nodes[numbers[0]].op.clone();
    swapped[0].nodes[numbers[0]].op = std::mem::replace(&mut swapped[0].nodes[numbers[1]].op, op);
    let error = check_passes(&swapped.iter().collect::<Vec<_>>()).unwrap_err();
    assert!(error.contains("out of turn"), "{error}");
    let error = check_passes(&[&graphs[0], &graphs[0]]).unwrap_err();
    assert!(error.contains("device 0 waits for 1 in layer"), "{error}");
}

#[test]
fn a_checkpoint_resumes_with_another_placement_and_on_one_device() {
    let data = data(&deep(4));
    let run = |folder: &str| {
        trainer(deep(4), Precision::F32, 64).steps(6).checkpoints(folder, None).line(usize::MAX)
    };
    let scratch = Scratch::new("placed checkpoints");
    let first: &[&str] = &["*[01]=cpu:0", "*=cpu:1"];
    let finish = |folder: &str, rules: Option<&[&str]>| {
        let run = run(folder);
        let run = rules.map_or_else(|| run.clone().threads(1), |rules| placed(run.clone(), rules));
        let mut session = run.plan(&data).unwrap().start().unwrap();
        session.resume(folder).unwrap();
        session.fit().unwrap();
        ["dense0/kernel", "head/bias"].map(|name| session.state(name).unwrap().as_bytes().to_vec())
    };
    let whole = scratch.path("whole");
    let mut session = run(&whole).threads(1).plan(&data).unwrap().start().unwrap();
    session.fit().unwrap();
    let wanted = ["dense0/kernel", "head/bias"].map(|name| session.state(name).unwrap().as_bytes().to_vec());
    for (name, rules) in [
        ("same", Some(first)),
        ("other", Some(&["head=cpu:0", "dense0=cpu:2", "*=cpu:1"][..])),
        ("one", None),
    ] {
        let folder = scratch.path(name);
        let mut session = placed(run(&folder).steps(3), first).plan(&data).unwrap().start().unwrap();
        session.fit().unwrap();
        drop(session);
        assert!(finish(&folder, rules) == wanted, "{name}");
    }
}

#[test]
fn a_set_state_is_on_the_device_that_holds_it() {
    let data = data(&deep(3));
    let run = || trainer(deep(3), Precision::F32, 64).steps(2).line(usize::MAX);
    let mut two = placed(run(), &["*0=cpu:0", "*=cpu:1"]).plan(&data).unwrap().start().unwrap();
    for name in ["dense0/kernel", "head/kernel"] {
        let zeros = plimsoll_tensor::Tensor::zeros(two.state(name).unwrap().ty().clone());
        assert_ne!(two.state(name).unwrap(), zeros);
        two.set_state(name, &zeros).unwrap();
        assert_eq!(two.state(name).unwrap(), zeros);
    }
}

#[test]
fn a_loss_that_is_not_finite_is_explained() {
    let one = diverged(|run| run.threads(1));
    assert!(one.is_some());
    assert_eq!(diverged(|run| placed(run, &["*1=cpu:0", "*=cpu:1"])), one);
    assert_eq!(diverged(|run| placed(run, &["*1=cpu:1", "*=cpu:0"])), one);
}

#[test]
fn the_failure_of_one_device_ends_the_run_with_its_error() {
    let data = examples(&deep(3), 6 * 96);
    for (failing, panics) in [(0, false), (1, false), (2, false), (1, true)] {
        let device = |device: usize| -> Arc<dyn Executor> {
            let cpu = Cpu::new(1).unwrap();
            match device == failing {
                true => Arc::new(Failing { cpu, runs: Arc::new(AtomicUsize::new(3)), panics }),
                false => Arc::new(cpu),
            }
        };
        let devices = LogicalDevices::new((0..3).map(device).collect()).unwrap();
        let placement = Placement::new(["*0=cpu:0", "*1=cpu:1", "*=cpu:2"]).unwrap();
        let run = trainer(deep(3), Precision::F32, 96).line(usize::MAX).place(&devices, placement);
        let mut session = run.plan(&data).unwrap().start().unwrap();
        let error = session.fit().expect_err("the fourth step fails").to_string();
        let words = if panics { "a kernel of device 1 panicked" } else { "the disk is on fire" };
        assert!(error.contains(words) && session.steps_done() == 3, "device {failing}: {error}");
    }
}

#[test]
fn kernels_write_only_to_their_own_buffers() {
    let data = data(&deep(3));
    let run = || trainer(deep(3), Precision::F32, 64).steps(3).micro_batches(2).line(usize::MAX);
    let checked = (0..2).map(|_| Arc::new(Cpu::new(1).unwrap().checked()) as Arc<dyn Executor>);
    let devices = LogicalDevices::new(checked.collect()).unwrap();
    let run_placed = run().overlap(true).place(&devices, Placement::new(["*[01]=cpu:0", "*=cpu:1"]).unwrap());
    let (one, names) = one(run(), &data);
    assert!(bits(&mut run_placed.plan(&data).unwrap().start().unwrap(), &names) == one);
}

#[test]
fn mistakes_are_told_before_anything_runs() {
    let data = data(&deep(2));
    let run = || trainer(deep(2), Precision::F32, 64).line(usize::MAX);
    let refused = |trainer: Trainer, words: &[&str]| {
        let error = trainer.plan(&data).expect_err(words[0]).to_string();
        words.iter().for_each(|word| assert!(error.contains(word), "no `{word}` in: {error}"));
    };
    refused(
        placed(run(), &["dens0=cpu:0", "*=cpu:1"]),
        &["`dens0=cpu:0` matches no layer", "nearest is `dense0`"],
    );
    refused(placed(run(), &["block9=cpu:0", "*=cpu:1"]), &["matches no layer", "the layers are `dense0`"]);
    refused(
        placed(run(), &["dense*=cpu:0", "head=cpu:1"]),
        &["no rule says where `tanh0`, `tanh1` are", "add one, or *=cpu:0"],
    );
    refused(placed(run(), &["dense*=cpu:0", "*=cpu:2"]), &["no layer is on cpu:1 of 3 devices"]);
    let few = LogicalDevices::cpu(2, 1).unwrap();
    let three = Placement::new(["dense0=cpu:2", "*=cpu:0"]).unwrap();
    refused(run().place(&few, three), &["names cpu:2", "the devices are cpu:0, cpu:1"]);
    let rules = ["dense0=cpu:0", "*=cpu:1"];
    refused(placed(run().shard(Shard::Optimizer), &rules), &["use ranks"]);
    refused(placed(run().reduction(Reduction::Fast), &rules), &["leave the reduction out"]);
}
