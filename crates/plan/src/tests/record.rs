//! Records of plans: they restore the same plans, and corrupted ones are rejected or harmless.

use super::lines::heavy;
use super::training::perceptron;
use super::{Choices, random_graph, tier_sets};
use crate::choice::plan_offloaded;
use crate::{
    Action, Budget, Entry, Fingerprint, Link, NullTarget, PlanRecord, PlanSet, RecordError, Tiers,
    plan_lowest, verify,
};
use plimsoll_graph::Graph;
use serde_json::Value;

const LINK: Link = Link {
    load_ns_per_mib: 500_000,
    store_ns_per_mib: 500_000,
    latency_ns: 0,
    single_request_ns: 0,
    request_cpu_ns: 0,
};
const DISK: Tiers = Tiers::disk(LINK, 10_000);

/// The record of plans, through its text form.
fn recorded(plans: &PlanSet) -> PlanRecord {
    let text = serde_json::to_string(&PlanRecord::of(plans)).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn restores_plans_of_random_graphs() {
    for seed in 0..200 {
        let graph = random_graph(seed, 3 + (seed % 30) as usize, 1 + (seed % 3) as usize);
        let batches = [("test".to_string(), graph)];
        let target = NullTarget { workspace: (seed % 2) as usize * 100, ..NullTarget::default() };
        let tiers = tier_sets()[seed as usize % 3];
        let budget = Budget::new(usize::MAX, Vec::new()).offload_to(tiers);
        for (offloaded, limit, rematerialize) in
            [(0, usize::MAX, false), (seed, 1_000, true), (u64::MAX, 600, true)]
        {
            let plans = plan_offloaded(&batches, &target, tiers, offloaded, limit, rematerialize, usize::MAX)
                .unwrap();
            let restored = recorded(&plans).restore(&batches, &target, &budget);
            assert_eq!(restored, Ok(plans), "seed {seed}, {offloaded:b}\n{}", batches[0].1);
        }
    }
}

/// Graphs with plans of every kind: two batch types, rematerialization, offloaded states and values, chunked updates.
fn samples() -> Vec<(Vec<(String, Graph)>, Budget)> {
    let train = |graph| vec![("train".to_string(), graph)];
    let mut both = train(perceptron(6, 32, 16, true));
    both.push(("predict".to_string(), perceptron(6, 32, 16, false)));
    let budget = |line_bytes, tiers: Tiers| Budget {
        rematerialize: true,
        tiers,
        offload: !tiers.is_empty(),
        ..Budget::new(line_bytes, vec![Entry::new("code", 1_000, "")])
    };
    vec![
        (both.clone(), budget(usize::MAX, Tiers::default())),
        (both, budget(30_000, Tiers::default())),
        (train(perceptron(8, 16, 256, true)), budget(1 << 20, DISK)),
        (train(heavy()), budget((2 << 20) + (3 << 19) + 11_000, DISK)),
        (train(random_graph(5, 30, 3)), budget(2_000, DISK)),
    ]
}

#[test]
fn restores_with_the_load_sheet_of_another_budget() {
    let target = NullTarget { workspace: 100, ..NullTarget::default() };
    for (batches, budget) in samples() {
        let plans = plan_lowest(&batches, &target, &budget).unwrap();
        assert_eq!(recorded(&plans).restore(&batches, &target, &budget).as_ref(), Ok(&plans));
        // The same arena limit, with more memory outside.
        let mut more = budget.clone();
        more.line_bytes = budget.line_bytes.saturating_add(500);
        more.outside.push(Entry::new("names", more.line_bytes - budget.line_bytes, ""));
        let fingerprint = Fingerprint::new(&batches, &target);
        assert_eq!(fingerprint.key(&more), fingerprint.key(&budget));
        let restored = recorded(&plans).restore(&batches, &target, &more).unwrap();
        assert_eq!(Ok(restored), plan_lowest(&batches, &target, &more));
    }
}

/// The JSON pointers of all numbers and lists of a record.
fn pointers(value: &Value, pointer: &str, found: &mut Vec<String>) {
    match value {
        Value::Array(items) => {
            found.push(pointer.to_string());
            items.iter().enumerate().for_each(|(i, item)| pointers(item, &format!("{pointer}/{i}"), found));
        }
        Value::Object(fields) => {
            fields.iter().for_each(|(name, field)| pointers(field, &format!("{pointer}/{name}"), found));
        }
        Value::Null | Value::Number(_) => found.push(pointer.to_string()),
        Value::Bool(_) | Value::String(_) => {}
    }
}

/// Changes one value.
fn corrupt(value: &mut Value, choices: &mut Choices) {
    let extremes = [0, 1, 63, 64, 4_096, u64::from(u32::MAX), 1 << 40, (1 << 60) - 1, u64::MAX - 7, u64::MAX];
    *value = match value.take() {
        Value::Array(mut items) => {
            match choices.below(4) {
                0 => items.clear(),
                1 => items.truncate(choices.below(items.len())),
                2 => items.extend(items.clone()),
                _ => items.reverse(),
            }
            Value::Array(items)
        }
        Value::Number(number) => {
            let number = number.as_u64().unwrap_or(0);
            match choices.below(4) {
                0 => number.wrapping_add(64).into(),
                1 => number.wrapping_sub(64).into(),
                2 => number.wrapping_add(1).into(),
                _ => extremes[choices.below(extremes.len())].into(),
            }
        }
        _ => 0.into(),
    };
}

#[test]
fn corrupted_records_are_rejected_or_pass_verify() {
    let target = NullTarget { workspace: 100, ..NullTarget::default() };
    let mut choices = Choices::new(11);
    let (mut rejected, mut all) = (0, 0);
    for (batches, budget) in samples() {
        let plans = plan_lowest(&batches, &target, &budget).unwrap();
        let whole = serde_json::to_value(PlanRecord::of(&plans)).unwrap();
        let mut found = Vec::new();
        pointers(&whole, "", &mut found);
        for _ in 0..400 {
            let mut value = whole.clone();
            for _ in 0..1 + choices.below(2) {
                let pointer = &found[choices.below(found.len())];
                // The change before may have removed it.
                if let Some(place) = value.pointer_mut(pointer) {
                    corrupt(place, &mut choices);
                }
            }
            if value == whole {
                continue;
            }
            all += 1;
            let Ok(record) = serde_json::from_value::<PlanRecord>(value) else {
                rejected += 1;
                continue;
            };
            match record.restore(&batches, &target, &budget) {
                Ok(mut other) => {
                    other.sheet.line_bytes = usize::MAX;
                    assert_eq!(verify(&other), Ok(()));
                }
                Err(_) => rejected += 1,
            }
        }
    }
    assert!(rejected * 10 > all * 8, "{rejected} of {all} were rejected");
}

#[test]
fn rejects_workspaces_that_are_too_small_for_the_kernels() {
    let (batches, budget) = samples().swap_remove(0);
    let plans = plan_lowest(&batches, &NullTarget::default(), &budget).unwrap();
    let restored =
        recorded(&plans).restore(&batches, &NullTarget { workspace: 1, ..NullTarget::default() }, &budget);
    assert!(matches!(restored, Err(RecordError::Mismatch(_))), "{restored:?}");
    let (batches, budget) = samples().swap_remove(3);
    let mut plans = plan_lowest(&batches, &NullTarget::default(), &budget).unwrap();
    let action = plans.plans[0].steps.iter_mut().find_map(|step| match &mut step.action {
        Action::ChunkedUpdate { chunk_elements, .. } => Some(chunk_elements),
        _ => None,
    });
    *action.unwrap() *= 2;
    let restored = recorded(&plans).restore(&batches, &NullTarget::default(), &budget);
    assert!(matches!(restored, Err(RecordError::Mismatch(_))), "{restored:?}");
}

#[test]
fn keys_differ_in_everything_that_plans_depend_on() {
    let (batches, budget) = samples().swap_remove(0);
    let key = |batches: &[(String, Graph)], target: &NullTarget, budget: &Budget| {
        Fingerprint::new(batches, target).key(budget)
    };
    let target = NullTarget::default();
    let mut renamed = batches.clone();
    renamed[0].0 += "!";
    let budgets = [
        Budget { line_bytes: 1 << 20, ..budget.clone() },
        Budget { rematerialize: false, ..budget.clone() },
        budget.clone().offload_to(DISK),
        budget.clone().offload_to(Tiers::disk(LINK, 0)),
        budget.clone().offload_to(tier_sets()[1]),
        budget.clone().offload_to(tier_sets()[2]),
        Budget { time_limit_ns: 1, ..budget.clone() },
    ];
    // The checker of plans depends on it.
    let mut read_first = target.numerics;
    read_first.in_place.read_first = false;
    let mut keys = vec![
        key(&batches, &target, &budget),
        key(&batches[..1], &target, &budget),
        key(&renamed, &target, &budget),
        key(&batches, &NullTarget { workspace: 1, ..target.clone() }, &budget),
        key(&batches, &NullTarget { alignment: 128, ..target.clone() }, &budget),
        key(&batches, &NullTarget { numerics: read_first, ..target.clone() }, &budget),
    ];
    keys.extend(budgets.iter().map(|budget| key(&batches, &target, budget)));
    let all = keys.len();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), all);
}
