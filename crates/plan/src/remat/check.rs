//! Simulates a schedule run by run, without sharing code with the search.

use super::{Problem, Schedule};
use thiserror::Error;

/// What a schedule was found to cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// The largest sum of resident bytes.
    pub peak_bytes: u64,
    /// The time of all runs.
    pub nanoseconds: u64,
    /// Runs beyond the first of every call.
    pub rematerialized_runs: usize,
}

/// What is wrong with a schedule.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CheckError {
    /// An index is out of range.
    #[error("run {run} names call or tensor {index}, which does not exist")]
    Index {
        /// The run.
        run: usize,
        /// What it names.
        index: usize,
    },
    /// An input is not resident.
    #[error("run {run} of call {call} reads tensor {tensor}, which is not resident")]
    Missing {
        /// The run.
        run: usize,
        /// The call.
        call: usize,
        /// The tensor.
        tensor: usize,
    },
    /// A call that must run once is rematerialized.
    #[error("run {run} rematerializes call {call}, which must run once")]
    Rematerialized {
        /// The run.
        run: usize,
        /// The call.
        call: usize,
    },
    /// A call never runs.
    #[error("call {call} never runs")]
    Never {
        /// The call.
        call: usize,
    },
    /// A tensor to be kept is not resident at the end.
    #[error("tensor {tensor} is to be kept and is not resident at the end")]
    Gone {
        /// The tensor.
        tensor: usize,
    },
    /// A tensor is dropped that is pinned or not resident.
    #[error("run {run} drops tensor {tensor}, which is pinned or not resident")]
    Drop {
        /// The run.
        run: usize,
        /// The tensor.
        tensor: usize,
    },
    /// An output is written over an input that does not allow it.
    #[error("run {run} writes output {output} in place over input {input}, which is not allowed")]
    InPlace {
        /// The run.
        run: usize,
        /// The output.
        output: usize,
        /// The input.
        input: usize,
    },
    /// The schedule's own figures are wrong.
    #[error("the schedule says {said} {what}, but it takes {found}")]
    Figures {
        /// Of what.
        what: &'static str,
        /// What the schedule says.
        said: u64,
        /// What it takes.
        found: u64,
    },
}

/// Simulates a schedule and checks that every input is resident when it is read, that kept tensors are resident at the
/// end, that in-place outputs are allowed, that calls which must run once do, and that peak and time are what the
/// schedule says.
pub fn check(problem: &Problem, schedule: &Schedule) -> Result<Figures, CheckError> {
    let mut is_resident = vec![false; problem.tensors.len()];
    let mut pinned = vec![false; problem.tensors.len()];
    let mut resident_bytes = 0_u64;
    for &tensor in &problem.pinned {
        if !is_resident[tensor] {
            resident_bytes += problem.tensors[tensor];
        }
        is_resident[tensor] = true;
        pinned[tensor] = true;
    }
    let mut ran = vec![false; problem.calls.len()];
    let mut figures = Figures { peak_bytes: resident_bytes, nanoseconds: 0, rematerialized_runs: 0 };
    for (at, run) in schedule.runs.iter().enumerate() {
        let call = problem.calls.get(run.call).ok_or(CheckError::Index { run: at, index: run.call })?;
        for &tensor in &call.inputs {
            if !is_resident[tensor] {
                return Err(CheckError::Missing { run: at, call: run.call, tensor });
            }
        }
        // In-place pairs are counted once: the input's bytes are subtracted before the output's are added.
        for &(output, input) in &run.in_place {
            let allowed = call.outputs.contains(&output)
                && call.in_place.contains(&input)
                && !pinned[input]
                && !is_resident[output]
                && problem.tensors[output] == problem.tensors[input]
                && run.in_place.iter().filter(|p| p.0 == output || p.1 == input).count() == 1;
            if !allowed {
                return Err(CheckError::InPlace { run: at, output, input });
            }
            resident_bytes -= problem.tensors[input];
        }
        for &tensor in &call.outputs {
            if !is_resident[tensor] {
                resident_bytes += problem.tensors[tensor];
            }
            is_resident[tensor] = true;
        }
        figures.peak_bytes = figures.peak_bytes.max(resident_bytes + call.workspace);
        run.in_place.iter().for_each(|&(_, input)| is_resident[input] = false);
        for &tensor in &run.drops {
            if tensor >= is_resident.len() {
                return Err(CheckError::Index { run: at, index: tensor });
            }
            if pinned[tensor] || !is_resident[tensor] {
                return Err(CheckError::Drop { run: at, tensor });
            }
            is_resident[tensor] = false;
            resident_bytes -= problem.tensors[tensor];
        }
        figures.nanoseconds += call.nanoseconds;
        let rematerialized = std::mem::replace(&mut ran[run.call], true);
        if rematerialized && call.once {
            return Err(CheckError::Rematerialized { run: at, call: run.call });
        }
        figures.rematerialized_runs += usize::from(rematerialized);
    }
    if let Some(call) = ran.iter().position(|ran| !ran) {
        return Err(CheckError::Never { call });
    }
    if let Some(&tensor) = problem.keep.iter().find(|&&t| !is_resident[t]) {
        return Err(CheckError::Gone { tensor });
    }
    let check_figure = |what, said, found| {
        if said == found { Ok(()) } else { Err(CheckError::Figures { what, said, found }) }
    };
    check_figure("bytes", schedule.peak_bytes, figures.peak_bytes)?;
    check_figure("nanoseconds", schedule.nanoseconds, figures.nanoseconds)?;
    Ok(figures)
}
