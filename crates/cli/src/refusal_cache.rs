//! Refusals: how they are told, line by line, and kept, so that the same question is answered at once the next time.

use super::Failure;
use super::args::RunOptions;
use super::page::PageOptions;
use super::setup::{Setup, plan_cache};
use super::{aside, hint, say};
use plimsoll::cpu::isa::Isa;
use plimsoll::plan::PLANNER;
use plimsoll::train::write_atomically;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::path::PathBuf;

/// Bytes of a kept refusal at most.
const MOST_BYTES: u64 = 1 << 20;

/// A refusal while it is told.
pub struct Refusal {
    message: String,
    lines: Vec<String>,
    show: bool,
}

/// A refusal as it is kept. It holds its question, so that a file of another is not an answer.
#[derive(Serialize, Deserialize)]
struct Kept {
    question: String,
    message: String,
    lines: Vec<String>,
    object: Map<String, Value>,
}

impl Refusal {
    /// A refusal with this message, which is told at once if `show` is set.
    pub fn begin(message: String, show: bool) -> Self {
        if show {
            hint(&message);
        }
        Self { message, lines: Vec::new(), show }
    }

    /// Adds a line.
    pub fn line(&mut self, line: &str) {
        if self.show {
            aside(line);
        }
        self.lines.push(line.to_string());
    }

    /// Prints the JSON that the options ask for, and keeps the refusal. The failure has nothing more to say.
    pub fn end(self, object: Value, options: &RunOptions, setup: &Setup) -> Failure {
        if options.json {
            say(&object.to_string());
        }
        let Value::Object(object) = object else { return Failure::memory("") };
        let Self { message, lines, .. } = self;
        let kept = Kept { question: question(options, setup), message, lines, object };
        if let Some(path) = path(options, &kept.question)
            && let Ok(text) = serde_json::to_vec(&kept)
            && text.len() as u64 <= MOST_BYTES
        {
            // A cache that cannot be written is none.
            let _ = path.parent().map(std::fs::create_dir_all);
            let _ = write_atomically(&path, &text);
        }
        Failure::memory("")
    }
}

/// The answer that was given to this question before, told again.
pub fn known(options: &RunOptions, setup: &Setup) -> Option<Failure> {
    let question = question(options, setup);
    let mut text = Vec::new();
    File::open(path(options, &question)?).ok()?.take(MOST_BYTES + 1).read_to_end(&mut text).ok()?;
    let kept: Kept = serde_json::from_slice(&text).ok()?;
    // JSON wants more than text does.
    let complete = !options.json || !kept.object.get("lower_bound_overhead")?.is_null();
    if kept.question != question || !complete {
        return None;
    }
    hint(&kept.message);
    kept.lines.iter().for_each(|line| aside(line));
    if options.json {
        let mut object = kept.object;
        object.insert("cached".into(), true.into());
        object.insert("planning_ms".into(), 0.0.into());
        say(&Value::Object(object).to_string());
    }
    Some(Failure::memory(""))
}

/// All that an answer depends on, as text: flags, data, line, machine, and the program itself.
fn question(options: &RunOptions, setup: &Setup) -> String {
    let page = PageOptions { report: None, ..options.page.clone() };
    let asked =
        RunOptions { json: false, sheet: false, overwrite: false, out: None, page, ..options.clone() };
    let data = &setup.data;
    let parts = [&data.train, &data.test].map(|part| (part.len(), part.schema().in_words(), part.bytes()));
    let (isa, version) = (Isa::detect().name(), env!("CARGO_PKG_VERSION"));
    let Setup { line_bytes, threads, batch, .. } = setup;
    format!("{asked:?} {parts:?} {line_bytes} {threads} {batch} {isa} {version} {PLANNER}")
}

/// The file of a question's answer. It has the suffix of kept plans, so that it is evicted with them.
fn path(options: &RunOptions, question: &str) -> Option<PathBuf> {
    let folder = plan_cache(options.plan_cache.as_deref()).ok().flatten()?;
    let mut hasher = DefaultHasher::new();
    question.hash(&mut hasher);
    Some(folder.join(format!("refusal-{:016x}.plan", hasher.finish())))
}
