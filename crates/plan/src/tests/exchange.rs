//! Nodes that pass sums between devices run once, in their accumulators.

use crate::{
    Action, Budget, BufferKind, Network, NullTarget, PlanSet, VerifyError, check_passes, communication, plan,
    verify,
};
use plimsoll_graph::op::{Exchange, Reduce};
use plimsoll_graph::{BatchMark, Builder, Graph, Init, Op, Role, ValueId};
use plimsoll_tensor::{DType, TensorType};

/// A device's step in two micro-batches: `w` ends as itself minus the sum of all examples. Without accumulators what is sent is a
/// value of the step.
fn plans(accumulates: bool) -> PlanSet {
    let mut b = Builder::new(4, 4);
    let ty = TensorType::new(DType::F32, [1, 3]);
    let x = b.batch_input("x", TensorType::new(DType::F32, [4, 3]));
    let w = b.state("w", ty.clone(), Role::Parameter, Init::Ones);
    let fold = Op::Reduce(Reduce::Sum { start: 0, end: 1 });
    let send = Op::Exchange(Exchange::Send { chain: 0, to: 1, wraps: false, ty: ty.clone() });
    let one = |found: Vec<ValueId>| found[0];
    let shared = if accumulates {
        b.set_micro_batches(2);
        let a = b.accumulator(ty.clone());
        let receive = Op::Exchange(Exchange::Receive { chain: 0, from: 1, wraps: true, ty: ty.clone() });
        let received = one(b.accumulating(receive, &[x], &[a]).unwrap());
        let sum = one(b.accumulating(fold, &[x], &[received]).unwrap());
        let sent = one(b.accumulating(send, &[], &[sum]).unwrap());
        let share =
            Op::Exchange(Exchange::Share { from: 1, chains: vec![0], to: Vec::new(), types: vec![ty] });
        let shared = one(b.accumulating(share, &[], &[sent]).unwrap());
        b.set_accumulator(a, shared);
        shared
    } else {
        let sum = b.one(fold, &[x]).unwrap();
        one(b.accumulating(send, &[], &[sum]).unwrap())
    };
    let next = b.sub(w, shared).unwrap();
    b.set_state(w, next);
    let budget = Budget::new(usize::MAX, Vec::new());
    plan(&[("train".into(), b.finish().unwrap())], &NullTarget::default(), &budget).unwrap()
}

/// Steps that exchange.
fn exchanges(plans: &PlanSet) -> Vec<usize> {
    let plan = &plans.plans[0];
    let exchanges = |action: &Action| match action {
        Action::Run { node, .. } => matches!(plan.graph.node(*node).op, Op::Exchange(_)),
        _ => false,
    };
    (0..plan.steps.len()).filter(|&step| exchanges(&plan.steps[step].action)).collect()
}

#[test]
fn sums_that_pass_between_devices_lie_in_their_accumulators() {
    let plans = plans(true);
    verify(&plans).unwrap();
    let plan = &plans.plans[0];
    assert_eq!(exchanges(&plans).len(), 3);
    for step in exchanges(&plans) {
        let Action::Run { writes, .. } = &plan.steps[step].action else { unreachable!() };
        assert_eq!(plan.buffers[writes[0].index()].kind, BufferKind::Accumulator(0));
    }
    assert!(!plan.steps.iter().any(|step| matches!(step.action, Action::Copy { .. })), "sums are not copied");
}

#[test]
fn a_sum_elsewhere_is_refused() {
    let error = verify(&plans(false)).unwrap_err().to_string();
    assert!(error.contains("in no accumulator"), "{error}");
}

#[test]
fn an_exchange_that_runs_twice_is_refused() {
    let mut plans = plans(true);
    let step = exchanges(&plans)[1];
    let again = plans.plans[0].steps[step].clone();
    plans.plans[0].steps.insert(step, again);
    for buffer in &mut plans.plans[0].buffers {
        buffer.last += usize::from(buffer.last >= step);
        buffer.first += usize::from(buffer.first > step);
    }
    let refused = verify(&plans);
    assert!(matches!(refused, Err(VerifyError::Runs { runs: 2, expected: 1, .. })), "{refused:?}");
}

#[test]
fn an_update_that_overwrites_a_shared_sum_is_refused() {
    let mut plans = plans(true);
    let plan = &mut plans.plans[0];
    let sums = plan.buffers.iter().position(|b| matches!(b.kind, BufferKind::Accumulator(_))).unwrap();
    let update = plan.steps.iter_mut().find(|step| step.optimizer_step).unwrap();
    let Action::Run { writes, .. } = &mut update.action else { unreachable!() };
    writes[0] = crate::BufferId(sums as u32);
    let error = verify(&plans).unwrap_err().to_string();
    assert!(error.contains("overwrites a sum that another device may read"), "{error}");
}

/// An exchange of chains with sums of these types.
type Meets = fn(Vec<u32>, Vec<TensorType>) -> Exchange;

/// A device's step whose first sum is whole, by an exchange in which all meet, before the second one begins.
fn meeting(meets: Meets) -> PlanSet {
    let mut b = Builder::new(4, 4);
    let ty = TensorType::new(DType::F32, [1, 3]);
    let x = b.batch_input("x", TensorType::new(DType::F32, [4, 3]));
    let w = b.state("w", ty.clone(), Role::Parameter, Init::Ones);
    let fold = || Op::Reduce(Reduce::Sum { start: 0, end: 1 });
    let one = |found: Vec<ValueId>| found[0];
    let (chains, types) = (vec![0], vec![ty.clone()]);
    let [first, second] = [0, 1].map(|_| b.accumulator(ty.clone()));
    let sum = one(b.accumulating(fold(), &[x], &[first]).unwrap());
    let whole = one(b.accumulating(Op::Exchange(meets(chains, types)), &[], &[sum]).unwrap());
    let centred = b.sub(x, whole).unwrap();
    let receive = Op::Exchange(Exchange::Receive { chain: 1, from: 1, wraps: true, ty: ty.clone() });
    let received = one(b.accumulating(receive, &[centred, whole], &[second]).unwrap());
    let sum = one(b.accumulating(fold(), &[centred], &[received]).unwrap());
    let share = Exchange::Share { from: 1, chains: vec![1], to: Vec::new(), types: vec![ty.clone(), ty] };
    let shared = b.accumulating(Op::Exchange(share), &[], &[sum, whole]).unwrap();
    b.set_accumulator(second, shared[0]);
    b.set_accumulator(first, shared[1]);
    let next = b.sub(w, shared[0]).unwrap();
    b.set_state(w, next);
    let budget = Budget::new(usize::MAX, Vec::new());
    plan(&[("train".into(), b.finish().unwrap())], &NullTarget::default(), &budget).unwrap()
}

#[test]
fn an_exchange_on_the_wrong_side_of_a_meeting_is_refused() {
    let meetings: [Meets; 2] = [
        |chains, types| Exchange::Synchronise { from: 1, chains, types },
        |chains, types| Exchange::AllReduce { devices: 2, chains, types },
    ];
    for meets in meetings {
        let mut plans = meeting(meets);
        verify(&plans).unwrap();
        let [meeting, receive, ..] = exchanges(&plans)[..] else { panic!("{:?}", exchanges(&plans)) };
        plans.plans[0].steps.swap(meeting, receive);
        let error = verify(&plans).unwrap_err().to_string();
        assert!(error.contains("on the wrong side of where all devices meet"), "{error}");
    }
}

/// A device's step in two micro-batches that takes a value, gives what it makes of it, and passes two values more in the optimizer step.
fn passing() -> PlanSet {
    let mut b = Builder::new(4, 4);
    b.set_micro_batches(2);
    let (rows, row) = (TensorType::new(DType::F32, [4, 3]), TensorType::new(DType::F32, [1, 3]));
    let w = b.state("w", row.clone(), Role::Parameter, Init::Ones);
    let (turn, sums) = (b.accumulator(Exchange::turn()), b.accumulator(row.clone()));
    let take = |chain, ty: &TensorType, mark| {
        Op::Exchange(Exchange::Take { chain, from: 1, wraps: false, ty: ty.clone(), mark })
    };
    let give = |chain| Op::Exchange(Exchange::Give { chain, to: 1 });
    let taken = b.accumulating(take(0, &rows, BatchMark::input(true)), &[], &[turn]).unwrap();
    let scaled = b.mul(taken[1], w).unwrap();
    let last = b.accumulating(give(1), &[scaled], &[taken[0]]).unwrap()[0];
    let fold = Op::Reduce(Reduce::Sum { start: 0, end: 1 });
    let sum = b.accumulating(fold, &[scaled], &[sums]).unwrap()[0];
    b.set_accumulator(turn, last);
    b.set_accumulator(sums, sum);
    let given = b.accumulating(give(2), &[sum, last], &[last]).unwrap()[0];
    let factor = b.accumulating(take(3, &row, BatchMark::SUM), &[last], &[given]).unwrap();
    let step = b.mul(sum, factor[1]).unwrap();
    let next = b.sub(w, step).unwrap();
    b.set_state(w, next);
    b.output("turn", factor[0]);
    let budget = Budget::new(usize::MAX, Vec::new());
    plan(&[("train".into(), b.finish().unwrap())], &NullTarget::default(), &budget).unwrap()
}

#[test]
fn values_of_other_devices_are_taken_once_and_in_their_turn() {
    let plans = passing();
    verify(&plans).unwrap();
    let plan = &plans.plans[0];
    assert_eq!(plan.graph.optimizer_step().iter().filter(|once| **once).count(), 4);
    // Two of the first in a step, and one of the second.
    assert_eq!(plan.received_bytes(0), 2 * 48 + 12);
    let [take, give, late, ..] = exchanges(&plans)[..] else { panic!("{:?}", exchanges(&plans)) };
    assert!(!plan.steps[give].optimizer_step && plan.steps[late].optimizer_step);
    let mut swapped = plans.clone();
    let last = *exchanges(&plans).last().unwrap();
    swapped.plans[0].steps.swap(late, last);
    let error = verify(&swapped).unwrap_err().to_string();
    assert!(error.contains("out of turn"), "{error}");
    let mut twice = plans.clone();
    let again = twice.plans[0].steps[take].clone();
    twice.plans[0].steps.insert(take, again);
    for buffer in &mut twice.plans[0].buffers {
        buffer.last += usize::from(buffer.last >= take);
        buffer.first += usize::from(buffer.first > take);
    }
    assert!(verify(&twice).is_err());
}

/// A device that gives and takes values of these many numbers, in order: the other device, whether it gives, and the number.
fn device(passes: &[(u32, bool, u32)], numbers: usize) -> Graph {
    let mut b = Builder::new(1, 1);
    let ty = TensorType::new(DType::F32, [numbers]);
    let own = b.state("own", ty.clone(), Role::Parameter, Init::Ones);
    let first = b.accumulator(Exchange::turn());
    let mut turn = first;
    for &(other, gives, chain) in passes {
        let (from, ty, mark) = (other, ty.clone(), BatchMark::input(false));
        turn = match gives {
            true => b.accumulating(Op::Exchange(Exchange::Give { chain, to: other }), &[own], &[turn]),
            false => {
                let take = Exchange::Take { chain, from, wraps: false, ty, mark };
                b.accumulating(Op::Exchange(take), &[], &[turn])
            }
        }
        .unwrap()[0];
    }
    b.set_accumulator(first, turn);
    b.finish().unwrap()
}

const NETWORK: Network = Network { bytes_per_second: 1e9, latency_ns: 50, at_once: 3, measured: Vec::new() };

#[test]
fn exchanges_take_the_time_of_their_messages() {
    // 400 bytes take 400 ns.
    let time = |parts: &[Graph], states: &[(usize, usize)], network: &Network| {
        communication(&parts.iter().collect::<Vec<_>>(), states, network).unwrap()
    };
    let one = [device(&[(1, true, 0)], 100), device(&[(0, false, 0)], 100)];
    assert_eq!(time(&one, &[], &NETWORK), 450);
    // Given to two in turn: it is sent to the second one when the first has it.
    let two = [
        device(&[(1, true, 0), (2, true, 0)], 100),
        device(&[(0, false, 0)], 100),
        device(&[(0, false, 0)], 100),
    ];
    assert_eq!(time(&two, &[], &NETWORK), 900);
    // Two that do not depend on each other pass at once, unless there is one way.
    let apart = [
        device(&[(1, true, 0)], 100),
        device(&[(0, false, 0)], 100),
        device(&[(3, true, 1)], 100),
        device(&[(2, false, 1)], 100),
    ];
    assert_eq!(time(&apart, &[], &NETWORK), 450);
    assert_eq!(time(&apart, &[], &Network { at_once: 1, ..NETWORK }), 850);
    // Measured messages take what they took, those between what lies between, and longer ones go on at the bandwidth.
    let measured = |measured: &[(usize, u64)]| Network { measured: measured.to_vec(), ..NETWORK };
    assert_eq!(time(&one, &[], &measured(&[(200, 500), (400, 700), (800, 9_000)])), 750);
    assert_eq!(time(&one, &[], &measured(&[(200, 500), (600, 900)])), 750);
    assert_eq!(time(&one, &[], &measured(&[(800, 1_000)])), 550);
    assert_eq!(time(&one, &[], &measured(&[(300, 700)])), 850);
    // States pass after the step, from each of the owners to all others.
    assert_eq!(time(&one, &[(0, 400), (1, 400)], &NETWORK), 450 + 450 + 450);
    // What was sent ahead is there when the one before it has been received.
    assert_eq!(time(&one, &[(0, 400), (0, 400)], &NETWORK), 450 + 450 + 400);
}

#[test]
fn devices_that_wait_for_each_other_for_ever_are_found() {
    let check = |parts: &[Graph]| check_passes(&parts.iter().collect::<Vec<_>>());
    let first = device(&[(1, true, 0), (1, false, 1)], 8);
    assert_eq!(check(&[first.clone(), device(&[(0, false, 0), (0, true, 1)], 8)]), Ok(()));
    let crossed = check(&[first.clone(), device(&[(0, true, 1), (0, false, 0)], 8)]).unwrap_err();
    assert!(crossed.contains("out of turn: device 0 waits for 1") && crossed.contains("(give)"), "{crossed}");
    let other = check(&[first.clone(), device(&[(0, false, 0), (0, true, 1)], 9)]).unwrap_err();
    assert!(other.contains("value 0 is not what device 0 sends to 1"), "{other}");
    let missing = check(&[first, device(&[(0, false, 0)], 8)]).unwrap_err();
    assert!(missing.contains("device 0 waits for 1"), "{missing}");
}
