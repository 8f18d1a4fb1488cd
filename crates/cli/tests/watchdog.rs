//! Memory that no plan knows of: found between steps, named, and stopped before the kernel does it.

mod support;

use plimsoll::memory::{self, Watchdog};
use plimsoll::prelude::*;
use plimsoll::train::{Held, Saved, TrainState, Watch, checkpoints};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use support::{Group, json, number, plimsoll};

/// Names the folder of a child's checkpoints, and makes it a child.
const CHILD: &str = "PLIMSOLL_LEAKING_CHILD";
/// Bytes that a listener leaks with each step.
const LEAK: usize = 512 << 10;
/// A child's line.
const LINE: &str = "PLIMSOLL_LEAKING_LINE";

fn trainer() -> Trainer {
    let model = Sequential::classifier("digits", [28, 28, 1], 10)
        .layer("flatten", Flatten)
        .layer("head", Dense::new(10));
    Trainer::new(model, AdamW::new(1e-3), Cpu::new(1).unwrap()).batch(50).steps(200)
}

/// Runs the test of this name in a process of its own, inside a control group where one can be made.
fn run_alone(test: &str, folder: &Path, line: usize) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD, folder)
        .env(LINE, line.to_string());
    match Group::new(test, line) {
        Some(group) => group.run(&command),
        None => command.output().unwrap(),
    }
}

#[test]
fn a_listener_that_leaks_is_stopped_between_steps() {
    let name = "a_listener_that_leaks_is_stopped_between_steps";
    let Some(folder) = std::env::var_os(CHILD) else {
        let folder = std::env::temp_dir().join(format!("plimsoll-leak-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let data = open("mnist", &OpenOptions::default()).unwrap();
        let planned = memory::declare(trainer(), 1, &data).plan(&data).unwrap().sheet.total_bytes;
        // A line with room, and one at the planned total.
        for line in [96 << 20, planned.next_multiple_of(1 << 20)] {
            let output = run_alone(name, &folder, line);
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{line}: {:?}: {text}", output.status);
            assert!(text.contains("stopped as it should"), "{line}: {text}");
            assert_eq!(checkpoints(&folder).unwrap().len(), 1);
        }
        std::fs::remove_dir_all(&folder).unwrap();
        return;
    };
    let data = open("mnist", &OpenOptions::default()).unwrap();
    let line: usize = std::env::var(LINE).unwrap().parse().unwrap();
    let trainer = memory::declare(trainer().line(line).checkpoints(&folder, None), 1, &data);
    let mut session = trainer.prepare(trainer.plan(&data).unwrap(), &data).unwrap();
    let (mut leaked, mut told) = (Vec::new(), None);
    let result = session.fit(&data, &mut |event| {
        match event {
            TrainEvent::Step { .. } => leaked.push(vec![1u8; LEAK]),
            TrainEvent::AbovePlan { step, .. } => told = Some(*step),
            TrainEvent::Validation { .. } | TrainEvent::Diverged { .. } => {}
        }
        Control::Continue
    });
    let Err(TrainError::Overload(overload)) = result else { panic!("{result:?}") };
    eprintln!("stopped as it should: {overload}");
    assert!(overload.held.total_bytes() > overload.planned_bytes + (4 << 20));
    // Told before, where there was room.
    assert_eq!(told.is_some_and(|step| step < overload.step), line == 96 << 20, "{told:?}");
    let (name, grown) = &overload.grown[0];
    assert_eq!(name, "the process's own memory");
    assert!(grown.abs_diff(leaked.len() * LEAK) < 4 << 20, "{grown} of {}", leaked.len() * LEAK);
    assert_eq!(overload.saved, Saved::In(folder.clone().into()));
    assert_eq!(TrainState::read(Path::new(&folder)).unwrap().steps_done, overload.step);
}

/// A watch that says what it is told.
struct Told(Arc<AtomicUsize>);

impl Watch for Told {
    fn above(&self, limit: usize) -> Option<Held> {
        let swapped_bytes = self.0.load(Relaxed);
        (swapped_bytes > limit).then_some(Held { swapped_bytes, ..Held::default() })
    }

    fn parts(&self) -> Vec<(String, usize)> {
        vec![("a library".into(), self.0.load(Relaxed)), ("code".into(), 7)]
    }
}

#[test]
fn growth_is_told_above_the_plan_and_stopped_near_the_line() {
    let data = open("mnist", &OpenOptions::default()).unwrap();
    let held = Arc::new(AtomicUsize::new(0));
    let run = |line: usize, trainer: Trainer, grow: &dyn Fn(usize) -> usize| {
        let trainer = trainer.line(line).watch(Told(held.clone()));
        let plans = trainer.plan(&data).unwrap();
        let planned = plans.sheet.total_bytes;
        held.store(planned, Relaxed);
        let mut told = 0;
        let result = trainer.prepare(plans, &data).unwrap().fit(&data, &mut |event| {
            match event {
                TrainEvent::Step { .. } => held.store(grow(planned), Relaxed),
                TrainEvent::AbovePlan { .. } => told += 1,
                TrainEvent::Validation { .. } | TrainEvent::Diverged { .. } => {}
            }
            Control::Continue
        });
        (result, told)
    };
    let (far, few) = (256 << 20, || trainer().steps(3));
    // As planned, within what a measured peak may be off.
    let (result, told) = run(far, few(), &|planned| planned + (4 << 20));
    assert!(result.is_ok() && told == 0);
    // Above the plan, far below the line.
    let (result, told) = run(far, few(), &|planned| planned + (5 << 20));
    assert!(result.is_ok() && told == 1);
    // Without a line nothing is too much.
    let (result, told) = run(usize::MAX, few(), &|_| usize::MAX);
    assert!(result.is_ok() && told == 0);
    let (result, told) = run(far, few(), &|_| far - far / 16 + 1);
    let Err(TrainError::Overload(overload)) = result else { panic!("{result:?}") };
    assert_eq!((overload.step, told, overload.saved.clone()), (1, 1, Saved::Nowhere));
    let grown = far - far / 16 + 1 - overload.planned_bytes;
    assert_eq!(overload.grown, [("a library".to_string(), grown)]);
    let text = overload.to_string();
    assert!(text.contains("a library grew by") && text.contains("--your-code"), "{text}");
    // At a line that leaves no room, too.
    let planned = few().plan(&data).unwrap().sheet.total_bytes;
    assert!(run(planned, few(), &|planned| planned + (4 << 20)).0.is_ok());
    assert!(matches!(
        run(planned, few(), &|planned| planned + (4 << 20) + 1).0,
        Err(TrainError::Overload(_))
    ));
}

#[test]
fn the_watchdog_sees_this_process() {
    let watchdog = Watchdog::new();
    let held = watchdog.above(0).expect("the system says");
    assert!(held.resident_bytes > 1 << 20);
    assert_eq!(watchdog.above(usize::MAX), None);
    assert_eq!(Watchdog::asleep().above(0), None);
    let before = watchdog.parts();
    // Far more than the tests beside this one take and give back.
    let block = vec![1u8; 256 << 20];
    let after = watchdog.parts();
    assert!(after[0].1.saturating_sub(before[0].1) > 128 << 20, "{before:?} {after:?}");
    drop(std::hint::black_box(block));
}

#[test]
fn declared_memory_is_under_the_line() {
    let planned = |more: &[&str]| {
        let report = json(&plimsoll(&[&["plan", "--json", "--threads=1"], more].concat()));
        number(&report, "planned_peak_bytes")
    };
    assert_eq!(planned(&["--your-code=10MiB"]) - planned(&[]), (10 << 20) as f64);
    let output = plimsoll(&["train", "--memory=64MiB", "--your-code=60MiB", "--steps=1"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).contains("your code"));
}
