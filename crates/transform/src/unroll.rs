//! Micro-batches that flow through the devices of a placed step: the loop over them is unrolled, and the body has all of them.
//!
//! In a loop, a device that has given its activations waits for their gradients before it takes the next micro-batch. In a body of all
//! micro-batches the order is free, but for two things: a micro-batch's nodes follow each other, and sums over the batch fold in the order of the
//! micro-batches, each from where the one before stopped. So the nodes are those of the loop, and so are the bits.
//!
//! The order here is one forward, one backward (1F1B): the last device does a micro-batch's backward right after its forward, and each one before it begins as many
//! micro-batches ahead as there are devices after it, or more where it has several ranges of layers. That keeps all devices at work once the first micro-batch has come to the last
//! device, and bounds what a device saves for backward. `partition` lets values pass in this order, which the plans keep.

use crate::SplitError;
use crate::partition::{Homes, Placing};
use plimsoll_graph::{BatchRelation, Builder, Graph, GraphError, Node, Origin, ValueId};
use std::collections::BTreeMap;

/// Turns a step over `graph.examples` examples into one over `micro_batches` times as many, whose body has all of them, in an order in which the
/// devices of a placement work at the same time. It has the bits of [`accumulate`](crate::accumulate).
pub fn unroll(step: &Graph, micro_batches: usize, placing: &Placing<'_>) -> Result<Graph, SplitError> {
    if micro_batches == 1 {
        return Ok(step.clone());
    }
    if !step.examples.is_multiple_of(step.example_block) {
        return Err(SplitError::Block { examples: step.examples, block: step.example_block });
    }
    let phases = Phases::new(step)?;
    let segments = segments(step, placing, &phases);
    let mut unrolled = Unrolled::new(step, micro_batches, &phases);
    for (micro_batch, at) in order(&segments, micro_batches) {
        unrolled.copy(&step.nodes[at], micro_batch)?;
    }
    // What runs once reads the sums after the last micro-batch.
    let once = step.nodes.iter().enumerate().filter(|(at, _)| phases.once[*at]);
    once.map(|(_, node)| node).try_for_each(|node| unrolled.copy(node, micro_batches - 1))?;
    Ok(unrolled.finish()?)
}

/// Which nodes are of every micro-batch, and which run once, after the last.
struct Phases {
    once: Vec<bool>,
    /// The nodes that depend on the batch.
    of_batch: Vec<bool>,
    /// The outputs of each node that are sums over the batch, as places among its outputs.
    sums: Vec<Vec<usize>>,
}

impl Phases {
    fn new(step: &Graph) -> Result<Self, SplitError> {
        let marks = step.batch_marks();
        if !step.accumulators.is_empty() {
            return Err(GraphError::Broken("a step of several micro-batches is unrolled again".into()).into());
        }
        let of_examples = |value: ValueId| marks[value.index()].relation == BatchRelation::PerExample;
        if let Some(output) = step.outputs.iter().find(|output| of_examples(output.value)) {
            let reason = format!("output `{}` has rows of every micro-batch", output.name);
            return Err(GraphError::Broken(reason).into());
        }
        let mixed = |node: &Node| SplitError::Mixes { layer: node.layer.to_string(), op: node.op.name() };
        let mut finished = vec![false; step.value_count()];
        let (mut once, mut depends, mut sums) = (Vec::new(), Vec::new(), Vec::new());
        for node in &step.nodes {
            let own = step.own_relations(node, &marks);
            if own.contains(&BatchRelation::Mixed)
                || node.outputs.iter().any(|v| marks[v.index()].relation == BatchRelation::Mixed)
            {
                return Err(mixed(node));
            }
            let late = node.reads().any(|v| finished[v.index()]);
            if late && node.reads().any(of_examples) {
                return Err(mixed(node));
            }
            let own: Vec<usize> = own
                .iter()
                .enumerate()
                .filter(|(_, own)| **own == BatchRelation::Reduced)
                .map(|(at, _)| at)
                .collect();
            node.outputs.iter().for_each(|v| finished[v.index()] = late);
            own.iter().for_each(|&at| finished[node.outputs[at].index()] = true);
            let independent = |v: &ValueId| marks[v.index()].relation == BatchRelation::Independent;
            depends.push(!node.outputs.iter().all(independent));
            once.push(late);
            sums.push(own);
        }
        // What no micro-batch reads need not be computed in each.
        let mut read = vec![false; step.value_count()];
        for (at, node) in step.nodes.iter().enumerate().rev() {
            once[at] |= !depends[at] && !node.outputs.iter().any(|v| read[v.index()]);
            if !once[at] {
                node.reads().for_each(|v| read[v.index()] = true);
            }
        }
        Ok(Self { once, of_batch: depends, sums })
    }
}

/// Nodes of a micro-batch that follow each other on one device.
struct Segment {
    device: usize,
    /// Each with the cost of those before it.
    nodes: Vec<(usize, u64)>,
    cost: u64,
}

/// A micro-batch, cut where it passes from one device to another.
fn segments(step: &Graph, placing: &Placing<'_>, phases: &Phases) -> Vec<Segment> {
    let homes = Homes::new(step, placing);
    let on_demand = on_demand(step, &homes, phases);
    let mut segments: Vec<Segment> = Vec::new();
    let mut added = vec![false; step.nodes.len()];
    let here = |at: &usize| !phases.once[*at];
    // Those that nobody reads come last.
    let (first, rest): (Vec<usize>, Vec<usize>) =
        (0..step.nodes.len()).filter(here).partition(|&at| !on_demand[at]);
    for at in first.into_iter().chain(rest) {
        let device = homes.nodes[at].unwrap_or(placing.other);
        if segments.last().is_none_or(|last| last.device != device && !on_demand[at]) {
            segments.push(Segment { device, nodes: Vec::new(), cost: 0 });
        }
        let Some(segment) = segments.last_mut() else { continue };
        let (mut needed, mut next) = (vec![at], 0);
        while let Some(&node) = needed.get(next) {
            let before = step.nodes[node].reads().filter_map(|v| step.producer(v)).map(|node| node.index());
            for node in before.filter(|&node| on_demand[node] && !added[node] && here(&node)) {
                if !needed.contains(&node) {
                    needed.push(node);
                }
            }
            next += 1;
        }
        needed.sort_unstable();
        for node in needed.into_iter().filter(|&node| !std::mem::replace(&mut added[node], true)) {
            segment.add(step, node);
        }
    }
    segments
}

/// The nodes that belong where they are read first, wherever they are in the step: what does not depend on the batch, and what follows from examples
/// alone. They do not take a micro-batch from one device to another.
fn on_demand(step: &Graph, homes: &Homes, phases: &Phases) -> Vec<bool> {
    let is_input = |value: ValueId| matches!(step.origin(value), Origin::Input(_));
    let mut from_examples: Vec<bool> = step.value_ids().map(is_input).collect();
    let mut found = Vec::with_capacity(step.nodes.len());
    for (at, node) in step.nodes.iter().enumerate() {
        let follows = homes.nodes[at].is_none()
            || phases.of_batch[at]
                && phases.sums[at].is_empty()
                && node.reads().all(|v| from_examples[v.index()]);
        node.outputs.iter().for_each(|v| from_examples[v.index()] = follows);
        found.push(follows || !phases.of_batch[at]);
    }
    found
}

impl Segment {
    fn add(&mut self, step: &Graph, at: usize) {
        let node = &step.nodes[at];
        let (inputs, outputs) = (step.input_types(node), step.output_types(node));
        // Rough, and the same for every kind of device: a device that is faster than this only waits more.
        let cost = node.op.flops(&inputs, &outputs).saturating_add(node.op.bytes(&inputs, &outputs));
        self.nodes.push((at, self.cost));
        self.cost = self.cost.saturating_add(cost.max(1));
    }
}

/// The order of micro-batches and their nodes: by when each begins if every device does what it can as early as it can, and rather goes on with a
/// micro-batch that is further than with one behind it. A value passes when its reader begins, so who gives it does so between two of its own nodes.
fn order(segments: &[Segment], micro_batches: usize) -> Vec<(usize, usize)> {
    let mut devices: BTreeMap<usize, Lane> = BTreeMap::new();
    for (at, segment) in segments.iter().enumerate() {
        let lane = devices.entry(segment.device).or_insert_with(|| Lane { first: at, ..Lane::default() });
        lane.last = at;
    }
    // Half of the way of a micro-batch until it comes back is forward: where each device has one range of layers, one for each device behind.
    devices.values_mut().for_each(|lane| lane.most_open = (lane.last - lane.first) / 2 + 1);
    // The next segment of each micro-batch, and when the one before it ends.
    let mut next = vec![(0_usize, 0_u64); micro_batches];
    let mut begun: Vec<(u64, usize, usize)> = Vec::with_capacity(segments.len() * micro_batches);
    while begun.len() < segments.len() * micro_batches {
        let start = |micro_batch: usize| {
            let (at, ready) = next[micro_batch];
            let lane = &devices[&segments.get(at)?.device];
            let in_turn = micro_batch == 0 || next[micro_batch - 1].0 > at;
            let open = at != lane.first || lane.open < lane.most_open;
            (in_turn && open).then_some((ready.max(lane.free), std::cmp::Reverse(at), micro_batch))
        };
        // The oldest micro-batch that is not done is held up by none.
        let Some((begin, std::cmp::Reverse(at), micro_batch)) = (0..micro_batches).filter_map(start).min()
        else {
            break;
        };
        let end = begin.saturating_add(segments[at].cost);
        if let Some(lane) = devices.get_mut(&segments[at].device) {
            lane.free = end;
            lane.open += usize::from(at == lane.first);
            lane.open -= usize::from(at == lane.last);
        }
        next[micro_batch] = (at + 1, end);
        begun.push((begin, at, micro_batch));
    }
    // Of nodes that begin at once, those that take what passes forward come first, and of these the ones that are further: so what was just computed is
    // given before more is.
    let forward = 1..=segments.len() / 2;
    let nodes = begun.into_iter().flat_map(|(begin, segment, micro_batch)| {
        let passes_on = !forward.contains(&segment);
        let key = move |before: u64| {
            (begin.saturating_add(before), passes_on, std::cmp::Reverse(segment), micro_batch)
        };
        segments[segment].nodes.iter().map(move |&(at, before)| (key(before), at))
    });
    let mut nodes: Vec<_> = nodes.collect();
    nodes.sort_unstable();
    nodes.into_iter().map(|((.., micro_batch), at)| (micro_batch, at)).collect()
}

/// A device on its way through the segments.
#[derive(Default)]
struct Lane {
    /// Its first and last segment.
    first: usize,
    last: usize,
    /// When it is free.
    free: u64,
    /// Micro-batches that it has begun and not ended, and how many these may be.
    open: usize,
    most_open: usize,
}

/// The unrolled step in the making.
struct Unrolled<'g> {
    step: &'g Graph,
    phases: &'g Phases,
    builder: Builder,
    /// The values of every micro-batch.
    maps: Vec<Vec<Option<ValueId>>>,
}

impl<'g> Unrolled<'g> {
    fn new(step: &'g Graph, micro_batches: usize, phases: &'g Phases) -> Self {
        let mut builder = Builder::new(step.examples, step.example_block);
        builder.set_unrolled(micro_batches);
        let mut maps = vec![vec![None; step.value_count()]; micro_batches];
        for value in step.value_ids() {
            let ty = step.ty(value);
            let same = match step.origin(value) {
                Origin::Input(i) if step.inputs[i].batched => {
                    for (part, map) in maps.iter_mut().enumerate() {
                        let mut input = step.inputs[i].clone();
                        input.part = part;
                        map[value.index()] = Some(builder.input_like(&input, ty.clone()));
                    }
                    continue;
                }
                Origin::Input(i) => builder.input_like(&step.inputs[i], ty.clone()),
                Origin::State(i) => {
                    let state = &step.states[i];
                    builder.named_state(state.name.clone(), ty.clone(), state.role, state.init)
                }
                Origin::Accumulator(_) | Origin::Node { .. } => continue,
            };
            maps.iter_mut().for_each(|map| map[value.index()] = Some(same));
        }
        Self { step, phases, builder, maps }
    }

    fn get(&self, value: ValueId, micro_batch: usize) -> Result<ValueId, GraphError> {
        let found = self.maps[micro_batch][value.index()];
        found.ok_or_else(|| GraphError::Broken(format!("{value} is read before it is computed")))
    }

    /// Emits a node of a micro-batch. Sums go on from those of the one before.
    fn copy(&mut self, node: &Node, micro_batch: usize) -> Result<(), GraphError> {
        let inputs = node.inputs.iter().map(|&v| self.get(v, micro_batch)).collect::<Result<Vec<_>, _>>()?;
        let at = node.outputs.first().and_then(|&v| self.step.producer(v));
        let sums = at.map_or(&[][..], |at| &self.phases.sums[at.index()]);
        let before = match micro_batch {
            0 => Vec::new(),
            _ if at.is_none_or(|at| self.phases.once[at.index()]) => Vec::new(),
            _ => sums
                .iter()
                .map(|&o| self.get(node.outputs[o], micro_batch - 1))
                .collect::<Result<Vec<_>, _>>()?,
        };
        let emit = |b: &mut Builder| b.accumulating(node.op.clone(), &inputs, &before);
        let outputs = self.builder.within(node.layer.clone(), emit)?;
        for (old, new) in node.outputs.iter().zip(outputs) {
            self.maps[micro_batch][old.index()] = Some(new);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Graph, GraphError> {
        let (step, last) = (self.step, self.maps.len() - 1);
        for state in &step.states {
            if let Some(output) = state.output {
                let (input, output) = (self.get(state.input, last)?, self.get(output, last)?);
                self.builder.set_state(input, output);
            }
        }
        for output in &step.outputs {
            let value = self.get(output.value, last)?;
            self.builder.output(&output.name, value);
        }
        self.builder.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partition;
    use plimsoll_graph::op::{Exchange, MatMul, Unary};
    use plimsoll_graph::{Init, Op, Role, parse};
    use plimsoll_tensor::{DType, TensorType};

    fn ty<const N: usize>(shape: [usize; N]) -> TensorType {
        TensorType::new(DType::F32, shape)
    }

    /// A row of products, a layer each, with what a square loss has of backward, and an update of every kernel.
    fn step(layers: &[&str]) -> Graph {
        let mut b = Builder::new(4, 2);
        let x = b.batch_input("x", ty([4, 3]));
        let rate = b.setting("rate", ty([]));
        // Of the last layer, long before it.
        let weights = b.batch_input("weights", ty([4, 1]));
        let weights = b.unary(Unary::Exp, weights).unwrap();
        let mut values = vec![x];
        let mut kernels = Vec::new();
        for layer in layers {
            let (own, y) = b.scope(layer, |b| {
                let own = b.state("kernel", ty([3, 3]), Role::Parameter, Init::Ones);
                (own, b.matmul(values[values.len() - 1], own).unwrap())
            });
            kernels.push(own);
            values.push(y);
        }
        let mut slope = b.scope(layers[layers.len() - 1], |b| b.mul(values[layers.len()], weights)).unwrap();
        let loss = b.scope("loss", |b| b.sum(slope, &[0, 1], false)).unwrap();
        b.output("loss", loss);
        for (at, layer) in layers.iter().enumerate().rev() {
            let product = |transpose_a, transpose_b| {
                Op::MatMul(MatMul { transpose_a, transpose_b, ..MatMul::default() })
            };
            b.scope(layer, |b| {
                let sum = b.one(product(true, false), &[values[at], slope]).unwrap();
                if at > 0 {
                    slope = b.one(product(false, true), &[slope, kernels[at]]).unwrap();
                }
                let scaled = b.mul(sum, rate).unwrap();
                let next = b.sub(kernels[at], scaled).unwrap();
                b.set_state(kernels[at], next);
            });
        }
        b.finish().unwrap()
    }

    fn placed<T>(layers: &[&str], of: impl FnOnce(&Placing<'_>) -> T) -> T {
        let layer = |layer: &str| layers.iter().position(|own| *own == layer);
        let state = |name: &str| layer(name.trim_end_matches("/kernel")).unwrap_or(0);
        of(&Placing { devices: layers.len(), layer: &layer, state: &state, other: layers.len() - 1 })
    }

    /// What each device gives and takes, with products in between: forward, or one of the two of backward.
    fn words(layers: &[&str], micro_batches: usize) -> Vec<String> {
        let parts = placed(layers, |placing| {
            partition(&unroll(&step(layers), micro_batches, placing).unwrap(), placing).unwrap()
        });
        let word = |node: &Node| match &node.op {
            Op::Exchange(Exchange::Give { .. }) => Some("give"),
            Op::Exchange(Exchange::Take { .. }) => Some("take"),
            Op::MatMul(product) if product.transpose_a => Some("W"),
            Op::MatMul(product) if product.transpose_b => Some("B"),
            Op::MatMul(_) => Some("F"),
            _ => None,
        };
        let words = |part: &Graph| part.nodes.iter().filter_map(word).collect::<Vec<_>>().join(" ");
        parts.iter().map(words).collect()
    }

    #[test]
    fn the_last_device_goes_back_at_once_and_those_before_it_run_ahead() {
        let two = words(&["a", "b"], 4);
        assert_eq!(
            two[0], "F give F give take W F give take W F give take W take W",
            "one micro-batch ahead of the device behind it"
        );
        assert_eq!(two[1], "take F W B take F give W B take F give W B take F give W B give");
        let three = words(&["a", "b", "c"], 3);
        assert_eq!(three[0], "F give F give F give take W take W take W");
        assert!(three[1].starts_with("take F give take F give take"), "{}", three[1]);
        assert!(three[2].starts_with("take F W B"), "{}", three[2]);
    }

    #[test]
    fn sums_go_on_from_micro_batch_to_micro_batch_and_updates_run_once() {
        let (layers, micro_batches) = (["a", "b"], 3);
        let whole = placed(&layers, |placing| unroll(&step(&layers), micro_batches, placing).unwrap());
        assert_eq!(parse(&whole.to_string()).unwrap(), whole);
        assert_eq!((whole.examples, whole.micro_batches, whole.step_micro_batches()), (4, 1, 3));
        let parts: Vec<(&str, usize)> =
            whole.inputs.iter().map(|input| (input.name.as_str(), input.part)).collect();
        let each = |name| [(name, 0), (name, 1), (name, 2)];
        assert_eq!(parts, [&each("x")[..], &[("rate", 0)], &each("weights")].concat());
        for (layer, own) in [("a", 3), ("b", 3), ("loss", 3)] {
            let sums: Vec<&Node> = (whole.nodes.iter())
                .filter(|node| &*node.layer == layer)
                .filter(|node| {
                    matches!(node.op, Op::MatMul(MatMul { transpose_a: true, .. }) | Op::Reduce(_))
                })
                .collect();
            assert_eq!(sums.len(), own, "{layer}");
            assert!(sums[0].accumulate.is_empty(), "the first starts at zero");
            assert!(sums.windows(2).all(|pair| pair[1].accumulate == pair[0].outputs), "{layer}");
        }
        let updates = whole.nodes.iter().filter(|node| node.op.name() == "sub").count();
        assert_eq!(updates, layers.len());
    }

    #[test]
    fn one_micro_batch_stays_and_parts_of_blocks_are_refused() {
        let layers = ["a", "b"];
        let unrolled = |step: &Graph, count| placed(&layers, |placing| unroll(step, count, placing));
        assert_eq!(unrolled(&step(&layers), 1).unwrap(), step(&layers));
        let mut odd = step(&layers);
        odd.example_block = 3;
        assert!(matches!(unrolled(&odd, 2), Err(SplitError::Block { examples: 4, block: 3 })));
        let mut b = Builder::new(4, 2);
        let x = b.batch_input("x", ty([4, 3]));
        b.output("x", x);
        let rows = unrolled(&b.finish().unwrap(), 2).unwrap_err().to_string();
        assert!(rows.contains("output `x` has rows"), "{rows}");
        let mut b = Builder::new(4, 2);
        let x = b.batch_input("x", ty([4, 3]));
        let total = b.sum(x, &[0], true).unwrap();
        let mixed = b.sub(x, total).unwrap();
        let mixed = b.sum(mixed, &[1], false).unwrap();
        b.output("y", mixed);
        assert!(matches!(unrolled(&b.finish().unwrap(), 2), Err(SplitError::Mixes { op: "sub", .. })));
    }
}
