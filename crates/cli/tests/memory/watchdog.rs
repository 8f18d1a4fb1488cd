//! Undeclared memory is found between steps, named, and the run stopped before the kernel kills it.

use crate::support;

use plimsoll::memory::{Process, Watchdog};
use plimsoll::prelude::*;
use plimsoll::train::{Held, Saved, TrainState, Watch, checkpoints};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use support::{Group, Scratch, json, number, plimsoll};

/// The variable with the folder of a child's checkpoints; a process that has it is a child.
const CHILD: &str = "PLIMSOLL_LEAKING_CHILD";
/// Bytes that a listener leaks with each step.
const LEAK: usize = 512 << 10;
/// The variable with a child's line.
const LINE: &str = "PLIMSOLL_LEAKING_LINE";

fn trainer() -> Trainer {
    let model = Sequential::classifier([28, 28, 1], 10)
        .named("digits")
        .layer("flatten", Flatten)
        .layer("head", Dense::new(10));
    Trainer::new(model, AdamW::new(1e-3)).executor(Cpu::new(1).unwrap()).line(usize::MAX).batch(50).steps(200)
}

/// The trainer with a line for its process, whatever else the process holds: the tests share one.
fn accounted(line: impl Into<Size>) -> Trainer {
    trainer().memory(line).process(Process::known(10 << 20, 1))
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
fn a_leaking_listener_is_stopped_between_steps() {
    let name = "watchdog::a_leaking_listener_is_stopped_between_steps";
    let Some(folder) = std::env::var_os(CHILD) else {
        let scratch = Scratch::new("leak");
        let data = open("mnist", &OpenOptions::default()).unwrap();
        let planned = accounted(GiB(1)).plan(&data).unwrap().sheet.total_bytes;
        // A line with headroom, and one at the planned total.
        for line in [96 << 20, planned.next_multiple_of(1 << 20)] {
            let output = run_alone(name, &scratch.0, line);
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{line}: {:?}: {text}", output.status);
            assert!(text.contains("stopped as it should"), "{line}: {text}");
            assert_eq!(checkpoints(&scratch.0).unwrap().len(), 1);
        }
        return;
    };
    let data = open("mnist", &OpenOptions::default()).unwrap();
    let line: usize = std::env::var(LINE).unwrap().parse().unwrap();
    let trainer = accounted(Size::Bytes(line)).checkpoints(&folder, None);
    let mut session = trainer.plan(&data).unwrap().start().unwrap();
    let (mut leaked, mut reported) = (Vec::new(), None);
    let result = session.fit_with(&mut |event| {
        match event {
            TrainEvent::Step { .. } => leaked.push(vec![1u8; LEAK]),
            TrainEvent::AbovePlan { step, .. } => reported = Some(*step),
            TrainEvent::Validation { .. } | TrainEvent::Diverged { .. } => {}
        }
        Control::Continue
    });
    let Err(TrainError::Overload(overload)) = result else { panic!("{result:?}") };
    eprintln!("stopped as it should: {overload}");
    assert!(overload.held.total_bytes() > overload.planned_bytes + (4 << 20));
    // Reported before, where there was headroom.
    assert_eq!(reported.is_some_and(|step| step < overload.step), line == 96 << 20, "{reported:?}");
    let (name, grown) = &overload.grown[0];
    assert_eq!(name, "the process's own memory");
    assert!(grown.abs_diff(leaked.len() * LEAK) < 4 << 20, "{grown} of {}", leaked.len() * LEAK);
    assert_eq!(overload.saved, Saved::In(folder.clone().into()));
    assert_eq!(TrainState::read(Path::new(&folder)).unwrap().steps_done, overload.step);
}

/// A watch with a settable reading.
struct Reading(Arc<AtomicUsize>);

impl Watch for Reading {
    fn above(&self, limit: usize) -> Option<Held> {
        let swapped_bytes = self.0.load(Relaxed);
        (swapped_bytes > limit).then_some(Held { swapped_bytes, ..Held::default() })
    }

    fn parts(&self) -> Vec<(String, usize)> {
        vec![("a library".into(), self.0.load(Relaxed)), ("code".into(), 7)]
    }
}

#[test]
fn growth_is_reported_above_the_plan_and_stopped_near_the_line() {
    let data = open("mnist", &OpenOptions::default()).unwrap();
    let held = Arc::new(AtomicUsize::new(0));
    let run = |line: usize, trainer: Trainer, grow: &dyn Fn(usize) -> usize| {
        let trainer = trainer.line(line).watch(Reading(held.clone()));
        let plans = trainer.plan(&data).unwrap();
        let planned = plans.sheet.total_bytes;
        held.store(planned, Relaxed);
        let mut reported = 0;
        let result = plans.start().unwrap().fit_with(&mut |event| {
            match event {
                TrainEvent::Step { .. } => held.store(grow(planned), Relaxed),
                TrainEvent::AbovePlan { .. } => reported += 1,
                TrainEvent::Validation { .. } | TrainEvent::Diverged { .. } => {}
            }
            Control::Continue
        });
        (result, reported)
    };
    let (far, few) = (256 << 20, || trainer().steps(3));
    // As planned, within the tolerance of a measured peak.
    let (result, reported) = run(far, few(), &|planned| planned + (4 << 20));
    assert!(result.is_ok() && reported == 0);
    // Above the plan, far below the line.
    let (result, reported) = run(far, few(), &|planned| planned + (5 << 20));
    assert!(result.is_ok() && reported == 1);
    // Without a line nothing is too much.
    let (result, reported) = run(usize::MAX, few(), &|_| usize::MAX);
    assert!(result.is_ok() && reported == 0);
    let (result, reported) = run(far, few(), &|_| far - far / 16 + 1);
    let Err(TrainError::Overload(overload)) = result else { panic!("{result:?}") };
    assert_eq!((overload.step, reported, overload.saved.clone()), (1, 1, Saved::Nowhere));
    let grown = far - far / 16 + 1 - overload.planned_bytes;
    assert_eq!(overload.grown, [("a library".to_string(), grown)]);
    let text = overload.to_string();
    assert!(text.contains("a library grew by") && text.contains("--your-code"), "{text}");
    // Also at a line without headroom.
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
    assert_eq!(Watchdog::disabled().above(0), None);
    let before = watchdog.parts();
    // Far more than tests on other threads allocate and free.
    let block = vec![1u8; 256 << 20];
    let after = watchdog.parts();
    assert!(after[0].1.saturating_sub(before[0].1) > 128 << 20, "{before:?} {after:?}");
    drop(std::hint::black_box(block));
}

#[test]
fn declared_memory_counts_against_the_line() {
    let planned = |more: &[&str]| {
        let report = json(&plimsoll(&[&["plan", "--json", "--threads=1"], more].concat()));
        number(&report, "planned_peak_bytes")
    };
    assert_eq!(planned(&["--your-code=10MiB"]) - planned(&[]), (10 << 20) as f64);
    let output = plimsoll(&["train", "--memory=64MiB", "--your-code=60MiB", "--steps=1"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).contains("your code"));
}
