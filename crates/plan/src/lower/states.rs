//! Where the states of a plan set live between steps.

use crate::lower::StateTier;
use crate::{PerTier, PlanError, StateHome, StatePlacement, TIER_ALIGNMENT};
use plimsoll_graph::Graph;
use std::collections::BTreeMap;

/// The states of all graphs, in the order they first appear, matched by name.
pub(crate) fn find_states<'b>(
    batches: impl Iterator<Item = (&'b str, &'b Graph)>,
) -> Result<Vec<StatePlacement>, PlanError> {
    let mut states: Vec<StatePlacement> = Vec::new();
    let mut index = BTreeMap::new();
    let mut total = 0_usize;
    for (plan, graph) in batches {
        graph.check().map_err(|source| PlanError::Graph { plan: plan.to_string(), source })?;
        for state in &graph.states {
            let ty = graph.ty(state.input).clone();
            if let Some(&(i, first_plan)) = index.get(&state.name) {
                let known: &StatePlacement = &states[i];
                if known.ty != ty {
                    return Err(PlanError::States {
                        name: state.name.clone(),
                        first: known.ty.to_string(),
                        first_plan: str::to_string(first_plan),
                        second: ty.to_string(),
                        second_plan: plan.to_string(),
                    });
                }
                continue;
            }
            index.insert(&state.name, (states.len(), plan));
            total = total.saturating_add(ty.bytes()).saturating_add(TIER_ALIGNMENT as usize);
            if total > 1 << 62 {
                return Err(PlanError::TooLarge { plan: plan.to_string(), ty });
            }
            let (name, role, init) = (state.name.clone(), state.role, state.init);
            states.push(StatePlacement { name, ty, role, init, home: StateHome::Arena(0) });
        }
    }
    Ok(states)
}

/// Where the states of one plan set live.
pub(crate) struct StateLayout {
    /// The states.
    pub states: Vec<StatePlacement>,
    /// End of the resident states in the arena.
    pub end: usize,
    /// Bytes of the offloaded states in each tier.
    pub tier_bytes: PerTier<u64>,
    /// Bytes that each tier has left for values.
    pub room: PerTier<u64>,
    /// Offloaded states of at least so many bytes are updated in chunks.
    pub chunk_from_bytes: usize,
}

impl StateLayout {
    /// The index of each of a graph's states in the set, and where tasks find it.
    pub fn of(&self, graph: &Graph) -> (Vec<usize>, Vec<StateTier>) {
        let index: BTreeMap<&str, usize> =
            self.states.iter().enumerate().map(|(i, s)| (s.name.as_str(), i)).collect();
        let states = graph.states.iter().filter_map(|s| index.get(s.name.as_str()).copied());
        let states: Vec<usize> = states.collect();
        let tiers = |&i: &usize| match self.states[i].home {
            StateHome::Arena(_) => StateTier::Arena,
            StateHome::Offloaded { tier, .. } if self.states[i].ty.bytes() >= self.chunk_from_bytes => {
                StateTier::Chunked(tier)
            }
            StateHome::Offloaded { tier, .. } => StateTier::Whole(tier),
        };
        let tiers = states.iter().map(tiers).collect();
        (states, tiers)
    }
}
