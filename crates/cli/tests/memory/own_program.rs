//! A program of a user's own: its memory is measured when it plans, and its default line is what its control group has left.

use crate::support::{Group, command, json, number};

use plimsoll::memory::{available, measured_peak};
use plimsoll::prelude::*;
use std::process::{Command, Output};

/// A process with this variable is the program.
const CHILD: &str = "PLIMSOLL_OWN_PROGRAM";
/// What the program holds before it plans.
const HELD: usize = 32 << 20;
/// How far a peak may be from the plan, for totals under 200 MiB.
const TOLERANCE: usize = 4 << 20;
const LINE: usize = 160 << 20;

/// The test of this name as a program of its own.
fn program(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", &format!("own_program::{test}"), "--nocapture", "--test-threads=1"])
        .env(CHILD, "1");
    command
}

/// Its output, of which a line starts with `name`; the numbers after it.
fn printed(output: &Output, name: &str) -> Vec<usize> {
    let text =
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned()).concat();
    assert!(output.status.success(), "{:?}: {text}", output.status);
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{text}"));
    line.split_whitespace().map(|number| number.parse().unwrap()).collect()
}

#[test]
fn a_program_of_ones_own_stays_in_its_measured_account() {
    let name = "a_program_of_ones_own_stays_in_its_measured_account";
    if std::env::var_os(CHILD).is_none() {
        let command = &mut program(name);
        let output = match Group::new(name, LINE) {
            Some(group) => group.run(command),
            None => command.output().unwrap(),
        };
        let [held, planned, measured] = printed(&output, "peaks: ")[..] else { panic!() };
        eprintln!("held already {held}, planned {planned}, measured {measured}");
        assert!((HELD - TOLERANCE..HELD + TOLERANCE).contains(&held), "{held}");
        assert!(measured <= planned, "planned {planned}, measured {measured}");
        assert!(planned - measured <= TOLERANCE, "planned {planned}, measured {measured}");
        return;
    }
    let own = std::hint::black_box(vec![1u8; HELD]);
    let data = datasets::mnist().unwrap();
    let trainer = Trainer::new(zoo::lenet(), AdamW::new(1e-3)).memory(Size::Bytes(LINE)).batch(256).steps(60);
    let plan = trainer.plan(&data).unwrap();
    let (held, planned) = (plan.load_sheet().outside_bytes("held already"), plan.load_sheet().total_bytes);
    let mut run = plan.start().unwrap();
    run.fit().unwrap();
    run.evaluate(&data.test).unwrap();
    // The test harness has printed the beginning of a line.
    println!("\npeaks: {held} {planned} {}", measured_peak().unwrap());
    assert!(own.iter().all(|byte| *byte == 1));
}

#[test]
fn available_memory_and_the_default_line_are_those_of_the_control_group() {
    let name = "available_memory_and_the_default_line_are_those_of_the_control_group";
    if std::env::var_os(CHILD).is_none() {
        const LIMIT: usize = 192 << 20;
        let Some(group) = Group::new("available", LIMIT) else { return };
        let near = |bytes: usize, of: usize| bytes <= of && bytes >= of - of / 5;
        let [available, half] = printed(&group.run(&program(name)), "available: ")[..] else { panic!() };
        assert!(near(available, LIMIT), "{available} of {LIMIT}");
        assert!(near(half, LIMIT / 2), "{half} of {LIMIT}");
        // The program's default is 90 %.
        let plan = json(&group.run(&command(&["plan", "--json"])));
        let line = number(&plan, "line_bytes") as usize;
        assert!(near(line, LIMIT / 10 * 9), "{line} of {LIMIT}");
        return;
    }
    let data = datasets::mnist().unwrap();
    let trainer = Trainer::new(zoo::lenet(), AdamW::new(1e-3)).memory("50%".parse::<Size>().unwrap());
    let line = trainer.plan(&data).unwrap().load_sheet().host_total_and_line().1;
    println!("\navailable: {} {line}", available().unwrap());
}
