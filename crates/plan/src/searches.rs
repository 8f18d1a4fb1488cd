//! Searches that are remembered from plan to plan.

use crate::planner::plan_remembering;
use crate::search::{Ladder, Problem};
use crate::{Budget, PlanError, PlanSet, Target};
use plimsoll_graph::Graph;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
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
    /// Problems with a hash and their answers so far, the latest last.
    known: RefCell<VecDeque<Known>>,
}

type Known = (u64, Problem, Rc<RefCell<Ladder>>);

impl Searches {
    /// Remembers all that is found; [`Searches::default`] remembers nothing.
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

    /// The answers for a problem; none if it makes no sense.
    pub(crate) fn ladder(&self, problem: &Problem) -> Option<Rc<RefCell<Ladder>>> {
        let new = || Some(Rc::new(RefCell::new(Ladder::new(problem).ok()?)));
        if self.most == 0 {
            return new();
        }
        let mut hasher = DefaultHasher::new();
        problem.hash(&mut hasher);
        let hash = hasher.finish();
        let mut known = self.known.borrow_mut();
        if let Some((.., ladder)) = known.iter().find(|(other, same, _)| *other == hash && same == problem) {
            return Some(ladder.clone());
        }
        let ladder = new()?;
        if known.len() == self.most {
            known.pop_front();
        }
        known.push_back((hash, problem.clone(), ladder.clone()));
        Some(ladder)
    }
}
