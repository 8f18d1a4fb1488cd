//! The lower bound of rematerialization for a graph.

use crate::lower::{StateTier, TaskGraph};
use crate::remat::translate::Translated;
use crate::schedule::order;
use crate::{PlanError, Target, Tiers};
use plimsoll_graph::Graph;

/// Nanoseconds that rematerialized runs take at least, in the planner's order, with no state offloaded and the arena
/// within a limit. Where no schedule fits, what rematerialization would take all the same.
pub fn least_rematerialization(
    name: &str,
    graph: &Graph,
    target: &dyn Target,
    arena_limit: usize,
) -> Result<u64, PlanError> {
    graph.check().map_err(|source| PlanError::Graph { plan: name.to_string(), source })?;
    let in_arena = vec![StateTier::Arena; graph.states.len()];
    let task_graph = TaskGraph::new(name, graph, target, &in_arena, &Tiers::default())?;
    let order = order::order(&task_graph);
    let translated = Translated::new(&task_graph, &order, &vec![false; task_graph.tasks.len()]);
    let state_bytes = |v| graph.ty(v).bytes().next_multiple_of(task_graph.alignment);
    let states: usize = graph.states.iter().map(|s| state_bytes(s.input)).sum();
    let line = arena_limit.saturating_sub(states).saturating_sub(translated.fixed_bytes);
    Ok(super::lower_bound(&translated.problem, line as u64).unwrap_or(0))
}
