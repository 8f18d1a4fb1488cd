//! How a run fits under its line: micro-batches, rematerialization, offload and chunked updates.
//!
//! Each file tries combinations of one level, the cheapest first, and keeps the best by one comparator ([`Score`]):
//!
//! - `run.rs`: how many micro-batches, and which techniques each count may use ([`Chooser`], called by `train`);
//! - `state_tiers.rs`: which states live in which tier, whole or updated in chunks;
//! - `least.rs`: a lower bound of all of them, without a search;
//! - `one_graph.rs`: which values of one graph are offloaded, and which are rematerialized.

mod candidates;
mod compare;
mod least;
mod one_graph;
mod run;
mod state_tiers;

pub use candidates::{Batches, Candidates, PlanningProgress};
pub use least::{LeastMemory, least_memory};
pub use run::Chooser;
pub(crate) use state_tiers::plan_set;
#[cfg(test)]
pub(crate) use state_tiers::{TEST_DISK, plan_offloaded};

use crate::{Budget, PlanError, PlanSet, SearchCache, SharedGraph, Target};
use compare::{Score, better};
use state_tiers::Planner;

/// What may be done to one set of graphs to fit an arena limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Techniques {
    /// Tasks may run twice.
    rematerialize: bool,
    /// Values of at least so many bytes may wait in a tier; none if `None`.
    offload_values_from: Option<usize>,
    /// Offloaded states of at least so many bytes are updated in chunks.
    chunk_from_bytes: usize,
    /// Where offloaded states go.
    state_rule: StateRule,
    /// Rematerialization is searched for quickly: there are many such attempts.
    quick: bool,
}

/// The tier of offloaded states, where there are two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StateRule {
    /// The fastest with room, before any value.
    Fastest,
    /// The slowest: values get the fast one.
    Slowest,
}

/// Plans every batch type of a model into one arena under a line. States are matched by name across the graphs and
/// lie at the same offsets in every plan.
///
/// A pure function: the same graphs, target and budget give the same plans, on any machine. Nothing of what is planned is
/// allocated.
///
/// ```
/// use plimsoll_graph::{Builder, op::Unary};
/// use plimsoll_plan::{Budget, NullTarget, PlanError, plan, verify};
/// let mut b = Builder::new(32, 8);
/// let x = b.batch_input("x", "f32[32,100]".parse()?);
/// let y = b.unary(Unary::Relu, x)?;
/// let y = b.unary(Unary::Exp, y)?;
/// b.output("y", y);
/// let graph = b.finish()?;
///
/// let budget = |line_bytes| Budget::new(line_bytes, Vec::new());
/// let plans = plan(&[("predict".into(), graph.clone())], &NullTarget::default(), &budget(1 << 20))?;
/// assert_eq!(plans.arena_bytes, 2 * 12_800); // the second op works in place
/// verify(&plans)?;
///
/// let Err(PlanError::Infeasible(short)) = plan(&[("predict".into(), graph)], &NullTarget::default(), &budget(20_000))
/// else { panic!("it does not fit") };
/// assert_eq!(short.missing_bytes, 5_600);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn plan(
    batches: &[(String, impl SharedGraph)],
    target: &dyn Target,
    budget: &Budget,
) -> Result<PlanSet, PlanError> {
    let plans = plan_lowest(batches, target, budget)?;
    plans.sheet.check_line()?;
    Ok(plans)
}

/// As [`plan`], but a plan that does not fit is returned too, with the lowest peak found. For callers who account for more
/// bytes once a plan is known, and check the line then.
pub fn plan_lowest(
    batches: &[(String, impl SharedGraph)],
    target: &dyn Target,
    budget: &Budget,
) -> Result<PlanSet, PlanError> {
    plan_with_cache(batches, target, budget, &SearchCache::default())
}

/// As [`plan_lowest`], reusing what other plans found.
pub(crate) fn plan_with_cache(
    batches: &[(String, impl SharedGraph)],
    target: &dyn Target,
    budget: &Budget,
    search_cache: &SearchCache,
) -> Result<PlanSet, PlanError> {
    Planner::new(batches, target, budget, search_cache)?.plan_under(budget)
}
