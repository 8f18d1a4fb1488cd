//! Why no plan could be made, in words that say what to do.

use crate::{LoadSheet, Unsupported, sheet::in_words};
use plimsoll_graph::GraphError;
use plimsoll_tensor::TensorType;
use std::fmt;
use thiserror::Error;

/// Why no plan could be made.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PlanError {
    /// The target cannot run an op.
    #[error("layer `{layer}`: {source}")]
    Unsupported {
        /// The layer that asked for it.
        layer: String,
        /// What is missing.
        source: Unsupported,
    },
    /// The plan does not fit under the line.
    #[error("{0}")]
    Infeasible(Box<Infeasible>),
    /// Two graphs disagree on a state.
    #[error(
        "state `{name}` is {first} in `{first_plan}` but {second} in `{second_plan}`: build both from one model"
    )]
    States {
        /// The state's name.
        name: String,
        /// Its type in the first graph that has it.
        first: String,
        /// The batch type of that graph.
        first_plan: String,
        /// Its type in another graph.
        second: String,
        /// The batch type of that graph.
        second_plan: String,
    },
    /// A graph breaks an invariant.
    #[error("batch type `{plan}`: {source}")]
    Graph {
        /// The batch type.
        plan: String,
        /// What is broken.
        source: GraphError,
    },
    /// A graph's values are larger than any memory.
    #[error("batch type `{plan}` holds {ty}, which is larger than any memory: check its shapes")]
    TooLarge {
        /// The batch type.
        plan: String,
        /// The type of its largest value.
        ty: TensorType,
    },
}

/// The account of a plan that does not fit under its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Infeasible {
    /// The line.
    pub line_bytes: usize,
    /// The line that would do.
    pub needed_bytes: usize,
    /// By how much the line is too low.
    pub missing_bytes: usize,
    /// The account of every byte, with the fullest moment.
    pub sheet: LoadSheet,
}

impl fmt::Display for Infeasible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peak = &self.sheet.peak;
        write!(
            f,
            "{} are missing: the line is {}, the plan needs {} ({} bytes), {} of it in the arena. The arena is fullest \
             in `{}` at step {} of {}, layer `{}`, {}",
            in_words(self.missing_bytes),
            in_words(self.line_bytes),
            in_words(self.needed_bytes),
            self.needed_bytes,
            in_words(self.sheet.arena_bytes),
            peak.plan,
            peak.step,
            peak.steps,
            peak.layer,
            peak.op,
        )?;
        for (i, holder) in peak.holders.iter().take(3).enumerate() {
            let before = if i == 0 { "; largest there: " } else { ", " };
            write!(f, "{before}{} of `{}` ({})", holder.what, holder.layer, in_words(holder.bytes))?;
        }
        let outside: Vec<_> = (self.sheet.outside.iter().filter(|e| e.bytes > 0))
            .map(|e| format!("{} {}", e.name, in_words(e.bytes)))
            .collect();
        if !outside.is_empty() {
            write!(f, "; outside the arena: {}", outside.join(", "))?;
        }
        write!(f, ". Raise the line to {} bytes, or make the batch smaller", self.needed_bytes)
    }
}
