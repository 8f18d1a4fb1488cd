//! Replicas on logical devices: the bits of one device with the whole batch, each device under its own line, and no device that
//! waits for one that failed.

use crate::support::{data, deep};
use plimsoll_cpu::Cpu;
use plimsoll_data::{Dataset, Synthetic, SyntheticSpec};
use plimsoll_nn::zoo::{CharLstm, Gpt, lenet, mlp_of, resnet20_of};
use plimsoll_nn::{AdamW, Clip, Model, Policy, Precision, Recipe, Sgd};
use plimsoll_plan::{Connection, ExecuteError, Executor, PlanError, PlanSet, Prepared, Target, in_words};
use plimsoll_train::{LogicalDevices, Shard, TrainError, Trainer};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const GPT: Gpt = Gpt {
    layers: 2,
    width: 32,
    heads: 2,
    context: 16,
    vocabulary: 64,
    gpt2: false,
    key_heads: None,
    window: None,
};
const LSTM: CharLstm = CharLstm { layers: 1, width: 24, context: 8, vocabulary: 32 };

/// So many examples for a model.
fn examples(model: &dyn Model, count: usize) -> Dataset {
    let spec = SyntheticSpec { inputs: model.inputs(), label: model.target() };
    let source = |part| Box::new(Synthetic::new(spec.clone(), count, 3, part).unwrap());
    Dataset::new("synthetic", source(0), source(1))
}

/// Every state after the run, and the losses on the way.
fn train(trainer: Trainer, data: &Dataset) -> Vec<Vec<u8>> {
    let mut session = trainer.line(usize::MAX).plan(data).unwrap().start().unwrap();
    bits(&mut session)
}

fn bits(session: &mut plimsoll_train::Session) -> Vec<Vec<u8>> {
    let mut losses = Vec::new();
    let report = session.fit_with(&mut |event| {
        if let plimsoll_train::TrainEvent::Step { loss, .. } = event {
            losses.extend(loss.to_ne_bytes());
        }
        plimsoll_train::Control::Continue
    });
    report.unwrap();
    let names: Vec<String> = session.plans().states.iter().map(|state| state.name.clone()).collect();
    let states = names.iter().map(|name| session.state(name).unwrap().as_bytes().to_vec());
    std::iter::once(losses).chain(states).collect()
}

fn trainer(model: impl Model + 'static, precision: Precision, batch: usize) -> Trainer {
    Trainer::new(model, AdamW::new(1e-2)).precision(Policy::new(precision)).batch(batch).epochs(1)
}

/// Two epochs in replicas end in the bits of one device, with a remainder, in one micro-batch and in two.
fn check<M: Model + 'static>(model: impl Fn() -> M, batch: usize, rest: usize) {
    let data = examples(&model(), 2 * batch + rest);
    for precision in [Precision::F32, Precision::BF16] {
        let run = || trainer(model(), precision, batch);
        let one = train(run().threads(2), &data);
        for (devices, micro_batches) in [(2, 1), (2, 2), (3, 1), (3, 2)] {
            let what = format!("{precision} on {devices}, {micro_batches}");
            let several = run().replicas(&LogicalDevices::cpu(devices, 1).unwrap());
            let found = train(several.micro_batches(micro_batches), &data);
            assert!(found == one, "{what}");
        }
    }
}

#[test]
fn an_mlp_in_replicas_has_the_bits_of_one_device() {
    check(|| mlp_of(&[20], &[32, 32], 5), 384, 77);
}

#[test]
fn a_convolutional_network_in_replicas_has_the_bits_of_one_device() {
    check(lenet, 384, 64);
}

#[test]
fn a_transformer_in_replicas_has_the_bits_of_one_device() {
    check(|| GPT, 24, 5);
}

#[test]
fn a_recurrence_in_replicas_has_the_bits_of_one_device() {
    check(|| LSTM, 48, 19);
}

/// Batch norm in every block, on small pictures.
fn normed() -> impl Model + 'static {
    resnet20_of([8, 8, 3], 10)
}

#[test]
fn batch_norm_in_replicas_has_the_bits_of_one_device() {
    // Of the remainder the third device takes nothing.
    let data = examples(&normed(), 2 * 192 + 40);
    for precision in [Precision::F32, Precision::BF16] {
        let run = || trainer(normed(), precision, 192);
        let one = train(run().threads(2), &data);
        for devices in [2, 3] {
            let several = run().replicas(&LogicalDevices::cpu(devices, 1).unwrap());
            assert!(train(several, &data) == one, "{precision} on {devices}");
        }
    }
}

#[test]
fn batch_norm_under_a_low_line_has_the_bits_of_one_device() {
    let data = examples(&normed(), 2 * 96);
    let run = || trainer(normed(), Precision::F32, 96);
    let free = run().line(usize::MAX).replicas(&LogicalDevices::cpu(3, 1).unwrap()).plan(&data).unwrap();
    let devices = LogicalDevices::cpu(3, 1).unwrap();
    // Each device has another plan: they still meet in the same order.
    for (device, part) in [(1, 90), (2, 84)] {
        let line = free.devices().nth(device).unwrap().sheet.total_bytes * part / 100;
        devices.set_memory(&format!("cpu:{device}"), plimsoll_plan::Size::Bytes(line)).unwrap();
    }
    let plan = run().line(usize::MAX).replicas(&devices).plan(&data).unwrap();
    let again: Vec<usize> = plan.devices().map(|set| set.plans[0].rematerialized().count()).collect();
    assert!(again[0] == 0 && again[1] > 0 && again[2] > again[1], "{again:?}");
    assert!(bits(&mut plan.start().unwrap()) == train(run().threads(1), &data));
}

#[test]
fn f16_batch_norm_and_clipping_have_the_bits_of_one_device() {
    let data = examples(&normed(), 64);
    let run = || {
        let optimizer = Recipe::new(AdamW::new(1e-2)).clip(Clip::GlobalNorm(0.5));
        Trainer::new(normed(), optimizer).precision(Policy::new(Precision::F16)).batch(64)
    };
    let two = run().replicas(&LogicalDevices::cpu(2, 1).unwrap());
    assert!(train(run().threads(1), &data) == train(two, &data));
}

#[test]
fn f16_and_clipping_by_the_global_norm_have_the_bits_of_one_device() {
    let data = examples(&GPT, 48);
    let run = || {
        let optimizer = Recipe::new(AdamW::new(1e-2)).clip(Clip::GlobalNorm(0.5));
        Trainer::new(GPT, optimizer).precision(Policy::new(Precision::F16)).batch(24)
    };
    let two = run().replicas(&LogicalDevices::cpu(2, 1).unwrap());
    assert!(train(run().threads(1), &data) == train(two, &data));
}

#[test]
fn a_low_line_on_one_device_changes_its_plan_and_no_bit() {
    let batch = 512;
    let data = examples(&deep(12), 2 * batch);
    let run = || trainer(deep(12), Precision::F32, batch).micro_batches(1);
    let devices = LogicalDevices::cpu(2, 1).unwrap();
    let free = run().line(usize::MAX).replicas(&devices).plan(&data).unwrap();
    let line = free.devices().nth(1).unwrap().sheet.total_bytes * 9 / 10;
    let devices = LogicalDevices::cpu(2, 1).unwrap();
    devices.set_memory("cpu:1", plimsoll_plan::Size::Bytes(line)).unwrap();
    let plan = run().line(usize::MAX).replicas(&devices).plan(&data).unwrap();
    let again: Vec<usize> = plan.devices().map(|set| set.plans[0].rematerialized().count()).collect();
    assert!(again[0] == 0 && again[1] > 0, "{again:?}");
    let row = &plan.load_sheet().devices[1];
    assert!(row.total_bytes <= line && row.line_bytes == line, "{row:?}");
    let text = plan.load_sheet().to_string();
    assert!(text.contains("cpu:1") && text.contains(&in_words(line)), "{text}");
    let found = bits(&mut plan.start().unwrap());
    assert!(found == train(run().threads(1), &data));
}

#[test]
fn the_device_that_needs_most_micro_batches_decides() {
    let batch = 48;
    let data = examples(&GPT, batch);
    let run = || trainer(GPT, Precision::F32, batch).line(usize::MAX);
    let free = run().replicas(&LogicalDevices::cpu(2, 1).unwrap()).plan(&data).unwrap();
    let devices = LogicalDevices::cpu(2, 1).unwrap();
    let line = free.devices().nth(1).unwrap().sheet.total_bytes * 2 / 3;
    devices.set_memory("cpu:1", plimsoll_plan::Size::Bytes(line)).unwrap();
    let plan = run().replicas(&devices).plan(&data).unwrap();
    let counts: Vec<usize> = plan.devices().map(|set| set.plans[0].graph.micro_batches).collect();
    assert!(counts[0] == counts[1] && counts[0] > 1, "{counts:?}");
    assert!(bits(&mut plan.start().unwrap()) == train(run().threads(1), &data));
}

#[test]
fn the_line_of_the_process_covers_every_device() {
    let data = examples(&deep(12), 1024);
    let run = || trainer(deep(12), Precision::F32, 512).steps(3);
    let free = run().line(usize::MAX).replicas(&LogicalDevices::cpu(2, 1).unwrap()).plan(&data).unwrap();
    let arenas: usize = free.devices().map(|set| set.arena_bytes).sum();
    assert!(free.load_sheet().total_bytes >= arenas);
    let line = free.load_sheet().total_bytes * 4 / 5;
    let plan = run().line(line).replicas(&LogicalDevices::cpu(2, 1).unwrap()).plan(&data).unwrap();
    let arenas: usize = plan.devices().map(|set| set.arena_bytes).sum();
    assert!(plan.load_sheet().total_bytes <= line && arenas <= line);
    assert!(bits(&mut plan.start().unwrap()) == train(run().threads(1), &data));
    let short = run().line(line / 20).replicas(&LogicalDevices::cpu(2, 1).unwrap()).plan(&data);
    assert!(matches!(short, Err(TrainError::Plan(PlanError::Infeasible(_)))));
}

#[test]
fn mistakes_are_told_before_anything_runs() {
    let two = || LogicalDevices::cpu(2, 1).unwrap();
    let data = data(&deep(2));
    let refused = |trainer: Trainer, words: &str| {
        let error = trainer.line(usize::MAX).plan(&data).expect_err(words).to_string();
        assert!(error.contains(words), "no `{words}` in: {error}");
    };
    refused(trainer(deep(2), Precision::F32, 64).batch(1).replicas(&two()), "make the batch at least");
    refused(trainer(deep(2), Precision::F32, 62).micro_batches(4).replicas(&two()), "a multiple of");
    let norms = Trainer::new(normed(), AdamW::new(1e-3)).batch(128).line(usize::MAX).allow_split_batch_norm();
    let error = norms.micro_batches(2).replicas(&two()).plan(&examples(&normed(), 128));
    let error = error.err().unwrap().to_string();
    assert!(error.contains("the statistics of the whole batch"), "{error}");
    refused(trainer(deep(2), Precision::F32, 64).shard(Shard::Optimizer).replicas(&two()), "use ranks");
    let devices = two();
    assert!(devices.set_memory("cpu:2", plimsoll_plan::MiB(1)).is_err());
    devices.set_memory("cpu:0", plimsoll_plan::Size::Bytes(1 << 10)).unwrap();
    refused(trainer(deep(2), Precision::F32, 64).replicas(&devices), "the line of cpu:0");
    let late = devices.set_memory("cpu:0", plimsoll_plan::MiB(64)).err().unwrap().to_string();
    assert!(late.contains("before the first plan"), "{late}");
}

/// A CPU whose runs fail after so many.
pub struct Failing {
    pub cpu: Cpu,
    pub runs: Arc<AtomicUsize>,
    pub panics: bool,
}

struct FailingPrepared {
    inner: Box<dyn Prepared>,
    runs: Arc<AtomicUsize>,
    panics: bool,
}

impl Executor for Failing {
    fn target(&self) -> &dyn Target {
        self.cpu.target()
    }

    fn prepare(&self, plans: Arc<PlanSet>) -> Result<Box<dyn Prepared>, ExecuteError> {
        self.cpu.prepare(plans)
    }

    fn prepare_connected(
        &self,
        plans: Arc<PlanSet>,
        connection: Connection,
    ) -> Result<Box<dyn Prepared>, ExecuteError> {
        let inner = self.cpu.prepare_connected(plans, connection)?;
        Ok(Box::new(FailingPrepared { inner, runs: self.runs.clone(), panics: self.panics }))
    }
}

impl Prepared for FailingPrepared {
    fn run(&mut self, plan: usize, inputs: &[&[u8]]) -> Result<(), ExecuteError> {
        if self.runs.fetch_sub(1, Ordering::Relaxed) == 0 {
            assert!(!self.panics, "it panics");
            return Err(ExecuteError::Transfer("the disk is on fire".into()));
        }
        self.inner.run(plan, inputs)
    }

    fn read_output(&self, plan: usize, output: usize, into: &mut [u8]) -> Result<(), ExecuteError> {
        self.inner.read_output(plan, output, into)
    }

    fn read_state(&self, state: usize, offset: usize, into: &mut [u8]) -> Result<(), ExecuteError> {
        self.inner.read_state(state, offset, into)
    }

    fn write_state(&mut self, state: usize, offset: usize, from: &[u8]) -> Result<(), ExecuteError> {
        self.inner.write_state(state, offset, from)
    }
}

#[test]
fn the_failure_of_one_device_ends_the_run_with_its_error() {
    let data = examples(&deep(3), 6 * 96);
    for (failing, panics) in [(0, false), (1, false), (2, false), (1, true)] {
        let device = |device: usize| -> Arc<dyn Executor> {
            let cpu = Cpu::new(1).unwrap();
            if device == failing {
                Arc::new(Failing { cpu, runs: Arc::new(AtomicUsize::new(3)), panics })
            } else {
                Arc::new(cpu)
            }
        };
        let devices = LogicalDevices::new((0..3).map(device).collect()).unwrap();
        let run = trainer(deep(3), Precision::F32, 96).line(usize::MAX).replicas(&devices);
        let mut session = run.plan(&data).unwrap().start().unwrap();
        let error = session.fit().expect_err("the fourth step fails").to_string();
        let words = if panics { "a kernel of device 1 panicked" } else { "the disk is on fire" };
        assert!(error.contains(words) && session.steps_done() == 3, "device {failing}: {error}");
    }
}

#[test]
fn a_restored_state_is_on_every_device() {
    let data = data(&deep(3));
    let run = || trainer(deep(3), Precision::F32, 64).line(usize::MAX).steps(2);
    let mut one = run().threads(1).plan(&data).unwrap().start().unwrap();
    let mut two = run().replicas(&LogicalDevices::cpu(2, 1).unwrap()).plan(&data).unwrap().start().unwrap();
    let name = "dense1/kernel";
    let zeros = plimsoll_tensor::Tensor::zeros(one.state(name).unwrap().ty().clone());
    one.set_state(name, &zeros).unwrap();
    two.set_state(name, &zeros).unwrap();
    assert!(bits(&mut one) == bits(&mut two));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, rng_seed: RngSeed::Fixed(7), ..ProptestConfig::default() })]

    #[test]
    fn any_batch_on_any_devices_has_the_bits_of_one_device(
        devices in 2_usize..5,
        batch in 128_usize..300,
        examples_left in 0_usize..300,
        seed in 0_u64..100,
    ) {
        let data = examples(&deep(2), batch + examples_left % batch);
        let run = || trainer(deep(2), Precision::F32, batch).seed(seed);
        let one = train(run().threads(1), &data);
        let several = train(run().replicas(&LogicalDevices::cpu(devices, 1).unwrap()), &data);
        prop_assert!(one == several);
    }
}

/// The layer and op that a run on numbers that grow without bound is explained by.
pub(super) fn diverged(on: impl FnOnce(Trainer) -> Trainer) -> Option<(String, &'static str)> {
    let model = mlp_of(&[20], &[32, 32], 5);
    let data = examples(&model, 4 * 128);
    let trainer = on(Trainer::new(model, Sgd::new(1e20)));
    let mut session = trainer.batch(128).line(usize::MAX).plan(&data).unwrap().start().unwrap();
    match session.fit() {
        Err(TrainError::Diverged(found)) => found.origin.map(|origin| (origin.layer, origin.op)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_loss_that_is_not_finite_is_explained_on_several_devices() {
    let one = diverged(|run| run.threads(1));
    assert!(one.is_some());
    assert_eq!(diverged(|run| run.replicas(&LogicalDevices::cpu(2, 1).unwrap())), one);
}
