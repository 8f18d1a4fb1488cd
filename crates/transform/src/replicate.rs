//! Replicas: turns the step of a part of the batch into the step of one device of several.
//!
//! A sum over the batch is one left fold over the examples in order, whichever device has them: each device receives the sum
//! where the one before it stopped, continues it, and sends it on. So the results have the bits of one device with
//! the whole batch.

use crate::accumulate::with_accumulators;
use crate::fetch::Fetches;
use crate::rewriter::Rewriter;
use crate::shard::{self, Needs, OwnedState, Shard};
use crate::{Reduction, SplitError};
use plimsoll_graph::op::{Elementwise, Exchange, Norm, NormAxis};
use plimsoll_graph::{Accumulator, BatchMark, Builder, Graph, Node, Op, Origin, State, ValueId};
use plimsoll_tensor::DType;
use std::sync::Arc;

/// The part of a step that one device runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replica<'a> {
    /// The device's number.
    pub device: usize,
    /// Examples that each device takes of a micro-batch, in order. Those that take none are not in the chains.
    pub examples: &'a [usize],
    /// Micro-batches of the step.
    pub micro_batches: usize,
    /// What is on one device alone.
    pub shard: Shard,
    /// How sums are added up over devices. Gradients that are on one device alone pass along chains.
    pub reduction: Reduction,
}

impl Replica<'_> {
    /// The devices that take examples.
    fn chain(&self) -> impl DoubleEndedIterator<Item = usize> + '_ {
        (0..self.examples.len()).filter(|&device| self.examples[device] > 0)
    }

    /// The device before this one, and whether that is the last one.
    fn previous(&self) -> (usize, bool) {
        match self.chain().rev().find(|&device| device < self.device) {
            Some(device) => (device, false),
            None => (self.last(), true),
        }
    }

    /// The device after this one, and whether that is the first one.
    fn next(&self) -> (usize, bool) {
        match self.chain().find(|&device| device > self.device) {
            Some(device) => (device, false),
            None => (self.first(), true),
        }
    }

    fn first(&self) -> usize {
        self.chain().next().unwrap_or(self.device)
    }

    fn is_first(&self) -> bool {
        self.device == self.first()
    }

    fn last(&self) -> usize {
        self.chain().next_back().unwrap_or(self.device)
    }
}

/// The step of one device, from the step of its examples in a micro-batch. For a device that takes no examples, from that of any
/// other: what is left of it is the optimizer step.
///
/// A sum that the examples of the same step depend on, like a statistic of batch norm, is whole before they go on: its chain is passed
/// on, and all devices get the sum, in the midst of the step. That needs a step of one micro-batch.
pub fn replicate(part: &Graph, replica: &Replica<'_>) -> Result<Graph, SplitError> {
    let step = Step::new(part, replica)?;
    if replica.examples[replica.device] == 0 {
        return update_only(&step, replica);
    }
    let Step { graph, synchronised, once, fetches, .. } = &step;
    let mut r = step.rewriter(|keeps, sums| Rewriter::keeping(graph, keeps, sums), replica.device);
    // What is read for an accumulator, once it is received.
    let mut received = vec![None; graph.value_count()];
    let (mut order, computing) = (step.order(), replica.chain().collect::<Vec<_>>());
    let early = graph.nodes.iter().enumerate().filter(|(at, _)| !once[*at]);
    for (at, node) in early.filter(|(at, _)| fetches.runs(*at, replica.device)) {
        fetches.pass(&mut r, &mut order, (replica.device, &computing), (at, node))?;
        let before = order.previous;
        let chains: Vec<usize> = chains_of(graph, node).collect();
        for &chain in &chains {
            let sum = graph.accumulators[chain].input;
            received[sum.index()] = Some(match step.keeper(chain) {
                _ if step.reduced[chain] => r.get(sum),
                Some(keeper) if keeper != replica.device => {
                    take(&mut r, replica, &mut order, node, chain, keeper)?
                }
                Some(_) if replica.is_first() => r.get(sum),
                _ => receive(&mut r, replica, &mut order, node, chain)?,
            });
        }
        let outputs = r.emit(node, |r, v| received[v.index()].unwrap_or_else(|| r.get(v)))?;
        r.set(node, &outputs);
        // The node itself reads all that it received.
        order.previous = order.previous.filter(|_| order.previous == before);
        for &chain in chains.iter().filter(|&&chain| !step.reduced[chain]) {
            match step.keeper(chain) {
                Some(keeper) if keeper != replica.device => {
                    give(&mut r, replica, &mut order, node, chain, keeper)?;
                }
                _ => send(&mut r, replica, &mut order, node, chain, replica.next())?,
            }
        }
        for &chain in chains.iter().filter(|&&chain| step.keeper(chain) == Some(replica.device)) {
            keep(&mut r, replica, &mut order, node, chain)?;
        }
        let whole: Vec<usize> = chains.into_iter().filter(|&chain| synchronised[chain]).collect();
        if !whole.is_empty() {
            let sums = whole.iter().map(|&chain| r.get(graph.accumulators[chain].output)).collect();
            synchronise(&mut r, replica, &mut order, &node.layer, &whole, sums)?;
        }
    }
    all_reduce(&mut r, replica, &step, &mut order)?;
    share(&mut r, replica, &step, &order)?;
    let needs = &step.needs[replica.device];
    for (_, node) in graph.nodes.iter().enumerate().filter(|&(at, _)| once[at] && needs.node(at)) {
        r.copy(node)?;
    }
    Ok(r.finish_updating(|state| step.updates(state, replica.device))?)
}

/// The states that one device updates in a run on several.
pub fn owned_states(part: &Graph, replica: &Replica<'_>) -> Result<Vec<OwnedState>, SplitError> {
    Ok(Step::new(part, replica)?.owners)
}

/// A step with accumulators, and what is decided for all devices.
struct Step {
    graph: Graph,
    /// Accumulators whose sums are needed whole in the midst of the step.
    synchronised: Vec<bool>,
    /// Nodes that run once, after the last micro-batch.
    once: Vec<bool>,
    /// The states that one device updates.
    owners: Vec<OwnedState>,
    /// What of the optimizer step each device runs.
    needs: Vec<Needs>,
    /// The one device that keeps a sum, by chain, where the others only pass it on.
    keepers: Vec<Option<usize>>,
    /// Accumulators that each device has of its own examples alone, until they are added up at the end.
    reduced: Vec<bool>,
    /// Parameters that pass to the devices that do not hold them.
    fetches: Fetches,
}

impl Step {
    fn new(part: &Graph, replica: &Replica<'_>) -> Result<Self, SplitError> {
        let graph = with_accumulators(&with_moments(part)?, replica.micro_batches)?;
        let marks = graph.batch_marks();
        let has_batch_axis = |value: Option<ValueId>| value.is_some_and(|v| marks[v.index()].axis);
        if let Some(state) = graph.states.iter().find(|state| has_batch_axis(state.output)) {
            return Err(SplitError::Mixes { layer: state.name.clone(), op: "the update" });
        }
        let synchronised = synchronised(&graph, &marks);
        let once = graph.optimizer_step_after(|sum| !synchronised[sum]);
        let devices = replica.examples.len();
        let owners = shard::owners(&graph, &once, devices, replica.shard);
        let needs: Vec<Needs> =
            (0..devices).map(|device| Needs::new(&graph, &once, &owners, device)).collect();
        let keeper = |(chain, sum): (usize, &Accumulator)| {
            let mut readers = (0..devices).filter(|&device| needs[device].value(sum.output));
            let only = readers.next().filter(|_| readers.next().is_none());
            only.filter(|_| replica.shard >= Shard::Gradients && !synchronised[chain])
        };
        let keepers: Vec<Option<usize>> = graph.accumulators.iter().enumerate().map(keeper).collect();
        let is_reduced = |(chain, sum): (usize, &Accumulator)| {
            let by = graph.producer(sum.output).map(|node| &graph.node(node).op);
            // Moments are not added up number by number.
            let is_sum = !matches!(by, Some(Op::Norm(Norm::Moments)));
            let passes = synchronised[chain] || keepers[chain].is_some();
            is_sum && !passes && devices > 1 && graph.ty(sum.output).dtype == DType::F32
        };
        let is_fast = replica.reduction == Reduction::Fast;
        let reduced = graph.accumulators.iter().enumerate().map(|sum| is_fast && is_reduced(sum)).collect();
        let fetches = Fetches::new(&graph, &once, &owners);
        Ok(Self { graph, synchronised, once, owners, needs, keepers, reduced, fetches })
    }

    fn order(&self) -> Order {
        Order::new(self.keepers.iter().any(Option::is_some) || !self.fetches.is_empty())
    }

    /// The one device that keeps the sum of a chain, if there is one.
    fn keeper(&self, chain: usize) -> Option<usize> {
        self.keepers[chain]
    }

    /// Whether a device has an accumulator for a chain.
    fn keeps(&self, chain: usize, device: usize) -> bool {
        self.keeper(chain).is_none_or(|keeper| keeper == device)
    }

    /// A rewriter without the states and sums that a device does not hold.
    fn rewriter<'g>(
        &self,
        make: impl FnOnce(&dyn Fn(&State) -> bool, &dyn Fn(usize) -> bool) -> Rewriter<'g>,
        device: usize,
    ) -> Rewriter<'g> {
        make(&|state| self.holds(state, device), &|chain| self.keeps(chain, device))
    }

    fn owner(&self, state: &State) -> Option<&OwnedState> {
        self.owners.iter().find(|owned| owned.name == state.name)
    }

    /// Whether a device has a state.
    fn holds(&self, state: &State, device: usize) -> bool {
        self.owner(state).is_none_or(|owned| owned.is_on(device))
    }

    /// Whether a device computes the new version of a state.
    fn updates(&self, state: &State, device: usize) -> bool {
        self.owner(state).is_none_or(|owned| owned.owner == device)
    }
}

/// Gives the step of a part of the batch, as it was built, the numbers of the whole batch's step: where a layer counts examples (batch
/// norm's mean and its unbiased variance), it means those of all devices.
pub fn count_whole_batch(part: &mut Graph, whole: &Graph) {
    for (node, other) in part.nodes.iter_mut().zip(&whole.nodes) {
        if matches!(other.op, Op::Elementwise(Elementwise::Constant { .. })) {
            node.op = other.op.clone();
        }
    }
}

/// The step with moments in place of the statistics of channels: they are sums, which devices continue.
fn with_moments(graph: &Graph) -> Result<Graph, SplitError> {
    let mut r = Rewriter::new(graph);
    for node in &graph.nodes {
        if !matches!(node.op, Op::Norm(Norm::Stats { axis: NormAxis::Channel })) {
            r.copy(node)?;
            continue;
        }
        let moments = r.emit_as(node, Op::Norm(Norm::Moments))?;
        let dtype = graph.ty(node.outputs[0]).dtype;
        let stats = r.replace(node, Op::Norm(Norm::StatsOfMoments { dtype }), &moments)?;
        r.set(node, &stats);
    }
    Ok(r.finish()?)
}

/// The accumulators whose sums a node of a micro-batch itself needs whole, because it reads examples beside it.
fn synchronised(graph: &Graph, marks: &[BatchMark]) -> Vec<bool> {
    let has_axis = |value: &ValueId| marks[value.index()].axis;
    let mut needed = vec![false; graph.value_count()];
    for node in graph.nodes.iter().rev() {
        if node.inputs.iter().any(has_axis) || node.outputs.iter().any(|v| needed[v.index()]) {
            node.inputs.iter().filter(|v| !has_axis(v)).for_each(|v| needed[v.index()] = true);
        }
    }
    graph.accumulators.iter().map(|accumulator| needed[accumulator.output.index()]).collect()
}

/// The chains that a node folds.
fn chains_of<'g>(graph: &'g Graph, node: &'g Node) -> impl Iterator<Item = usize> + 'g {
    let chains = graph.accumulators.iter().enumerate();
    chains.filter(|(_, sum)| node.outputs.contains(&sum.output)).map(|(chain, _)| chain)
}

/// What orders exchanges: around those where all devices meet; and one after another, where devices wait until what they give is
/// taken. An exchange reads what has to be before it.
///
/// In the second case no device waits for ever, either: the chains of one node after the other go through all devices. A device takes or
/// receives all of them, folds, gives or sends them on, and what it keeps it then receives from the last one. Each of these waits ends
/// once the others have come to the same node, and they have, if all nodes before it are behind them.
pub(crate) struct Order {
    /// A value of the last meeting: what comes after it reads it.
    meeting: Option<ValueId>,
    /// What was sent since: the next meeting reads it.
    since: Vec<ValueId>,
    /// Whether exchanges are in one order.
    in_order: bool,
    /// The accumulator of turns, and its value after the last exchange that has one.
    turn: Option<(ValueId, ValueId)>,
    /// What the last exchange left, where they are in one order.
    previous: Option<ValueId>,
}

impl Order {
    pub fn new(in_order: bool) -> Self {
        Self { meeting: None, since: Vec::new(), in_order, turn: None, previous: None }
    }

    /// What the next exchange that waits reads.
    fn before(&self) -> impl Iterator<Item = ValueId> + use<> {
        let turn = self.turn.map(|(_, turn)| turn);
        // The turn itself may be what the last exchange left.
        let previous = self.previous.filter(|&previous| Some(previous) != turn);
        self.meeting.into_iter().chain(turn).chain(previous)
    }

    /// Ends the turns of a step that shares no sums.
    pub fn end(&self, r: &mut Rewriter<'_>) {
        if let Some((input, output)) = self.turn {
            r.builder.set_accumulator(input, output);
        }
    }

    /// An exchange left this value.
    fn done(&mut self, value: ValueId) {
        self.previous = self.in_order.then_some(value);
    }
}

/// The sum of a chain before a node adds to it. It reads the node's inputs, so that a device does not wait before it has them.
fn receive(
    r: &mut Rewriter<'_>,
    replica: &Replica<'_>,
    order: &mut Order,
    node: &Node,
    chain: usize,
) -> Result<ValueId, SplitError> {
    let sum = r.old.accumulators[chain].input;
    let (from, wraps) = replica.previous();
    if from == replica.device {
        return Ok(r.get(sum));
    }
    let op = Exchange::Receive { chain: chain as u32, from: from as u32, wraps, ty: r.old.ty(sum).clone() };
    let inputs: Vec<ValueId> = node.inputs.iter().map(|&v| r.get(v)).chain(order.before()).collect();
    let sum = r.get(sum);
    let received = emit(r, node, op, &inputs, sum)?[0];
    order.done(received);
    Ok(received)
}

/// As [`receive`], for a device that does not keep the sum.
fn take(
    r: &mut Rewriter<'_>,
    replica: &Replica<'_>,
    order: &mut Order,
    node: &Node,
    chain: usize,
    keeper: usize,
) -> Result<ValueId, SplitError> {
    // The sum of the micro-batches before is with the device that keeps it.
    let (from, wraps) = if replica.is_first() { (keeper, true) } else { replica.previous() };
    let ty = r.old.ty(r.old.accumulators[chain].input).clone();
    let mark = BatchMark::SUM;
    let op = Exchange::Take { chain: chain as u32, from: from as u32, wraps, ty, mark };
    let inputs: Vec<ValueId> = node.inputs.iter().map(|&v| r.get(v)).collect();
    Ok(in_turn(r, order, node, op, inputs)?[1])
}

/// Passes the sum of a chain on; an accumulator's output is then what was sent.
fn send(
    r: &mut Rewriter<'_>,
    replica: &Replica<'_>,
    order: &mut Order,
    node: &Node,
    chain: usize,
    (to, wraps): (usize, bool),
) -> Result<(), SplitError> {
    let sum = r.old.accumulators[chain].output;
    if to != replica.device {
        let op = Exchange::Send { chain: chain as u32, to: to as u32, wraps, ty: r.old.ty(sum).clone() };
        let held = r.get(sum);
        r.map[sum.index()] = Some(emit(r, node, op, &[], held)?[0]);
    }
    order.since.push(r.get(sum));
    order.done(r.get(sum));
    Ok(())
}

/// As [`send`], for a device that does not keep the sum; the last one gives it to the one that does.
fn give(
    r: &mut Rewriter<'_>,
    replica: &Replica<'_>,
    order: &mut Order,
    node: &Node,
    chain: usize,
    keeper: usize,
) -> Result<(), SplitError> {
    let to = if replica.device == replica.last() { keeper } else { replica.next().0 };
    let sum = r.get(r.old.accumulators[chain].output);
    in_turn(r, order, node, Exchange::Give { chain: chain as u32, to: to as u32 }, vec![sum])?;
    Ok(())
}

/// The sum of a chain from the last device, for the one that keeps it; the first one gets it for the next micro-batch.
fn keep(
    r: &mut Rewriter<'_>,
    replica: &Replica<'_>,
    order: &mut Order,
    node: &Node,
    chain: usize,
) -> Result<(), SplitError> {
    let sum = r.old.accumulators[chain].output;
    if replica.device == replica.last() {
        return Ok(());
    }
    let from = replica.last() as u32;
    let op = Exchange::Receive { chain: chain as u32, from, wraps: false, ty: r.old.ty(sum).clone() };
    let held = r.get(sum);
    let before: Vec<ValueId> = order.before().filter(|&v| v != held).collect();
    r.map[sum.index()] = Some(emit(r, node, op, &before, held)?[0]);
    order.since.push(r.get(sum));
    order.done(r.get(sum));
    if replica.is_first() || replica.micro_batches == 1 {
        return Ok(());
    }
    send(r, replica, order, node, chain, (replica.first(), true))
}

/// Emits an exchange of one sum.
fn emit(
    r: &mut Rewriter<'_>,
    node: &Node,
    op: Exchange,
    inputs: &[ValueId],
    sum: ValueId,
) -> Result<Vec<ValueId>, SplitError> {
    let emit = |b: &mut Builder| b.accumulating(Op::Exchange(op), inputs, &[sum]);
    Ok(r.builder.within(node.layer.clone(), emit)?)
}

/// Emits an exchange that has a turn.
pub(crate) fn in_turn(
    r: &mut Rewriter<'_>,
    order: &mut Order,
    node: &Node,
    op: Exchange,
    mut inputs: Vec<ValueId>,
) -> Result<Vec<ValueId>, SplitError> {
    let (input, turn) = order.turn.unwrap_or_else(|| {
        let turn = r.builder.accumulator(Exchange::turn());
        (turn, turn)
    });
    inputs.extend(order.before().filter(|&v| v != turn));
    let outputs = emit(r, node, op, &inputs, turn)?;
    order.turn = Some((input, outputs[0]));
    order.since.push(outputs[0]);
    order.done(outputs[0]);
    Ok(outputs)
}

/// Replaces the outputs of accumulators of a device's own examples by the sums of all devices.
fn all_reduce(
    r: &mut Rewriter<'_>,
    replica: &Replica<'_>,
    step: &Step,
    order: &mut Order,
) -> Result<(), SplitError> {
    let chains: Vec<usize> = (0..step.reduced.len()).filter(|&chain| step.reduced[chain]).collect();
    if chains.is_empty() {
        return Ok(());
    }
    let sums: Vec<ValueId> = chains.iter().map(|&chain| r.get(r.old.accumulators[chain].output)).collect();
    let types = sums.iter().map(|&sum| r.builder.ty(sum).clone()).collect();
    let devices = replica.examples.len() as u32;
    let op = Exchange::AllReduce { devices, chains: numbers(&chains), types };
    meet(r, order, &"replicas".into(), op, &chains, &sums)
}

/// Replaces the outputs of some accumulators by the whole sums, in the midst of the step.
fn synchronise(
    r: &mut Rewriter<'_>,
    replica: &Replica<'_>,
    order: &mut Order,
    layer: &Arc<str>,
    chains: &[usize],
    sums: Vec<ValueId>,
) -> Result<(), SplitError> {
    let types = sums.iter().map(|&sum| r.builder.ty(sum).clone()).collect();
    let op = Exchange::Synchronise { from: replica.last() as u32, chains: numbers(chains), types };
    meet(r, order, layer, op, chains, &sums)
}

/// Emits an exchange in which all devices meet: what was exchanged before it is before it on all of them.
fn meet(
    r: &mut Rewriter<'_>,
    order: &mut Order,
    layer: &Arc<str>,
    op: Exchange,
    chains: &[usize],
    sums: &[ValueId],
) -> Result<(), SplitError> {
    // The sums themselves are read as accumulators.
    // Of the turns, and of what was sent twice, only the last is there still.
    let since = order.since.split_off(0).into_iter().filter(|v| r.map.contains(&Some(*v)));
    let before: Vec<ValueId> = since.chain(order.before()).filter(|v| !sums.contains(v)).collect();
    let whole = r.builder.within(layer.clone(), |b| b.accumulating(Op::Exchange(op), &before, sums))?;
    order.meeting = whole.first().copied();
    order.previous = None;
    for (&chain, new) in chains.iter().zip(whole) {
        r.map[r.old.accumulators[chain].output.index()] = Some(new);
    }
    Ok(())
}

/// Replaces the output of every accumulator that the optimizer step of this device reads by the whole sum.
fn share(r: &mut Rewriter<'_>, replica: &Replica<'_>, step: &Step, order: &Order) -> Result<(), SplitError> {
    let sums = &step.graph.accumulators;
    let reads = |device: usize, chain: usize| step.needs[device].value(sums[chain].output);
    let is_last = replica.device == replica.last();
    // The devices that read a sum, beside the one that holds it.
    let readers = |chain: usize| -> Vec<u32> {
        let others = (0..replica.examples.len()).filter(|&device| device != replica.last());
        others.filter(|&device| reads(device, chain)).map(|device| device as u32).collect()
    };
    let passes = |chain: &usize| {
        let passed = if is_last { !readers(*chain).is_empty() } else { reads(replica.device, *chain) };
        passed && !step.synchronised[*chain] && !step.reduced[*chain] && step.keeper(*chain).is_none()
    };
    let (mut chains, rest): (Vec<usize>, Vec<usize>) = (0..sums.len()).partition(passes);
    let shared = numbers(&chains);
    let to = if is_last && !step.owners.is_empty() {
        chains.iter().map(|&chain| readers(chain)).collect()
    } else {
        Vec::new()
    };
    chains.extend(rest.into_iter().filter(|&chain| step.keeps(chain, replica.device)));
    let outputs: Vec<ValueId> = chains.iter().map(|&chain| r.old.accumulators[chain].output).collect();
    // All that has a turn is before it.
    let (input, turn) = order.turn.unzip();
    let sums: Vec<ValueId> = outputs.iter().map(|&v| r.get(v)).chain(turn).collect();
    let types = sums.iter().map(|&v| r.builder.ty(v).clone()).collect();
    let op = Op::Exchange(Exchange::Share { from: replica.last() as u32, chains: shared, to, types });
    let shared = r.builder.within("replicas".into(), |b| b.accumulating(op, &[], &sums))?;
    if let (Some(input), Some(&output)) = (input, shared.last()) {
        r.builder.set_accumulator(input, output);
    }
    for (old, new) in outputs.into_iter().zip(shared) {
        r.map[old.index()] = Some(new);
    }
    Ok(())
}

fn numbers(chains: &[usize]) -> Vec<u32> {
    chains.iter().map(|&chain| chain as u32).collect()
}

/// The optimizer step alone, on sums that other devices made.
fn update_only(step: &Step, replica: &Replica<'_>) -> Result<Graph, SplitError> {
    let Step { graph, synchronised, fetches, once, .. } = step;
    let mut needed = vec![false; graph.nodes.len()];
    let states = graph.states.iter().filter(|state| step.updates(state, replica.device));
    let states = states.filter_map(|state| state.output);
    let mut stack: Vec<ValueId> = states.chain(graph.outputs.iter().map(|output| output.value)).collect();
    while let Some(value) = stack.pop() {
        let is_sum = graph.accumulators.iter().any(|accumulator| accumulator.output == value);
        match graph.origin(value) {
            _ if is_sum => {}
            Origin::Input(i) if graph.inputs[i].batched => {
                let layer = graph.inputs[i].name.clone();
                return Err(SplitError::Mixes { layer, op: "the update" });
            }
            Origin::Node { node, .. } if !std::mem::replace(&mut needed[node.index()], true) => {
                stack.extend(graph.node(node).reads());
            }
            _ => {}
        }
    }
    let mut r = step.rewriter(|keeps, sums| Rewriter::without_batch(graph, keeps, sums), replica.device);
    for accumulator in &graph.accumulators {
        r.map[accumulator.output.index()] = r.map[accumulator.input.index()];
    }
    let (mut order, computing) = (step.order(), replica.chain().collect::<Vec<_>>());
    for (at, node) in graph.nodes.iter().enumerate() {
        if !once[at] {
            fetches.pass(&mut r, &mut order, (replica.device, &computing), (at, node))?;
        }
        if fetches.runs_alone(at, replica.device) {
            r.copy(node)?;
            needed[at] = false;
        }
        for chain in chains_of(graph, node).filter(|&chain| step.keeper(chain) == Some(replica.device)) {
            keep(&mut r, replica, &mut order, node, chain)?;
        }
        let whole: Vec<usize> = chains_of(graph, node).filter(|&chain| synchronised[chain]).collect();
        if !whole.is_empty() {
            let sums = whole.iter().map(|&chain| r.get(graph.accumulators[chain].input)).collect();
            synchronise(&mut r, replica, &mut order, &node.layer, &whole, sums)?;
        }
    }
    all_reduce(&mut r, replica, step, &mut order)?;
    share(&mut r, replica, step, &order)?;
    for (node, _) in graph.nodes.iter().zip(&needed).filter(|(_, needed)| **needed) {
        r.copy(node)?;
    }
    Ok(r.finish_updating(|state| step.updates(state, replica.device))?)
}

#[cfg(test)]
mod tests;
