//! Hazards: which transfers may be in flight while a step runs.

use super::{random_graph, tier_sets};
use crate::choice::plan_offloaded;
use crate::{
    Action, BufferId, BufferKind, ExecutionPlan, Link, NullTarget, PlanSet, Tier, Tiers, VerifyError, verify,
};
use std::ops::Range;

/// Plans of random graphs with offloaded states and values, under limits of every size.
fn offloaded(seeds: Range<u64>) -> impl Iterator<Item = PlanSet> {
    let target = NullTarget::default();
    seeds.flat_map(|seed| [1, 2, 4].map(|parts| (seed, parts))).filter_map(move |(seed, parts)| {
        let mut tiers = tier_sets()[seed as usize % 3];
        // So slow that a load is not hidden by the part of the optimizer step before it.
        for tier in Tier::ALL {
            tiers[tier].iter_mut().for_each(|spec| spec.link.load_ns_per_mib = 30_000_000);
        }
        let batches = [("train".to_string(), random_graph(seed, 30, parts))];
        let limit = if seed % 3 == 0 { 1 << 40 } else { 1 << (9 + seed % 5) };
        plan_offloaded(&batches, &target, tiers, seed ^ 0b1011, limit, false, usize::MAX).ok()
    })
}

fn place(plan: &ExecutionPlan, id: BufferId) -> Range<usize> {
    let buffer = &plan.buffers[id.index()];
    buffer.offset..buffer.offset + buffer.bytes
}

/// The bytes that a step reads, and those that it writes.
fn touched(plan: &ExecutionPlan, step: usize) -> [Vec<Range<usize>>; 2] {
    let places = |ids: Vec<BufferId>| ids.into_iter().map(|id| place(plan, id)).collect::<Vec<_>>();
    match plan.steps[step].action.clone() {
        Action::Run { reads, mut writes, workspace, .. } => {
            writes.extend(workspace);
            [places(reads), places(writes)]
        }
        Action::Copy { from, to, .. } => [places(vec![from]), places(vec![to])],
        Action::Load { .. } | Action::Store { .. } => [Vec::new(), Vec::new()],
        Action::ChunkedUpdate { .. } => unreachable!("these plans have no chunked updates"),
    }
}

fn overlaps(one: &Range<usize>, others: &[Range<usize>]) -> bool {
    others.iter().any(|other| one.start < other.end && other.start < one.end)
}

/// Checks every transfer against all steps that follow it in two consecutive runs. Returns the hazards found, and how
/// many of them are with a step of a later micro-batch or of the next run.
fn check(plan: &ExecutionPlan) -> (usize, usize) {
    let waits = plan.waits();
    let once: Vec<usize> = plan.execution_order().map(|(step, _)| step).collect();
    let twice: Vec<usize> = once.iter().chain(&once).copied().collect();
    let entering =
        plan.buffers.iter().filter(|b| matches!(b.kind, BufferKind::Input(_) | BufferKind::Accumulator(_)));
    let entering: Vec<Range<usize>> = entering.map(|b| b.offset..b.offset + b.bytes).collect();
    let (mut hazards, mut later) = (0, 0);
    for (at, &transfer) in twice.iter().enumerate() {
        let (moved, loads) = match plan.steps[transfer].action {
            Action::Load { to, .. } => (place(plan, to), true),
            Action::Store { from, .. } => (place(plan, from), false),
            _ => continue,
        };
        let is_waited_for = |step: usize| waits.steps[step].contains(&(transfer as u32));
        let mut done = false;
        for (next, &step) in twice.iter().enumerate().skip(at + 1) {
            if next == once.len() {
                done |= waits.entry.contains(&(transfer as u32));
                assert!(
                    done || !overlaps(&moved, &entering),
                    "{}: inputs over transfer {transfer}",
                    plan.name
                );
            }
            done |= is_waited_for(step);
            let [read, written] = touched(plan, step);
            if overlaps(&moved, &written) || (loads && overlaps(&moved, &read)) {
                assert!(done, "step {step} does not wait for transfer {transfer}");
                hazards += 1;
                later += usize::from(step <= transfer);
            }
            if done {
                break;
            }
        }
    }
    (hazards, later)
}

#[test]
fn steps_wait_for_every_hazard_in_all_micro_batches_and_in_the_next_run() {
    let (mut hazards, mut later, mut hoisted) = (0, 0, 0);
    for plans in offloaded(0..150) {
        verify(&plans).unwrap();
        for plan in &plans.plans {
            let (here, after) = check(plan);
            (hazards, later) = (hazards + here, later + after);
            let body = plan.steps.iter().rposition(|step| !step.optimizer_step).unwrap_or(0);
            hoisted += plan.steps[..body].iter().filter(|step| step.optimizer_step).count();
        }
    }
    // There are hazards, also with later micro-batches and runs, and loads of the optimizer step are hoisted out of it.
    assert!(hazards > 500 && later > 20 && hoisted > 5, "{hazards} {later} {hoisted}");
}

#[test]
fn the_body_runs_in_every_micro_batch_and_the_optimizer_step_once() {
    for plans in offloaded(0..20) {
        let plan = &plans.plans[0];
        let parts = plan.graph.micro_batches;
        let mut runs = vec![0; plan.steps.len()];
        let expected = plan.steps.iter().map(|step| if step.optimizer_step { 1 } else { parts });
        let expected: Vec<usize> = expected.collect();
        for (step, micro_batch) in plan.execution_order() {
            runs[step] += 1;
            let optimizer_step = plan.steps[step].optimizer_step;
            assert_eq!(micro_batch, if optimizer_step { 0 } else { runs[step] - 1 });
            assert!(
                !optimizer_step || runs[..step] == expected[..step],
                "the optimizer step runs in the last micro-batch, in order"
            );
        }
        assert_eq!(runs, expected);
    }
}

#[test]
fn only_loads_that_the_body_does_not_read_may_be_hoisted_out_of_the_optimizer_step() {
    let (mut loads, mut others) = (0, 0);
    for plans in offloaded(0..60).filter(|plans| plans.plans[0].graph.micro_batches > 1) {
        let body = plans.plans[0].steps.iter().rposition(|step| !step.optimizer_step).unwrap_or(0);
        let in_body = |at: &usize| !plans.plans[0].steps[*at].optimizer_step;
        let read_in_body = |at: &usize| match plans.plans[0].steps[*at].action {
            Action::Load { to, .. } => (at + 1..body).filter(&in_body).any(|next| {
                let [read, _] = touched(&plans.plans[0], next);
                read.contains(&place(&plans.plans[0], to))
            }),
            _ => true,
        };
        for at in (0..body).filter(in_body).filter(read_in_body) {
            let mut plans = plans.clone();
            plans.plans[0].steps[at].optimizer_step = true;
            let error = verify(&plans).unwrap_err();
            if matches!(plans.plans[0].steps[at].action, Action::Load { .. }) {
                assert!(matches!(error, VerifyError::Read { .. }), "{error}");
                loads += 1;
            } else {
                assert!(matches!(error, VerifyError::Phase { .. }), "{error}");
                others += 1;
            }
        }
    }
    assert!(loads > 10 && others > 10, "{loads} {others}");
}

#[test]
fn predictions_count_the_cpu_time_and_latency_of_requests() {
    let link = Link { latency_ns: 7, single_request_ns: 1 << 20, request_cpu_ns: 3, ..Link::default() };
    assert_eq!(
        [0, 5, 1 << 20, 1 << 30].map(|bytes| link.latency(bytes)),
        [7, 12, 7 + (1 << 20), 7 + (1 << 20)]
    );
    assert_eq!([0, 5, 1 << 20, (1 << 20) + 1].map(|bytes| link.request_cpu(bytes)), [0, 3, 3, 6]);
    let target = NullTarget::default();
    let mut waiting = 0;
    for plans in offloaded(0..30) {
        let plan = &plans.plans[0];
        let predict = |link| {
            let spec = crate::TierSpec { capacity_bytes: u64::MAX, link, staging_bytes: 0 };
            plans.predict(0, &target, &Tiers { host: Some(spec), file: Some(spec) }).unwrap()
        };
        let moves =
            |step: usize| matches!(plan.steps[step].action, Action::Load { .. } | Action::Store { .. });
        let requests = plan.execution_order().filter(|&(step, _)| moves(step)).count() as u64;
        let largest = plan.buffers.iter().map(|b| b.bytes).max().unwrap_or(0) as u64;
        // On a disk that takes no time nothing waits.
        let computing = predict(Link::default());
        assert_eq!(predict(Link { request_cpu_ns: 10, ..Link::default() }), computing + 10 * requests);
        let alone = predict(Link { single_request_ns: 1 << 20, ..Link::default() });
        assert!((computing..=predict(Link { latency_ns: largest, ..Link::default() })).contains(&alone));
        waiting += usize::from(alone > computing);
    }
    assert!(waiting > 10, "{waiting}");
}
