//! Plan-only workloads: one recorded step, reduced to what a planner needs.

use crate::search::{Call, Problem, ProblemError};
use serde::Deserialize;
use thiserror::Error;

/// One recorded step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Its name.
    pub name: String,
    /// Its calls and tensors.
    pub problem: Problem,
    /// The time of its calls, each run once.
    pub baseline_ns: u64,
    /// The peak of the recorded program: lines may be fractions of it.
    pub recorded_peak_bytes: u64,
}

/// Why a file is no workload.
#[derive(Debug, Error)]
pub enum WorkloadError {
    /// It is not JSON of this form.
    #[error("not a workload: {0}")]
    Form(#[from] serde_json::Error),
    /// It contradicts itself.
    #[error("not a workload: {0}")]
    Problem(#[from] ProblemError),
    /// A figure that others are divided by is zero.
    #[error("not a workload: `{0}` is 0")]
    Zero(&'static str),
}

#[derive(Deserialize)]
struct File {
    name: String,
    tensors: Vec<u64>,
    pinned: Vec<usize>,
    keep: Vec<usize>,
    calls: Vec<FileCall>,
    baseline_ns: u64,
    recorded_peak_bytes: u64,
}

#[derive(Deserialize)]
struct FileCall {
    ns: u64,
    #[serde(rename = "in")]
    inputs: Vec<usize>,
    #[serde(rename = "out")]
    outputs: Vec<usize>,
    #[serde(default)]
    in_place: Vec<usize>,
}

impl Workload {
    /// Reads a workload from its JSON form. Every index and sum is checked.
    pub fn parse(text: &str) -> Result<Self, WorkloadError> {
        let file: File = serde_json::from_str(text)?;
        let call = |c: FileCall| Call {
            nanoseconds: c.ns,
            inputs: c.inputs,
            outputs: c.outputs,
            in_place: c.in_place,
            workspace: 0,
        };
        let calls = file.calls.into_iter().map(call).collect();
        let problem = Problem { tensors: file.tensors, pinned: file.pinned, keep: file.keep, calls };
        problem.check()?;
        let positive = |what, number| if number > 0 { Ok(number) } else { Err(WorkloadError::Zero(what)) };
        Ok(Self {
            name: file.name,
            problem,
            baseline_ns: positive("baseline_ns", file.baseline_ns)?,
            recorded_peak_bytes: positive("recorded_peak_bytes", file.recorded_peak_bytes)?,
        })
    }
}
