//! A problem checked and in flat arrays, for passes that run thousands of times.

use super::Problem;
use thiserror::Error;

/// No call: of tensors that are pinned.
pub(super) const NONE: u32 = u32::MAX;

/// Bytes and nanoseconds of a problem must each sum to less than this.
const LIMIT: u64 = 1 << 62;

/// Why a problem contradicts itself.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ProblemError {
    /// An index past the end.
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
        /// What it already is.
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
    /// An in-place input that is no input.
    #[error("call {call} may take over tensor {tensor}, which it does not read")]
    InPlace {
        /// The call.
        call: usize,
        /// The tensor.
        tensor: usize,
    },
    /// Sums that overflow.
    #[error("{what} sum to 2^62 or more")]
    TooLarge {
        /// Of what.
        what: &'static str,
    },
    /// More tensors or calls than can be counted.
    #[error("{count} {what} are more than 2^31")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        count: usize,
    },
}

/// Lists of numbers, one after the other.
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

    /// One of the lists.
    pub fn row(&self, index: usize) -> &[u32] {
        &self.tensors[self.starts[index] as usize..self.starts[index + 1] as usize]
    }
}

/// A problem that has been checked.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub calls: usize,
    pub tensors: usize,
    /// Bytes by tensor; 0 for pinned ones, which are in [`Table::base`].
    pub bytes: Vec<u64>,
    /// Bytes of what is pinned.
    pub base: u64,
    /// The call that writes each tensor, or [`NONE`].
    pub maker: Vec<u32>,
    /// Calls that read each tensor, in order; none for pinned ones.
    pub readers: Rows,
    /// Tensors each call reads, each once, pinned ones left out.
    pub inputs: Rows,
    /// Tensors each call writes.
    pub outputs: Rows,
    /// Inputs of each call that an output may take over.
    pub in_place: Rows,
    pub nanoseconds: Vec<u64>,
    pub workspace: Vec<u64>,
    /// Calls that must not run again.
    pub once: Vec<bool>,
    /// What must be resident at the end, pinned ones left out.
    pub keep: Vec<u32>,
    /// By tensor: whether it is in [`Table::keep`].
    pub kept: Vec<bool>,
}

impl Table {
    /// Checks a problem.
    pub fn new(problem: &Problem) -> Result<Self, ProblemError> {
        let (tensors, calls) = (problem.tensors.len(), problem.calls.len());
        let many =
            |what, count| if count < 1 << 31 { Ok(()) } else { Err(ProblemError::TooMany { what, count }) };
        many("tensors", tensors)?;
        many("calls", calls)?;
        let references = problem.calls.iter().map(|c| c.inputs.len() + c.outputs.len() + c.in_place.len());
        many("inputs and outputs", references.sum())?;
        let workspaces = problem.calls.iter().map(|c| c.workspace).max().unwrap_or(0);
        limited("bytes", problem.tensors.iter().copied().chain([workspaces]))?;
        limited("nanoseconds", problem.calls.iter().map(|c| c.nanoseconds))?;
        let pinned = marks(problem, "pinned", &problem.pinned)?;
        marks(problem, "keep", &problem.keep)?;
        let maker = makers(problem, &pinned)?;
        for &tensor in &problem.keep {
            if !pinned[tensor] && maker[tensor] == NONE {
                return Err(ProblemError::Missing { place: "keep".into(), tensor });
            }
        }
        let free = |list: &[usize]| {
            let mut list: Vec<u32> = list.iter().filter(|&&t| !pinned[t]).map(|&t| t as u32).collect();
            list.sort_unstable();
            list.dedup();
            list
        };
        let inputs = Rows::new(problem.calls.iter().map(|c| free(&c.inputs)));
        let mut readers = vec![Vec::new(); tensors];
        for call in 0..calls {
            inputs.row(call).iter().for_each(|&t| readers[t as usize].push(call as u32));
        }
        let bytes = problem.tensors.iter().zip(&pinned).map(|(&b, &p)| if p { 0 } else { b }).collect();
        let keep = free(&problem.keep);
        let mut kept = vec![false; tensors];
        keep.iter().for_each(|&t| kept[t as usize] = true);
        Ok(Self {
            calls,
            tensors,
            bytes,
            base: problem.tensors.iter().zip(&pinned).filter(|p| *p.1).map(|p| p.0).sum(),
            maker,
            readers: Rows::new(readers.into_iter()),
            inputs,
            outputs: Rows::new(problem.calls.iter().map(|c| c.outputs.iter().map(|&t| t as u32))),
            in_place: Rows::new(problem.calls.iter().map(|c| free(&c.in_place))),
            nanoseconds: problem.calls.iter().map(|c| c.nanoseconds).collect(),
            workspace: problem.calls.iter().map(|c| c.workspace).collect(),
            once: problem.calls.iter().map(|c| c.once).collect(),
            keep,
            kept,
        })
    }
}

fn limited(what: &'static str, numbers: impl Iterator<Item = u64>) -> Result<u64, ProblemError> {
    let mut sum = 0_u64;
    for number in numbers {
        sum = sum.checked_add(number).filter(|&s| s < LIMIT).ok_or(ProblemError::TooLarge { what })?;
    }
    Ok(sum)
}

fn known(problem: &Problem, place: impl Fn() -> String, tensor: usize) -> Result<(), ProblemError> {
    let tensors = problem.tensors.len();
    if tensor < tensors { Ok(()) } else { Err(ProblemError::Index { place: place(), tensor, tensors }) }
}

fn marks(problem: &Problem, place: &str, list: &[usize]) -> Result<Vec<bool>, ProblemError> {
    let mut marked = vec![false; problem.tensors.len()];
    for &tensor in list {
        known(problem, || format!("`{place}`"), tensor)?;
        marked[tensor] = true;
    }
    Ok(marked)
}

/// The call that writes each tensor. Everything read must have been written before.
fn makers(problem: &Problem, pinned: &[bool]) -> Result<Vec<u32>, ProblemError> {
    let mut maker = vec![NONE; problem.tensors.len()];
    for (call, what) in problem.calls.iter().enumerate() {
        let place = || format!("call {call}");
        for &tensor in &what.inputs {
            known(problem, place, tensor)?;
            if !pinned[tensor] && maker[tensor] == NONE {
                return Err(ProblemError::Missing { place: place(), tensor });
            }
        }
        for &tensor in &what.in_place {
            if !what.inputs.contains(&tensor) {
                return Err(ProblemError::InPlace { call, tensor });
            }
        }
        for &tensor in &what.outputs {
            known(problem, place, tensor)?;
            let other = match maker[tensor] {
                _ if pinned[tensor] => "is pinned".to_string(),
                NONE => {
                    maker[tensor] = call as u32;
                    continue;
                }
                earlier => format!("call {earlier} already wrote"),
            };
            return Err(ProblemError::Written { call, tensor, other });
        }
    }
    Ok(maker)
}
