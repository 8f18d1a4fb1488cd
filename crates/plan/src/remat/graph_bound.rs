//! What no plan of a graph can beat.

use crate::lower::{StateTier, TaskGraph};
use crate::remat::translate::Translated;
use crate::schedule::order;
use crate::{Disk, PlanError, Target};
use plimsoll_graph::Graph;

/// Nanoseconds that steps which run again take at least, if everything runs in the planner's order, no state is spilled
/// and the arena stays inside a room. Without repeats that fit, what would be needed all the same.
pub fn least_rematerialization(
    name: &str,
    graph: &Graph,
    target: &dyn Target,
    room: usize,
) -> Result<u64, PlanError> {
    graph.check().map_err(|source| PlanError::Graph { plan: name.to_string(), source })?;
    let in_arena = vec![StateTier::Arena; graph.states.len()];
    let task_graph = TaskGraph::new(name, graph, target, &in_arena, Disk::default())?;
    let order = order::order(&task_graph);
    let translated = Translated::new(&task_graph, &order, &vec![false; task_graph.tasks.len()]);
    let state_bytes = |v| graph.ty(v).bytes().next_multiple_of(task_graph.alignment);
    let states: usize = graph.states.iter().map(|s| state_bytes(s.input)).sum();
    let line = room.saturating_sub(states).saturating_sub(translated.fixed);
    Ok(super::lower_bound(&translated.problem, line as u64).unwrap_or(0))
}
