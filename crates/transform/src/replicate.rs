//! Replicas: turns the step of a part of the batch into the step of one device of several.
//!
//! A sum over the batch is one left fold over the examples in order, whichever device has them: each device receives the sum
//! where the one before it stopped, continues it, and sends it on. So the results have the bits of one device with
//! the whole batch.

use crate::SplitError;
use crate::accumulate::with_accumulators;
use crate::rewriter::Rewriter;
use plimsoll_graph::op::Exchange;
use plimsoll_graph::{Builder, Graph, Node, Op, Origin, ValueId};

/// The part of a step that one device runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replica<'a> {
    /// The device's number.
    pub device: usize,
    /// Examples that each device takes of a micro-batch, in order. Those that take none are not in the chains.
    pub examples: &'a [usize],
    /// Micro-batches of the step.
    pub micro_batches: usize,
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
            None => (self.chain().next().unwrap_or(self.device), true),
        }
    }

    fn last(&self) -> usize {
        self.chain().next_back().unwrap_or(self.device)
    }
}

/// The step of one device, from the step of its examples in a micro-batch. For a device that takes no examples, from that of any
/// other: what is left of it is the optimizer step.
pub fn replicate(part: &Graph, replica: &Replica<'_>) -> Result<Graph, SplitError> {
    let graph = with_accumulators(part, replica.micro_batches)?;
    if replica.examples[replica.device] == 0 {
        return update_only(&graph, replica);
    }
    let once = graph.optimizer_step();
    let mut r = Rewriter::new(&graph);
    // What is read for an accumulator, once it is received.
    let mut received = vec![None; graph.value_count()];
    for (node, _) in graph.nodes.iter().zip(&once).filter(|(_, once)| !**once) {
        for &sum in &node.accumulate {
            received[sum.index()] = Some(receive(&mut r, replica, node, sum)?);
        }
        let outputs = r.emit(node, |r, v| received[v.index()].unwrap_or_else(|| r.get(v)))?;
        r.set(node, &outputs);
        for (chain, accumulator) in graph.accumulators.iter().enumerate() {
            if node.outputs.contains(&accumulator.output) {
                let sent = send(&mut r, replica, node, chain, accumulator.output)?;
                r.map[accumulator.output.index()] = Some(sent);
            }
        }
    }
    share(&mut r, replica, |r, accumulator| r.get(graph.accumulators[accumulator].output))?;
    for (node, _) in graph.nodes.iter().zip(&once).filter(|(_, once)| **once) {
        r.copy(node)?;
    }
    Ok(r.finish()?)
}

/// The sum of a chain before a node adds to it. It reads the node's inputs, so that a device does not wait before it has them.
fn receive(
    r: &mut Rewriter<'_>,
    replica: &Replica<'_>,
    node: &Node,
    sum: ValueId,
) -> Result<ValueId, SplitError> {
    let Origin::Accumulator(chain) = r.old.origin(sum) else { return Ok(r.get(sum)) };
    let (from, wraps) = replica.previous();
    if from == replica.device {
        return Ok(r.get(sum));
    }
    let op = Exchange::Receive { chain: chain as u32, from: from as u32, wraps, ty: r.old.ty(sum).clone() };
    let inputs: Vec<ValueId> = node.inputs.iter().map(|&v| r.get(v)).collect();
    let sum = r.get(sum);
    let emit = |b: &mut Builder| b.accumulating(Op::Exchange(op), &inputs, &[sum]);
    Ok(r.builder.within(node.layer.clone(), emit)?[0])
}

fn send(
    r: &mut Rewriter<'_>,
    replica: &Replica<'_>,
    node: &Node,
    chain: usize,
    sum: ValueId,
) -> Result<ValueId, SplitError> {
    let (to, wraps) = replica.next();
    if to == replica.device {
        return Ok(r.get(sum));
    }
    let op = Exchange::Send { chain: chain as u32, to: to as u32, wraps, ty: r.old.ty(sum).clone() };
    let sum = r.get(sum);
    let emit = |b: &mut Builder| b.accumulating(Op::Exchange(op), &[], &[sum]);
    Ok(r.builder.within(node.layer.clone(), emit)?[0])
}

/// Replaces every accumulator's output by the whole sum.
fn share(
    r: &mut Rewriter<'_>,
    replica: &Replica<'_>,
    held: impl Fn(&Rewriter<'_>, usize) -> ValueId,
) -> Result<(), SplitError> {
    let outputs: Vec<ValueId> = r.old.accumulators.iter().map(|accumulator| accumulator.output).collect();
    let types = outputs.iter().map(|&v| r.old.ty(v).clone()).collect();
    let sums: Vec<ValueId> = (0..outputs.len()).map(|i| held(r, i)).collect();
    let op = Op::Exchange(Exchange::Share { from: replica.last() as u32, types });
    let shared = r.builder.within("replicas".into(), |b| b.accumulating(op, &[], &sums))?;
    for (old, new) in outputs.into_iter().zip(shared) {
        r.map[old.index()] = Some(new);
    }
    Ok(())
}

/// The optimizer step alone, on sums that other devices made.
fn update_only(graph: &Graph, replica: &Replica<'_>) -> Result<Graph, SplitError> {
    let mut needed = vec![false; graph.nodes.len()];
    let states = graph.states.iter().filter_map(|state| state.output);
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
    let mut r = Rewriter::without_batch(graph);
    share(&mut r, replica, |r, accumulator| r.get(graph.accumulators[accumulator].input))?;
    for (node, _) in graph.nodes.iter().zip(&needed).filter(|(_, needed)| **needed) {
        r.copy(node)?;
    }
    Ok(r.finish()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_graph::{Init, Role, parse};
    use plimsoll_tensor::{DType, TensorType};

    /// `w` ends as itself minus the sum of the examples.
    fn step() -> Graph {
        let mut b = Builder::new(2, 1);
        let x = b.batch_input("x", TensorType::new(DType::F32, [2, 3]));
        let w = b.state("w", TensorType::new(DType::F32, [3]), Role::Parameter, Init::Ones);
        let sum = b.sum(x, &[0], false).unwrap();
        let next = b.sub(w, sum).unwrap();
        b.set_state(w, next);
        b.finish().unwrap()
    }

    fn exchanges(device: usize, examples: &[usize], micro_batches: usize) -> Vec<String> {
        let graph = replicate(&step(), &Replica { device, examples, micro_batches }).unwrap();
        assert_eq!(parse(&graph.to_string()).unwrap(), graph);
        assert_eq!(graph.micro_batches, if examples[device] > 0 { micro_batches } else { 1 });
        let word = |node: &Node| match node.op {
            Op::Exchange(Exchange::Receive { from, wraps, .. }) => format!("receive from {from}, {wraps}"),
            Op::Exchange(Exchange::Send { to, wraps, .. }) => format!("send to {to}, {wraps}"),
            Op::Exchange(Exchange::Share { from, .. }) => format!("share from {from}"),
            _ => node.op.name().to_string(),
        };
        graph.nodes.iter().filter(|node| !node.op.is_view()).map(word).collect()
    }

    #[test]
    fn sums_pass_from_each_device_to_the_next_and_around() {
        let first = ["receive from 2, true", "sum", "send to 1, false", "share from 2", "sub"];
        assert_eq!(exchanges(0, &[2, 2, 2], 2), first);
        let second = ["receive from 0, false", "sum", "send to 2, false", "share from 2", "sub"];
        assert_eq!(exchanges(1, &[2, 2, 2], 2), second);
        let last = ["receive from 1, false", "sum", "send to 0, true", "share from 2", "sub"];
        assert_eq!(exchanges(2, &[2, 2, 2], 2), last);
    }

    #[test]
    fn devices_without_examples_only_update() {
        assert_eq!(exchanges(1, &[2, 0, 2], 1), ["share from 2", "sub"]);
        let over_it = ["receive from 2, true", "sum", "send to 2, false", "share from 2", "sub"];
        assert_eq!(exchanges(0, &[2, 0, 2], 1), over_it);
        assert_eq!(exchanges(0, &[2, 0], 1), ["sum", "share from 0", "sub"]);
    }
}
