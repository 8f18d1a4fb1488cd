//! Graph to graph passes: lower, gradient, decompose, simplify, save, fuse; and the split into micro-batches.
//!
//! [`optimize`] runs the [`Pass`]es of a finished step in order and checks the graph after each. Every pass keeps the
//! numbers: a step gives the same bits with any of them switched off. Without `decompose`, norms need an executor that
//! runs them whole, as the reference does.

mod accumulate;
mod decompose;
mod fuse;
mod gradient;
mod local;
mod precision;
mod rewriter;
mod save;
mod simplify;
mod widen;

pub use accumulate::{SplitError, accumulate, check_same_ops, check_split};
pub use decompose::decompose;
pub use fuse::fuse;
pub use gradient::{gradient, scaled_gradient};
pub use local::accumulate_local;
pub use precision::{Lowered, lower};
pub use save::save;
pub use simplify::simplify;

use plimsoll_graph::{Graph, GraphError};
use std::str::FromStr;

/// The name of the graph output that a training step's loss must have.
pub const LOSS: &str = "loss";

/// A named pass, switchable for bisecting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pass {
    /// Turns composites into statistics and elementwise ops.
    Decompose,
    /// Merges equal nodes and drops dead and idle ones.
    Simplify,
    /// Decides what backward reads from forward and what it makes again.
    Save,
    /// Joins elementwise ops into regions and into the products before them.
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

    /// Runs the pass.
    pub fn run(self, graph: &Graph) -> Result<Graph, GraphError> {
        match self {
            Self::Decompose => decompose(graph),
            Self::Simplify => simplify(graph),
            Self::Save => save(graph),
            Self::Fuse => fuse(graph),
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

/// Runs every pass but the ones in `without` and checks the graph after each. Takes the graph, so that no more than two
/// are held at a time.
pub fn optimize(mut graph: Graph, without: &[Pass]) -> Result<Graph, GraphError> {
    for pass in Pass::ALL.into_iter().filter(|p| !without.contains(p)) {
        graph = pass.run(&graph)?;
        graph.check()?;
    }
    Ok(graph)
}
