//! The simulated accelerator: lines of device and host memory at once, offload to host memory and to a file, the CPU's bits.

use plimsoll_conformance::{executors, long_tests, on_emulated_cuda, on_gpu, synthetic, trained_states};
use plimsoll_data::Dataset;
use plimsoll_graph::Numerics;
use plimsoll_nn::{AdamW, Model, zoo};
use plimsoll_plan::sheet::{NEXT_BATCH, PAGE_TABLES};
use plimsoll_plan::{
    ExecuteError, Executor, Kernel, KernelQuery, Link, PlanSet, Prepared, Target, Tier, Tiers, Unsupported,
};
use plimsoll_runtime::spill::SpillFile;
use plimsoll_simulated::Simulated;
use plimsoll_train::{Control, TrainEvent, Trainer, tally};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A link of 20 GiB a second each way, and a disk of 2 GiB: bits are tested here, not time.
const LINK: Link = link(50_000);
const DISK: Link = link(500_000);

const fn link(ns_per_mib: u64) -> Link {
    Link {
        load_ns_per_mib: ns_per_mib,
        store_ns_per_mib: ns_per_mib,
        latency_ns: 0,
        single_request_ns: 0,
        request_cpu_ns: 0,
    }
}

/// Models with tensors large enough to be offloaded, and their batch size.
fn models() -> Vec<(&'static str, Box<dyn Model>, usize)> {
    let gpt = zoo::Gpt {
        layers: 3,
        width: 128,
        heads: 4,
        context: 48,
        vocabulary: 256,
        gpt2: false,
        key_heads: None,
        window: None,
    };
    vec![
        ("mlp", Box::new(zoo::mlp_of(&[512], &[512, 512, 256], 10)), 128),
        ("lenet", Box::new(zoo::lenet_of([28, 28, 1], 10)), 64),
        ("resnet20", Box::new(zoo::resnet20_of([16, 16, 3], 10)), 24),
        ("gpt", Box::new(gpt), 8),
    ]
}

fn trainer(index: usize, executor: impl Executor + 'static) -> Trainer {
    let (_, model, batch) = models().swap_remove(index);
    Trainer::new(model, AdamW::new(1e-2)).executor(executor).line(usize::MAX).batch(batch).steps(2).seed(9)
}

fn accelerator(folder: &Path) -> Simulated {
    Simulated::with_link(1, LINK).expect("worker threads").spilling(folder, DISK)
}

/// The lines of a run: of device memory between the floor and the unlimited peak, in percent, and of host memory, as a share of
/// what the run would offload there.
const LINES: [(usize, usize); 5] = [(100, 100), (70, 100), (40, 100), (40, 40), (0, 0)];

#[test]
fn lines_of_device_and_host_memory_hold_and_change_no_bits() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let mut used = Used::default();
    // The others take minutes.
    let tested = if long_tests() { models().len() } else { 1 };
    for (index, (name, model, batch)) in models().into_iter().enumerate().take(tested) {
        let data = synthetic(&model, 2 * batch, 3, 5);
        let expected = trained_states(&trainer(index, executors()[0].on(2)), &data).expect("no line");
        used.under_lines(name, &data, &expected, 1 << 20, || trainer(index, accelerator(folder)));
    }
    used.check();
    assert!(!long_tests() || used.rematerialized > 10, "{}", used.rematerialized);
}

/// Two steps of a model on the first of the executors, which may offload to host memory and to a file.
fn offloading(widths: &[usize]) -> Trainer {
    let folder = [env!("CARGO_TARGET_TMPDIR"), "/var/tmp"].map(Path::new);
    let folder = folder.into_iter().find(|folder| SpillFile::create(folder, 1).is_ok()).expect("a disk");
    let model = zoo::mlp_of(&widths[..1], &widths[1..], 10);
    let executor = executors()[0].offloading(1, false, folder);
    Trainer::new(model, AdamW::new(1e-2)).executor(executor).line(usize::MAX).batch(32).steps(2).seed(9)
}

/// What does not fit the device goes to host memory, and what does not fit there to a file. `slack` is for what the process takes of host
/// memory between two plans.
fn beyond_host_memory(widths: &[usize], slack: usize) {
    let data = synthetic(&zoo::mlp_of(&widths[..1], &widths[1..], 10), 64, 3, 5);
    let expected = trained_states(&offloading(widths), &data).expect("no line");
    let mut used = Used::default();
    used.under_lines(executors()[0].name, &data, &expected, slack, || offloading(widths));
    used.check();
}

#[test]
fn emulated_cuda_offloads_to_host_memory_and_to_a_file() {
    on_emulated_cuda(|| beyond_host_memory(&[256, 384, 384], 1 << 20));
}

#[test]
fn a_gpu_offloads_to_host_memory_and_to_a_file() {
    on_gpu(|| beyond_host_memory(&[2048, 6000, 4000], 64 << 20));
}

/// What plans did to stay under their lines.
#[derive(Default)]
struct Used {
    rematerialized: usize,
    /// Values and states in each tier.
    tiers: [usize; 2],
}

impl Used {
    /// Trains under [`LINES`], with `slack` beside the line of host memory, and compares states.
    fn under_lines(
        &mut self,
        name: &str,
        data: &Dataset,
        expected: &[(String, Vec<u8>)],
        slack: usize,
        run: impl Fn() -> Trainer,
    ) {
        let free = run();
        let mut forecast = free.forecast(data);
        let (floor, whole) = (forecast.floor().unwrap(), forecast.plan(usize::MAX).unwrap());
        let whole = whole.sheet.total_bytes;
        // The file needs staging, which a run without one does not have; pages round up.
        let tiers = free.plan(data).unwrap().tiers();
        let staging = tiers.file.map_or(0, |file| file.staging_bytes);
        for (device_percent, host_percent) in LINES {
            let device = floor + (whole - floor) / 100 * device_percent;
            let roomy = forecast.plan(device).unwrap();
            let host = roomy.sheet.host.as_ref().expect("a device");
            let others = host.total_bytes - host.arena_bytes;
            let host_line = others + host.arena_bytes / 100 * host_percent + staging + slack;
            let run = run().line(host_line);
            // With less room in host memory a plan may need more of the device's.
            let device = device.max(run.forecast(data).floor().unwrap());
            let run = run.device_line(device);
            let plans = run.plan(data).unwrap_or_else(|e| panic!("{name}, {device} and {host_line}: {e}"));
            check_lines(&plans, device, host_line);
            let tally = tally(&plans);
            self.rematerialized += tally.recomputed;
            for (tier, used) in Tier::ALL.into_iter().zip(&mut self.tiers) {
                *used += tally.offloaded[tier];
            }
            let found = trained_states(&run, data).unwrap();
            assert!(found == expected, "{name}: lines of {device} and {host_line} bytes changed a state");
        }
    }

    fn check(&self) {
        let [host, file] = self.tiers;
        assert!(host > 3 && file > 3, "{host} in host memory, {file} in the file");
    }
}

fn check_lines(plans: &PlanSet, device: usize, host_line: usize) {
    let host = plans.sheet.host.as_ref().expect("a device");
    assert!(plans.sheet.total_bytes <= device && plans.sheet.line_bytes == device);
    assert!(host.total_bytes <= host_line && host.line_bytes == host_line);
    let outside: usize = host.outside.iter().map(|entry| entry.bytes).sum();
    assert_eq!(host.arena_bytes + outside, host.total_bytes);
}

/// An accelerator that takes memory of its own to reach the host's, as a GPU has page tables for it: much, so that it shows.
struct Mapping(Simulated);

fn mapping_bytes(host_bytes: u64) -> usize {
    (host_bytes / 16) as usize
}

impl Target for Mapping {
    fn name(&self) -> String {
        self.0.target().name()
    }

    fn instructions(&self) -> String {
        self.0.target().instructions()
    }

    fn numerics(&self) -> Numerics {
        self.0.target().numerics()
    }

    fn alignment(&self) -> usize {
        self.0.target().alignment()
    }

    fn host_mapping_bytes(&self, bytes: u64) -> usize {
        mapping_bytes(bytes)
    }

    fn kernel(&self, query: &KernelQuery<'_>) -> Result<Kernel, Unsupported> {
        self.0.target().kernel(query)
    }
}

impl Executor for Mapping {
    fn target(&self) -> &dyn Target {
        self
    }

    fn tiers(&self) -> Tiers {
        self.0.tiers()
    }

    fn prepare(&self, plans: Arc<PlanSet>) -> Result<Box<dyn Prepared>, ExecuteError> {
        self.0.prepare(plans)
    }
}

#[test]
fn what_a_device_takes_to_reach_host_memory_is_under_its_line() {
    let (_, model, batch) = models().swap_remove(0);
    let data = synthetic(&model, 2 * batch, 3, 5);
    let mapping = || Mapping(Simulated::with_link(1, LINK).expect("worker threads"));
    let free = trainer(0, mapping());
    let mut forecast = free.forecast(&data);
    let (floor, whole) = (forecast.floor().unwrap(), forecast.plan(usize::MAX).unwrap().sheet.total_bytes);
    let mut offloaded = 0;
    for percent in [0, 10, 30, 50, 70] {
        let line = floor + (whole - floor) / 100 * percent;
        let plan = trainer(0, mapping()).device_line(line).plan(&data).unwrap();
        let taken = mapping_bytes(plan.tier_bytes.host);
        let entry = plan.sheet.outside.iter().find(|entry| entry.name == PAGE_TABLES);
        assert_eq!(entry.map_or(0, |entry| entry.bytes), taken, "{percent} %");
        assert!(plan.sheet.arena_bytes + taken <= plan.sheet.total_bytes && plan.sheet.total_bytes <= line);
        offloaded += usize::from(taken > 0);
    }
    assert!(offloaded > 2, "{offloaded}");
}

/// A line that the plan of a device without page tables fills to the last byte. They are reserved before the search, so that the plan with them
/// fills it, too, and is not one that takes far less memory than there is, and longer.
#[test]
fn page_tables_are_reserved_under_a_line_that_a_plan_fills() {
    let (_, model, batch) = models().swap_remove(0);
    let data = synthetic(&model, 2 * batch, 3, 5);
    let device = || Simulated::with_link(1, LINK).expect("worker threads");
    let under = |line| trainer(0, device()).device_line(line).plan(&data).unwrap();
    let line = under(under(usize::MAX).sheet.total_bytes / 10 * 6).sheet.total_bytes;
    let full = under(line);
    assert!(full.sheet.total_bytes == line && full.tier_bytes.host > 0, "{line}: {}", full.sheet.total_bytes);
    let plan = trainer(0, Mapping(device())).device_line(line).plan(&data).unwrap();
    let (left, taken) = (line - plan.sheet.total_bytes, mapping_bytes(plan.tier_bytes.host));
    assert!(left < taken, "{left} bytes are left, and {taken} taken");
    let [time, without] = [&plan, &full].map(|plan| plan.plans[0].nanoseconds);
    assert!(time <= without + without / 40, "{time} ns, and {without} without page tables");
}

/// An accelerator that says it computes until it is asked for a result, so that every batch is taken ahead that may be; it counts
/// those whose inputs it was given ahead.
struct Counting {
    executor: Simulated,
    prefetched: Arc<AtomicUsize>,
}

impl Executor for Counting {
    fn target(&self) -> &dyn Target {
        self.executor.target()
    }

    fn tiers(&self) -> Tiers {
        self.executor.tiers()
    }

    fn prefetches_from(&self) -> Option<usize> {
        self.executor.prefetches_from()
    }

    fn prepare(&self, plans: Arc<PlanSet>) -> Result<Box<dyn Prepared>, ExecuteError> {
        let (prefetched, least) = (self.prefetched.clone(), self.prefetches_from().unwrap_or(0));
        Ok(Box::new(CountingPrepared { prepared: self.executor.prepare(plans)?, prefetched, least }))
    }
}

struct CountingPrepared {
    prepared: Box<dyn Prepared>,
    prefetched: Arc<AtomicUsize>,
    /// Bytes of an input that is given ahead.
    least: usize,
}

impl Prepared for CountingPrepared {
    fn run(&mut self, plan: usize, inputs: &[&[u8]]) -> Result<(), ExecuteError> {
        self.prepared.run(plan, inputs)
    }

    fn prefetch(&mut self, plan: usize, inputs: &[&[u8]]) -> Result<bool, ExecuteError> {
        self.prepared.prefetch(plan, inputs)
    }

    fn run_prefetched(&mut self, plan: usize, inputs: &[&[u8]]) -> Result<(), ExecuteError> {
        self.prefetched.fetch_add(1, Ordering::Relaxed);
        // Zeros in place of what it has already.
        let zeros: Vec<Vec<u8>> = inputs.iter().map(|input| vec![0; input.len()]).collect();
        let given = |(input, zeros)| if <[u8]>::len(input) >= self.least { zeros } else { input };
        let inputs: Vec<&[u8]> =
            inputs.iter().copied().zip(zeros.iter().map(Vec::as_slice)).map(given).collect();
        self.prepared.run_prefetched(plan, &inputs)
    }

    fn is_running(&self) -> bool {
        true
    }

    fn read_output(&self, plan: usize, output: usize, into: &mut [u8]) -> Result<(), ExecuteError> {
        self.prepared.read_output(plan, output, into)
    }

    fn read_state(&self, state: usize, offset: usize, into: &mut [u8]) -> Result<(), ExecuteError> {
        self.prepared.read_state(state, offset, into)
    }

    fn write_state(&mut self, state: usize, offset: usize, from: &[u8]) -> Result<(), ExecuteError> {
        self.prepared.write_state(state, offset, from)
    }
}

/// Epochs of five batches, a validation after every fourth step, and a checkpoint after every third one.
#[test]
fn inputs_copied_ahead_of_their_step_change_no_bits() {
    let (_, model, batch) = models().swap_remove(1);
    let mut data = synthetic(&model, 5 * batch, batch, 5);
    data.train = data.train.workers(2);
    let prefetched = Arc::new(AtomicUsize::new(0));
    let accelerator = || Counting {
        executor: Simulated::with_link(1, LINK).expect("worker threads"),
        prefetched: prefetched.clone(),
    };
    let settings = |trainer: Trainer, steps| trainer.steps(steps).validate_every(4);
    let expected = trained_states(&settings(trainer(1, executors()[0].on(2)), 12), &data).unwrap();
    for micro_batches in [1, 2] {
        let run = || settings(trainer(1, accelerator()), 12).micro_batches(micro_batches);
        let plan = run().plan(&data).unwrap();
        let bytes = plan.sheet.outside_bytes(NEXT_BATCH);
        assert!(bytes >= batch * 28 * 28 * 4, "{bytes}");
        let outside: usize = plan.sheet.outside.iter().map(|entry| entry.bytes).sum();
        assert_eq!(plan.sheet.arena_bytes + outside, plan.sheet.total_bytes);
        assert!(trained_states(&run(), &data).unwrap() == expected, "{micro_batches} micro-batches");
        // Not before a validation, the end of an epoch, or the end of the run.
        assert_eq!(prefetched.swap(0, Ordering::Relaxed), 7);
        // A line without room for them.
        let line = plan.sheet.total_bytes - 1;
        let plan = run().device_line(line).plan(&data).unwrap();
        assert_eq!(plan.sheet.outside_bytes(NEXT_BATCH), 0);
        assert!(trained_states(&run().device_line(line), &data).unwrap() == expected);
        assert_eq!(prefetched.swap(0, Ordering::Relaxed), 0);
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("inputs_ahead");
    let _ = std::fs::remove_dir_all(&folder);
    let run = || settings(trainer(1, accelerator()), 12).checkpoints(&folder, Some(3));
    let mut session = run().plan(&data).unwrap().start().unwrap();
    session.fit_with(&mut |event| stop_after(event, 6)).unwrap();
    let mut session = run().plan(&data).unwrap().start().unwrap();
    session.resume(&folder).unwrap();
    session.fit().unwrap();
    for (name, bytes) in &expected {
        assert!(session.state(name).unwrap().as_bytes() == *bytes, "{name}");
    }
}

/// Behind a slow link a step that does not wait for its inputs is shorter, also if something is computed twice for their memory.
#[test]
fn room_for_the_next_batch_is_made_where_a_step_is_shorter_with_it() {
    let (_, model, batch) = models().swap_remove(1);
    let alone = synthetic(&model, 5 * batch, batch, 5);
    let mut ahead = alone.clone();
    ahead.train = ahead.train.workers(2);
    let run = || trainer(1, Simulated::with_link(1, link(2_000_000)).expect("worker threads"));
    let line = run().plan(&ahead).unwrap().sheet.total_bytes - 1;
    let under = || run().device_line(line);
    let (plan, without) = (under().plan(&ahead).unwrap(), under().plan(&alone).unwrap());
    let (sheet, without) = (&plan.sheet, &without.sheet);
    assert!(sheet.outside_bytes(NEXT_BATCH) > 0 && without.outside_bytes(NEXT_BATCH) == 0);
    assert!(sheet.total_bytes <= line && sheet.line_bytes == line, "{}", sheet.total_bytes);
    assert!(sheet.predicted_ms() < without.predicted_ms());
    let forecast = run().forecast(&ahead).plan(line).unwrap();
    assert_eq!(forecast.sheet.total_bytes, sheet.total_bytes);
    let expected = trained_states(&trainer(1, executors()[0].on(2)), &alone).unwrap();
    assert!(trained_states(&under(), &ahead).unwrap() == expected);
    // Under the smallest line there is none.
    let floor = run().forecast(&ahead).floor().unwrap();
    let lowest = run().device_line(floor).plan(&ahead).unwrap();
    assert!(lowest.sheet.outside_bytes(NEXT_BATCH) == 0 && lowest.sheet.total_bytes <= floor);
}

fn stop_after(event: &TrainEvent<'_>, steps: u64) -> Control {
    match event {
        TrainEvent::Step { step, .. } if *step >= steps => Control::Stop,
        _ => Control::Continue,
    }
}

/// On a GPU, lines change no bits: rematerialization, offload to host memory and chunked updates are queued on streams, where a
/// wait that is missing would show.
#[test]
fn lines_of_a_gpu_hold_and_change_no_bits() {
    on_gpu(|| {
        for (index, (name, model, batch)) in models().into_iter().enumerate() {
            let data = synthetic(&model, 2 * batch, 3, 5);
            let make = || trainer(index, executors()[0].on(1));
            let expected = trained_states(&make(), &data).expect("no line");
            let (floor, whole) = {
                let trainer = make();
                let mut forecast = trainer.forecast(&data);
                (forecast.floor().unwrap(), forecast.plan(usize::MAX).unwrap().sheet.total_bytes)
            };
            for percent in [100, 70, 40, 10, 0] {
                let line = floor + (whole - floor) * percent / 100;
                let plans = make().computing_line(line).plan(&data).unwrap();
                assert!(plans.sheet.total_bytes <= line, "{name} under {line}");
                let found = trained_states(&make().computing_line(line), &data).unwrap();
                assert!(found == expected, "{name} under {line} ({percent} %): other states");
            }
        }
    });
}
