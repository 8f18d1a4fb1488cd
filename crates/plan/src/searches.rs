//! Searches that are remembered from plan to plan.

use crate::placement::{Block, place};
use crate::planner::plan_remembering;
use crate::remembered::{Remembered, digest};
use crate::search::{Ladder, Problem};
use crate::work::{TaskId, Work};
use crate::{Budget, PlanError, PlanSet, Target, order};
use plimsoll_graph::Graph;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// What was found of steps that run again, for plans of the same graphs under other lines: they are the same with and
/// without it.
///
/// ```
/// use plimsoll_graph::{Builder, op::Unary};
/// use plimsoll_plan::{Budget, NullTarget, Searches, plan_toward};
/// let mut b = Builder::new(32, 8);
/// let x = b.batch_input("x", "f32[32,100]".parse()?);
/// let (y, z) = (b.unary(Unary::Relu, x)?, b.unary(Unary::Exp, x)?);
/// let sum = b.add(y, z)?;
/// b.output("sum", sum);
/// let batches = [("predict".to_string(), b.finish()?)];
/// let searches = Searches::keeping();
/// for line_bytes in [20_000, 30_000, 40_000] {
///     let budget = Budget { recompute: true, ..Budget::new(line_bytes, Vec::new()) };
///     let plans = searches.plan_toward(&batches, &NullTarget::default(), &budget)?;
///     assert_eq!(plans, plan_toward(&batches, &NullTarget::default(), &budget)?);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct Searches {
    /// Problems that are remembered at most.
    most: usize,
    /// Answers so far by their problem's hash, the latest last.
    known: RefCell<VecDeque<Known>>,
    /// Orders and places of the same works and blocks, which plans of one graph with different means share.
    orders: RefCell<Remembered>,
    places: RefCell<Remembered>,
}

type Known = (u128, Rc<RefCell<Ladder>>);

impl Searches {
    /// Remembers all that is found; [`Searches::default`] remembers no search.
    pub fn keeping() -> Self {
        Self::keeping_latest(usize::MAX)
    }

    /// Remembers what was found of as many graphs at most: the latest.
    pub fn keeping_latest(most: usize) -> Self {
        Self { most, ..Self::default() }
    }

    /// As [`plan_toward`](crate::plan_toward), with what was found before.
    pub fn plan_toward(
        &self,
        batches: &[(String, Graph)],
        target: &dyn Target,
        budget: &Budget,
    ) -> Result<PlanSet, PlanError> {
        plan_remembering(batches, target, budget, self)
    }

    /// The tasks of a work in the order they run in.
    pub(crate) fn order(&self, work: &Work<'_>) -> Vec<TaskId> {
        found(&self.orders, digest(work), || order::order(work))
    }

    /// An offset for each block: as [`place`].
    pub(crate) fn place(&self, blocks: &[Block], enough: usize, most: usize) -> Option<Vec<usize>> {
        let key = digest((blocks, enough, most));
        // No list is of blocks that have no place below `most`.
        let offsets = found(&self.places, key, || place(blocks, enough, most).unwrap_or_default());
        (offsets.len() == blocks.len()).then_some(offsets)
    }

    /// The answers for a problem; none if it makes no sense.
    pub(crate) fn ladder(&self, problem: &Problem) -> Option<Rc<RefCell<Ladder>>> {
        let new = || Some(Rc::new(RefCell::new(Ladder::new(problem).ok()?)));
        if self.most == 0 {
            return new();
        }
        let key = digest(problem);
        let mut known = self.known.borrow_mut();
        if let Some((_, ladder)) = known.iter().find(|(other, _)| *other == key) {
            return Some(ladder.clone());
        }
        let ladder = new()?;
        if known.len() == self.most {
            known.pop_front();
        }
        known.push_back((key, ladder.clone()));
        Some(ladder)
    }
}

/// What is remembered under a key, or else found and remembered.
fn found(lists: &RefCell<Remembered>, key: u128, find: impl FnOnce() -> Vec<usize>) -> Vec<usize> {
    if let Some(known) = lists.borrow().get(key) {
        return known;
    }
    let list = find();
    lists.borrow_mut().put(key, &list);
    list
}
