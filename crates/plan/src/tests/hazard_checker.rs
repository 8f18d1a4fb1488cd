//! The checker of hazards: it agrees with an enumeration of all that may happen, and finds plans and waits that are wrong.

mod mutants;
mod oracle;

use super::training::perceptron;
use super::{Choices, FOLD, random_graph, tier_sets, ty};
use crate::choice::plan_offloaded;
use crate::verify::hazards::check;
use crate::{
    Action, Direction, ExecutionPlan, NullTarget, Offloaded, PlanSet, Tier, Waits, verify, verify_hazards,
};
use oracle::Oracle;
use plimsoll_graph::op::{Binary, Elementwise, Instruction, MatMul, Operand, Region, Unary};
use plimsoll_graph::{Builder, Graph, Init, Op, Role, ValueId};
use plimsoll_tensor::DType;
use std::ops::Range;

/// `(a, b, c) → (a + c, b + c)` in one pass.
fn add_to_both() -> Op {
    let add = |input| Instruction {
        op: Elementwise::Binary(Binary::Add),
        operands: vec![Operand::Input(input), Operand::Input(2)],
        dtype: DType::F32,
    };
    Op::Fused(Region { instructions: vec![add(0), add(1)], outputs: vec![0, 1] })
}

/// Layers whose moments are large enough to be updated in chunks.
fn layers(count: usize, micro_batches: usize) -> Graph {
    let mut b = Builder::new(4, 4);
    b.set_micro_batches(micro_batches);
    let matrix = ty("f32[512,512]");
    let mut values = vec![b.batch_input("x", ty("f32[4,512]"))];
    let state = |b: &mut Builder, name: &str, i: usize, role| {
        b.named_state(format!("{name}{i}"), matrix.clone(), role, Init::Zeros)
    };
    let kernels: Vec<ValueId> = (0..count).map(|i| state(&mut b, "kernel", i, Role::Parameter)).collect();
    for (i, &kernel) in kernels.iter().enumerate() {
        let y = b.matmul(values[i], kernel).unwrap();
        values.push(b.unary(Unary::Relu, y).unwrap());
    }
    let mut gradient = b.unary(Unary::Square, values[count]).unwrap();
    let mut last_sum = None;
    for (i, &kernel) in kernels.iter().enumerate().rev() {
        let accumulator = b.accumulator(ty("f32[512,512]"));
        let sum = b.accumulating(FOLD, &[values[i], gradient], &[accumulator]).unwrap()[0];
        b.set_accumulator(accumulator, sum);
        last_sum = Some(sum);
        let transposed = MatMul { transpose_b: true, ..MatMul::default() };
        gradient = b.one(Op::MatMul(transposed), &[gradient, kernel]).unwrap();
        let moment = state(&mut b, "moment", i, Role::Moment);
        let new_moment = b.add(moment, sum).unwrap();
        b.set_state(moment, new_moment);
        let new_kernel = b.sub(kernel, sum).unwrap();
        b.set_state(kernel, new_kernel);
    }
    // Two states of one update, which may be in different tiers.
    let pair = [0, 1].map(|i| state(&mut b, "pair", i, Role::Moment));
    let new = b.node(add_to_both(), &[pair[0], pair[1], last_sum.unwrap()]).unwrap();
    pair.into_iter().zip(new).for_each(|(old, new)| b.set_state(old, new));
    b.finish().unwrap()
}

/// Plans of random graphs with offloaded states and values, of layers with chunked updates, and of a perceptron with a second batch type.
fn offloaded(seeds: Range<u64>) -> impl Iterator<Item = PlanSet> {
    let target = NullTarget { workspace: 100, ..NullTarget::default() };
    seeds.flat_map(|seed| (1..=5).map(move |parts| (seed, parts))).filter_map(move |(seed, parts)| {
        let layered = seed % 8 == 1;
        let mut tiers = tier_sets()[(seed / 8 + seed) as usize % 3];
        // So slow that a load is not hidden by the part of the optimizer step before it.
        for tier in Tier::ALL {
            tiers[tier].iter_mut().for_each(|spec| spec.link.load_ns_per_mib = 30_000_000);
        }
        if layered {
            // Room for one state and a half.
            tiers
                .host
                .iter_mut()
                .filter(|_| tiers.file.is_some())
                .for_each(|spec| spec.capacity_bytes = 3 << 19);
        }
        let batches = match seed % 8 {
            0 => vec![
                ("train".to_string(), perceptron(2, 4 * parts, 16, true)),
                ("evaluate".to_string(), perceptron(2, 4, 16, false)),
            ],
            1 => vec![("train".to_string(), layers(1 + seed as usize % 3, parts))],
            _ => vec![("train".to_string(), random_graph(seed, 4 + seed as usize % 17, parts))],
        };
        let limit = match seed % 3 {
            0 => 1 << 40,
            _ if layered => 5 << 20,
            _ => 1 << (9 + seed % 5),
        };
        let offloaded = if layered { u64::MAX } else { seed ^ 0b1011 };
        plan_offloaded(&batches, &target, tiers, offloaded, limit, false, 1).ok()
    })
}

fn waits_of(set: &PlanSet) -> Vec<Waits> {
    set.plans.iter().map(ExecutionPlan::waits).collect()
}

fn is_transfer(action: &Action) -> bool {
    matches!(action, Action::Load { .. } | Action::Store { .. })
}

/// The sequences of runs that the oracle enumerates: longer than the checker's.
fn sequence(set: &PlanSet) -> &'static [usize] {
    if set.plans.len() == 1 { &[0, 0, 0] } else { &[0, 0, 1, 1, 1, 0, 1] }
}

/// The runtime's queues.
fn queues(_: &Action, tier: Tier, direction: Direction) -> usize {
    tier.queue(direction).index()
}

/// Other queues.
fn other_queues(action: &Action, _: Tier, _: Direction) -> usize {
    match action {
        Action::Load { what: Offloaded::State(_), .. } => 1,
        Action::Store { what: Offloaded::State(_), .. } => 2,
        _ => 0,
    }
}

#[test]
fn the_waits_of_plans_leave_no_race() {
    let (mut plans, mut chunked, mut hoisted) = (0, 0, 0);
    for set in offloaded(0..300) {
        verify(&set).unwrap();
        assert_eq!(verify_hazards(&set, &waits_of(&set)), Ok(()));
        for plan in &set.plans {
            plans += 1;
            let count = |wanted: fn(&Action) -> bool| plan.steps.iter().filter(|s| wanted(&s.action)).count();
            chunked += count(|action| matches!(action, Action::ChunkedUpdate { .. }));
            let body = plan.steps.iter().rposition(|step| !step.optimizer_step).unwrap_or(0);
            hoisted += plan.steps[..body].iter().filter(|step| step.optimizer_step).count();
        }
    }
    assert!(plans > 1000 && chunked > 300 && hoisted > 20, "{plans} plans, {chunked}, {hoisted}");
}

/// Changes waits at random: a transfer dropped, added or moved; lists swapped.
fn change(plan: &ExecutionPlan, waits: &mut Waits, c: &mut Choices) {
    let transfers: Vec<u32> =
        (0..plan.steps.len() as u32).filter(|&s| is_transfer(&plan.steps[s as usize].action)).collect();
    let waiting: Vec<usize> = (0..waits.steps.len()).filter(|&s| !waits.steps[s].is_empty()).collect();
    let anywhere = c.below(waits.steps.len());
    match c.below(6) {
        0 if !waits.entry.is_empty() => {
            waits.entry.remove(c.below(waits.entry.len()));
        }
        1 if !transfers.is_empty() => waits.steps[anywhere].push(transfers[c.below(transfers.len())]),
        2 if !waiting.is_empty() => waits.steps.swap(waiting[c.below(waiting.len())], anywhere),
        _ if !waiting.is_empty() => {
            let list = &mut waits.steps[waiting[c.below(waiting.len())]];
            let moved = list.remove(c.below(list.len()));
            if c.below(2) == 0 {
                waits.steps[anywhere].push(moved);
            }
        }
        _ => {}
    }
}

#[test]
fn the_checker_agrees_with_an_enumeration_of_happens_before() {
    let mut c = Choices::new(7);
    // For the runtime's queues and for others: cases without a race, and with one.
    let mut cases = [[0; 2]; 2];
    for set in offloaded(0..120) {
        let whole = waits_of(&set);
        for (others, queue_of) in [queues, other_queues].into_iter().enumerate() {
            let oracle = Oracle::new(&set, sequence(&set), queue_of);
            let mut base = whole.clone();
            if others == 1 {
                // Every step waits for every transfer before it, and for all of the micro-batch before.
                for (plan, waits) in set.plans.iter().zip(&mut base) {
                    let transfers = (0..plan.steps.len()).filter(|&s| is_transfer(&plan.steps[s].action));
                    let transfers: Vec<u32> = transfers.map(|s| s as u32).collect();
                    waits.steps.iter_mut().for_each(|list| list.clone_from(&transfers));
                }
            }
            for changes in [0, 0, 1, 1, 1, 2, 3, 5] {
                let mut waits = base.clone();
                if others == 1 && changes > 0 {
                    // Most of the waits are not needed.
                    let keep = 1 + c.below(8);
                    waits.iter_mut().flat_map(|w| &mut w.steps).for_each(|list| {
                        list.retain(|_| c.below(8) < keep);
                    });
                }
                for _ in 0..changes {
                    let plan = c.below(set.plans.len());
                    change(&set.plans[plan], &mut waits[plan], &mut c);
                }
                let (expected, found) = (oracle.races(&waits), check(&set, &waits, queue_of));
                assert_eq!(found.is_err(), expected, "{found:?}\n{waits:?}\n{:#?}", set.plans[0].steps);
                cases[others][usize::from(expected)] += 1;
            }
        }
    }
    println!("without and with a race: {cases:?}");
    assert!(cases.iter().flatten().all(|&count| count > 500), "{cases:?}");
}
