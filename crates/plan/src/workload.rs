//! Workload files: one recorded step, reduced to what rematerialization depends on.

use crate::remat::{Call, Problem, ProblemError};
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
    /// The peak of the recorded program, of which lines may be fractions.
    pub recorded_peak_bytes: u64,
}

/// Why a file is rejected.
#[derive(Debug, Error)]
pub enum WorkloadError {
    /// It is not JSON of this form.
    #[error("not a workload: {0}")]
    Form(#[from] serde_json::Error),
    /// The step is inconsistent.
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
    /// Parses a workload's JSON. A file is untrusted input: every index and sum is checked.
    pub fn parse(text: &str) -> Result<Self, WorkloadError> {
        let file: File = serde_json::from_str(text)?;
        let call = |c: FileCall| Call {
            nanoseconds: c.ns,
            inputs: c.inputs,
            outputs: c.outputs,
            in_place: c.in_place,
            ..Call::default()
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

#[cfg(test)]
mod tests {
    use super::Workload;

    const GOOD: &str = r#"{"name": "two", "tensors": [4, 8, 8], "pinned": [0], "keep": [2],
        "calls": [{"op": "a", "ns": 3, "in": [0], "out": [1]}, {"op": "b", "ns": 4, "in": [1], "out": [2], "in_place": [1]}],
        "baseline_ns": 7, "recorded_peak_bytes": 12}"#;

    #[test]
    fn parses_a_workload() {
        let workload = Workload::parse(GOOD).unwrap();
        assert_eq!((workload.name.as_str(), workload.problem.calls.len()), ("two", 2));
        assert_eq!(workload.problem.calls[1].in_place, [1]);
    }

    #[test]
    fn rejects_damaged_workloads_and_says_where() {
        let cases = [
            (r#""keep": [2]"#, r#""keep": [3]"#, "`keep` names tensor 3, but there are 3"),
            (r#""pinned": [0]"#, r#""pinned": [99999999999]"#, "`pinned` names tensor 99999999999"),
            (r#""pinned": [0]"#, r#""pinned": []"#, "call 0 needs tensor 0"),
            (r#""in": [1]"#, r#""in": [2]"#, "call 1 needs tensor 2"),
            (r#""in": [1]"#, r#""in": [7]"#, "call 1 names tensor 7"),
            (r#""out": [2]"#, r#""out": [1]"#, "call 1 writes tensor 1, which call 0 already wrote"),
            (r#""out": [1]"#, r#""out": [0]"#, "call 0 writes tensor 0, which is pinned"),
            (r#""in_place": [1]"#, r#""in_place": [0]"#, "call 1 may work in place on tensor 0"),
            ("[4, 8, 8]", "[4, 9223372036854775807, 9223372036854775807]", "bytes sum to 2^62"),
            ("[4, 8, 8]", "[4, -8, 8]", "line 1"),
            (r#""ns": 3"#, r#""ns": 18446744073709551615"#, "nanoseconds sum to 2^62"),
            (r#""ns": 3, "#, "", "missing field `ns`"),
            (r#""baseline_ns": 7"#, r#""baseline_ns": 0"#, "`baseline_ns` is 0"),
            (r#""name": "two", "#, r#""name": "#, "line 1"),
        ];
        for (from, to, words) in cases {
            assert!(GOOD.contains(from), "{from}");
            let message = Workload::parse(&GOOD.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(message.contains(words), "{to}: {message}");
        }
        for cut in 0..GOOD.len() {
            assert!(Workload::parse(&GOOD[..cut]).is_err());
        }
    }
}
