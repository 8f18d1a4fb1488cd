//! A line to plan under, and what is known from planning under others.

use crate::TrainError;
use plimsoll_graph::Graph;
use plimsoll_plan::{Content, PlanSet, Searches};
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// The graphs of every batch type, by name.
pub(crate) struct Batches {
    graphs: Vec<(String, Graph)>,
    content: OnceCell<Content>,
}

impl Batches {
    fn new(graphs: Vec<(String, Graph)>) -> Self {
        Self { graphs, content: OnceCell::new() }
    }

    /// The graphs.
    pub fn graphs(&self) -> &[(String, Graph)] {
        &self.graphs
    }

    /// What their plans depend on; found once.
    pub fn content(&self, find: impl FnOnce(&[(String, Graph)]) -> Content) -> Content {
        *self.content.get_or_init(|| find(&self.graphs))
    }
}

/// A line to plan under, and what does not depend on it.
#[derive(Default)]
pub(crate) struct Planning {
    /// The line.
    pub line_bytes: usize,
    /// Whether plans go as low as they can, rather than just under the line.
    pub lowest: bool,
    /// Predicted time of a step without a line; known once anything is planned.
    pub unlimited_ns: u64,
    /// Bytes of all states; known then, too.
    pub state_bytes: usize,
    /// What a spilled plan must not take longer than to be of use.
    pub worth_ns: u64,
    /// Whether what is found is kept for other lines.
    keep: bool,
    /// Graphs by their number of micro-batches.
    batches: BTreeMap<usize, Rc<Batches>>,
    /// What searches found.
    pub searches: Searches,
    /// Plans in which every step runs once, by their number of micro-batches.
    once: BTreeMap<usize, Rc<PlanSet>>,
}

impl Planning {
    /// For one plan: only the latest search is kept, which goes on under another aim.
    pub fn new(line_bytes: usize) -> Self {
        Self { line_bytes, searches: Searches::keeping_latest(1), ..Self::default() }
    }

    /// For plans under many lines.
    pub fn keeping() -> Self {
        Self { keep: true, searches: Searches::keeping(), ..Self::default() }
    }

    /// What plans aim at.
    pub fn aim_bytes(&self) -> usize {
        if self.lowest { 0 } else { self.line_bytes }
    }

    /// The graphs in so many micro-batches.
    pub fn batches(
        &mut self,
        micro_batches: usize,
        make: impl FnOnce() -> Result<Vec<(String, Graph)>, TrainError>,
    ) -> Result<Rc<Batches>, TrainError> {
        if let Some(known) = self.batches.get(&micro_batches) {
            return Ok(known.clone());
        }
        let made = Rc::new(Batches::new(make()?));
        if self.keep {
            self.batches.insert(micro_batches, made.clone());
        }
        Ok(made)
    }

    /// The plan in so many micro-batches in which every step runs once. The first one made says what a step takes
    /// without a line.
    pub fn once(
        &mut self,
        micro_batches: usize,
        make: impl FnOnce(&mut Self) -> Result<PlanSet, TrainError>,
    ) -> Result<PlanSet, TrainError> {
        if let Some(known) = self.once.get(&micro_batches) {
            return Ok(known.as_ref().clone());
        }
        let made = make(self)?;
        if self.unlimited_ns == 0 {
            self.unlimited_ns = made.plans.first().map_or(0, |p| p.nanoseconds);
            self.state_bytes = made.states.iter().map(|s| s.ty.bytes()).sum();
        }
        if self.keep {
            self.once.insert(micro_batches, Rc::new(made.clone()));
        }
        Ok(made)
    }
}
