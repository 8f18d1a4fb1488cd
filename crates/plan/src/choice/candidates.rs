//! A run to plan, and its graphs.

use crate::{
    Budget, Entry, Fingerprint, Infeasible, PlanError, PlanSet, SearchCache, Target, Tiers, VerifyError,
};
use plimsoll_graph::Graph;
use std::cell::OnceCell;
use std::sync::Arc;

/// A plan that is being searched for, for reports of progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanningProgress {
    /// Its number, from 1, among those that a [`crate::Chooser`] tried.
    pub tried: usize,
    /// The line of the computing space; 0 where the lowest peak is searched for.
    pub line_bytes: usize,
    /// Micro-batches of the training step.
    pub micro_batches: usize,
    /// What it may do to stay under the line, in words.
    pub technique: &'static str,
}

/// A run to plan, as the chooser sees it: graphs for any number of micro-batches, and what lies outside the arena.
pub trait Candidates {
    /// Why there are no graphs.
    type Error: From<PlanError> + From<VerifyError>;

    /// The target of the plans.
    fn target(&self) -> &dyn Target;
    /// The tiers that may hold offloaded states and values.
    fn tiers(&self) -> Tiers;
    /// Numbers of micro-batches to try, the fewest first; at least one number.
    fn micro_batches(&self) -> Vec<usize>;
    /// The graphs of every batch type, by name, with training steps in so many micro-batches.
    fn graphs(&self, micro_batches: usize) -> Result<Vec<(String, Graph)>, Self::Error>;
    /// What lies in host memory outside the arena beside the plans themselves.
    fn outside(&self, micro_batches: usize, graphs: &[(String, Arc<Graph>)]) -> Vec<Entry>;
    /// Heap of the program beside that of the plans; `None` if the heap is not accounted for.
    fn heap_bytes(&self) -> Option<usize>;
    /// Whether a batch whose examples are mixed may be split nevertheless.
    fn splits_mixed(&self) -> bool {
        false
    }
    /// Whether the error says that the batch cannot be split.
    fn is_unsplittable(error: &Self::Error) -> bool;
    /// The part of the error that says by how much a plan misses the line.
    fn infeasible(error: &Self::Error) -> Option<&Infeasible>;

    /// Called before each plan is searched for.
    fn progress(&self, progress: &PlanningProgress) {
        let _ = progress;
    }

    /// Plans with the lowest peak that a budget asks for. A run with a plan cache looks there first.
    fn plan_lowest(
        &self,
        batches: &Batches,
        budget: &Budget,
        search_cache: &SearchCache,
    ) -> Result<PlanSet, PlanError> {
        search_cache.plan_lowest(batches.graphs(), self.target(), budget)
    }
}

/// The graphs of every batch type, by name.
pub struct Batches {
    graphs: Vec<(String, Arc<Graph>)>,
    fingerprint: OnceCell<Fingerprint>,
}

impl Batches {
    /// Graphs by name.
    pub(super) fn new(graphs: Vec<(String, Graph)>) -> Self {
        let graphs = graphs.into_iter().map(|(name, graph)| (name, Arc::new(graph))).collect();
        Self { graphs, fingerprint: OnceCell::new() }
    }

    /// The graphs.
    pub fn graphs(&self) -> &[(String, Arc<Graph>)] {
        &self.graphs
    }

    /// What their plans on a target depend on; computed once.
    pub fn fingerprint(&self, target: &dyn Target) -> Fingerprint {
        *self.fingerprint.get_or_init(|| Fingerprint::new(&self.graphs, target))
    }
}
