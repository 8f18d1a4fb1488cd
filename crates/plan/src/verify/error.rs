//! What can be wrong with a plan.

use crate::{Action, ExecutionPlan};
use std::fmt;
use std::ops::Range;
use thiserror::Error;

/// A step of a plan, as messages name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct At {
    /// The plan.
    pub plan: String,
    /// The step's index.
    pub step: usize,
    /// The layer of its node.
    pub layer: String,
    /// What it does.
    pub op: String,
}

impl At {
    /// A step of a plan, boxed as errors hold it.
    pub(super) fn step(plan: &ExecutionPlan, step: usize) -> Box<Self> {
        let (layer, op) = match &plan.steps[step].action {
            Action::Run { node, .. } | Action::ChunkedUpdate { node, .. } => {
                let node = plan.graph.node(*node);
                (node.layer.to_string(), node.op.name().to_string())
            }
            Action::Copy { value, .. } => {
                let node = plan.graph.producer(*value).map(|n| plan.graph.node(n));
                (node.map_or_else(String::new, |n| n.layer.to_string()), format!("copy of {value}"))
            }
            Action::Load { what, .. } => (String::new(), format!("load of {what:?}")),
            Action::Store { what, .. } => (String::new(), format!("store of {what:?}")),
        };
        Box::new(Self { plan: plan.name.clone(), step, layer, op })
    }
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
    /// A state that is not where the set says, or overlaps another.
    #[error("plan `{plan}`: state `{state}` {reason}")]
    StatePlace { plan: String, state: String, reason: String },
    /// Two buffers that share bytes while both are live.
    #[error("plan `{plan}`: {first} and {second} overlap while both are live, at step {step}")]
    Overlap { plan: String, step: usize, first: String, second: String },
    /// A buffer used when it is not live.
    #[error("{at}: {buffer} is used outside its lifetime")]
    Lifetime { at: Box<At>, buffer: String },
    /// A read that would not see the value it names.
    #[error("{at}: reads {value}, but the bytes hold {found}")]
    Read { at: Box<At>, value: String, found: String },
    /// An output that overwrites an operand of the same step where the op may not work in place.
    #[error("{at}: {value} overwrites {other}, which the same step uses")]
    InPlace { at: Box<At>, value: String, other: String },
    /// Scratch that overlaps an operand of the same step.
    #[error("{at}: the workspace overlaps {other}")]
    Workspace { at: Box<At>, other: String },
    /// A folding output that is not written to its accumulator.
    #[error("{at}: no output is written to accumulator {accumulator}")]
    Accumulator { at: Box<At>, accumulator: String },
    /// A write into a state's bytes that is not a write of that state.
    #[error("{at}: {what} is written into the bytes of state `{state}`")]
    StateBytes { at: Box<At>, state: String, what: String },
    /// A state written more or less often than once a step.
    #[error("plan `{plan}`: state `{state}` is written {writes} times a step instead of {expected}")]
    StateWrites { plan: String, state: String, writes: usize, expected: usize },
    /// A state that does not end the step as its new version.
    #[error("plan `{plan}`: state `{state}` ends the step as {found} instead of {expected}")]
    StateEnd { plan: String, state: String, expected: String, found: String },
    /// An accumulator that does not hold its sum when the next micro-batch begins.
    #[error("plan `{plan}`: accumulator {accumulator} ends a micro-batch as {found} instead of {expected}")]
    AccumulatorEnd { plan: String, accumulator: String, expected: String, found: String },
    /// A slice of the batch that is overwritten before its micro-batch.
    #[error(
        "plan `{plan}`: input `{input}`: the slice of micro-batch {micro_batch} is overwritten before it is read"
    )]
    Batch { plan: String, input: String, micro_batch: usize },
    /// An output that its buffer does not hold after the last step.
    #[error("plan `{plan}`: output `{output}` should be {expected}, but its buffer holds {found}")]
    Output { plan: String, output: String, expected: String, found: String },
    /// A node that does not run as often as it must.
    #[error("plan `{plan}`: layer `{layer}`, {op} (node {node}) runs {runs} times instead of {expected}")]
    Runs { plan: String, layer: String, op: String, node: usize, runs: usize, expected: usize },
    /// A step in the wrong phase: of the body after the optimizer step, or of the optimizer step in every micro-batch.
    #[error("{at}: {reason}")]
    Phase { at: Box<At>, reason: String },
    /// Bytes that are touched while a transfer may be in flight that they must wait for.
    #[error("{what}: {does} bytes {} to {} of {space}, which a transfer that may be in flight touches: {transfer}", .bytes.start, .bytes.end)]
    Race { what: String, does: &'static str, bytes: Range<u64>, space: &'static str, transfer: String },
}
