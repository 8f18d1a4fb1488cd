//! Plans under a line: rematerialization, offload and chunked updates.

use super::training::perceptron;
use super::{Choices, FOLD, LCG_START, random_graph, tier_sets, ty};
use crate::choice::{TEST_DISK, plan_offloaded};
use crate::{Action, Budget, Link, NullTarget, PlanError, PlanSet, Tiers, plan, verify};
use plimsoll_graph::{Builder, Graph, Init, Role};

/// A disk's link.
const SLOW_LINK: Link = Link {
    load_ns_per_mib: 500_000,
    store_ns_per_mib: 500_000,
    latency_ns: 0,
    single_request_ns: 0,
    request_cpu_ns: 0,
};

fn plan_under(graph: &Graph, line_bytes: usize, tiers: Option<Tiers>) -> Result<PlanSet, PlanError> {
    let budget = Budget { rematerialize: true, ..Budget::new(line_bytes, Vec::new()) };
    let budget = tiers.map_or_else(|| budget.clone(), |tiers| budget.clone().offload_to(tiers));
    let plans = plan(&[("train".to_string(), graph.clone())], &NullTarget::default(), &budget)?;
    assert_eq!(verify(&plans), Ok(()), "under {line_bytes}");
    assert!(plans.arena_bytes <= line_bytes);
    Ok(plans)
}

fn needed(result: Result<PlanSet, PlanError>) -> usize {
    let Err(PlanError::Infeasible(infeasible)) = result else { panic!("it fits") };
    infeasible.needed_bytes
}

/// Runs of nodes beyond the first of each.
fn rematerialized_runs(plans: &PlanSet) -> usize {
    let mut ran = vec![false; plans.plans[0].graph.nodes.len()];
    let runs = plans.plans[0].steps.iter().filter_map(|step| match step.action {
        Action::Run { node, .. } => Some(std::mem::replace(&mut ran[node.index()], true)),
        _ => None,
    });
    runs.filter(|rematerialized| *rematerialized).count()
}

#[test]
fn rematerializes_under_a_line_down_to_the_smallest() {
    let graph = perceptron(16, 256, 64, true);
    let whole = plan_under(&graph, usize::MAX, None).unwrap();
    let smallest = needed(plan_under(&graph, 0, None));
    assert!(smallest * 10 < whole.arena_bytes * 8, "{smallest} of {}", whole.arena_bytes);
    let mut last = u64::MAX;
    for line in [smallest, (smallest + whole.arena_bytes) / 2, whole.arena_bytes - 1, whole.arena_bytes] {
        let plans = plan_under(&graph, line, None).unwrap();
        assert!(plans.plans[0].nanoseconds <= last, "more memory took more time at {line}");
        assert_eq!(rematerialized_runs(&plans) > 0, line < whole.arena_bytes, "{line}");
        last = plans.plans[0].nanoseconds;
    }
    assert!(needed(plan_under(&graph, smallest - 1, None)) <= smallest);
}

#[test]
fn offloads_states_that_do_not_fit() {
    let graph = perceptron(8, 16, 256, true);
    let disk = Tiers::disk(SLOW_LINK, 10_000);
    let whole = plan_under(&graph, usize::MAX, Some(disk)).unwrap();
    assert_eq!(whole.tier_bytes.sum(), 0, "what fits is not offloaded");
    let states: usize = whole.states.iter().map(|s| s.ty.bytes()).sum();
    for part in [90, 60, 40, 25] {
        let plans = plan_under(&graph, states * part / 100, Some(disk)).unwrap();
        assert!(plans.tier_bytes.file > 0 && plans.arena_bytes < states, "{part} %");
        let count = |wanted: fn(&Action) -> bool| {
            plans.plans[0].steps.iter().filter(|s| wanted(&s.action)).count() as u64
        };
        let kernel = 256 * 256 * 4;
        assert_eq!(count(|a| matches!(a, Action::Store { .. })), plans.tier_bytes.file / kernel, "{part} %");
        assert!(count(|a| matches!(a, Action::Load { .. })) >= plans.tier_bytes.file / kernel, "{part} %");
        assert!(plans.plans[0].nanoseconds > whole.plans[0].nanoseconds);
        let staging = plans.sheet.outside.iter().find(|e| e.name == "spill staging").unwrap();
        assert_eq!(staging.bytes, 10_000);
    }
}

/// A kernel, its gradient and a moment of 2 MiB each.
pub(super) fn heavy() -> Graph {
    let mut b = Builder::new(4, 4);
    let (x, y) = (b.batch_input("x", ty("f32[4,512]")), b.batch_input("y", ty("f32[4,1024]")));
    let state = |b: &mut Builder, name: &str, role| {
        b.named_state(name.into(), ty("f32[512,1024]"), role, Init::Zeros)
    };
    let (kernel, moment) = (state(&mut b, "kernel", Role::Parameter), state(&mut b, "moment", Role::Moment));
    let gradient = b.one(FOLD, &[x, y]).unwrap();
    let new = b.add(moment, gradient).unwrap();
    b.set_state(moment, new);
    let new = b.sub(kernel, gradient).unwrap();
    b.set_state(kernel, new);
    b.finish().unwrap()
}

#[test]
fn updates_states_in_chunks_where_they_do_not_fit_whole() {
    let disk = Tiers::disk(SLOW_LINK, 0);
    let graph = heavy();
    let chunked_updates = |plans: &PlanSet| {
        let is = |s: &&crate::Step| matches!(s.action, Action::ChunkedUpdate { .. });
        plans.plans[0].steps.iter().filter(is).count()
    };
    // The gradient and one whole state; then the gradient and two chunks of one.
    let whole = plan_under(&graph, 5 << 20, Some(disk)).unwrap();
    assert_eq!((chunked_updates(&whole), whole.plans[0].stored_bytes(&whole.states).file), (0, 4 << 20));
    let lower = plan_under(&graph, (2 << 20) + (3 << 19), Some(disk)).unwrap();
    assert_eq!((chunked_updates(&lower), lower.plans[0].stored_bytes(&lower.states).file), (2, 4 << 20));
    assert_eq!(lower.predict(0, &NullTarget::default(), &disk), Ok(lower.plans[0].nanoseconds));
    assert_eq!(needed(plan_under(&graph, 2 << 20, Some(disk))), 3 << 20);
}

/// A state's new version that is offloaded until its other reader runs is still computed once.
#[test]
fn an_offloaded_new_version_is_not_rematerialized() {
    let graph = random_graph(109 ^ LCG_START, 22, 2);
    let batches = [("test".to_string(), graph)];
    let target = NullTarget { workspace: 100, ..NullTarget::default() };
    let plans = {
        let tiers = Tiers::disk(TEST_DISK, 0);
        plan_offloaded(&batches, &target, tiers, u64::MAX, 2944, true, usize::MAX).unwrap()
    };
    assert_eq!(verify(&plans), Ok(()));
}

#[test]
fn plans_of_random_graphs_with_offload_pass_verify() {
    let mut values = 0;
    for seed in 0..400 {
        let graph = random_graph(seed, 3 + (seed % 30) as usize, 1 + (seed % 3) as usize);
        let batches = [("test".to_string(), graph)];
        let target = NullTarget { workspace: (seed % 2) as usize * 100, ..NullTarget::default() };
        let tiers = tier_sets()[seed as usize % 3];
        for offloaded in [u64::MAX, 0b10, 0b110, seed] {
            let plans =
                plan_offloaded(&batches, &target, tiers, offloaded, usize::MAX, false, usize::MAX).unwrap();
            assert_eq!(verify(&plans), Ok(()), "seed {seed}, {offloaded:b}\n{}", batches[0].1);
            for (part, rematerialize) in [(3, false), (2, false), (2, true)] {
                let limit = plans.arena_bytes / 4 * part;
                let plans =
                    plan_offloaded(&batches, &target, tiers, offloaded, limit, rematerialize, usize::MAX)
                        .unwrap();
                assert_eq!(verify(&plans), Ok(()), "seed {seed}, {offloaded:b}, {limit}\n{}", batches[0].1);
                let predicted = plans.predict(0, &target, &tiers);
                assert_eq!(predicted, Ok(plans.plans[0].nanoseconds), "seed {seed}, {offloaded:b}, {limit}");
                values += plans.plans[0].offloaded.len();
            }
        }
    }
    assert!(values > 1000, "{values} values were offloaded");
}

#[test]
fn plans_of_random_graphs_stay_under_their_line() {
    for seed in 0..400 {
        let graph = random_graph(seed, 3 + (seed % 40) as usize, 1 + (seed % 3) as usize);
        let whole = plan_under(&graph, usize::MAX, None).unwrap().arena_bytes;
        if let Err(PlanError::Infeasible(infeasible)) = plan_under(&graph, whole * 2 / 3, None) {
            let plans = plan_under(&graph, infeasible.needed_bytes, None);
            assert!(plans.is_ok(), "seed {seed}: the line said to be needed does not suffice");
        }
    }
}

#[test]
fn plans_of_perceptrons_stay_under_random_lines() {
    let mut choices = Choices::new(5);
    for _ in 0..20 {
        let (layers, examples, width) = (3 + choices.below(8), 8 << choices.below(5), 8 + choices.below(24));
        let graph = perceptron(layers, examples, width, true);
        let whole = plan_under(&graph, usize::MAX, None).unwrap().arena_bytes;
        let smallest = needed(plan_under(&graph, 0, None));
        assert!(smallest < whole);
        let plans = plan_under(&graph, smallest + choices.below(whole - smallest), None).unwrap();
        assert!(rematerialized_runs(&plans) > 0);
    }
}

/// Plans on a grid of lines up to the unlimited peak: once one fits, all above it fit, and none takes more time.
fn assert_monotonic(what: &str, graph: &Graph, lines: usize) {
    let whole = plan_under(graph, usize::MAX, None).unwrap().arena_bytes;
    let mut lower: Option<(usize, u64)> = None;
    for line in (lines / 4..=lines).map(|part| whole * part / lines) {
        match (plan_under(graph, line, None), lower) {
            (Ok(plans), _) => {
                let time = plans.plans[0].nanoseconds;
                let (below, least) = lower.unwrap_or((0, u64::MAX));
                assert!(time <= least, "{what}: {time} ns under {line} bytes, {least} under {below}");
                lower = Some((line, time));
            }
            (Err(_), None) => {}
            (Err(error), Some((below, _))) => panic!("{what}: {below} bytes suffice, {line} do not: {error}"),
        }
    }
    assert!(lower.is_some(), "{what}: nothing fits");
}

#[test]
fn more_memory_never_takes_more_time_or_becomes_infeasible() {
    for seed in 0..150 {
        let graph = random_graph(seed, 3 + (seed % 40) as usize, 1 + (seed % 3) as usize);
        assert_monotonic(&format!("seed {seed}"), &graph, 16);
    }
    for (layers, examples, width) in [(4, 64, 24), (7, 16, 10), (10, 128, 16)] {
        let graph = perceptron(layers, examples, width, true);
        assert_monotonic(&format!("{layers} × {width}, {examples}"), &graph, 20);
    }
}
