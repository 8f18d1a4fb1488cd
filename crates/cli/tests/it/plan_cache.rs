//! Plans from the cache equal those from a search, and need none.

use crate::support;

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use support::{NO_CACHE, Scratch, command, json, number, plimsoll};

/// The answer without fields that differ from run to run; its time, and whether it was cached.
fn split(mut answer: Value) -> (Value, f64, bool) {
    let object = answer.as_object_mut().unwrap();
    let (ms, cached) = (object.remove("planning_ms").unwrap(), object.remove("cached").unwrap());
    (answer, ms.as_f64().unwrap(), cached.as_bool().unwrap())
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).map(|entries| entries.map(|e| e.unwrap().path()).collect());
    entries.unwrap_or_default()
}

#[test]
fn a_second_plan_of_an_unrolled_recurrence_comes_from_the_cache() {
    let scratch = Scratch::new("plan-cache");
    let cache = scratch.path("plans");
    let plan = |cache: &str| {
        let model =
            ["plan", "--json", "--model=seq2seq", "--classes=256", "--context=6", "--width=64", "--batch=64"];
        let machine = ["--memory=14.875MiB", "--spill=none", "--threads=2", "--plan-cache", cache];
        split(json(&plimsoll(&[&model[..], &machine].concat())))
    };
    let (plain, _, from_none) = plan("none");
    let (cold, cold_ms, from_cold) = plan(&cache);
    let (warm, warm_ms, from_warm) = plan(&cache);
    assert!(number(&plain, "micro_batches") > 1.0, "{plain}");
    assert_eq!((&cold, &warm), (&plain, &plain));
    assert_eq!((from_none, from_cold, from_warm), (false, false, true));
    assert!(warm_ms * 4.0 < cold_ms, "{warm_ms} ms after {cold_ms} ms");
    let all = files(cache.as_ref());
    for (i, path) in all.iter().enumerate() {
        let mut bytes = fs::read(path).unwrap();
        let at = bytes.len() / 3 * (i % 3);
        match i % 2 {
            0 => bytes.truncate(at),
            _ => bytes[at] ^= 1,
        }
        fs::write(path, bytes).unwrap();
    }
    let (damaged, _, from_damaged) = plan(&cache);
    assert_eq!((&damaged, from_damaged), (&plain, false));
    assert!(plan(&cache).2, "what was damaged is there again");
}

#[test]
fn a_run_with_a_cached_plan_ends_in_the_same_parameters() {
    let scratch = Scratch::new("plan-cache-run");
    let cache = scratch.path("plans");
    let run = |name: &str, cache: &str| {
        let out = scratch.path(name);
        let arguments = ["train", "--json", "--model=lenet", "--data=synthetic", "--batch=256", "--steps=5"];
        let under = ["--memory=17MiB", "--threads=2", "--plan-cache", cache, "--out", &out];
        let report = json(&plimsoll(&[&arguments[..], &under].concat()));
        (fs::read(Path::new(&out).join("weights.safetensors")).unwrap(), report)
    };
    let (plain, without) = run("plain", "none");
    let (cold, first) = run("cold", &cache);
    let (warm, second) = run("warm", &cache);
    assert!(plain == cold && plain == warm, "the parameters differ");
    assert!(number(&without, "micro_batches") > 1.0, "{without}");
    for field in ["planned_peak_bytes", "arena_bytes", "heap_limit_bytes", "load_sheet", "micro_batches"] {
        assert_eq!((&first[field], &second[field]), (&without[field], &without[field]), "{field}");
    }
    let cached = |report: &Value| report["cached"] == true;
    assert_eq!((cached(&without), cached(&first), cached(&second)), (false, false, true));
    assert!(number(&second, "heap_peak_bytes") <= number(&second, "heap_limit_bytes"));
}

#[test]
fn refusals_and_other_answers_come_from_the_cache() {
    let scratch = Scratch::new("plan-cache-answers");
    let cache = scratch.path("plans");
    let model =
        ["plan", "--model=mlp", "--data=synthetic", "--batch=32", "--threads=1", "--plan-cache", &cache];
    for question in [&["--memory=14MiB"][..], &["--curve"], &["--memory=20MiB", "--batches"]] {
        let ask = || {
            let output = plimsoll(&[&model[..], question].concat());
            // How often a slow machine says that it is planning is no part of the answer.
            let told = String::from_utf8_lossy(&output.stderr).into_owned();
            let told: Vec<String> =
                told.lines().filter(|line| !line.ends_with(" s")).map(str::to_string).collect();
            (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned(), told)
        };
        let first = ask();
        let (before, used) = (files(cache.as_ref()).len(), fs::metadata(&cache).unwrap().modified().unwrap());
        assert!(before > 0, "{question:?}");
        assert_eq!(ask(), first, "{question:?}");
        // Writing a plan would change the folder.
        assert_eq!(fs::metadata(&cache).unwrap().modified().unwrap(), used, "{question:?}");
    }
}

#[test]
fn the_cache_folder_follows_flag_file_and_environment() {
    let scratch = Scratch::new("plan-cache-place");
    let own = scratch.path("home");
    let plan = |variables: &[(&str, &str)], arguments: &[&str]| {
        let mut command = command(&["plan", "--json", "--model=mlp", "--data=synthetic", "--batch=8"]);
        command.env_remove(NO_CACHE.0).env("HOME", &own).envs(variables.iter().copied()).args(arguments);
        command.current_dir(&scratch.0).output().unwrap()
    };
    let count = |folder: &str| files(&scratch.0.join(folder)).len();
    json(&plan(&[("XDG_CACHE_HOME", &scratch.path("caches"))], &[]));
    assert!(count("caches/plimsoll") > 0 && count("home") == 0);
    // The XDG standard ignores relative paths.
    json(&plan(&[("XDG_CACHE_HOME", "caches")], &[]));
    assert_eq!(count("home/.cache/plimsoll"), count("caches/plimsoll"));
    json(&plan(&[("HOME", "")], &[]));
    json(&plan(&[], &["--plan-cache", "mine/deep"]));
    assert_eq!(count("mine/deep"), count("caches/plimsoll"));
    fs::write(scratch.0.join("run.toml"), "plan-cache = \"mine/other\"\n").unwrap();
    json(&plan(&[], &["run.toml"]));
    assert_eq!(count("mine/other"), count("caches/plimsoll"));
    let before = count(".");
    json(&plan(&[], &["--plan-cache", "none"]));
    assert_eq!(count("."), before);
    for wrong in ["run.toml", ""] {
        let output = plan(&[], &["--plan-cache", wrong]);
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains("--plan-cache") && message.contains("none"), "{message}");
    }
}
