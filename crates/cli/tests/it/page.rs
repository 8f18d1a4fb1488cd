//! The page of plans and runs, `--why`, and the live page, through the real binary.

use crate::support::{Scratch, command, json, number, plimsoll};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Output, Stdio};

/// The data inside a page.
fn data(page: &Path) -> Value {
    let text = fs::read_to_string(page).unwrap();
    let start = text.find("id=\"data\">").unwrap() + "id=\"data\">".len();
    let end = text[start..].find("</script>").unwrap();
    serde_json::from_str(&text[start..start + end]).unwrap()
}

/// The highest point of a page's timelines, added up as the page does.
fn highest(view: &Value) -> f64 {
    (0..view["spaces"].as_array().unwrap().len()).map(|space| highest_in(view, space)).fold(0.0, f64::max)
}

/// That of the plans in a memory space.
fn highest_in(view: &Value, space: usize) -> f64 {
    let numbers =
        |value: &Value| value.as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect::<Vec<_>>();
    let of_plan = |plan: &Value| {
        let space = &view["spaces"][space];
        let outside = number(space, "total_bytes") - number(space, "arena_bytes");
        let t = &plan["tensors"];
        let [first, last, footprint] = ["first", "last", "footprint"].map(|column| numbers(&t[column]));
        let mut held = vec![0_i64; plan["steps"]["layer"].as_array().unwrap().len() + 1];
        for ((first, last), bytes) in first.iter().zip(&last).zip(&footprint) {
            held[*first as usize] += *bytes as i64;
            held[*last as usize + 1] -= *bytes as i64;
        }
        let mut sum = 0;
        let most = held.into_iter().map(|change| {
            sum += change;
            sum
        });
        most.max().unwrap() as f64 + number(plan, "gap_bytes") + outside
    };
    let plans = view["plans"].as_array().unwrap().iter().filter(|plan| number(plan, "space") == space as f64);
    plans.map(of_plan).fold(0.0, f64::max)
}

fn refused(output: &Output, status: i32, words: &[&str]) {
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{message}");
    assert!(words.iter().all(|word| message.contains(word)), "{message}");
}

#[test]
fn a_plans_page_reaches_its_planned_peak_and_an_infeasible_one_its_floor() {
    let scratch = Scratch::new("plan-page");
    let page = scratch.path("plan.html");
    let answer = json(&plimsoll(&["plan", "--json", "--memory=256MiB", "--batch=64", "--report", &page]));
    let view = data(Path::new(&page));
    assert_eq!(highest(&view), number(&answer, "planned_peak_bytes"));
    assert_eq!(view["spaces"][0]["line_bytes"], answer["line_bytes"]);
    assert_eq!(view["curve"], Value::Array(Vec::new()));
    // With the curve, the page has it and alternatives.
    let answer =
        json(&plimsoll(&["plan", "--json", "--memory=64MiB", "--batch=512", "--curve", "--report", &page]));
    let view = data(Path::new(&page));
    assert_eq!(view["curve"].as_array().unwrap().len(), answer["curve"].as_array().unwrap().len());
    assert_eq!(view["curve"][0]["line_bytes"], answer["curve"][0]["line_bytes"]);
    let changes: Vec<&str> =
        view["alternatives"].as_array().unwrap().iter().filter_map(|a| a["change"].as_str()).collect();
    assert!(
        ["smaller batch", "lower precision", "leaner optimizer"].iter().all(|c| changes.contains(c)),
        "{changes:?}"
    );
    let low = scratch.path("low.html");
    let flags = ["plan", "--json", "--memory=16MiB", "--batch=512", "--spill=none", "--report", &low];
    for _ in 0..2 {
        let output = plimsoll(&flags);
        assert_eq!(output.status.code(), Some(3));
        let text = String::from_utf8_lossy(&output.stdout);
        let answer: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        let view = data(Path::new(&low));
        assert_eq!(view["spaces"][0]["line_bytes"], 16 << 20);
        assert_eq!(highest(&view), number(&answer["load_sheet"], "total_bytes"));
        assert!(highest(&view) > (16 << 20) as f64);
        fs::remove_file(&low).unwrap();
    }
    refused(&plimsoll(&["plan", "--report"]), 2, &["--report", "FILE.html"]);
    refused(&plimsoll(&["plan", "--report", "plan.txt"]), 2, &["plan.txt", ".html"]);
    refused(&plimsoll(&["plan", "--live=0"]), 2, &["--live is for train"]);
    refused(&plimsoll(&["plan", "--report", &scratch.path("none/plan.html")]), 2, &["plan.html"]);
}

#[test]
fn a_runs_page_has_what_was_measured_up_to_a_cut() {
    let scratch = Scratch::new("run-page");
    let out = scratch.path("run");
    let run =
        ["train", "--json", "--steps=8", "--validate-every=4", "--memory=256MiB", "--out", &out, "--report"];
    let report = json(&plimsoll(&run));
    let folder = Path::new(&out);
    let view = data(&folder.join("report.html"));
    assert_eq!(highest(&view), number(&report, "planned_peak_bytes"));
    let measured = &view["measured"];
    assert_eq!(measured["by_step"].as_array().unwrap().len(), 8);
    assert_eq!(measured["by_step"][7]["loss"], report["final_loss"]);
    assert_eq!((&measured["planned_bytes"], &measured["steps"]), (&report["planned_peak_bytes"], &8.into()));
    assert_eq!(measured["validations"].as_array().unwrap().len(), 2);
    // At every step boundary the process holds what was planned, within 4 MiB.
    for step in measured["by_step"].as_array().unwrap() {
        let apart = number(step, "resident_bytes") - number(&report, "planned_peak_bytes");
        assert!(apart.abs() <= (4 << 20) as f64, "{apart} bytes apart: {step}");
    }
    // As if it had been killed while it wrote.
    let events = folder.join("events.jsonl");
    let text = fs::read_to_string(&events).unwrap();
    let sixth = text.match_indices("{\"step\":6").next().unwrap().0;
    fs::write(&events, &text[..sixth + 30]).unwrap();
    fs::remove_file(folder.join("report.json")).unwrap();
    let page = scratch.path("again.html");
    assert!(plimsoll(&["report", &out, "--to", &page]).status.success());
    let view = data(Path::new(&page));
    assert_eq!(view["measured"]["by_step"].as_array().unwrap().len(), 5);
    fs::remove_file(&events).unwrap();
    assert!(plimsoll(&["report", &out]).status.success());
    assert_eq!(data(&folder.join("report.html"))["measured"], Value::Null);
    fs::write(folder.join("plan.json"), "{\"version\":1}").unwrap();
    refused(&plimsoll(&["report", &out]), 2, &["plan.json"]);
    refused(&plimsoll(&["report", &scratch.path("none")]), 2, &["plan.json", "train --out"]);
    refused(&plimsoll(&["train", "--report"]), 2, &["--report", "--out"]);
}

/// Names of a page's memory spaces.
fn spaces(view: &Value) -> Vec<&str> {
    view["spaces"].as_array().unwrap().iter().filter_map(|space| space["name"].as_str()).collect()
}

#[test]
fn a_page_of_several_devices_or_ranks_has_the_line_timeline_and_arena_of_each() {
    let scratch = Scratch::new("devices-page");
    let page = scratch.path("devices.html");
    let model = ["--json", "--model=mlp", "--width=64", "--batch=192", "--data=synthetic", "--threads=2"];
    let lines = ["--replicas=2", "--device-memory=cpu:1=24MiB"];
    let answer = json(&plimsoll(&[&["plan", "--report", &page], &model[..], &lines].concat()));
    let view = data(Path::new(&page));
    assert_eq!(spaces(&view), ["whole process", "cpu:0", "cpu:1"]);
    assert_eq!(view["spaces"][0]["total_bytes"], answer["planned_peak_bytes"]);
    assert_eq!(view["spaces"][2]["line_bytes"], 24 << 20);
    for (i, device) in answer["load_sheet"]["devices"].as_array().unwrap().iter().enumerate() {
        let space = &view["spaces"][i + 1];
        for field in ["total_bytes", "arena_bytes"] {
            assert_eq!(space[field], device[field], "{field} of cpu:{i}");
        }
        let line = device["line_bytes"].as_u64().filter(|line| *line != u64::MAX);
        assert_eq!(space["line_bytes"].as_u64(), line, "cpu:{i}");
        assert_eq!(highest_in(&view, i + 1), number(device, "total_bytes"), "cpu:{i}");
    }
    let titles: Vec<&str> =
        view["plans"].as_array().unwrap().iter().filter_map(|plan| plan["title"].as_str()).collect();
    assert!(titles.iter().any(|title| title.starts_with("cpu:1: training")), "{titles:?}");
    // What backward reads is told from the rest on every device.
    for plan in view["plans"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|plan| plan["title"].as_str().unwrap().contains("training"))
    {
        let kinds = plan["tensors"]["kind"].as_array().unwrap();
        let named = |kind: &Value| view["kinds"][kind.as_u64().unwrap() as usize].as_str().unwrap();
        for kind in ["saved activations", "gradients"] {
            assert!(kinds.iter().any(|k| named(k) == kind), "no {kind} in {}", plan["title"]);
        }
    }
    // The page of the run, with what was measured.
    let out = scratch.path("run");
    let run = ["train", "--replicas=2", "--steps=2", "--report", "--out", &out];
    let report = json(&plimsoll(&[&run[..], &model].concat()));
    let view = data(&Path::new(&out).join("report.html"));
    assert_eq!(spaces(&view), ["whole process", "cpu:0", "cpu:1"]);
    assert_eq!(view["measured"]["planned_bytes"], report["planned_peak_bytes"]);
    assert_eq!(view["measured"]["by_step"].as_array().unwrap().len(), 2);
    let answer = json(&plimsoll(&[&["plan", "--ranks=3", "--report", &page], &model[..]].concat()));
    let view = data(Path::new(&page));
    assert_eq!(spaces(&view), ["rank 0", "rank 1", "rank 2"]);
    for (i, rank) in answer["ranks"].as_array().unwrap().iter().enumerate() {
        assert_eq!(view["spaces"][i]["line_bytes"], rank["line_bytes"], "rank {i}");
        assert_eq!(highest_in(&view, i), number(rank, "planned_peak_bytes"), "rank {i}");
    }
}

#[test]
fn why_answers_for_layers_and_parameters_and_suggests_names() {
    let told = |name: &str| {
        let output = plimsoll(&["plan", "--why", name]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let conv = told("conv1");
    assert!(conv.contains("parameters") && conv.contains("optimizer state"), "{conv}");
    let pool = told("pool1");
    assert!(pool.contains("saved activations") && pool.contains("because backward reads it"), "{pool}");
    assert!(told("conv1/kernel").contains("It stays in memory"));
    refused(&plimsoll(&["plan", "--why", "convv1"]), 2, &["no layer and no tensor `convv1`", "conv1"]);
}

/// What a server answers to a request for a path.
fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn a_live_page_is_served_while_a_run_goes_on() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    refused(&plimsoll(&["train", "--steps=1", "--live", &port]), 2, &[&port, "in use"]);
    refused(&plimsoll(&["train", "--steps=1", "--live-address=127.0.0.1"]), 2, &["--live"]);
    let scratch = Scratch::new("live-page");
    let mut child = command(&[
        "train",
        "--steps=100000",
        "--memory=256MiB",
        "--live=0",
        "--live-address=127.0.0.1",
        "--sheet",
    ])
    .current_dir(&scratch.0)
    .stdout(Stdio::piped())
    .stderr(Stdio::null())
    .spawn()
    .unwrap();
    let mut said = String::new();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let link = lines.find_map(|line| {
        said += &(line.clone() + "\n");
        Some(line.strip_prefix("Live page: http://")?.to_string())
    });
    let link = link.unwrap_or_else(|| panic!("{said}"));
    assert!(said.contains("live page"), "{said}");
    let (address, token) = link.split_once('/').unwrap();
    assert!(get(address, &format!("/{token}")).contains("id=\"data\">"));
    assert_eq!(get(address, "/"), "", "without the token");
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET /events{token} HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    let mut events = BufReader::new(stream).lines().map(Result::unwrap);
    let step = events.find_map(|line| {
        let data: Value = serde_json::from_str(line.strip_prefix("data: ")?).unwrap();
        data["by_step"].as_array()?.last().cloned()
    });
    let step = step.unwrap();
    assert!(number(&step, "loss") > 0.0 && number(&step, "resident_bytes") > 1e6, "{step}");
    // Nothing is left of it in the folder.
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 0);
    child.kill().unwrap();
    child.wait().unwrap();
}
