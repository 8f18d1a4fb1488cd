//! Passes from graph to graph: mixed precision, gradient, optimization, gradient accumulation.
//!
//! | when | pass | what it does |
//! |---|---|---|
//! | before backward | [`mixed_precision`] | stores values between layers as 16-bit floats |
//! | | [`gradient`] | appends backward: reverse-mode differentiation, one rule per op in `gradient/rules` |
//! | a step that does not train | [`sparse_parameters`] | reads pruned parameters as values and a mask |
//! | a finished step, in this order ([`optimize`]) | [`decompose`] | turns norms into statistics and elementwise ops |
//! | | [`simplify`] | merges common subexpressions, drops dead nodes and no-ops |
//! | | [`save`] | decides what forward saves for backward and what backward rematerializes (a minimum cut) |
//! | | [`fuse`] | fuses elementwise ops into regions, and epilogues and casts into their neighbours |
//! | under a line | [`accumulate`] | splits the batch into micro-batches and accumulates gradients |
//! | | [`accumulate_split_batch_norm`] | the same with batch norm, on each micro-batch's statistics |
//! | over several batches | [`continue_sum`] | lets a sum over the batch start where that of the batch before ended |
//! | on several devices | [`replicate`] | lets sums over the batch pass from device to device |
//! | | [`fetch_parameters`] | lets parameters pass that one device holds, in a step that does not train |
//! | | [`partition`] | places layers on devices, and lets values pass between them |
//! | | [`unroll`] | before it: a body of all micro-batches, in an order in which these devices work at the same time |
//!
//! [`optimize`] checks the graph after each [`Pass`], and each can be switched off for bisecting: a step has the same bits
//! without it. (Without `decompose`, only an executor that runs norms whole can run them, as the reference does.)
//! `accumulate`, `continue_sum`, `fetch_parameters`, `partition`, `unroll` and `replicate` (but for [`Reduction::Fast`]) keep the bits, too; `accumulate_split_batch_norm` and
//! `mixed_precision` do not.
//!
//! A pass copies the graph node by node through `rewriter`. What it must know of an op it asks the op
//! (`plimsoll_graph::op::Properties`), and what a target decides is in the [`Numerics`] that it is given. This crate knows
//! neither targets nor memory limits: placing values and rematerializing under a line is `plimsoll-plan`'s.

mod accumulate;
mod decompose;
mod fetch;
mod fuse;
mod gradient;
mod mixed_precision;
mod partition;
mod reduction;
mod replicate;
mod rewriter;
mod save;
mod shard;
mod simplify;
mod sparse;
mod unroll;

pub use accumulate::{
    SplitError, accumulate, accumulate_split_batch_norm, check_same_ops, check_split, continue_sum,
};
pub use decompose::decompose;
pub use fetch::fetch_parameters;
pub use fuse::fuse;
pub use gradient::{gradient, scaled_gradient};
pub use mixed_precision::{MixedPrecision, mixed_precision};
pub use partition::{Placing, TURN, partition};
pub use reduction::Reduction;
pub use replicate::{Replica, count_whole_batch, owned_states, replicate};
pub use rewriter::Rewriter;
pub use save::save;
pub use shard::{OwnedState, Shard, StateBytes};
pub use simplify::simplify;
pub use sparse::{SPARSE, sparse_parameters};
pub use unroll::unroll;

use plimsoll_graph::{Graph, GraphError, Numerics};
use std::str::FromStr;

/// The name of the graph output that a training step's loss must have.
pub const LOSS: &str = "loss";

/// A named pass, switchable for bisecting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pass {
    /// Turns norms into statistics and elementwise ops.
    Decompose,
    /// Merges common subexpressions, drops dead nodes and no-ops.
    Simplify,
    /// Decides what forward saves for backward and what backward rematerializes.
    Save,
    /// Fuses elementwise ops into regions and into the products before them.
    Fuse,
}

impl Pass {
    /// Every pass, in the order in which they run.
    pub const ALL: [Self; 4] = [Self::Decompose, Self::Simplify, Self::Save, Self::Fuse];

    /// The pass's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Decompose => "decompose",
            Self::Simplify => "simplify",
            Self::Save => "save",
            Self::Fuse => "fuse",
        }
    }

    /// Runs the pass on a graph whose layers are on targets with these numerics. Takes the graph, so that no more than two are held at
    /// a time.
    pub fn run(self, graph: Graph, numerics: &LayerNumerics<'_>) -> Result<Graph, GraphError> {
        match self {
            Self::Decompose => decompose(&graph),
            Self::Simplify => simplify(graph),
            Self::Save => save(&graph),
            Self::Fuse => fuse(graph, numerics),
        }
    }
}

impl FromStr for Pass {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|p| p.name() == text);
        found.ok_or_else(|| format!("unknown pass `{text}`: the passes are {}", names()))
    }
}

/// The numerics of the target that a layer is on.
pub type LayerNumerics<'a> = dyn Fn(&str) -> Numerics + 'a;

/// Runs every pass but the ones in `without`, for a target with these numerics, and checks the graph after each. No more than
/// two graphs are held at a time.
pub fn optimize(graph: Graph, numerics: &Numerics, without: &[Pass]) -> Result<Graph, GraphError> {
    optimize_by_layer(graph, &|_| *numerics, without)
}

/// As [`optimize`], of a step whose layers are on several targets.
pub fn optimize_by_layer(
    mut graph: Graph,
    numerics: &LayerNumerics<'_>,
    without: &[Pass],
) -> Result<Graph, GraphError> {
    for pass in Pass::ALL.into_iter().filter(|p| !without.contains(p)) {
        graph = pass.run(graph, numerics)?;
        graph.check()?;
    }
    Ok(graph)
}
