//! Where states, offloaded values and buffers are placed, and that none of them overlap.

use super::VerifyError;
use super::memory::overlap;
use crate::{Buffer, BufferKind, ExecutionPlan, PerTier, PlanSet, StateHome, TIER_ALIGNMENT, Tier};
use plimsoll_graph::Origin;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The bytes a state takes in the arena; none if it is offloaded.
pub(super) fn state_range(set: &PlanSet, state: usize) -> Range<usize> {
    match set.states[state].home {
        StateHome::Arena(offset) => offset..offset + set.states[state].ty.bytes(),
        StateHome::Offloaded { .. } => 0..0,
    }
}

/// A buffer, for messages.
pub(super) fn name_of(plan: &ExecutionPlan, buffer: &Buffer) -> String {
    let kind = match buffer.kind {
        BufferKind::State(i) => format!("state {i}"),
        BufferKind::Input(i) => format!("input {i}"),
        BufferKind::Accumulator(i) => format!("accumulator {i}"),
        BufferKind::Value => "buffer".to_string(),
        BufferKind::Workspace => "workspace".to_string(),
    };
    match buffer.value {
        Some(value) => match plan.graph.producer(value).map(|n| plan.graph.node(n)) {
            Some(node) => format!("{kind} of {value} ({}, layer `{}`)", node.op.name(), node.layer),
            None => format!("{kind} of {value}"),
        },
        None => kind,
    }
}

/// States are aligned, inside the arena or a tier, and do not overlap.
pub(super) fn check_states(set: &PlanSet) -> Result<(), VerifyError> {
    let mut ranges: Vec<(Range<usize>, &str)> = Vec::new();
    let mut tiers = PerTier::<Vec<(Range<usize>, &str)>>::default();
    let mut names = BTreeSet::new();
    for (i, state) in set.states.iter().enumerate() {
        let wrong = |reason: String| VerifyError::StatePlace {
            plan: String::new(),
            state: state.name.clone(),
            reason,
        };
        let bytes = state.ty.bytes();
        match state.home {
            StateHome::Arena(offset) if !offset.is_multiple_of(set.alignment) => {
                return Err(wrong(format!("starts at {offset}, which is not aligned")));
            }
            StateHome::Arena(offset) if offset.checked_add(bytes).is_none_or(|end| end > set.arena_bytes) => {
                return Err(wrong("ends outside the arena".to_string()));
            }
            StateHome::Offloaded { tier, offset } if !offset.is_multiple_of(TIER_ALIGNMENT) => {
                return Err(wrong(format!("starts at {offset} of {}, which is not aligned", tier.name())));
            }
            StateHome::Offloaded { tier, offset }
                if offset.checked_add(bytes as u64).is_none_or(|end| end > set.tier_bytes[tier]) =>
            {
                return Err(wrong(format!("ends outside {}", tier.name())));
            }
            StateHome::Arena(_) => ranges.push((state_range(set, i), &state.name)),
            StateHome::Offloaded { tier, offset } => {
                // Up to the end of its last page: whole pages are written.
                let end = (offset + bytes as u64).next_multiple_of(TIER_ALIGNMENT);
                tiers[tier].push((offset as usize..end as usize, &state.name));
            }
        }
        if !names.insert(&state.name) {
            return Err(wrong("exists twice".to_string()));
        }
    }
    check_apart(ranges)?;
    check_apart(tiers.host)?;
    check_apart(tiers.file)
}

/// No two of these states share a byte.
fn check_apart(mut ranges: Vec<(Range<usize>, &str)>) -> Result<(), VerifyError> {
    ranges.sort_by_key(|(range, _)| (range.start, range.end));
    let filled: Vec<_> = ranges.iter().filter(|(range, _)| !range.is_empty()).collect();
    match filled.windows(2).find(|w| overlap(&w[0].0, &w[1].0)) {
        Some(pair) => Err(VerifyError::StatePlace {
            plan: String::new(),
            state: pair[1].1.to_string(),
            reason: format!("overlaps state `{}`", pair[0].1),
        }),
        None => Ok(()),
    }
}

/// Every offloaded value has pages of its tier to itself, above the states' and below its end.
pub(super) fn check_offloaded(set: &PlanSet, plan: &ExecutionPlan) -> Result<(), String> {
    let end = |offset: u64, bytes: usize| {
        offset.checked_add(bytes as u64).and_then(|end| end.checked_next_multiple_of(TIER_ALIGNMENT))
    };
    let states_end = PerTier::<u64>::from_fn(|tier| {
        let ends = set.states.iter().filter_map(|s| match s.home {
            StateHome::Offloaded { tier: has, offset } if has == tier => end(offset, s.ty.bytes()),
            _ => None,
        });
        ends.max().unwrap_or(0)
    });
    let mut ranges = PerTier::<Vec<Range<u64>>>::default();
    for (i, offloaded) in plan.offloaded.iter().enumerate() {
        if offloaded.value.index() >= plan.graph.value_count() {
            return Err(format!("offloaded value {i} does not exist"));
        }
        if !offloaded.offset.is_multiple_of(TIER_ALIGNMENT) {
            return Err(format!("offloaded value {i} starts at {}, which is not aligned", offloaded.offset));
        }
        let tier = offloaded.tier;
        match end(offloaded.offset, plan.graph.ty(offloaded.value).bytes()) {
            Some(end) if offloaded.offset >= states_end[tier] && end <= set.tier_bytes[tier] => {
                ranges[tier].push(offloaded.offset..end);
            }
            _ => {
                let tier = tier.name();
                return Err(format!("offloaded value {i} lies among the states or outside {tier}"));
            }
        }
    }
    for tier in Tier::ALL {
        let ranges = &mut ranges[tier];
        ranges.sort_by_key(|range| range.start);
        if let Some(pair) = ranges.windows(2).find(|pair| pair[0].end > pair[1].start) {
            return Err(format!("two offloaded values share byte {} of {}", pair[1].start, tier.name()));
        }
    }
    Ok(())
}

/// A buffer is aligned, inside the arena, and has the bytes and the offset that its kind asks for.
pub(super) fn check_buffer(
    set: &PlanSet,
    plan: &ExecutionPlan,
    id: usize,
    buffer: &Buffer,
) -> Result<(), VerifyError> {
    let graph = &plan.graph;
    let malformed = |reason: String| {
        let reason = format!("buffer {id}, {}: {reason}", name_of(plan, buffer));
        Err(VerifyError::Malformed { plan: plan.name.clone(), reason })
    };
    if buffer.value.is_some_and(|v| v.index() >= graph.value_count()) {
        let reason = format!("buffer {id} is for a value that does not exist");
        return Err(VerifyError::Malformed { plan: plan.name.clone(), reason });
    }
    if !buffer.offset.is_multiple_of(set.alignment) {
        return Err(VerifyError::Unaligned {
            plan: plan.name.clone(),
            buffer: name_of(plan, buffer),
            offset: buffer.offset,
            alignment: set.alignment,
        });
    }
    if buffer.offset.checked_add(buffer.bytes).is_none_or(|end| end > set.arena_bytes) {
        return malformed("ends outside the arena".to_string());
    }
    if buffer.first > buffer.last || buffer.last > plan.steps.len().saturating_sub(1) {
        return malformed(format!("is live from step {} to {}", buffer.first, buffer.last));
    }
    let (bytes, stride) = match buffer.kind {
        BufferKind::State(i) => {
            let Some(state) = set.states.get(i) else {
                return malformed("there is no such state".to_string());
            };
            let own = buffer.value.and_then(|v| match graph.origin(v) {
                Origin::State(i) => graph.states.get(i),
                _ => None,
            });
            if own.is_none_or(|s| s.name != state.name || *graph.ty(s.input) != state.ty) {
                return malformed("the graph's state is another".to_string());
            }
            if state.home != StateHome::Arena(buffer.offset) {
                return Err(VerifyError::StatePlace {
                    plan: plan.name.clone(),
                    state: state.name.clone(),
                    reason: format!("lies at {} instead of {:?}", buffer.offset, state.home),
                });
            }
            (state.ty.bytes(), 0)
        }
        BufferKind::Input(i) => {
            let Some(input) = graph.inputs.get(i) else {
                return malformed("there is no such input".to_string());
            };
            let slice = graph.ty(input.value).bytes();
            if input.batched && graph.micro_batches > 1 {
                (slice * graph.micro_batches, slice)
            } else {
                (slice, 0)
            }
        }
        BufferKind::Accumulator(i) => {
            let Some(accumulator) = graph.accumulators.get(i) else {
                return malformed("there is no such accumulator".to_string());
            };
            (graph.ty(accumulator.input).bytes(), 0)
        }
        BufferKind::Value => (buffer.value.map_or(0, |v| graph.ty(v).bytes()), 0),
        BufferKind::Workspace => (buffer.bytes, 0),
    };
    if (buffer.bytes, buffer.micro_stride) != (bytes, stride) {
        let found = (buffer.bytes, buffer.micro_stride);
        return malformed(format!("bytes and stride are {found:?} instead of {:?}", (bytes, stride)));
    }
    Ok(())
}

/// Every state, input and accumulator of the graph has exactly one buffer.
pub(super) fn check_once(set: &PlanSet, plan: &ExecutionPlan) -> Result<(), String> {
    let graph = &plan.graph;
    let mut counts =
        (vec![0; set.states.len()], vec![0; graph.inputs.len()], vec![0; graph.accumulators.len()]);
    for buffer in &plan.buffers {
        match buffer.kind {
            BufferKind::State(i) => counts.0[i] += 1,
            BufferKind::Input(i) => counts.1[i] += 1,
            BufferKind::Accumulator(i) => counts.2[i] += 1,
            BufferKind::Value | BufferKind::Workspace => {}
        }
    }
    let index: BTreeMap<&str, usize> =
        set.states.iter().enumerate().map(|(i, s)| (s.name.as_str(), i)).collect();
    let in_arena = |i: usize| usize::from(matches!(set.states[i].home, StateHome::Arena(_)));
    let has_one = |name: &str| index.get(name).is_some_and(|&i| counts.0[i] == in_arena(i));
    if let Some(state) = graph.states.iter().find(|s| !has_one(&s.name)) {
        return Err(format!("state `{}` does not have one buffer", state.name));
    }
    if let Some(i) = counts.1.iter().position(|&n| n != 1) {
        return Err(format!("input `{}` does not have one buffer", graph.inputs[i].name));
    }
    match counts.2.iter().position(|&n| n != 1) {
        Some(i) => Err(format!("accumulator {i} does not have one buffer")),
        None => Ok(()),
    }
}

/// No two buffers share a byte in a step in which both are live. A sweep over the steps compares each buffer that becomes
/// live with those that are.
pub(super) fn check_overlaps(plan: &ExecutionPlan) -> Result<(), VerifyError> {
    let mut by_first: Vec<&Buffer> = plan.buffers.iter().filter(|b| b.bytes > 0).collect();
    let mut by_last = by_first.clone();
    by_first.sort_by_key(|b| b.first);
    by_last.sort_by_key(|b| b.last);
    let mut ending = by_last.into_iter().peekable();
    let mut live: BTreeMap<usize, &Buffer> = BTreeMap::new();
    for buffer in by_first {
        while let Some(dead) = ending.next_if(|b| b.last < buffer.first) {
            live.remove(&dead.offset);
        }
        // Live buffers do not overlap, so only the highest that starts below this one's end can reach into it.
        let highest = live.range(..buffer.offset + buffer.bytes).next_back();
        if let Some((_, other)) = highest.filter(|(start, b)| *start + b.bytes > buffer.offset) {
            let (first, second) =
                if other.offset <= buffer.offset { (*other, buffer) } else { (buffer, *other) };
            return Err(VerifyError::Overlap {
                plan: plan.name.clone(),
                step: buffer.first,
                first: name_of(plan, first),
                second: name_of(plan, second),
            });
        }
        live.insert(buffer.offset, buffer);
    }
    Ok(())
}
