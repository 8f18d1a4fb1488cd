//! `devices`, and runs on a GPU: what is said where there is none.

use crate::support::{json, plimsoll};

fn message(arguments: &[&str], status: i32) -> String {
    let output = plimsoll(arguments);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {message}");
    message
}

#[test]
fn devices_are_listed_with_what_is_missing() {
    let found = json(&plimsoll(&["devices", "--json"]));
    let listed = String::from_utf8(plimsoll(&["devices"]).stdout).unwrap();
    assert!(listed.starts_with("cpu "), "{listed}");
    match found["gpu_error"].as_str() {
        Some(error) => assert!(listed.contains(error), "no {error} in {listed}"),
        None => {
            for gpu in found["gpus"].as_array().unwrap() {
                assert!(listed.contains(gpu["uuid"].as_str().unwrap()), "{listed}");
            }
        }
    }
}

#[test]
fn a_gpu_that_is_not_there_is_an_error_that_says_what_to_do() {
    let found = json(&plimsoll(&["devices", "--json"]));
    let gpus = found["gpus"].as_array().unwrap().len();
    let missing = format!("cuda:{gpus}");
    for command in ["train", "plan"] {
        let message = message(&[command, "--model=lenet", "--device", &missing], 2);
        let reason = if gpus == 0 && !found["gpu_error"].is_null() {
            found["gpu_error"].as_str().unwrap().to_string()
        } else {
            format!("there is no GPU {gpus}")
        };
        assert!(message.contains(&reason) && message.contains("plimsoll devices"), "{message}");
    }
    if gpus == 0 {
        // The processor is used instead, and the program says so.
        let message = message(&["train", "--model=lenet", "--steps=1", "--device=auto"], 0);
        assert!(message.contains("--device auto: cpu ("), "{message}");
    }
}

#[test]
fn lines_of_device_memory_need_a_device() {
    let refused = |flags: &[&str]| message(&[&["train", "--model=lenet"], flags].concat(), 2);
    assert!(refused(&["--device-memory=1GiB"]).contains("add --device cuda"));
    assert!(refused(&["--device=cuda:x"]).contains("cuda:0, cuda:1"));
    assert!(refused(&["--device=tpu"]).contains("only cpu, cuda and auto"));
    assert!(refused(&["--device-memory=tpu:0=1GiB"]).contains("`tpu:0` is no device"));
    assert!(refused(&["--device-memory=cuda:0=1GiB,2GiB"]).contains("NAME=SIZE,NAME=SIZE"));
    let both = message(&["plan", "--machine=h200", "--device=cuda"], 2);
    assert!(both.contains("leave one out"), "{both}");
}
