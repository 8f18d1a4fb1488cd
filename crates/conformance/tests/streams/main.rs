#![cfg(target_os = "linux")]
//! The CUDA executor without a GPU: it runs training steps on a mock of the driver and its libraries (`library`, `mock`), which records
//! all that it asks streams and events to do (`program`). What each kernel accesses is known from the plan (`expected`, `accesses`), what
//! each copy does from its arguments. `order` finds accesses to the same bytes, one of them a write, that nothing orders.
//!
//! In a program of its own: the mock is all of a process's.

mod accesses;
mod expected;
mod library;
mod messages;
mod mock;
mod mutants;
mod order;
mod program;
mod ready;
mod watched;

use mutants::{Counts, try_all};
use order::{Event, Program};
use plimsoll_conformance::synthetic;
use plimsoll_cuda::target::numerics;
use plimsoll_data::Dataset;
use plimsoll_nn::{AdamW, zoo};
use plimsoll_plan::sheet::NEXT_BATCH;
use plimsoll_plan::{Action, Offloaded, PlanSet, Tier};
use plimsoll_runtime::spill::SpillFile;
use plimsoll_testing::or_skip;
use plimsoll_train::Trainer;
use ready::Ready;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use watched::Watched;

/// The mock, which one test at a time uses; skipped, with a word, where there is no compiler.
fn mock() -> Option<MutexGuard<'static, ()>> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    or_skip(mock::install_all())?;
    mock::taken();
    Some(turn)
}

/// A step of few examples, whose states are large: updates run in chunks.
fn wide(gpu: &Watched) -> (Trainer, Dataset) {
    small(gpu, 64, &[520, 777], 32)
}

/// A step of two micro-batches, whose values are large.
fn deep(gpu: &Watched) -> (Trainer, Dataset) {
    let (trainer, data) = small(gpu, 32, &[48, 48, 48, 48], 2 * numerics().block_rows);
    (trainer.micro_batches(2), data)
}

/// Makes a run on a GPU.
type Make = fn(&Watched) -> (Trainer, Dataset);

const MODELS: [(&str, Make); 2] = [("wide", wide), ("deep", deep)];

fn small(gpu: &Watched, inputs: usize, widths: &[usize], batch: usize) -> (Trainer, Dataset) {
    let model = zoo::mlp_of(&[inputs], widths, 10);
    let data = synthetic(&model, 2 * batch, 3, 5);
    let trainer = Trainer::new(model, AdamW::new(1e-2)).executor(gpu.clone());
    (trainer.line(usize::MAX).batch(batch).steps(2).seed(9), data)
}

/// Steps of all plans that are like this.
fn count(plans: &PlanSet, is: impl Fn(&Action) -> bool) -> usize {
    plans.plans.iter().flat_map(|plan| &plan.steps).filter(|step| is(&step.action)).count()
}

/// Loads and stores of states, or of values, in a tier.
fn transfers(plans: &PlanSet, tier: Tier, state: bool) -> usize {
    count(plans, |action| match action {
        Action::Load { what, tier: own, .. } | Action::Store { what, tier: own, .. } => {
            *own == tier && matches!(what, Offloaded::State(_)) == state
        }
        _ => false,
    })
}

/// What was recorded, in which nothing races; and what its streams are for.
fn recorded(name: &str) -> (Program, HashMap<u64, &'static str>) {
    let entries = mock::taken();
    let (events, names) = accesses::events(&entries);
    let program = Program::new(events);
    let races = program.races(&program.order());
    for (a, b) in races.iter().take(10) {
        eprintln!("{:x?}\n  and {:x?}", program.events[*a], program.events[*b]);
    }
    assert!(races.is_empty(), "{name}: {} races", races.len());
    eprintln!("{name}: {} calls, {} pairs of accesses to order", entries.len(), program.conflicts());
    (program, names)
}

/// Checks what was recorded. Returns which waits matter, as the checker finds when it leaves some out.
fn check(name: &str) -> Counts {
    let (program, names) = recorded(name);
    let counts = try_all(&program, &names);
    eprintln!("{}", mutants::in_words(&counts));
    assert!(counts.values().all(|count| count.moved[0] == count.moved[1]), "{name}: a wait that was moved");
    counts
}

/// Each of these kinds of waits mattered in one of the programs: nothing of the executor's own order goes unchecked.
fn assert_needed(programs: &[Counts], kinds: &[&str]) {
    for kind in kinds {
        let needed: usize =
            programs.iter().filter_map(|counts| counts.get(*kind)).map(|count| count.needed).sum();
        assert!(needed > 0, "no program needs that {kind}");
    }
}

#[test]
fn a_step_with_all_resident() {
    let Some(_turn) = mock() else { return };
    let gpu = Watched::open(None).unwrap();
    for (trainer, data) in [wide(&gpu), deep(&gpu)] {
        let plans = trainer.plan(&data).unwrap();
        let mut ready = Ready::new(&gpu, &plans);
        ready.write_states();
        let before = mock::with(|machine| machine.launched_graphs);
        (0..4).for_each(|_| ready.run(0));
        // From the second run on.
        assert_eq!(mock::with(|machine| machine.launched_graphs), before + 3);
        ready.read_outputs(0);
        ready.read_states();
    }
    drop(gpu);
    assert_needed(&[check("all resident")], &["the host waits for all kernels"]);
}

/// Runs in a row, of plans that follow each other, while states are read and written.
fn run_in_a_row(gpu: &Watched, plans: &PlanSet) {
    let mut ready = Ready::new(gpu, plans);
    ready.write_states();
    let evaluate = ready.plan("evaluate");
    for plan in [0, 0, 0, evaluate, evaluate, 0, 0] {
        ready.run(plan);
    }
    ready.read_outputs(0);
    ready.read_states();
    ready.write_states();
    ready.run(0);
    ready.read_states();
}

/// In each of these tiers the transfers of states, and those of values.
fn used(plans: &PlanSet, tiers: &[Tier]) -> Vec<usize> {
    tiers.iter().flat_map(|&tier| [true, false].map(|states| transfers(plans, tier, states))).collect()
}

fn add(all: &mut [usize], own: &[usize]) {
    all.iter_mut().zip(own).for_each(|(all, own)| *all += own);
}

#[test]
fn states_and_values_in_host_memory() {
    let Some(_turn) = mock() else { return };
    let (mut all, mut chunked, mut programs) = ([0; 2], 0, Vec::new());
    for (name, make) in MODELS {
        for percent in [0, 30] {
            let gpu = Watched::open(None).unwrap();
            let (trainer, data) = make(&gpu);
            let mut forecast = trainer.forecast(&data);
            let (floor, whole) = (forecast.floor().unwrap(), forecast.plan(usize::MAX).unwrap());
            let line = floor + (whole.sheet.total_bytes - floor) * percent / 100;
            let plans = trainer.device_line(line).plan(&data).unwrap();
            add(&mut all, &used(&plans, &[Tier::Host]));
            chunked += count(&plans, |action| matches!(action, Action::ChunkedUpdate { .. }));
            run_in_a_row(&gpu, &plans);
            drop((plans, whole, forecast, gpu));
            programs.push(check(&format!("{name}, host memory, {percent} %")));
        }
    }
    assert!(all.iter().all(|&count| count > 0) && chunked > 0, "{all:?}, {chunked} chunked updates");
    // A store waits for a load of the same bytes by way of the kernels between them, too.
    let kinds = [
        "kernels wait for loads",
        "kernels wait for stores",
        "loads wait for kernels",
        "loads wait for stores",
        "stores wait for kernels",
        "the host waits for all stores",
    ];
    assert_needed(&programs, &kinds);
}

/// More transfers than the queue has events for: those are used again.
#[test]
fn many_runs_with_states_in_host_memory() {
    let Some(_turn) = mock() else { return };
    let gpu = Watched::open(None).unwrap();
    let (trainer, data) = wide(&gpu);
    let floor = trainer.forecast(&data).floor().unwrap();
    let plans = trainer.device_line(floor).plan(&data).unwrap();
    let mut ready = Ready::new(&gpu, &plans);
    (0..40).for_each(|_| ready.run(0));
    ready.read_states();
    drop((ready, plans, gpu));
    let (program, names) = recorded("many runs");
    let load = |event: &&Event| matches!(event, Event::Work { stream, .. } if names[stream] == "loads");
    let loads = program.events.iter().filter(load).count();
    assert!(loads > 256, "{loads} loads");
}

/// A folder on a disk that a spill file can be in.
fn folder() -> &'static Path {
    let folders = [env!("CARGO_TARGET_TMPDIR"), "/var/tmp"].map(Path::new);
    folders.into_iter().find(|folder| SpillFile::create(folder, 1).is_ok()).expect("a disk with direct I/O")
}

/// What has no room in the device's memory goes to host memory, and what has none there to a file.
#[test]
fn states_and_values_in_host_memory_and_in_a_file() {
    let Some(_turn) = mock() else { return };
    let (mut all, mut programs) = ([0; 4], Vec::new());
    for (name, make) in MODELS {
        for percent in [0, 50] {
            let gpu = Watched::open(Some(folder())).unwrap();
            let (run, data) = (|| make(&gpu).0, make(&gpu).1);
            let free = run().plan(&data).unwrap();
            let staging = free.tiers().file.expect("a file").staging_bytes;
            let floor = run().forecast(&data).floor().unwrap();
            let line = floor + (free.sheet.total_bytes - floor) * 30 / 100;
            let roomy = run().device_line(line).plan(&data).unwrap();
            let host = roomy.sheet.host.as_ref().expect("a device");
            let others = host.total_bytes - host.arena_bytes;
            let run = run().line(others + host.arena_bytes * percent / 100 + staging + (1 << 20));
            // With less room in host memory a plan may need more of the device's.
            let line = line.max(run.forecast(&data).floor().unwrap());
            let plans = run.device_line(line).plan(&data).unwrap();
            add(&mut all, &used(&plans, &Tier::ALL));
            run_in_a_row(&gpu, &plans);
            drop((plans, roomy, free, gpu));
            programs.push(check(&format!("{name}, host memory and a file, {percent} %")));
        }
    }
    assert!(all.iter().all(|&count| count > 0), "{all:?}");
    let kinds = [
        "the host waits for an event of kernels",
        "the host waits for all copies for the file",
        "kernels wait for loads",
        "stores wait for kernels",
    ];
    assert_needed(&programs, &kinds);
}

/// Batches of more than 8 MiB, which are copied ahead.
fn large(gpu: &Watched) -> (Trainer, Dataset) {
    let model = || zoo::mlp_of(&[36_864], &[4], 10);
    let mut data = synthetic(&model(), 5 * 64, 64, 5);
    data.train = data.train.workers(2);
    let trainer = Trainer::new(model(), AdamW::new(1e-2)).executor(gpu.clone()).line(usize::MAX);
    (trainer.batch(64).steps(8).validate_every(4).seed(9), data)
}

#[test]
fn batches_that_are_copied_ahead() {
    let Some(_turn) = mock() else { return };
    let gpu = Watched::open(None).unwrap();
    let (trainer, data) = large(&gpu);
    let plans = trainer.plan(&data).unwrap();
    assert!(plans.sheet.outside_bytes(NEXT_BATCH) > 0);
    let mut ready = Ready::new(&gpu, &plans);
    ready.run(0);
    // Those of the run that follows; none that another run has in between; and others in their place.
    assert!(ready.run_ahead(0, |_| ()));
    assert!(ready.run_ahead(0, |_| ()));
    assert!(ready.run_ahead(0, |ready| ready.run(0)));
    assert!(ready.run_ahead(0, |ready| assert!(ready.run_ahead(0, |_| ()))));
    ready.read_outputs(0);
    assert!(ready.run_ahead(0, |ready| ready.run(ready.plan("evaluate"))));
    ready.read_outputs(0);
    drop((ready, plans, gpu));
    let kinds = [
        "inputs ahead wait for kernels",
        "kernels wait for inputs ahead",
        // A part of the staging memory is written again.
        "the host waits for an event of inputs ahead",
        "the host waits for an event of kernels",
    ];
    assert_needed(&[check("copied ahead")], &kinds);
}

#[test]
fn a_session_that_copies_batches_ahead() {
    let Some(_turn) = mock() else { return };
    let gpu = Watched::open(None).unwrap();
    let (trainer, data) = large(&gpu);
    trainer.plan(&data).unwrap().start().unwrap().fit().unwrap();
    drop((trainer, gpu));
    let kinds =
        ["inputs ahead wait for kernels", "kernels wait for inputs ahead", "the host waits for all kernels"];
    assert_needed(&[check("a session")], &kinds);
}
