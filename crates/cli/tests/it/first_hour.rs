//! Small things that a new user meets: units, names from other programs, suggestions, help.

use crate::support::{Scratch, command, json, number, plimsoll};
use std::fs;

/// Asserts exit status 2 and a message that contains all words.
fn refused(arguments: &[&str], words: &[&str]) {
    let output = plimsoll(arguments);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {message}");
    assert!(words.iter().all(|word| message.contains(word)), "{arguments:?}: {message}");
}

fn said(arguments: &[&str]) -> String {
    let output = plimsoll(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn names_and_units_of_other_programs_are_understood() {
    refused(&["train", "--memory=64"], &["64", "has no unit", "512MiB"]);
    refused(&["train", "--batch=-3"], &["'-3' for '--batch", "not a whole number", "--help"]);
    refused(&["train", "--batch=99999999999999999999"], &["--batch", "too large"]);
    refused(&["train", "--lr=abc"], &["'abc' for '--lr", "not a number"]);
    refused(&["train", "nowhere.toml"], &["nowhere.toml", "there is no such file"]);
    refused(&["train", "--data=images:nowhere"], &["`nowhere`", "there is no such file or folder"]);
    refused(&["train", "--precision=fp16"], &["did you mean f16?"]);
    refused(&["plan", "--precision=bfloat16"], &["did you mean bf16?"]);
    refused(&["train", "--device=gpu"], &["did you mean cuda?"]);
    let scratch = Scratch::new("bare-path");
    let file = scratch.path("some.txt");
    fs::write(&file, "words").unwrap();
    refused(&["train", "--model=gpt", "--data", &file], &[&format!("did you mean text:{file}?")]);
    refused(&["train", "--data", &scratch.path("")], &["did you mean images:"]);
    refused(&["train", "--ema=0.99999999"], &["--ema", "rounds to 1"]);
    refused(&["train", "--class-weights=0,0,0,0,0,0,0,0,0,0"], &["--class-weights", "at least one"]);
    let sizes = ["28×28 with 1", "add --image-size 28 --channels 1"];
    refused(&["train", "--model=resnet20", "--data=mnist"], &sizes);
    said(&["plan", "--model=resnet20", "--data=mnist", "--image-size=28", "--channels=1"]);
    said(&["train", "--device=cpu", "--steps=1"]);
}

#[test]
fn batches_that_do_not_end_at_blocks_are_answered_with_flags_that_work() {
    fn run<'a>(flags: &[&'a str]) -> Vec<&'a str> {
        [&["train", "--steps=1", "--data=synthetic"], flags].concat()
    }
    for flags in [
        &["--batch=60", "--micro-batches=3"][..],
        &["--batch=20", "--accumulate=3"],
        &["--batch=64", "--accumulate=2", "--micro-batches=3"],
    ] {
        let output = plimsoll(&run(flags));
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {message}");
        // The flags of the message, as they are written there, work.
        let advice = message.split(": --").last().unwrap();
        let advice = format!("--{}", advice.trim().strip_suffix(" does").unwrap());
        let words: Vec<&str> = advice.split(' ').collect();
        said(&run(&words));
    }
}

#[test]
fn metrics_come_beside_the_accuracy_and_pictures_have_no_perplexity() {
    let text = said(&["train", "--steps=2", "--validate-every=1", "--metrics=f1"]);
    assert!(text.contains("test accuracy") && text.contains("f1/macro"), "{text}");
    assert!(!text.contains("perplexity"), "{text}");
}

#[test]
fn a_masked_language_model_takes_its_tokens_from_the_text() {
    let text = concat!("--data=text:", env!("CARGO_MANIFEST_DIR"), "/../../ARCHITECTURE.md");
    let model = ["--model=bert_tiny", "--context=16", "--layers=1", "--width=16", "--heads=2", "--batch=8"];
    let scratch = Scratch::new("bert");
    let out = scratch.path("run");
    let report =
        json(&plimsoll(&[&["train", "--json", "--steps=2", text, "--out", &out], &model[..]].concat()));
    assert_eq!(number(&report["model_options"], "classes"), 257.0);
    json(&plimsoll(&["evaluate", &out, "--json"]));
}

#[test]
fn a_line_below_the_data_is_answered_with_what_would_do() {
    for command in ["plan", "train"] {
        let output = plimsoll(&[command, "--json", "--memory=2MiB"]);
        assert_eq!(output.status.code(), Some(3), "{command}");
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(answer["feasible"], false);
        let (needed, floor) = (number(&answer, "needed_bytes"), number(&answer, "floor_bytes"));
        assert!(needed == floor && needed > number(&answer, "line_bytes"), "{answer}");
        // What it asks for is enough, to the byte.
        said(&["plan", &format!("--memory={floor}B")]);
    }
    let output = plimsoll(&["train", "--memory=12MiB"]);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains("Raise it to") && message.contains("--batch"), "{message}");
    assert!(message.contains("data set"), "who holds the memory: {message}");
}

/// The four files of MNIST with this many training images, all of them zeros that take no disk.
fn digits(scratch: &Scratch, images: u32) -> String {
    let folder = scratch.0.join("digits");
    fs::create_dir_all(&folder).unwrap();
    for (stem, count) in [("train", images), ("t10k", 10)] {
        for (name, header, each) in [
            ("images-idx3", [0x803, count, 28, 28].as_slice(), 784),
            ("labels-idx1", [0x801, count].as_slice(), 1),
        ] {
            let path = folder.join(format!("{stem}-{name}-ubyte"));
            let header: Vec<u8> = header.iter().flat_map(|word| word.to_be_bytes()).collect();
            fs::write(&path, &header).unwrap();
            let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(header.len() as u64 + u64::from(count) * each).unwrap();
        }
    }
    folder.to_str().unwrap().to_string()
}

#[test]
fn a_line_far_below_the_data_is_refused_before_it_is_read() {
    let scratch = Scratch::new("large-digits");
    let data = format!("--data=mnist:{}", digits(&scratch, 100_000));
    let output = plimsoll(&["plan", "--json", "--memory=40MiB", &data]);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{message}");
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    // The pixels, and the least that the rest takes.
    let rest = number(&answer, "needed_bytes") - 78_400_000.0;
    assert!(rest > 8e6 && rest < 40e6, "{answer}");
    assert!(message.contains("with lenet at least") && message.contains("npz:FILE"), "{message}");
    refused(&["train", "--data=mnist:no/such"], &["there is no folder `no/such`", "plain `mnist`"]);
    refused(
        &["train", &format!("--data=mnist:{}", scratch.path(""))],
        &["train-images-idx3-ubyte.gz", "four files"],
    );
}

#[test]
fn a_line_above_the_machine_is_said() {
    let output = plimsoll(&["train", "--memory=900000GiB", "--steps=1"]);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{message}");
    assert!(message.contains("the line is 900000.0 GiB, but only"), "{message}");
    let output = plimsoll(&["train", "--memory=64MiB", "--steps=1"]);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!message.contains("the line is"), "{message}");
}

#[test]
fn the_data_decides_the_model_that_no_flag_names() {
    let scratch = Scratch::new("default-models");
    fs::write(scratch.path("play.txt"), "to be or not to be ".repeat(400)).unwrap();
    fs::write(scratch.path("rows.csv"), "a,b,label\n1,2,x\n2,3,y\n".to_string() + &"3,4,x\n".repeat(30))
        .unwrap();
    for (data, model) in [
        (format!("text:{}", scratch.path("play.txt")), "gpt"),
        (format!("csv:{}", scratch.path("rows.csv")), "mlp"),
    ] {
        let out = scratch.path(model);
        let report =
            json(&plimsoll(&["train", "--json", "--steps=1", "--batch=2", "--data", &data, "--out", &out]));
        assert_eq!(report["model"], model);
        // A run that goes on is the run that it was.
        json(&plimsoll(&["train", "--json", "--steps=2", "--resume", &out]));
    }
    let help = said(&["train", "--help"]);
    assert!(help.contains("for files of pictures resnet20"), "{help}");
}

#[test]
fn help_has_groups_and_examples_and_there_are_completions_and_manual_pages() {
    let help = said(&["train", "--help"]);
    for heading in
        ["Model:", "Data:", "Memory and machine:", "Optimizer and learning rate:", "Files:", "Examples:"]
    {
        assert!(help.contains(&format!("\n{heading}\n")), "no `{heading}` in {help}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = said(&["completions", shell]);
        assert!(script.contains("plimsoll") && script.contains("validation-split"), "{shell}");
    }
    let page = said(&["man", "train"]);
    assert!(page.contains(".TH") && page.contains("validation"), "{page}");
    assert!(said(&["man"]).contains(".TH plimsoll"));
    refused(&["man", "dance"], &["dance", "train, plan"]);
}

#[test]
fn control_characters_in_names_do_not_reach_the_terminal() {
    let scratch = Scratch::new("escaped");
    let file = scratch.path("a\x1b[2Jb.csv");
    fs::write(&file, "a,label\nx\x1b[31m,y\n").unwrap();
    for arguments in [
        vec!["data".to_string(), format!("csv:{file}")],
        vec!["train".into(), "--model=mlp".into(), format!("--data=csv:{file}")],
        vec!["train".into(), format!("--data=images:{file}")],
        vec!["evaluate".into(), file.clone()],
        vec!["plan".into(), format!("--machine={file}")],
        vec!["train".into(), "--resume".into(), file.clone()],
    ] {
        let output = command(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).output().unwrap();
        let all = [&output.stdout[..], &output.stderr].concat();
        assert!(!output.status.success(), "{arguments:?}");
        assert!(!all.contains(&0x1b), "{arguments:?}: {}", String::from_utf8_lossy(&all).escape_debug());
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_small_stack_is_enough() {
    let script = r#"ulimit -s 64; exec "$0" train --steps=2 --batch=16 --threads=2"#;
    let output = std::process::Command::new("sh")
        .env("XDG_CACHE_HOME", "/dev/null")
        .args(["-c", script, env!("CARGO_BIN_EXE_plimsoll")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{:?}: {}", output.status, String::from_utf8_lossy(&output.stderr));
}

#[test]
fn files_that_cannot_be_written_are_refused_before_anything_is_planned() {
    let scratch = Scratch::new("no-place");
    let (missing, here) = (scratch.path("no/such"), scratch.path(""));
    for (flag, file, reason) in [
        ("--log", format!("{missing}.csv"), "there is no folder"),
        ("--log", scratch.path("log.txt"), "end it in .csv or .jsonl"),
        ("--trace", missing.clone(), "there is no folder"),
        ("--trace", here, "this is a folder"),
        ("--report", format!("{missing}.html"), "there is no folder"),
    ] {
        let output = plimsoll(&["train", "--steps=1", flag, &file]);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{flag}: {message}");
        assert!(message.contains(reason) && message.lines().count() == 1, "{flag}: {message}");
        assert!(output.stdout.is_empty(), "{flag}: {}", String::from_utf8_lossy(&output.stdout));
    }
    // The run's own folder will be there.
    let run = scratch.path("run");
    let [log, trace, page] = ["log.csv", "a.pftrace", "own.html"].map(|name| format!("{run}/{name}"));
    said(&["train", "--steps=1", "--out", &run, "--log", &log, "--trace", &trace, "--report", &page]);
    assert!([log, trace, page].iter().all(|file| fs::metadata(file).is_ok_and(|file| file.len() > 0)));
}

#[test]
fn a_line_end_in_a_name_makes_no_line_of_a_message() {
    let scratch = Scratch::new("line-end");
    let name = scratch.path("a\nplimsoll: all is well");
    for arguments in [
        ["train".to_string(), format!("--data=csv:{name}")],
        ["train".into(), format!("--weights={name}")],
        ["train".into(), format!("--resume={name}")],
        ["train".into(), format!("--log={name}")],
        ["evaluate".into(), name.clone()],
        ["report".into(), name.clone()],
        ["doctor".into(), name],
    ] {
        let output = command(&arguments.each_ref().map(String::as_str)).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && message.contains("a\\nplimsoll"), "{arguments:?}: {message}");
        assert!(!message.lines().any(|line| line.starts_with("plimsoll: all")), "{arguments:?}: {message}");
    }
}
