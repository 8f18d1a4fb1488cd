//! Everything that can be checked without simulating a plan: its structure, where things are placed, peaks, the sheet.

use super::{VerifyError, exchange, placement, structure};
use crate::{BufferKind, ExecutionPlan, LoadSheet, PlanSet};
use placement::state_range;

pub(super) fn check(set: &PlanSet) -> Result<(), VerifyError> {
    if set.alignment == 0 {
        let reason = "the alignment is 0".to_string();
        return Err(VerifyError::Malformed { plan: String::new(), reason });
    }
    placement::check_states(set)?;
    for plan in &set.plans {
        let malformed = |reason: String| VerifyError::Malformed { plan: plan.name.clone(), reason };
        plan.graph.check().map_err(|e| malformed(e.to_string()))?;
        structure::check(set, plan).map_err(malformed)?;
        placement::check_offloaded(set, plan).map_err(malformed)?;
        for (id, buffer) in plan.buffers.iter().enumerate() {
            placement::check_buffer(set, plan, id, buffer)?;
        }
        placement::check_once(set, plan).map_err(malformed)?;
        exchange::check(plan).map_err(malformed)?;
        placement::check_overlaps(plan)?;
        check_peaks(set, plan)?;
    }
    let largest_peak = set.plans.iter().map(|p| p.peak_bytes).max().unwrap_or(0);
    if set.arena_bytes != largest_peak {
        return Err(VerifyError::Arena { arena_bytes: set.arena_bytes, largest_peak });
    }
    Ok(())
}

/// The peak is the end of the highest buffer, and live bytes are what the lifetimes sum to.
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
