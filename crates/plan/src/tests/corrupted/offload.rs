//! Chunked updates and offloaded values.

use super::corrupted;
use crate::tests::lines::heavy;
use crate::tests::training::perceptron;
use crate::{
    Action, Budget, BufferId, Entry, ExecutionPlan, Link, NullTarget, PlanSet, Step, Tier, Tiers,
    VerifyError, plan, verify,
};

fn fast_disk() -> Tiers {
    Tiers::disk(Link { load_ns_per_mib: 1, store_ns_per_mib: 1, ..Link::default() }, 0)
}

/// A plan with chunked updates.
fn chunked() -> PlanSet {
    let budget = Budget::new(7 << 19, vec![Entry::new("code", 1_000, "")]).offload_to(fast_disk());
    let batches = [("train".to_string(), heavy())];
    let mut plans = plan(&batches, &NullTarget { workspace: 128, ..NullTarget::default() }, &budget).unwrap();
    assert_eq!(verify(&plans), Ok(()));
    plans.sheet.outside.truncate(1);
    plans
}

fn chunked_update(plan: &mut ExecutionPlan) -> (usize, &mut Action) {
    let at = plan.steps.iter().position(|s| matches!(s.action, Action::ChunkedUpdate { .. })).unwrap();
    (at, &mut plan.steps[at].action)
}

#[test]
fn reports_malformed_chunked_updates() {
    type Operands = Vec<Option<BufferId>>;
    let changed = |change: fn(&mut Operands, &mut Operands, &mut usize)| {
        corrupted(chunked(), |plan| {
            let (_, Action::ChunkedUpdate { reads, writes, chunk_elements, .. }) = chunked_update(plan)
            else {
                panic!()
            };
            change(reads, writes, chunk_elements);
        })
    };
    assert_error!(changed(|_, _, chunk_elements| *chunk_elements = 0), VerifyError::Malformed { .. });
    assert_error!(changed(|_, _, chunk_elements| *chunk_elements = 1000), VerifyError::Malformed { .. });
    assert_error!(changed(|reads, _, _| reads.swap(0, 1)), VerifyError::Malformed { .. });
    assert_error!(changed(|reads, _, _| reads.fill(None)), VerifyError::Malformed { .. });
    assert_error!(changed(|_, writes, _| writes.clear()), VerifyError::Malformed { .. });
    assert_error!(
        corrupted(chunked(), |plan| {
            let (at, _) = chunked_update(plan);
            let again = plan.steps[at].clone();
            plan.steps.insert(at + 1, again);
            plan.buffers.iter_mut().filter(|b| b.last >= at).for_each(|b| b.last += 1);
            plan.buffers.iter_mut().filter(|b| b.first > at).for_each(|b| b.first += 1);
        }),
        VerifyError::Runs { .. }
    );
}

#[test]
fn reports_malformed_offloaded_values() {
    let offloaded = || {
        let outside = vec![Entry::new("code", 1_000, "")];
        let graph = perceptron(6, 4096, 16, true);
        let whole = plan(
            &[("train".to_string(), graph.clone())],
            &NullTarget { workspace: 128, ..NullTarget::default() },
            &Budget::new(1 << 40, Vec::new()),
        );
        let line_bytes = whole.unwrap().arena_bytes * 3 / 4;
        let budget = Budget::new(line_bytes, outside).offload_to(fast_disk());
        let batches = [("train".to_string(), graph)];
        let mut plans =
            plan(&batches, &NullTarget { workspace: 128, ..NullTarget::default() }, &budget).unwrap();
        assert_eq!(verify(&plans), Ok(()));
        assert!(plans.plans[0].offloaded.len() > 1);
        plans.sheet.outside.truncate(1);
        plans
    };
    assert_error!(
        corrupted(offloaded(), |plan| plan.offloaded[1].offset = plan.offloaded[0].offset),
        VerifyError::Malformed { .. }
    );
    assert_error!(
        corrupted(offloaded(), |plan| plan.offloaded[0].offset += 1),
        VerifyError::Malformed { .. }
    );
    assert_error!(
        corrupted(offloaded(), |plan| plan.offloaded[0].offset = 1 << 40),
        VerifyError::Malformed { .. }
    );
    assert_error!(corrupted(offloaded(), |plan| plan.offloaded.clear()), VerifyError::Malformed { .. });
    assert_error!(
        corrupted(offloaded(), |plan| plan.offloaded[0].tier = Tier::Host),
        VerifyError::Malformed { .. }
    );
    assert_error!(
        corrupted(offloaded(), |plan| {
            let mut steps = plan.steps.iter_mut();
            let store = steps.find(|s| matches!(s.action, Action::Store { .. })).unwrap();
            let Action::Store { tier, .. } = &mut store.action else { panic!() };
            *tier = Tier::Host;
        }),
        VerifyError::Malformed { .. }
    );
    // A load before its store.
    assert_error!(
        corrupted(offloaded(), |plan| {
            let store = plan.steps.iter().position(|s| matches!(s.action, Action::Store { .. })).unwrap();
            let Action::Store { what, tier, .. } = plan.steps[store].action else { panic!() };
            let is = |s: &Step| matches!(s.action, Action::Load { what: loaded, .. } if loaded == what);
            let load = plan.steps.iter().position(is).unwrap();
            let Action::Load { to, .. } = plan.steps[load].action else { panic!() };
            plan.steps[store].action = Action::Load { what, tier, to };
            plan.buffers[to.index()].first = store;
        }),
        VerifyError::Read { .. } | VerifyError::Overlap { .. }
    );
}
