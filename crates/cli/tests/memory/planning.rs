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
