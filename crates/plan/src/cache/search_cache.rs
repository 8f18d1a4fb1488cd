//! Searches that are remembered from plan to plan.

use super::memo::{Memo, digest};
use crate::choice::plan_with_cache;
use crate::lower::{TaskGraph, TaskId};
use crate::placement::{LiveRange, place};
use crate::remat::{Frontier, Problem};
use crate::schedule::order;
use crate::{Budget, PlanError, PlanSet, Target};
use plimsoll_graph::Graph;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// What was found of steps that run again, for plans of the same graphs under other lines: they are the same with and
/// without it.
///
/// ```
/// use plimsoll_graph::{Builder, op::Unary};
/// use plimsoll_plan::{Budget, NullTarget, SearchCache, plan_lowest};
/// let mut b = Builder::new(32, 8);
/// let x = b.batch_input("x", "f32[32,100]".parse()?);
/// let (y, z) = (b.unary(Unary::Relu, x)?, b.unary(Unary::Exp, x)?);
/// let sum = b.add(y, z)?;
/// b.output("sum", sum);
/// let batches = [("predict".to_string(), b.finish()?)];
/// let search_cache = SearchCache::unbounded();
/// for line_bytes in [20_000, 30_000, 40_000] {
///     let budget = Budget { rematerialize: true, ..Budget::new(line_bytes, Vec::new()) };
///     let plans = search_cache.plan_lowest(&batches, &NullTarget::default(), &budget)?;
///     assert_eq!(plans, plan_lowest(&batches, &NullTarget::default(), &budget)?);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct SearchCache {
    /// Problems that are remembered at most.
    most: usize,
    /// Answers so far by their problem's hash, the latest last.
    known: RefCell<VecDeque<Known>>,
    /// Orders and places of the same works and blocks, which plans of one graph with different means share.
    orders: RefCell<Memo>,
    places: RefCell<Memo>,
}

type Known = (u128, Rc<RefCell<Frontier>>);

impl SearchCache {
    /// Remembers all that is found; [`SearchCache::default`] remembers no search.
    pub fn unbounded() -> Self {
        Self::with_capacity(usize::MAX)
    }

    /// Remembers what was found of as many graphs at most: the latest.
    pub fn with_capacity(most: usize) -> Self {
        Self { most, ..Self::default() }
    }

    /// As [`plan_lowest`](crate::plan_toward), with what was found before.
    pub fn plan_lowest(
        &self,
        batches: &[(String, Graph)],
        target: &dyn Target,
        budget: &Budget,
    ) -> Result<PlanSet, PlanError> {
        plan_with_cache(batches, target, budget, self)
    }

    /// The tasks of a work in the order they run in.
    pub(crate) fn order(&self, task_graph: &TaskGraph<'_>) -> Vec<TaskId> {
        found(&self.orders, digest(task_graph), || order::order(task_graph))
    }

    /// An offset for each block: as [`place`].
    pub(crate) fn place(&self, live_ranges: &[LiveRange], enough: usize, most: usize) -> Option<Vec<usize>> {
        let key = digest((live_ranges, enough, most));
        // No list is of blocks that have no place below `most`.
        let offsets = found(&self.places, key, || place(live_ranges, enough, most).unwrap_or_default());
        (offsets.len() == live_ranges.len()).then_some(offsets)
    }

    /// The answers for a problem; none if it makes no sense.
    pub(crate) fn frontier(&self, problem: &Problem) -> Option<Rc<RefCell<Frontier>>> {
        let new = || Some(Rc::new(RefCell::new(Frontier::new(problem).ok()?)));
        if self.most == 0 {
            return new();
        }
        let key = digest(problem);
        let mut known = self.known.borrow_mut();
        if let Some((_, frontier)) = known.iter().find(|(other, _)| *other == key) {
            return Some(frontier.clone());
        }
        let frontier = new()?;
        if known.len() == self.most {
            known.pop_front();
        }
        known.push_back((key, frontier.clone()));
        Some(frontier)
    }
}

/// What is remembered under a key, or else found and remembered.
fn found(lists: &RefCell<Memo>, key: u128, find: impl FnOnce() -> Vec<usize>) -> Vec<usize> {
    if let Some(known) = lists.borrow().get(key) {
        return known;
    }
    let list = find();
    lists.borrow_mut().put(key, &list);
    list
}
