//! Simulates a schedule step by step, sharing nothing with the search.

use super::{Problem, Schedule};
use thiserror::Error;

/// What a schedule was found to cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// The largest sum of resident bytes at any moment.
    pub peak_bytes: u64,
    /// The time of all runs.
    pub nanoseconds: u64,
    /// Runs beyond the first of every call.
    pub repeats: usize,
}

/// What is wrong with a schedule.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CheckError {
    /// A number is out of range.
    #[error("run {run} names call or tensor {index}, which does not exist")]
    Index {
        /// The run.
        run: usize,
        /// What it names.
        index: usize,
    },
    /// An input is not there.
    #[error("run {run} of call {call} reads tensor {tensor}, which is not resident")]
    Missing {
        /// The run.
        run: usize,
        /// The call.
        call: usize,
        /// The tensor.
        tensor: usize,
    },
    /// A call that must not runs again.
    #[error("run {run} repeats call {call}, which must run once")]
    Repeated {
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
    /// Something to keep is gone.
    #[error("tensor {tensor} is to be kept and is not resident at the end")]
    Gone {
        /// The tensor.
        tensor: usize,
    },
    /// A drop of something that is pinned or not there.
    #[error("run {run} drops tensor {tensor}, which is pinned or not resident")]
    Drop {
        /// The run.
        run: usize,
        /// The tensor.
        tensor: usize,
    },
    /// An output that cannot go where it should.
    #[error("run {run} lets output {output} take over input {input}, which it may not")]
    InPlace {
        /// The run.
        run: usize,
        /// The output.
        output: usize,
        /// The input.
        input: usize,
    },
    /// The figures it carries are not its own.
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

/// Simulates a schedule: every input is resident when it is read, everything to keep is there at the end, outputs take
/// over only what they may, nothing that must run once runs again, and peak and time are what the schedule says.
pub fn check(problem: &Problem, schedule: &Schedule) -> Result<Figures, CheckError> {
    let mut there = vec![false; problem.tensors.len()];
    let mut pinned = vec![false; problem.tensors.len()];
    let mut resident = 0_u64;
    for &tensor in &problem.pinned {
        if !there[tensor] {
            resident += problem.tensors[tensor];
        }
        there[tensor] = true;
        pinned[tensor] = true;
    }
    let mut ran = vec![false; problem.calls.len()];
    let mut figures = Figures { peak_bytes: resident, nanoseconds: 0, repeats: 0 };
    for (at, run) in schedule.runs.iter().enumerate() {
        let call = problem.calls.get(run.call).ok_or(CheckError::Index { run: at, index: run.call })?;
        for &tensor in &call.inputs {
            if !there[tensor] {
                return Err(CheckError::Missing { run: at, call: run.call, tensor });
            }
        }
        // What an output takes over is counted once: the input's bytes go before the output's come.
        let mut gone = Vec::new();
        for &(output, input) in &run.takes_over {
            let allowed = call.outputs.contains(&output)
                && call.in_place.contains(&input)
                && !pinned[input]
                && !there[output]
                && problem.tensors[output] == problem.tensors[input]
                && run.takes_over.iter().filter(|p| p.0 == output || p.1 == input).count() == 1;
            if !allowed {
                return Err(CheckError::InPlace { run: at, output, input });
            }
            resident -= problem.tensors[input];
            gone.push(input);
        }
        for &tensor in &call.outputs {
            if !there[tensor] {
                resident += problem.tensors[tensor];
            }
            there[tensor] = true;
        }
        figures.peak_bytes = figures.peak_bytes.max(resident + call.workspace);
        gone.iter().for_each(|&tensor| there[tensor] = false);
        for &tensor in &run.drops {
            if tensor >= there.len() {
                return Err(CheckError::Index { run: at, index: tensor });
            }
            if pinned[tensor] || !there[tensor] {
                return Err(CheckError::Drop { run: at, tensor });
            }
            there[tensor] = false;
            resident -= problem.tensors[tensor];
        }
        figures.nanoseconds += call.nanoseconds;
        let again = std::mem::replace(&mut ran[run.call], true);
        if again && call.once {
            return Err(CheckError::Repeated { run: at, call: run.call });
        }
        figures.repeats += usize::from(again);
    }
    if let Some(call) = ran.iter().position(|ran| !ran) {
        return Err(CheckError::Never { call });
    }
    if let Some(&tensor) = problem.keep.iter().find(|&&t| !there[t]) {
        return Err(CheckError::Gone { tensor });
    }
    let same = |what, said, found| {
        if said == found { Ok(()) } else { Err(CheckError::Figures { what, said, found }) }
    };
    same("bytes", schedule.peak_bytes, figures.peak_bytes)?;
    same("nanoseconds", schedule.nanoseconds, figures.nanoseconds)?;
    Ok(figures)
}
