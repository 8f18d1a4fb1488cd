//! What can be wrong with a plan.

use std::fmt;
use thiserror::Error;

/// A step of a plan, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct At {
    /// The plan.
    pub plan: String,
    /// The step's index.
    pub step: usize,
    /// The layer at work.
    pub layer: String,
    /// The op at work.
    pub op: String,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "plan `{}`, step {}, layer `{}`, {}", self.plan, self.step, self.layer, self.op)
    }
}

/// Why a plan must not be run.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages say what each field is")]
pub enum VerifyError {
    /// The load sheet does not add up.
    #[error("the load sheet does not add up: {0}")]
    Sheet(String),
    /// The arena is not the largest plan's peak.
    #[error("the arena is {arena_bytes} bytes, the largest peak is {largest_peak}")]
    Arena { arena_bytes: usize, largest_peak: usize },
    /// A plan's peak is not the end of its highest buffer.
    #[error("plan `{plan}` states a peak of {stated} bytes, its buffers end at {found}")]
    Peak { plan: String, stated: usize, found: usize },
    /// A plan's live bytes are not what its lifetimes sum to.
    #[error("plan `{plan}` states {stated} live bytes at step {step}, its lifetimes give {found}")]
    Live { plan: String, step: usize, stated: usize, found: usize },
    /// Ids, counts or sizes that do not fit together.
    #[error("plan `{plan}`: {reason}")]
    Malformed { plan: String, reason: String },
    /// An offset that is not aligned.
    #[error("plan `{plan}`: {buffer} starts at {offset}, which is not a multiple of {alignment}")]
    Unaligned { plan: String, buffer: String, offset: usize, alignment: usize },
    /// A state that is not where the set says, or lies on another.
    #[error("plan `{plan}`: state `{state}` {reason}")]
    StatePlace { plan: String, state: String, reason: String },
    /// Two buffers that share bytes while both are taken.
    #[error("plan `{plan}`: {first} and {second} overlap while both are taken, at step {step}")]
    Overlap { plan: String, step: usize, first: String, second: String },
    /// A buffer used when it is not taken.
    #[error("{at}: {buffer} is used outside the steps in which it is taken")]
    Lifetime { at: Box<At>, buffer: String },
    /// A read that would not see the value it names.
    #[error("{at}: reads {value} where {found} lies")]
    Read { at: Box<At>, value: String, found: String },
    /// A write over something that the same step still reads or writes.
    #[error("{at}: {value} is written over what the same step uses: {other}")]
    InPlace { at: Box<At>, value: String, other: String },
    /// Scratch on something that the same step reads or writes.
    #[error("{at}: the workspace overlaps {other}")]
    Workspace { at: Box<At>, other: String },
    /// An accumulated output that does not go into its running sum.
    #[error("{at}: running sum {sum} is not where any output of its type goes")]
    Sum { at: Box<At>, sum: String },
    /// A write into a state's bytes that is not a write of that state.
    #[error("{at}: {what} is written into the bytes of state `{state}`")]
    StateBytes { at: Box<At>, state: String, what: String },
    /// A state written more or less often than once a step.
    #[error("plan `{plan}`: state `{state}` is written {writes} times a step instead of {expected}")]
    StateWrites { plan: String, state: String, writes: usize, expected: usize },
    /// A state that does not end the step as its new version.
    #[error("plan `{plan}`: state `{state}` ends the step as {found} instead of {expected}")]
    StateEnd { plan: String, state: String, expected: String, found: String },
    /// A running sum that is not in its place when the next micro-batch begins.
    #[error("plan `{plan}`: running sum {sum} ends a micro-batch as {found} instead of {expected}")]
    CarryEnd { plan: String, sum: String, expected: String, found: String },
    /// A slice of the batch that is gone before its micro-batch.
    #[error("plan `{plan}`: input `{input}` loses the slice of micro-batch {micro_batch} before it is read")]
    Batch { plan: String, input: String, micro_batch: usize },
    /// A result that is not there after the last step.
    #[error("plan `{plan}`: output `{output}` should be {expected}, where {found} lies")]
    Output { plan: String, output: String, expected: String, found: String },
    /// A node that does not run as often as it must.
    #[error("plan `{plan}`: layer `{layer}`, {op} (node {node}) runs {runs} times instead of {expected}")]
    Runs { plan: String, layer: String, op: String, node: usize, runs: usize, expected: usize },
    /// A step in the wrong phase: tail before body, or a tail node in every micro-batch.
    #[error("{at}: {reason}")]
    Phase { at: Box<At>, reason: String },
}
