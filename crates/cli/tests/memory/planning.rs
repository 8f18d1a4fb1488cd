//! Planning stays under the line, too: steps of thousands of nodes with small arenas train at their floors, inside a kernel
//! limit at the floor, with and without a kept plan.

use crate::support;

use support::{Group, Scratch, command, json, long_tests, number, plimsoll};

fn trains_at_the_floor(name: &str, model: &str) {
    let model: Vec<&str> = model.split(' ').chain(["--threads=2", "--json"]).collect();
    let answer = json(&plimsoll(&[&["plan", "--memory=8GiB"], &model[..]].concat()));
    let line = (number(&answer, "floor_bytes") as usize).next_multiple_of(4096);
    let group = Group::new(name, line);
    let scratch = Scratch::new(name);
    let (cache, memory) = (scratch.path("plans"), line.to_string());
    for kept in [false, true] {
        let run = ["train", "--steps=2", "--memory", &memory, "--plan-cache", &cache];
        let run = command(&[&run[..], &model[..]].concat());
        let mut run = match &group {
            Some(group) => group.enter(&run),
            None => run,
        };
        let report = json(&run.output().expect("the binary runs"));
        let [planned, measured, planning] =
            ["planned_peak_bytes", "measured_peak_bytes", "planning_peak_bytes"].map(|f| number(&report, f));
        eprintln!("{name}: line {line}, planned {planned}, measured {measured}, planning {planning}");
        assert!(planned <= line as f64, "{name}, kept {kept}");
        assert!(planning <= planned && measured <= line as f64, "{name}, kept {kept}: {measured} of {line}");
    }
}

#[test]
fn deep_narrow_models_train_at_their_floors() {
    let gpt = "--width=32 --heads=2 --context=32 --batch=2 --classes=256";
    trains_at_the_floor("seq2seq", "--model=seq2seq --context=48 --width=32 --batch=2 --classes=200");
    trains_at_the_floor("narrow-gpt", &format!("--model=gpt --layers=24 {gpt}"));
    if !long_tests("deeper models") {
        return;
    }
    trains_at_the_floor("deep-seq2seq", "--model=seq2seq --context=128 --width=32 --batch=2 --classes=200");
    trains_at_the_floor("deep-gpt", &format!("--model=gpt --layers=64 {gpt}"));
}

#[test]
fn deep_recurrent_models_train_at_their_floors() {
    if !long_tests("recurrent models") {
        return;
    }
    trains_at_the_floor("deep-lstm", "--model=lstm --context=512 --width=128 --batch=1 --layers=1");
    trains_at_the_floor("deep-lstm-batch", "--model=lstm --context=256 --batch=4");
}

/// A step of tens of thousands of nodes, in a container that has no room to plan it.
#[test]
fn a_step_that_its_container_cannot_plan_is_answered() {
    let limit = 60 << 20;
    let Some(group) = Group::new("unplannable", limit) else { return };
    let sizes = ["--layers=500", "--width=8", "--heads=1", "--context=8", "--batch=2", "--classes=16"];
    for (command, memory) in
        [("plan", "--memory=60MiB"), ("train", "--memory=60MiB"), ("plan", "--memory=4GiB")]
    {
        let output =
            group.plimsoll(&[&[command, "--model=gpt", memory, "--plan-cache=none"], &sizes[..]].concat());
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{command} {memory}: {told}");
        assert!(
            told.contains("more memory than this container allows, 60.0 MiB"),
            "{command} {memory}: {told}"
        );
    }
}
