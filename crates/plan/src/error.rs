//! Why no plan could be made, in words that say what to do.

use crate::sheet::{batch_type_in_words, in_words};
use crate::{Entry, LoadSheet, Space, Unsupported};
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
    /// The memory space whose line is too low.
    pub space: Space,
    /// The line.
    pub line_bytes: usize,
    /// The line that would do.
    pub needed_bytes: usize,
    /// By how much the line is too low.
    pub missing_bytes: usize,
    /// The load sheet, with the peak.
    pub sheet: LoadSheet,
}

impl fmt::Display for Infeasible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sheet, peak) = (&self.sheet, &self.sheet.peak);
        let line = match (self.space, &sheet.host, &sheet.device) {
            (Space::Host, ..) => "the line of host memory".to_string(),
            (Space::Computing, _, Some(device)) => format!("the line of {device}"),
            (Space::Computing, Some(_), None) => "the line of device memory".to_string(),
            (Space::Computing, None, None) => "the line".to_string(),
        };
        let arena_bytes = match (self.space, &sheet.host) {
            (Space::Host, Some(host)) => host.arena_bytes,
            _ => sheet.arena_bytes,
        };
        writeln!(
            f,
            "{line} is {} too low: it is {}, the plan needs {}. Raise it to {} bytes{}",
            in_words(self.missing_bytes),
            in_words(self.line_bytes),
            in_words(self.needed_bytes),
            self.needed_bytes,
            if self.missing_bytes < arena_bytes { ", or make the batch smaller." } else { "." },
        )?;
        let outside = |entries: &[Entry]| {
            let listed: Vec<_> = (entries.iter().filter(|e| e.bytes > 0))
                .map(|e| format!("{} {}", e.name, in_words(e.bytes)))
                .collect();
            let bytes: usize = entries.iter().map(|e| e.bytes).sum();
            let colon = if listed.is_empty() { "" } else { ": " };
            format!("{} are outside it{colon}{}", in_words(bytes), listed.join(", "))
        };
        if let (Space::Host, Some(host)) = (self.space, &sheet.host) {
            let offloaded = in_words(host.arena_bytes);
            return write!(f, "  {offloaded} are offloaded there, {}", outside(&host.outside));
        }
        writeln!(
            f,
            "  {} are in the arena, whose peak is in {}, at step {} of {}: {} of `{}`. Largest there:",
            in_words(sheet.arena_bytes),
            batch_type_in_words(&peak.plan),
            peak.step + 1,
            peak.steps,
            peak.op,
            peak.layer,
        )?;
        for holder in peak.holders.iter().take(3) {
            writeln!(f, "    {:>11}   {} of `{}`", in_words(holder.bytes), holder.what, holder.layer)?;
        }
        write!(f, "  {}", outside(&sheet.outside))
    }
}
