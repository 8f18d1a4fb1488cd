//! Search results shared between plans.

use super::memo::{Memo, digest};
use crate::choice::plan_with_cache;
use crate::lower::{TaskGraph, TaskId};
use crate::placement::{LiveRange, place};
use crate::remat::{Frontier, Problem};
use crate::schedule::order;
use crate::{Budget, PlanError, PlanSet, SharedGraph, Target};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// A cache of search results, for plans of the same graphs under other lines or with other techniques. Plans are the
/// same with and without it.
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
    /// Rematerialization problems cached, at most.
    capacity: usize,
    /// Solutions so far by their problem's hash, the newest last.
    frontiers: RefCell<VecDeque<CachedFrontier>>,
    /// Orders of task graphs, and placements of live ranges.
    orders: RefCell<Memo>,
    placements: RefCell<Memo>,
}

type CachedFrontier = (u128, Rc<RefCell<Frontier>>);

impl SearchCache {
    /// Caches every rematerialization problem; [`SearchCache::default`] caches none.
    pub fn unbounded() -> Self {
        Self::with_capacity(usize::MAX)
    }

    /// Caches the newest rematerialization problems, at most so many.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { capacity, ..Self::default() }
    }

    /// As [`plan_lowest`](crate::plan_lowest), with the cache.
    pub fn plan_lowest(
        &self,
        batches: &[(String, impl SharedGraph)],
        target: &dyn Target,
        budget: &Budget,
    ) -> Result<PlanSet, PlanError> {
        plan_with_cache(batches, target, budget, self)
    }

    /// The order of a task graph: as [`order::order`].
    pub(crate) fn order(&self, task_graph: &TaskGraph<'_>) -> Vec<TaskId> {
        cached(&self.orders, digest(task_graph), || order::order(task_graph))
    }

    /// An offset for each live range: as [`place`].
    pub(crate) fn place(&self, live_ranges: &[LiveRange], enough: usize, most: usize) -> Option<Vec<usize>> {
        let key = digest((live_ranges, enough, most));
        // An empty list stands for live ranges that cannot be placed below `most`.
        let offsets = cached(&self.placements, key, || place(live_ranges, enough, most).unwrap_or_default());
        (offsets.len() == live_ranges.len()).then_some(offsets)
    }

    /// The frontier of a problem, searched quickly or not, unless the problem is inconsistent.
    pub(crate) fn frontier(&self, problem: &Problem, quick: bool) -> Option<Rc<RefCell<Frontier>>> {
        let new = || Some(Rc::new(RefCell::new(Frontier::searched(problem, quick).ok()?)));
        if self.capacity == 0 {
            return new();
        }
        let key = digest((problem, quick && Frontier::is_worth_hurrying(problem)));
        let mut frontiers = self.frontiers.borrow_mut();
        if let Some((_, frontier)) = frontiers.iter().find(|(other, _)| *other == key) {
            return Some(frontier.clone());
        }
        let frontier = new()?;
        if frontiers.len() == self.capacity {
            frontiers.pop_front();
        }
        frontiers.push_back((key, frontier.clone()));
        Some(frontier)
    }
}

/// The cached list of a key, or else a new one, which is then cached.
fn cached(memo: &RefCell<Memo>, key: u128, compute: impl FnOnce() -> Vec<usize>) -> Vec<usize> {
    if let Some(list) = memo.borrow().get(key) {
        return list;
    }
    let list = compute();
    memo.borrow_mut().put(key, &list);
    list
}
