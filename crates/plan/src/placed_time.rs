//! The predicted time of a step on devices that hold the parts of one model, and wait for each other.

use crate::passes::{Exchanged, Network, Place, follow};
use crate::{Action, PlanSet, Target, Tiers, Unsupported, exchange};
use plimsoll_graph::Op;
use plimsoll_graph::op::Exchange;
use std::sync::Arc;

/// A device of a placed run: its plans, and what they were made for.
pub struct PlacedDevice<'p> {
    /// Its plans.
    pub plans: &'p PlanSet,
    /// Its target.
    pub target: &'p dyn Target,
    /// Its tiers.
    pub tiers: Tiers,
}

/// Predicted time of a step of plan `i` on all devices of a placed run, each of which computes at the same time as the others where it need not
/// wait for them. Copies between devices take none; what their own kernels and transfers take, they take.
///
/// # Errors
/// If a target lacks a kernel.
pub fn predict_placed(devices: &[PlacedDevice<'_>], i: usize) -> Result<u64, Unsupported> {
    let all = devices.iter().enumerate().map(|(at, device)| steps(device, i, (at, devices.len())));
    let (passes, after): (Vec<Vec<Exchanged>>, Vec<u64>) =
        all.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
    let network = Network { at_once: devices.len(), ..Network::INSTANT };
    // Devices that wait for ever have no plan that runs.
    let ends = follow(&passes, &network).unwrap_or_else(|_| vec![u64::MAX; devices.len()]);
    Ok(ends.into_iter().zip(after).map(|(end, after)| end.saturating_add(after)).max().unwrap_or(0))
}

/// What a device exchanges in a step, with the time of what it computes before each, and that of what it computes after the last.
fn steps(
    device: &PlacedDevice<'_>,
    i: usize,
    (own, devices): (usize, usize),
) -> Result<(Vec<Exchanged>, u64), Unsupported> {
    let plan = &device.plans.plans[i];
    let times = device.plans.times(i, device.target, &device.tiers)?;
    let rounds = plan.graph.micro_batches;
    let (mut found, mut computing, mut all): (Vec<Exchanged>, u64, u64) = (Vec::new(), 0, 0);
    for round in 0..rounds {
        let is_last = round + 1 == rounds;
        for (step, &time) in plan.steps.iter().zip(&times).filter(|(step, _)| is_last || !step.optimizer_step)
        {
            let node = match step.action {
                Action::Run { node, .. } => Some(plan.graph.node(node)),
                Action::ChunkedUpdate { .. } | Action::Copy { .. } => None,
                // Beside the kernels; what is waited for is added below.
                Action::Load { .. } | Action::Store { .. } => continue,
            };
            all = all.saturating_add(time);
            let Some((Op::Exchange(op), node)) = node.map(|node| (&node.op, node)) else {
                computing = computing.saturating_add(time);
                continue;
            };
            // What is taken is copied when it is there, what is given before.
            let (before, after) = if matches!(op, Exchange::Give { .. }) { (time, 0) } else { (0, time) };
            computing = computing.saturating_add(before);
            let place = Place { device: own, devices };
            let passed = exchange(op, &place, (round, rounds), |_, passing| {
                let (layer, op, computing_ns) =
                    (Arc::clone(&node.layer), node.op.name(), std::mem::take(&mut computing));
                found.push(Exchanged { passing, bytes: 0, layer, op, computing_ns });
                Ok(())
            });
            computing = computing.saturating_add(after);
            // The transport of a place has no errors.
            debug_assert!(passed.is_ok());
        }
    }
    Ok((found, computing.saturating_add(plan.nanoseconds.saturating_sub(all))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Budget, NullTarget, plan};
    use plimsoll_graph::op::Unary;
    use plimsoll_graph::{BatchMark, Builder, Graph, ValueId};
    use plimsoll_tensor::{DType, TensorType};

    fn exps(b: &mut Builder, mut value: ValueId, count: usize) -> ValueId {
        (0..count).for_each(|_| value = b.unary(Unary::Exp, value).unwrap());
        value
    }

    /// Two devices: what the first gives after some ops, the second goes on with, beside ops of the first.
    fn parts(before: usize, beside: usize, behind: usize) -> [Graph; 2] {
        let ty = TensorType::new(DType::F32, [64, 64]);
        let part = |is_first: bool| {
            let mut b = Builder::new(64, 64);
            let turn = b.accumulator(Exchange::turn());
            let exchange = match is_first {
                true => Exchange::Give { chain: 0, to: 1 },
                false => {
                    let (ty, mark) = (ty.clone(), BatchMark::input(true));
                    Exchange::Take { chain: 0, from: 0, wraps: false, ty, mark }
                }
            };
            let x = is_first.then(|| b.batch_input("x", ty.clone()));
            let given: Vec<ValueId> = x.map(|x| exps(&mut b, x, before)).into_iter().collect();
            let outputs = b.accumulating(Op::Exchange(exchange), &given, &[turn]).unwrap();
            b.set_accumulator(turn, outputs[0]);
            let y = match is_first {
                true => exps(&mut b, given[0], beside),
                false => exps(&mut b, outputs[1], behind),
            };
            b.output("y", y);
            b.finish().unwrap()
        };
        [part(true), part(false)]
    }

    #[test]
    fn a_step_takes_what_devices_wait_for_and_no_more() {
        let target = NullTarget::default();
        let together = |parts: [Graph; 2]| {
            let plans = parts.map(|part| {
                plan(&[("step".into(), part)], &target, &Budget::new(usize::MAX, Vec::new())).unwrap()
            });
            let each = plans.each_ref().map(|set| set.plans[0].nanoseconds);
            let device = |plans| PlacedDevice { plans, target: &target, tiers: Tiers::default() };
            (predict_placed(&plans.each_ref().map(device), 0).unwrap(), each)
        };
        let (chain, [first, second]) = together(parts(3, 0, 2));
        assert!(first > 0 && second > 0);
        assert_eq!(chain, first + second, "one after the other");
        let (beside, [longer, _]) = together(parts(3, 2, 2));
        assert!(longer > first);
        assert_eq!(beside, chain, "what the first has to do still is done meanwhile");
        let (last, [longest, _]) = together(parts(3, 40, 2));
        assert_eq!(last, longest, "the slower one decides");
    }
}
