//! What no plan of a graph can beat.

use crate::repeat::Translated;
use crate::work::{InFile, Work};
use crate::{Disk, PlanError, Target, order, search};
use plimsoll_graph::Graph;

/// Nanoseconds that steps which run again take at least, if everything runs in the planner's order, no state is spilled
/// and the arena stays inside a room. Without repeats that fit, what would be needed all the same.
pub fn least_repeats(name: &str, graph: &Graph, target: &dyn Target, room: usize) -> Result<u64, PlanError> {
    graph.check().map_err(|source| PlanError::Graph { plan: name.to_string(), source })?;
    let in_arena = vec![InFile::No; graph.states.len()];
    let work = Work::new(name, graph, target, &in_arena, Disk::default())?;
    let order = order::order(&work);
    let translated = Translated::new(&work, &order, &vec![false; work.tasks.len()]);
    let state_bytes = |v| graph.ty(v).bytes().next_multiple_of(work.alignment);
    let states: usize = graph.states.iter().map(|s| state_bytes(s.input)).sum();
    let line = room.saturating_sub(states).saturating_sub(translated.fixed);
    Ok(search::lower_bound(&translated.problem, line as u64).unwrap_or(0))
}
