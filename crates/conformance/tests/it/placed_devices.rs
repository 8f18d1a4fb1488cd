//! Layers placed on devices of different kinds: the processor beside the simulated accelerator, whose memory the host cannot reach by
//! address, and beside the emulated CUDA kernels, whose numerics are others.

use plimsoll_conformance::{synthetic, trained_states};
use plimsoll_cpu::Cpu;
use plimsoll_cuda::emulator::Emulator;
use plimsoll_data::Dataset;
use plimsoll_graph::Op;
use plimsoll_nn::{AdamW, Model, Policy, Precision, Sequential, Sgd, zoo};
use plimsoll_plan::{Executor, Link, PlanError, PlanSet, Size, Space};
use plimsoll_simulated::Simulated;
use plimsoll_testing::{Scratch, or_skip};
use plimsoll_train::{DeviceName, LogicalDevices, Placement, TrainError, Trainer, TrainingPlan};
use std::sync::Arc;

/// 20 GiB a second each way.
const LINK: Link = Link {
    load_ns_per_mib: 50_000,
    store_ns_per_mib: 50_000,
    latency_ns: 0,
    single_request_ns: 0,
    request_cpu_ns: 0,
};

fn accelerator() -> Simulated {
    Simulated::with_link(1, LINK).expect("worker threads")
}

fn cpu() -> Cpu {
    Cpu::new(2).expect("worker threads")
}

/// The devices that a placement needs, with an accelerator for each GPU.
fn devices(placement: &Placement) -> LogicalDevices {
    let start = |name: DeviceName| -> (DeviceName, Arc<dyn Executor>) {
        match name {
            DeviceName::Cpu(_) => (name, Arc::new(cpu())),
            DeviceName::Cuda(_) => (name, Arc::new(accelerator())),
        }
    };
    LogicalDevices::named(placement.devices().into_iter().map(start)).unwrap()
}

fn placed(trainer: Trainer, rules: &[&str]) -> Trainer {
    let placement = Placement::new(rules).unwrap();
    trainer.place(&devices(&placement), placement)
}

fn gpt() -> zoo::Gpt {
    zoo::Gpt {
        layers: 3,
        width: 32,
        heads: 2,
        context: 16,
        vocabulary: 64,
        gpt2: true,
        key_heads: None,
        window: None,
    }
}

fn trainer(model: impl Model + 'static, batch: usize) -> Trainer {
    Trainer::new(model, AdamW::new(1e-2)).line(usize::MAX).batch(batch).steps(3).seed(9)
}

/// The states after a run, by name.
fn states(trainer: &Trainer, data: &Dataset) -> Vec<(String, Vec<u8>)> {
    let mut found = trained_states(trainer, data).unwrap();
    found.sort();
    found
}

/// Runs with each of these placements end in the bits of one device, whole and in micro-batches.
fn check<M: Model + 'static>(model: impl Fn() -> M, batch: usize, splits: &[usize], placements: &[&[&str]]) {
    let data = synthetic(&model(), 2 * batch + 5, 8, 3);
    for precision in [Precision::F32, Precision::BF16] {
        let run = || trainer(model(), batch).precision(Policy::new(precision));
        let one = states(&run().executor(cpu()), &data);
        for rules in placements {
            for &parts in splits {
                let found = states(&placed(run().micro_batches(parts), rules), &data);
                assert!(found == one, "{precision}, {rules:?}, {parts} micro-batches");
            }
        }
    }
}

#[test]
fn an_mlp_on_the_processor_and_an_accelerator_has_the_bits_of_one_device() {
    let placements: [&[&str]; 5] = [
        &["*1=cuda:0", "*=cpu"],
        &["*1=cpu", "*=cuda:0"],
        &["*1=cuda:1", "*2=cpu:1", "dense3=cuda:0", "*=cpu:0"],
        &["*1=cuda:0", "*=cuda:1"],
        &["auto=cuda:0", "cpu"],
    ];
    check(|| zoo::mlp_of(&[20], &[33, 32], 5), 128, &[1, 2], &placements);
}

#[test]
fn batch_norm_on_the_processor_and_an_accelerator_has_the_bits_of_one_device() {
    let rules: [&[&str]; 2] =
        [&["stage[23]=cuda:0", "head=cuda:0", "*=cpu"], &["stage1=cpu", "stage3=cpu", "*=cuda:0"]];
    check(|| zoo::resnet20_of([8, 8, 3], 10), 24, &[1], &rules);
}

#[test]
fn a_transformer_on_the_processor_and_an_accelerator_has_the_bits_of_one_device() {
    let rules: [&[&str]; 2] = [&["block[1-2].*=cuda:0", "*=cpu"], &["block3=cpu:0", "*=cuda:0"]];
    check(gpt, 24, &[1, 3], &rules);
}

/// An mlp whose states are worth offloading.
fn wide() -> Sequential {
    zoo::mlp_of(&[256], &[512, 512, 512, 256], 10)
}

/// Examples of a step whose activations are worth rematerializing.
const BATCH: usize = 512;

const HALVES: [&str; 2] = ["*[12]=cpu", "*=cuda:0"];

/// The plan under a line of host memory and lines of devices, with an accelerator that has no more memory than its line: an arena beyond
/// it would not be mapped.
fn under(host_line: usize, lines: &[(&str, usize)], data: &Dataset) -> Result<TrainingPlan, TrainError> {
    let line = |name: &str| lines.iter().find(|(other, _)| *other == name).map(|(_, bytes)| *bytes);
    let gpu = accelerator().memory(line("cuda:0").unwrap_or(usize::MAX));
    let own: [(DeviceName, Arc<dyn Executor>); 2] =
        [(DeviceName::Cpu(0), Arc::new(cpu())), (DeviceName::Cuda(0), Arc::new(gpu))];
    let devices = LogicalDevices::named(own).unwrap();
    for (name, bytes) in lines {
        devices.set_memory(name, Size::Bytes(*bytes)).unwrap();
    }
    let run = trainer(wide(), BATCH).line(host_line).overlap(false);
    run.place(&devices, Placement::new(HALVES).unwrap()).plan(data)
}

fn of(plan: &TrainingPlan, device: usize) -> &PlanSet {
    plan.devices().nth(device).unwrap()
}

fn trained(plan: TrainingPlan) -> Vec<(String, Vec<u8>)> {
    let mut names: Vec<String> = plan.states().map(|state| state.name.clone()).collect();
    names.sort();
    let mut session = plan.start().unwrap();
    session.fit().unwrap();
    let bytes = |name: String| (name.clone(), session.state(&name).unwrap().as_bytes().to_vec());
    names.into_iter().map(bytes).collect()
}

/// The accelerator offloads to host memory under a line of its own, and the processor's part recomputes or splits under that of the process:
/// no bit changes, no layer moves, and each stays under its line.
#[test]
fn lines_of_the_device_and_of_the_process_hold_and_change_no_bits() {
    let data = synthetic(&wide(), 2 * BATCH, 8, 3);
    let one = states(&trainer(wide(), BATCH).executor(cpu()), &data);
    let free = under(usize::MAX, &[], &data).unwrap();
    let rows: Vec<usize> = free.load_sheet().devices.iter().map(|row| row.total_bytes).collect();
    let names: Vec<&str> = free.load_sheet().devices.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["cpu:0", "cuda:0"]);
    let staging = of(&free, 1).sheet.host.as_ref().unwrap();
    let largest =
        of(&free, 1).plans.iter().map(|plan| plimsoll_plan::largest_pass(&plan.graph)).max().unwrap();
    assert!(staging.total_bytes >= largest && largest >= BATCH * 512 * 4, "{staging:?}");
    let held = free.load_sheet().outside.iter().find(|entry| entry.name == "cuda:0").unwrap();
    assert_eq!(held.bytes, staging.total_bytes);
    assert!(trained(free) == one);
    let line = rows[1] * 7 / 10;
    let low = under(usize::MAX, &[("cuda:0", line)], &data).unwrap();
    let row = &low.load_sheet().devices[1];
    assert!(row.total_bytes <= line && row.line_bytes == line && row.received_bytes > 0, "{row:?}");
    assert!(of(&low, 1).tier_bytes.host > 0, "nothing is offloaded");
    let host = low.load_sheet().total_bytes;
    assert!(host >= rows[0] + of(&low, 1).tier_bytes.host as usize);
    assert!(trained(low) == one);
    // The process's line holds what the accelerator offloads, too.
    for percent in [95, 88] {
        let line_of_host = host / 100 * percent;
        let both = under(line_of_host, &[("cuda:0", line)], &data).unwrap();
        let sheet = both.load_sheet();
        assert!(sheet.total_bytes <= line_of_host && sheet.line_bytes == line_of_host, "{percent} %");
        assert!(sheet.devices[1].total_bytes <= line, "{percent} %");
        assert!(trained(both) == one, "{percent} %");
    }
    let short = under(usize::MAX, &[("cuda:0", 1 << 10)], &data);
    let Err(TrainError::Plan(PlanError::Infeasible(short))) = short else { panic!("it fits") };
    assert_eq!((short.sheet.device.as_deref(), short.space), (Some("cuda:0"), Space::Computing));
    assert!(short.to_string().contains("the line of cuda:0"), "{short}");
    let short = under(host / 20, &[("cuda:0", line)], &data);
    let Err(TrainError::Plan(PlanError::Infeasible(short))) = short else { panic!("it fits") };
    assert!(short.line_bytes == host / 20 && short.needed_bytes > host / 20, "{short}");
}

#[test]
fn a_line_of_an_accelerator_moves_no_layer() {
    let data = synthetic(&wide(), 2 * BATCH, 8, 3);
    let auto = |line: Option<usize>| {
        let placement = Placement::new(["auto=cuda:0,cpu"]).unwrap();
        let devices = devices(&placement);
        line.into_iter().for_each(|line| devices.set_memory("cuda:0", Size::Bytes(line)).unwrap());
        trainer(wide(), BATCH).overlap(false).place(&devices, placement)
    };
    let rules = auto(None).placement().unwrap().unwrap();
    assert_eq!(rules.device("dense1"), Some(DeviceName::Cuda(0)));
    assert_eq!(rules.device("dense5"), Some(DeviceName::Cpu(0)));
    let free = auto(None).plan(&data).unwrap();
    let low = auto(Some(of(&free, 1).sheet.total_bytes * 7 / 10));
    assert_eq!(low.placement().unwrap(), Some(rules));
    let low = low.plan(&data).unwrap();
    assert!(low.devices().zip(free.devices()).all(|(low, free)| low.plans[0].graph == free.plans[0].graph));
}

#[test]
fn kernels_and_copies_write_only_to_their_own_buffers() {
    let data = synthetic(&wide(), 128, 8, 3);
    let own: [(DeviceName, Arc<dyn Executor>); 2] = [
        (DeviceName::Cpu(0), Arc::new(cpu().checked())),
        (DeviceName::Cuda(0), Arc::new(accelerator().checked())),
    ];
    let run = || trainer(wide(), 64).micro_batches(2);
    let checked = run().place(&LogicalDevices::named(own).unwrap(), Placement::new(HALVES).unwrap());
    assert!(states(&checked, &data) == states(&run().executor(cpu()), &data));
}

/// On other devices, and back on one: the accelerator has the processor's numerics.
#[test]
fn a_run_resumes_where_layers_are_elsewhere() {
    let data = synthetic(&wide(), 256, 8, 3);
    let scratch = Scratch::new("placed on kinds");
    let run = |folder: &str, steps| trainer(wide(), 64).steps(steps).checkpoints(folder, None);
    let whole = states(&run(&scratch.path("whole"), 6).executor(cpu()), &data);
    for (name, rules) in
        [("same", Some(&HALVES[..])), ("other", Some(&["*[34]=cpu", "*=cuda:1"])), ("one", None)]
    {
        let folder = scratch.path(name);
        trained(placed(run(&folder, 3), &HALVES).plan(&data).unwrap());
        let rest = run(&folder, 6);
        let rest = rules.map_or_else(|| rest.clone().executor(cpu()), |rules| placed(rest.clone(), rules));
        let mut session = rest.plan(&data).unwrap().start().unwrap();
        let resumed = session.resume(&folder).unwrap();
        assert!(resumed.differs.is_none(), "{name}: {:?}", resumed.differs);
        session.fit().unwrap();
        for (state, bytes) in &whole {
            assert!(session.state(state).unwrap().as_bytes() == *bytes, "{name}: {state}");
        }
    }
}

/// The processor, and the CUDA kernels as code of the host.
fn beside_cuda(trainer: Trainer, rules: &[&str], lines: &[(&str, usize)]) -> Trainer {
    let own: [(DeviceName, Arc<dyn Executor>); 2] = [
        (DeviceName::Cpu(0), Arc::new(cpu())),
        (DeviceName::Cuda(0), Arc::new(Emulator::new().expect("a compiler that was found"))),
    ];
    let devices = LogicalDevices::named(own).unwrap();
    lines.iter().for_each(|(name, bytes)| devices.set_memory(name, Size::Bytes(*bytes)).unwrap());
    trainer.place(&devices, Placement::new(rules).unwrap())
}

type Make = Box<dyn Fn() -> Box<dyn Model>>;

/// Each part is fused by the numerics of its own device, results are near those of the processor, and neither another run nor lines change
/// a bit.
#[test]
fn emulated_cuda_beside_the_processor_trains_as_one_device_and_always_the_same() {
    if or_skip(Emulator::new()).is_none() {
        return;
    }
    let normed = || zoo::resnet20_of([8, 8, 3], 10);
    let small: [(Make, usize, [&str; 2]); 3] = [
        (Box::new(|| Box::new(zoo::mlp_of(&[20], &[33, 32, 31], 5))), 64, ["*[12]=cuda:0", "*=cpu"]),
        (Box::new(move || Box::new(normed())), 16, ["stage3=cuda:0", "*=cpu"]),
        (Box::new(|| Box::new(gpt())), 8, ["block2=cuda:0", "*=cpu"]),
    ];
    let mut again = 0;
    for (model, batch, rules) in small {
        let data = synthetic(model().as_ref(), 2 * batch, 8, 3);
        for precision in [Precision::F32, Precision::BF16] {
            let run = || {
                let run =
                    Trainer::new(model(), Sgd::new(0.05)).line(usize::MAX).batch(batch).steps(3).seed(9);
                run.precision(Policy::new(precision))
            };
            let loss = |run: Trainer| run.plan(&data).unwrap().start().unwrap().fit().unwrap().final_loss;
            let (one, both) = (loss(run().executor(cpu())), loss(beside_cuda(run(), &rules, &[])));
            let allowed = if precision == Precision::F32 { 1e-4 } else { 2e-2 };
            assert!((one - both).abs() <= allowed * one.abs(), "{rules:?} {precision}: {both}, alone {one}");
            let first = states(&beside_cuda(run(), &rules, &[]), &data);
            // The lowest line of each.
            let low =
                ["cpu:0", "cuda:0"].map(|name| match beside_cuda(run(), &rules, &[(name, 1)]).plan(&data) {
                    Err(TrainError::Plan(PlanError::Infeasible(short))) => (name, short.needed_bytes),
                    found => panic!("{name} under a byte: {found:?}"),
                });
            let under = beside_cuda(run(), &rules, &low);
            let plan = under.plan(&data).unwrap();
            assert!(plan.load_sheet().devices.iter().all(|row| row.total_bytes <= row.line_bytes));
            again += plan.devices().map(|set| set.plans[0].rematerialized().count()).sum::<usize>();
            assert!(states(&under, &data) == first, "{rules:?} {precision}: lines change bits");
        }
    }
    assert!(again > 0, "nothing is rematerialized");
}

#[test]
fn epilogues_are_those_of_the_device_that_a_layer_is_on() {
    if or_skip(Emulator::new()).is_none() {
        return;
    }
    let model = || zoo::mlp_of(&[20], &[33, 32, 31], 5);
    let data = synthetic(&model(), 64, 8, 3);
    let plan = beside_cuda(trainer(model(), 64), &["*[12]=cuda:0", "*=cpu"], &[]).plan(&data).unwrap();
    let epilogues = |device: usize| {
        let nodes = of(&plan, device).plans[0].graph.nodes.clone();
        let found = nodes.into_iter().filter_map(|node| match node.op {
            Op::MatMul(product) => Some((product.epilogue.bias, product.epilogue.relu)),
            _ => None,
        });
        found.filter(|(bias, _)| *bias).collect::<Vec<_>>()
    };
    assert!(epilogues(0).contains(&(true, true)), "the processor fuses relu: {:?}", epilogues(0));
    assert_eq!(epilogues(1), [(true, false); 2], "CUDA does not");
}

#[test]
fn a_run_on_other_numerics_is_told_apart() {
    if or_skip(Emulator::new()).is_none() {
        return;
    }
    let model = || zoo::mlp_of(&[20], &[33, 32], 5);
    let data = synthetic(&model(), 256, 8, 3);
    let scratch = Scratch::new("placed numerics");
    let run = |steps| trainer(model(), 64).steps(steps).checkpoints(scratch.path("run"), None);
    trained(beside_cuda(run(2), &["*1=cuda:0", "*=cpu"], &[]).plan(&data).unwrap());
    let resume = |rest: Trainer| {
        let mut session = rest.plan(&data).unwrap().start().unwrap();
        session.resume(scratch.path("run")).map(|resumed| resumed.differs)
    };
    let alone = resume(run(4).executor(cpu())).unwrap_err().to_string();
    assert!(alone.contains("numerics of the target"), "{alone}");
    assert_eq!(resume(beside_cuda(run(4), &["*1=cuda:0", "*=cpu"], &[])).unwrap(), None);
    let moved = resume(beside_cuda(run(4), &["*1=cpu", "*=cuda:0"], &[])).unwrap().unwrap();
    assert!(moved.contains("bits may differ") && moved.contains("emulated cuda"), "{moved}");
}

#[test]
fn mistakes_with_devices_say_what_to_do() {
    let model = || zoo::mlp_of(&[20], &[33, 32], 5);
    let data = synthetic(&model(), 128, 8, 3);
    let both = || devices(&Placement::new(["*1=cuda:0", "*=cpu"]).unwrap());
    let refused = |found: Result<(), TrainError>, words: &str| {
        let error = found.expect_err(words).to_string();
        assert!(error.contains(words), "no `{words}` in: {error}");
    };
    let plan = |trainer: Trainer| trainer.plan(&data).map(|_| ());
    refused(plan(trainer(model(), 128).replicas(&both())), "not on cuda:0");
    let other = Placement::new(["*1=cuda:1", "*=cpu"]).unwrap();
    refused(plan(trainer(model(), 128).place(&both(), other)), "names cuda:1: the devices are cpu:0, cuda:0");
    let none = Placement::new(["*=cpu"]).unwrap();
    refused(plan(trainer(model(), 128).place(&both(), none)), "no layer is on cuda:0 of 2 devices");
    refused(both().set_memory("cuda:1", Size::Bytes(1)), "there is no cuda:1: the devices are cpu:0, cuda:0");
    refused(both().set_memory("cuda", Size::Bytes(1)), "name one GPU, like cuda:0");
    refused(both().set_memory("cuda:0", Size::Percent(50.0)), "say how many bytes");
    let twice: [(DeviceName, Arc<dyn Executor>); 2] =
        [0, 0].map(|n| (DeviceName::Cuda(n), Arc::new(accelerator()) as _));
    refused(LogicalDevices::named(twice).map(|_| ()), "two cuda:0");
    // Sums of a batch that devices share are read where they lie.
    let two = (0..2).map(|_| Arc::new(accelerator()) as Arc<dyn Executor>).collect();
    let shared = trainer(model(), 128).replicas(&LogicalDevices::new(two).unwrap()).plan(&data).unwrap();
    refused(shared.start().map(|_| ()), "cannot share batches with other devices");
}
