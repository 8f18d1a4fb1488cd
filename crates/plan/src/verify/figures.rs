//! Everything that can be checked without running a plan: ids, sizes, alignment, lifetimes, peaks, the sheet.

use super::VerifyError;
use super::memory::overlap;
use crate::{
    Action, Buffer, BufferId, BufferKind, ExecutionPlan, LoadSheet, Offloaded, PlanSet, SPILL_ALIGNMENT,
    StateHome,
};
use plimsoll_graph::{NodeId, Op, Origin, State, ValueId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

pub(super) fn check(set: &PlanSet) -> Result<(), VerifyError> {
    if set.alignment == 0 {
        let reason = "the alignment is 0".to_string();
        return Err(VerifyError::Malformed { plan: String::new(), reason });
    }
    check_states(set)?;
    for plan in &set.plans {
        let malformed = |reason: String| VerifyError::Malformed { plan: plan.name.clone(), reason };
        plan.graph.check().map_err(|e| malformed(e.to_string()))?;
        check_ids(set, plan).map_err(malformed)?;
        check_spilled(set, plan).map_err(malformed)?;
        for (id, buffer) in plan.buffers.iter().enumerate() {
            check_buffer(set, plan, id, buffer)?;
        }
        check_once(set, plan).map_err(malformed)?;
        check_overlaps(plan)?;
        check_peaks(set, plan)?;
    }
    let largest_peak = set.plans.iter().map(|p| p.peak_bytes).max().unwrap_or(0);
    if set.arena_bytes != largest_peak {
        return Err(VerifyError::Arena { arena_bytes: set.arena_bytes, largest_peak });
    }
    Ok(())
}

/// The bytes a state takes in the arena; none if it lies in the spill file.
pub(super) fn state_range(set: &PlanSet, state: usize) -> Range<usize> {
    match set.states[state].home {
        StateHome::Arena(offset) => offset..offset + set.states[state].ty.bytes(),
        StateHome::File(_) => 0..0,
    }
}

/// A buffer, in words.
pub(super) fn name_of(plan: &ExecutionPlan, buffer: &Buffer) -> String {
    let kind = match buffer.kind {
        BufferKind::State(i) => format!("state {i}"),
        BufferKind::Input(i) => format!("input {i}"),
        BufferKind::Accumulator(i) => format!("running sum {i}"),
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

fn check_states(set: &PlanSet) -> Result<(), VerifyError> {
    let mut ranges: Vec<(Range<usize>, &str)> = Vec::new();
    let mut files: Vec<(Range<usize>, &str)> = Vec::new();
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
            StateHome::File(offset) if !offset.is_multiple_of(SPILL_ALIGNMENT) => {
                return Err(wrong(format!("starts at {offset} of the spill file, which is not aligned")));
            }
            StateHome::File(offset)
                if offset.checked_add(bytes as u64).is_none_or(|end| end > set.spill_bytes) =>
            {
                return Err(wrong("ends outside the spill file".to_string()));
            }
            StateHome::Arena(_) => ranges.push((state_range(set, i), &state.name)),
            StateHome::File(offset) => {
                // As far as its last page: whole pages are written.
                let end = (offset + bytes as u64).next_multiple_of(SPILL_ALIGNMENT);
                files.push((offset as usize..end as usize, &state.name));
            }
        }
        if !names.insert(&state.name) {
            return Err(wrong("is there twice".to_string()));
        }
    }
    check_apart(ranges)?;
    check_apart(files)
}

/// No two of these share a byte.
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

/// Every spilled value has pages of the file to itself, above the states' and below its end.
fn check_spilled(set: &PlanSet, plan: &ExecutionPlan) -> Result<(), String> {
    let end = |offset: u64, bytes: usize| {
        offset.checked_add(bytes as u64).and_then(|end| end.checked_next_multiple_of(SPILL_ALIGNMENT))
    };
    let states = set.states.iter().filter_map(|s| match s.home {
        StateHome::File(offset) => end(offset, s.ty.bytes()),
        StateHome::Arena(_) => None,
    });
    let states_end = states.max().unwrap_or(0);
    let mut ranges = Vec::new();
    for (i, offloaded) in plan.offloaded.iter().enumerate() {
        if offloaded.value.index() >= plan.graph.value_count() {
            return Err(format!("spilled value {i} does not exist"));
        }
        if !offloaded.offset.is_multiple_of(SPILL_ALIGNMENT) {
            return Err(format!("spilled value {i} starts at {}, which is not aligned", offloaded.offset));
        }
        match end(offloaded.offset, plan.graph.ty(offloaded.value).bytes()) {
            Some(end) if offloaded.offset >= states_end && end <= set.spill_bytes => {
                ranges.push(offloaded.offset..end);
            }
            _ => return Err(format!("spilled value {i} lies among the states or outside the spill file")),
        }
    }
    ranges.sort_by_key(|range| range.start);
    match ranges.windows(2).find(|pair| pair[0].end > pair[1].start) {
        Some(pair) => Err(format!("two spilled values share byte {} of the spill file", pair[1].start)),
        None => Ok(()),
    }
}

/// Every id names something, and every step has as many operands as its node.
fn check_ids(set: &PlanSet, plan: &ExecutionPlan) -> Result<(), String> {
    let exists = |b: BufferId| match plan.buffers.get(b.index()) {
        Some(_) => Ok(()),
        None => Err(format!("there is no buffer {}", b.index())),
    };
    for (i, step) in plan.steps.iter().enumerate() {
        match &step.action {
            Action::Run { node, reads, writes, workspace } => {
                let Some(found) = plan.graph.nodes.get(node.index()) else {
                    return Err(format!("step {i} runs node {}, which does not exist", node.index()));
                };
                let counts = (reads.len(), writes.len());
                let wanted = (found.inputs.len() + found.accumulate.len(), found.outputs.len());
                if counts != wanted {
                    return Err(format!(
                        "step {i} has {counts:?} operands, {} takes {wanted:?}",
                        found.op.name()
                    ));
                }
                reads.iter().chain(writes).chain(workspace).try_for_each(|&b| exists(b))?;
            }
            Action::ChunkedUpdate { node, reads, writes, workspace, chunk_elements } => {
                check_stream(set, plan, *node, reads, writes, *chunk_elements)
                    .map_err(|e| format!("step {i} {e}"))?;
                let buffers = reads.iter().chain(writes).flatten().chain([workspace]);
                buffers.copied().try_for_each(exists)?;
            }
            Action::Copy { value, from, to } => {
                if value.index() >= plan.graph.value_count() {
                    return Err(format!("step {i} copies {value}, which does not exist"));
                }
                exists(*from).and_then(|()| exists(*to))?;
            }
            Action::Load { what: Offloaded::Value(value), to: buffer }
            | Action::Store { what: Offloaded::Value(value), from: buffer } => {
                if *value >= plan.offloaded.len() {
                    return Err(format!("step {i} moves spilled value {value}, which does not exist"));
                }
                exists(*buffer)?;
            }
            Action::Load { what: Offloaded::State(state), to: buffer }
            | Action::Store { what: Offloaded::State(state), from: buffer } => {
                let placed = set.states.get(*state);
                if !placed.is_some_and(|s| matches!(s.home, StateHome::File(_))) {
                    return Err(format!("step {i} moves state {state}, which is not in the spill file"));
                }
                let known = placed.is_some_and(|p| plan.graph.states.iter().any(|s| s.name == p.name));
                if !known {
                    return Err(format!("step {i} moves state {state}, which the graph does not have"));
                }
                exists(*buffer)?;
            }
        }
    }
    if plan.outputs.len() != plan.graph.outputs.len() {
        return Err(format!(
            "{} outputs are placed, the graph has {}",
            plan.outputs.len(),
            plan.graph.outputs.len()
        ));
    }
    plan.outputs.iter().try_for_each(|&b| exists(b))
}

/// Only an elementwise node runs in pieces, of whole pages; what has no buffer is a state in the spill file that it alone
/// reads, and its new version.
fn check_stream(
    set: &PlanSet,
    plan: &ExecutionPlan,
    id: NodeId,
    reads: &[Option<BufferId>],
    writes: &[Option<BufferId>],
    chunk_elements: usize,
) -> Result<(), String> {
    let graph = &plan.graph;
    let Some(node) = graph.nodes.get(id.index()) else {
        return Err(format!("runs node {}, which does not exist", id.index()));
    };
    let elements = node.outputs.first().map_or(0, |v| graph.ty(*v).shape.elements());
    let cut = |v: &ValueId| graph.ty(*v).shape.elements() == elements;
    let whole = |v: &ValueId| graph.ty(*v).shape.is_empty();
    let local = matches!(node.op, Op::Elementwise(_) | Op::Fused(_)) && node.accumulate.is_empty();
    if !local || !node.outputs.iter().all(cut) || !node.inputs.iter().all(|v| cut(v) || whole(v)) {
        return Err(format!("cuts {} of `{}` into pieces", node.op.name(), node.layer));
    }
    if (reads.len(), writes.len()) != (node.inputs.len(), node.outputs.len()) {
        return Err(format!("has {} and {} operands", reads.len(), writes.len()));
    }
    if chunk_elements == 0 || !chunk_elements.is_multiple_of(SPILL_ALIGNMENT as usize) {
        return Err(format!("has pieces of {chunk_elements} elements"));
    }
    let in_file =
        |name: &str| set.states.iter().any(|s| s.name == name && matches!(s.home, StateHome::File(_)));
    let chunked: Vec<&State> = (node.inputs.iter().zip(reads))
        .filter(|(_, buffer)| buffer.is_none())
        .filter_map(|(v, _)| graph.states.iter().find(|s| s.input == *v && in_file(&s.name)))
        .collect();
    let unread = reads.iter().filter(|b| b.is_none()).count() - chunked.len();
    let mut rewritten = node.outputs.iter().zip(writes).filter(|(_, buffer)| buffer.is_none());
    let known = rewritten.all(|(v, _)| chunked.iter().any(|s| s.output == Some(*v)));
    if unread > 0 || !known || writes.iter().filter(|b| b.is_none()).count() != chunked.len() {
        return Err("has operands without a buffer that are not states passing through".to_string());
    }
    Ok(())
}

/// A buffer is aligned, inside the arena, and has the bytes and the place its kind asks for.
fn check_buffer(set: &PlanSet, plan: &ExecutionPlan, id: usize, buffer: &Buffer) -> Result<(), VerifyError> {
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
        return malformed(format!("is taken from step {} to {}", buffer.first, buffer.last));
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
                return malformed("there is no such sum".to_string());
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

/// Every state, input and running sum of the graph has exactly one buffer.
fn check_once(set: &PlanSet, plan: &ExecutionPlan) -> Result<(), String> {
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
        Some(i) => Err(format!("running sum {i} does not have one buffer")),
        None => Ok(()),
    }
}

/// No two buffers share a byte in a step in which both are taken: step by step, those that begin are held against those
/// that are there.
fn check_overlaps(plan: &ExecutionPlan) -> Result<(), VerifyError> {
    let mut by_first: Vec<&Buffer> = plan.buffers.iter().filter(|b| b.bytes > 0).collect();
    let mut by_last = by_first.clone();
    by_first.sort_by_key(|b| b.first);
    by_last.sort_by_key(|b| b.last);
    let mut ending = by_last.into_iter().peekable();
    let mut there: BTreeMap<usize, &Buffer> = BTreeMap::new();
    for buffer in by_first {
        while let Some(gone) = ending.next_if(|b| b.last < buffer.first) {
            there.remove(&gone.offset);
        }
        // They do not overlap each other, so only the highest that starts below this one's end can reach into it.
        let highest = there.range(..buffer.offset + buffer.bytes).next_back();
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
        there.insert(buffer.offset, buffer);
    }
    Ok(())
}

fn check_peaks(set: &PlanSet, plan: &ExecutionPlan) -> Result<(), VerifyError> {
    let states_end = (0..set.states.len()).map(|i| state_range(set, i).end).max().unwrap_or(0);
    let states_end = states_end.next_multiple_of(set.alignment);
    let end = plan.buffers.iter().map(|b| b.offset + b.bytes).fold(states_end, usize::max);
    let found = end.next_multiple_of(set.alignment);
    if plan.peak_bytes != found {
        return Err(VerifyError::Peak { plan: plan.name.clone(), stated: plan.peak_bytes, found });
    }
    let mut live = vec![states_end as i128; plan.steps.len().max(1)];
    let mut change = vec![0_i128; live.len() + 1];
    for buffer in plan.buffers.iter().filter(|b| !matches!(b.kind, BufferKind::State(_))) {
        let size = buffer.bytes.next_multiple_of(set.alignment) as i128;
        change[buffer.first] += size;
        change[buffer.last + 1] -= size;
    }
    let mut sum = 0;
    for (step, live) in live.iter_mut().enumerate() {
        sum += change[step];
        *live += sum;
    }
    let most = live.iter().copied().max().unwrap_or(0);
    if live.get(plan.peak_step) != Some(&most) || most != plan.live_bytes as i128 {
        return Err(VerifyError::Live {
            plan: plan.name.clone(),
            step: plan.peak_step,
            stated: plan.live_bytes,
            found: usize::try_from(most).unwrap_or(0),
        });
    }
    Ok(())
}

pub(super) fn check_sheet(set: &PlanSet, sheet: &LoadSheet) -> Result<(), String> {
    let sum = |entries: &[crate::Entry]| entries.iter().fold(0_usize, |sum, e| sum.saturating_add(e.bytes));
    if sheet.arena_bytes != set.arena_bytes {
        return Err(format!(
            "it accounts for an arena of {} bytes, not {}",
            sheet.arena_bytes, set.arena_bytes
        ));
    }
    if sum(&sheet.arena) != sheet.arena_bytes {
        return Err(format!("the arena's entries sum to {}, not {}", sum(&sheet.arena), sheet.arena_bytes));
    }
    if sum(&sheet.outside).saturating_add(sheet.arena_bytes) != sheet.total_bytes {
        return Err(format!("arena and outside are not {} together", sheet.total_bytes));
    }
    if sheet.total_bytes > sheet.line_bytes {
        return Err(format!("{} bytes are over the line of {}", sheet.total_bytes, sheet.line_bytes));
    }
    let stated = sheet.plans.iter().map(|r| (&r.name, r.peak_bytes, r.live_bytes));
    if !stated.eq(set.plans.iter().map(|p| (&p.name, p.peak_bytes, p.live_bytes))) {
        return Err("its rows are not those of the plans".to_string());
    }
    Ok(())
}
