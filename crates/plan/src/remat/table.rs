//! A checked problem in flat arrays, for passes that run thousands of times.

use super::Problem;
use thiserror::Error;

/// The producer of a pinned tensor.
pub(super) const NO_PRODUCER: u32 = u32::MAX;

/// Bytes and nanoseconds of a problem must each sum to less than this.
const SUM_LIMIT: u64 = 1 << 62;

/// Why a problem is inconsistent.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ProblemError {
    /// An index out of range.
    #[error("{place} names tensor {tensor}, but there are {tensors}")]
    Index {
        /// Where.
        place: String,
        /// The index.
        tensor: usize,
        /// How many there are.
        tensors: usize,
    },
    /// A tensor is written more than once, or although it is pinned.
    #[error("call {call} writes tensor {tensor}, which {other}")]
    Written {
        /// The call.
        call: usize,
        /// The tensor.
        tensor: usize,
        /// Why it must not be written.
        other: String,
    },
    /// A tensor is read or kept that nothing wrote.
    #[error("{place} needs tensor {tensor}, which is not pinned and which no call before it writes")]
    Missing {
        /// Where.
        place: String,
        /// The tensor.
        tensor: usize,
    },
    /// A tensor is listed as in-place, but is not an input.
    #[error("call {call} may work in place on tensor {tensor}, which it does not read")]
    InPlace {
        /// The call.
        call: usize,
        /// The tensor.
        tensor: usize,
    },
    /// A sum overflows.
    #[error("{what} sum to 2^62 or more")]
    TooLarge {
        /// Of what.
        what: &'static str,
    },
    /// More tensors, calls or references than 32-bit indices count.
    #[error("{count} {what} are more than 2^31")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        count: usize,
    },
}

/// Lists of indices in one array (compressed rows).
#[derive(Clone, Debug, Default)]
pub(super) struct Rows {
    starts: Vec<u32>,
    tensors: Vec<u32>,
}

impl Rows {
    fn new<I: IntoIterator<Item = u32>>(rows: impl Iterator<Item = I>) -> Self {
        let mut all = Self { starts: vec![0], tensors: Vec::new() };
        for row in rows {
            all.tensors.extend(row);
            all.starts.push(all.tensors.len() as u32);
        }
        all
    }

    /// The list of one index.
    pub fn row(&self, index: usize) -> &[u32] {
        &self.tensors[self.starts[index] as usize..self.starts[index + 1] as usize]
    }
}

/// A problem that has been checked.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub calls: usize,
    pub tensors: usize,
    /// Bytes of each tensor; 0 for pinned ones, which [`Table::pinned_bytes`] counts.
    pub bytes: Vec<u64>,
    pub pinned_bytes: u64,
    /// The call that writes each tensor, or [`NO_PRODUCER`].
    pub producer: Vec<u32>,
    /// Calls that read each tensor, in order; empty for pinned ones.
    pub readers: Rows,
    /// Tensors each call reads, sorted and distinct, without pinned ones.
    pub inputs: Rows,
    /// Tensors each call writes.
    pub outputs: Rows,
    /// Inputs of each call that an output may be written over, sorted and distinct, without pinned ones.
    pub in_place: Rows,
    pub nanoseconds: Vec<u64>,
    pub workspace: Vec<u64>,
    /// Calls that must not be rematerialized.
    pub once: Vec<bool>,
    /// Tensors that must be resident at the end, without pinned ones.
    pub keep: Vec<u32>,
    /// Whether each tensor is in [`Table::keep`].
    pub kept: Vec<bool>,
}

impl Table {
    /// Checks a problem and flattens it.
    pub fn new(problem: &Problem) -> Result<Self, ProblemError> {
        let (tensors, calls) = (problem.tensors.len(), problem.calls.len());
        let check_count =
            |what, count| if count < 1 << 31 { Ok(()) } else { Err(ProblemError::TooMany { what, count }) };
        check_count("tensors", tensors)?;
        check_count("calls", calls)?;
        let references = problem.calls.iter().map(|c| c.inputs.len() + c.outputs.len() + c.in_place.len());
        check_count("inputs and outputs", references.sum())?;
        let workspace = problem.calls.iter().map(|c| c.workspace).max().unwrap_or(0);
        check_sum("bytes", problem.tensors.iter().copied().chain([workspace]))?;
        check_sum("nanoseconds", problem.calls.iter().map(|c| c.nanoseconds))?;
        let pinned = flags(problem, "pinned", &problem.pinned)?;
        flags(problem, "keep", &problem.keep)?;
        let producer = producers(problem, &pinned)?;
        for &tensor in &problem.keep {
            if !pinned[tensor] && producer[tensor] == NO_PRODUCER {
                return Err(ProblemError::Missing { place: "keep".into(), tensor });
            }
        }
        let unpinned = |list: &[usize]| {
            let mut list: Vec<u32> = list.iter().filter(|&&t| !pinned[t]).map(|&t| t as u32).collect();
            list.sort_unstable();
            list.dedup();
            list
        };
        let inputs = Rows::new(problem.calls.iter().map(|c| unpinned(&c.inputs)));
        let mut readers = vec![Vec::new(); tensors];
        for call in 0..calls {
            inputs.row(call).iter().for_each(|&t| readers[t as usize].push(call as u32));
        }
        let bytes = problem.tensors.iter().zip(&pinned).map(|(&b, &p)| if p { 0 } else { b }).collect();
        let keep = unpinned(&problem.keep);
        let mut kept = vec![false; tensors];
        keep.iter().for_each(|&t| kept[t as usize] = true);
        Ok(Self {
            calls,
            tensors,
            bytes,
            pinned_bytes: problem.tensors.iter().zip(&pinned).filter(|p| *p.1).map(|p| p.0).sum(),
            producer,
            readers: Rows::new(readers.into_iter()),
            inputs,
            outputs: Rows::new(problem.calls.iter().map(|c| c.outputs.iter().map(|&t| t as u32))),
            in_place: Rows::new(problem.calls.iter().map(|c| unpinned(&c.in_place))),
            nanoseconds: problem.calls.iter().map(|c| c.nanoseconds).collect(),
            workspace: problem.calls.iter().map(|c| c.workspace).collect(),
            once: problem.calls.iter().map(|c| c.once).collect(),
            keep,
            kept,
        })
    }

    /// Bytes that are live after the last run: pinned and kept tensors.
    pub fn bytes_at_end(&self) -> u64 {
        self.pinned_bytes + self.keep.iter().map(|&t| self.bytes[t as usize]).sum::<u64>()
    }
}

fn check_sum(what: &'static str, mut numbers: impl Iterator<Item = u64>) -> Result<(), ProblemError> {
    let add = |sum: u64, number| sum.checked_add(number).filter(|&sum| sum < SUM_LIMIT);
    numbers.try_fold(0, add).map(|_| ()).ok_or(ProblemError::TooLarge { what })
}

fn check_index(problem: &Problem, place: impl Fn() -> String, tensor: usize) -> Result<(), ProblemError> {
    let tensors = problem.tensors.len();
    if tensor < tensors { Ok(()) } else { Err(ProblemError::Index { place: place(), tensor, tensors }) }
}

fn flags(problem: &Problem, place: &str, list: &[usize]) -> Result<Vec<bool>, ProblemError> {
    let mut flags = vec![false; problem.tensors.len()];
    for &tensor in list {
        check_index(problem, || format!("`{place}`"), tensor)?;
        flags[tensor] = true;
    }
    Ok(flags)
}

/// The call that writes each tensor. A call may read only what an earlier one wrote.
fn producers(problem: &Problem, pinned: &[bool]) -> Result<Vec<u32>, ProblemError> {
    let mut producer = vec![NO_PRODUCER; problem.tensors.len()];
    for (index, call) in problem.calls.iter().enumerate() {
        let place = || format!("call {index}");
        for &tensor in &call.inputs {
            check_index(problem, place, tensor)?;
            if !pinned[tensor] && producer[tensor] == NO_PRODUCER {
                return Err(ProblemError::Missing { place: place(), tensor });
            }
        }
        for &tensor in &call.in_place {
            if !call.inputs.contains(&tensor) {
                return Err(ProblemError::InPlace { call: index, tensor });
            }
        }
        for &tensor in &call.outputs {
            check_index(problem, place, tensor)?;
            let other = match producer[tensor] {
                _ if pinned[tensor] => "is pinned".to_string(),
                NO_PRODUCER => {
                    producer[tensor] = index as u32;
                    continue;
                }
                earlier => format!("call {earlier} already wrote"),
            };
            return Err(ProblemError::Written { call: index, tensor, other });
        }
    }
    Ok(producer)
}
