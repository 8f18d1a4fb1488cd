//! Placement: turns a step into the steps of several devices, each of which holds the layers that are placed on it.
//!
//! The nodes stay what they are, so results have the bits of one device. A value that a node on another device reads is *given* by
//! the device that has it and *taken* there, once for all readers: in every micro-batch, or, where only the optimizer step reads it, once
//! after the last. What the devices have in common and costs nothing, constants and what follows from settings alone, each computes itself.
//!
//! **No device waits for ever.** Who gives waits until the value is taken, and who takes until it is given. All that passes has a number, in
//! one order: that of the first nodes that read each value, first of a micro-batch, then of the optimizer step. A value is computed before
//! the node that reads it, so it needs nothing that passes after it. Every device gives and takes in this order, because each exchange
//! reads the turn that the one before left. Of all that has not passed yet, take the first: its two devices have done all
//! exchanges before it, and what they compute until then waits for none after it. So both come to it, and it passes.

use plimsoll_graph::op::Exchange;
use plimsoll_graph::{BatchMark, Builder, Graph, GraphError, Node, Op, Origin, ValueId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Where the parts of a step are.
pub struct Placing<'a> {
    /// How many devices there are.
    pub devices: usize,
    /// The device of a layer; `None`: nodes of this layer are where the first value that they read is.
    pub layer: &'a dyn Fn(&str) -> Option<usize>,
    /// The device that holds a state, by its name: the same in every step of a run.
    pub state: &'a dyn Fn(&str) -> usize,
    /// The device of what belongs nowhere else.
    pub other: usize,
}

/// The name of the output that the exchanges of an optimizer step end as, so that a plan runs them.
pub const TURN: &str = "turn";

/// The part of a step, whose batch may be split into micro-batches already, that each device runs. What a part lacks was placed elsewhere;
/// one may have no nodes at all.
pub fn partition(step: &Graph, placing: &Placing<'_>) -> Result<Vec<Graph>, GraphError> {
    let (homes, once) = (Homes::new(step, placing), step.optimizer_step());
    let marks = step.batch_marks();
    let passes = passes(step, &homes, &once);
    let mut parts: Vec<Part<'_>> =
        (0..placing.devices).map(|device| Part::new(step, &homes, device)).collect();
    let mut passes = passes.iter().enumerate().peekable();
    for phase in [false, true] {
        let nodes = step.nodes.iter().enumerate().filter(|(at, _)| once[*at] == phase);
        for (at, node) in nodes {
            while let Some((chain, pass)) = passes.next_if(|(_, pass)| pass.once == phase && pass.at <= at) {
                pass_on(&mut parts, pass, chain as u32, marks[pass.value.index()], &node.layer)?;
            }
            if let Some(device) = homes.nodes[at] {
                parts[device].copy(node)?;
            }
        }
        while let Some((chain, pass)) = passes.next_if(|(_, pass)| pass.once == phase) {
            pass_on(&mut parts, pass, chain as u32, marks[pass.value.index()], &Arc::from("states"))?;
        }
        parts.iter_mut().for_each(|part| part.end_phase());
    }
    parts.into_iter().enumerate().map(|(device, part)| part.finish(device)).collect()
}

/// Where nodes and values are; `None`: on every device that reads them.
pub(crate) struct Homes {
    pub nodes: Vec<Option<usize>>,
    values: Vec<Option<usize>>,
    other: usize,
}

impl Homes {
    pub fn new(step: &Graph, placing: &Placing<'_>) -> Self {
        let mut values = vec![None; step.value_count()];
        for state in &step.states {
            values[state.input.index()] = Some((placing.state)(&state.name));
        }
        let mut nodes: Vec<Option<usize>> = Vec::with_capacity(step.nodes.len());
        let common = common_nodes(step);
        for (node, common) in step.nodes.iter().zip(&common) {
            let ends_as = |state: &&plimsoll_graph::State| {
                state.output.is_some_and(|output| node.outputs.contains(&output))
            };
            let device = match common {
                true => None,
                false => (placing.layer)(&node.layer)
                    .or_else(|| step.states.iter().find(ends_as).map(|state| (placing.state)(&state.name)))
                    .or_else(|| node.reads().find_map(|value| values[value.index()])),
            };
            node.outputs.iter().for_each(|value| values[value.index()] = device);
            nodes.push(device);
        }
        // What follows from examples alone is where it is read first.
        let mut reader = vec![None; step.value_count()];
        for (at, node) in step.nodes.iter().enumerate().rev().filter(|(at, _)| !common[*at]) {
            let device = nodes[at].or_else(|| node.outputs.iter().find_map(|value| reader[value.index()]));
            nodes[at] = Some(device.unwrap_or(placing.other));
            node.outputs.iter().for_each(|value| values[value.index()] = nodes[at]);
            node.reads().for_each(|value| reader[value.index()] = nodes[at]);
        }
        for sum in &step.accumulators {
            let device = values[sum.output.index()].unwrap_or(placing.other);
            values[sum.input.index()] = Some(device);
        }
        Self { nodes, values, other: placing.other }
    }

    /// The device that has a value that leaves the step.
    fn of(&self, value: ValueId) -> usize {
        self.values[value.index()].unwrap_or(self.other)
    }
}

/// The nodes that follow from constants and settings alone: they are the same on every device.
fn common_nodes(step: &Graph) -> Vec<bool> {
    let is_setting =
        |value: ValueId| matches!(step.origin(value), Origin::Input(i) if !step.inputs[i].batched);
    let mut common: Vec<bool> = step.value_ids().map(is_setting).collect();
    let mut nodes = Vec::with_capacity(step.nodes.len());
    for node in &step.nodes {
        let own = node.reads().all(|value| common[value.index()]);
        node.outputs.iter().for_each(|value| common[value.index()] = own);
        nodes.push(own);
    }
    nodes
}

/// A value that passes from one device to another.
struct Pass {
    value: ValueId,
    from: usize,
    to: usize,
    /// Whether it passes in the optimizer step.
    once: bool,
    /// The node that reads it first there.
    at: usize,
}

/// All that passes, in order.
fn passes(step: &Graph, homes: &Homes, once: &[bool]) -> Vec<Pass> {
    // By value and device that reads it: the optimizer step or not, the first reader, and the operand.
    let mut first: BTreeMap<(ValueId, usize), (bool, usize, usize)> = BTreeMap::new();
    let mut read = |value: ValueId, to: usize, when: (bool, usize, usize)| {
        if homes.values[value.index()].is_some_and(|from| from != to) {
            let known = first.entry((value, to)).or_insert(when);
            *known = when.min(*known);
        }
    };
    for (at, node) in step.nodes.iter().enumerate() {
        let Some(device) = homes.nodes[at] else { continue };
        node.reads().enumerate().for_each(|(operand, value)| read(value, device, (once[at], at, operand)));
    }
    // States and sums are where they were.
    let ends_late = !step.accumulators.is_empty();
    for (operand, state) in step.states.iter().enumerate() {
        if let Some(output) = state.output {
            read(output, homes.of(state.input), (ends_late, usize::MAX, operand));
        }
    }
    let mut passes: Vec<(Pass, usize)> = first
        .into_iter()
        .map(|((value, to), (once, at, operand))| {
            (Pass { value, from: homes.of(value), to, once, at }, operand)
        })
        .collect();
    passes.sort_by_key(|(pass, operand)| (pass.once, pass.at, *operand, pass.to));
    passes.into_iter().map(|(pass, _)| pass).collect()
}

/// Emits both sides of an exchange.
fn pass_on(
    parts: &mut [Part<'_>],
    pass: &Pass,
    chain: u32,
    mark: BatchMark,
    reader: &Arc<str>,
) -> Result<(), GraphError> {
    let given = parts[pass.from].get(pass.value)?;
    let giver = parts[pass.from].step.producer(pass.value);
    let layer = giver.map_or(reader, |node| &parts[pass.from].step.node(node).layer).clone();
    let give = Exchange::Give { chain, to: pass.to as u32 };
    parts[pass.from].exchange(layer, give, Some(given), pass.once)?;
    let ty = parts[pass.to].step.ty(pass.value).clone();
    let take = Exchange::Take { chain, from: pass.from as u32, wraps: false, ty, mark };
    let taken = parts[pass.to].exchange(reader.clone(), take, None, pass.once)?[1];
    parts[pass.to].map[pass.value.index()] = Some(taken);
    Ok(())
}

/// The part of a device in the making.
struct Part<'g> {
    step: &'g Graph,
    homes: &'g Homes,
    builder: Builder,
    /// The values that the device has.
    map: Vec<Option<ValueId>>,
    /// The accumulator of turns, and its value after the last exchange of a micro-batch.
    turn: Option<(ValueId, ValueId)>,
    /// The turn after the last exchange of the optimizer step.
    late: Option<ValueId>,
}

impl<'g> Part<'g> {
    fn new(step: &'g Graph, homes: &'g Homes, device: usize) -> Self {
        let mut builder = Builder::new(step.examples, step.example_block);
        builder.set_micro_batches(step.micro_batches);
        builder.set_unrolled(step.unrolled);
        let mut map = vec![None; step.value_count()];
        for state in step.states.iter().filter(|state| homes.of(state.input) == device) {
            let ty = step.ty(state.input).clone();
            let own = builder.named_state(state.name.clone(), ty, state.role, state.init);
            map[state.input.index()] = Some(own);
        }
        for sum in step.accumulators.iter().filter(|sum| homes.of(sum.input) == device) {
            map[sum.input.index()] = Some(builder.accumulator(step.ty(sum.input).clone()));
        }
        Self { step, homes, builder, map, turn: None, late: None }
    }

    /// The device's own value: what it has, an input that it gets, or what it computes itself as others do.
    fn get(&mut self, value: ValueId) -> Result<ValueId, GraphError> {
        if let Some(own) = self.map[value.index()] {
            return Ok(own);
        }
        match self.step.origin(value) {
            Origin::Input(i) => {
                let input = &self.step.inputs[i];
                let own = self.builder.input_like(input, self.step.ty(value).clone());
                self.map[value.index()] = Some(own);
                Ok(own)
            }
            Origin::Node { node, .. } if self.homes.nodes[node.index()].is_none() => {
                self.copy(self.step.node(node))?;
                self.map[value.index()].ok_or_else(|| missing(value))
            }
            Origin::Node { .. } | Origin::State(_) | Origin::Accumulator(_) => Err(missing(value)),
        }
    }

    fn copy(&mut self, node: &Node) -> Result<(), GraphError> {
        let inputs = node.inputs.iter().map(|&value| self.get(value)).collect::<Result<Vec<_>, _>>()?;
        let sums = node.accumulate.iter().map(|&value| self.get(value)).collect::<Result<Vec<_>, _>>()?;
        let emit = |b: &mut Builder| b.accumulating(node.op.clone(), &inputs, &sums);
        let outputs = self.builder.within(node.layer.clone(), emit)?;
        for (old, new) in node.outputs.iter().zip(outputs) {
            self.map[old.index()] = Some(new);
        }
        Ok(())
    }

    /// Emits an exchange after all before it.
    fn exchange(
        &mut self,
        layer: Arc<str>,
        op: Exchange,
        given: Option<ValueId>,
        once: bool,
    ) -> Result<Vec<ValueId>, GraphError> {
        let (input, turn) = self.turn.unwrap_or_else(|| {
            let turn = self.builder.accumulator(Exchange::turn());
            (turn, turn)
        });
        self.turn = Some((input, turn));
        if !once {
            let inputs: Vec<ValueId> = given.into_iter().collect();
            let outputs = self.emit(layer, op, &inputs, turn)?;
            self.turn = Some((input, outputs[0]));
            return Ok(outputs);
        }
        if turn == input {
            // A turn that no micro-batch has: it is finished when the last one is.
            let none = Exchange::Share {
                from: 0,
                chains: Vec::new(),
                to: Vec::new(),
                types: vec![Exchange::turn()],
            };
            let turn = self.emit(layer.clone(), none, &[], input)?[0];
            self.turn = Some((input, turn));
            self.builder.set_accumulator(input, turn);
        }
        let finished = self.turn.map_or(turn, |(_, turn)| turn);
        let inputs: Vec<ValueId> = given.into_iter().chain([finished]).collect();
        let outputs = self.emit(layer, op, &inputs, self.late.unwrap_or(finished))?;
        self.late = Some(outputs[0]);
        Ok(outputs)
    }

    fn emit(
        &mut self,
        layer: Arc<str>,
        op: Exchange,
        inputs: &[ValueId],
        turn: ValueId,
    ) -> Result<Vec<ValueId>, GraphError> {
        self.builder.within(layer, |b| b.accumulating(Op::Exchange(op), inputs, &[turn]))
    }

    fn end_phase(&mut self) {
        if let Some((input, turn)) = self.turn {
            self.builder.set_accumulator(input, turn);
        }
    }

    fn finish(mut self, device: usize) -> Result<Graph, GraphError> {
        let (step, homes) = (self.step, self.homes);
        for state in step.states.iter().filter(|state| homes.of(state.input) == device) {
            if let Some(output) = state.output {
                let (input, output) = (self.get(state.input)?, self.get(output)?);
                self.builder.set_state(input, output);
            }
        }
        for sum in step.accumulators.iter().filter(|sum| homes.of(sum.input) == device) {
            let (input, output) = (self.get(sum.input)?, self.get(sum.output)?);
            self.builder.set_accumulator(input, output);
        }
        for output in step.outputs.iter().filter(|output| homes.of(output.value) == device) {
            let value = self.get(output.value)?;
            self.builder.output(&output.name, value);
        }
        if let Some(turn) = self.late {
            self.builder.output(TURN, turn);
        }
        self.builder.finish()
    }
}

fn missing(value: ValueId) -> GraphError {
    GraphError::Broken(format!("{value} is on another device, and does not pass"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accumulate;
    use plimsoll_graph::op::Unary;
    use plimsoll_graph::{Init, Role, parse};
    use plimsoll_tensor::{DType, TensorType};

    /// `y = relu(x · a) · b`, both updated by sums over the batch.
    fn step() -> Graph {
        let mut b = Builder::new(4, 2);
        let ty = |shape: [usize; 2]| TensorType::new(DType::F32, shape);
        let x = b.batch_input("x", ty([4, 3]));
        let rate = b.setting("rate", TensorType::new(DType::F32, []));
        let [first, second] = ["a", "b"].map(|layer| {
            b.within(layer.into(), |b| b.state("kernel", ty([3, 3]), Role::Parameter, Init::Ones))
        });
        let h = b.within("a".into(), |b| b.matmul(x, first)).unwrap();
        let h = b.within("a".into(), |b| b.unary(Unary::Relu, h)).unwrap();
        let y = b.within("b".into(), |b| b.matmul(h, second)).unwrap();
        let loss = b.within("loss".into(), |b| b.sum(y, &[0, 1], false)).unwrap();
        b.output("loss", loss);
        let half = b.within("optimizer".into(), |b| b.scale(rate, 0.5)).unwrap();
        for (layer, kernel, value) in [("a", first, h), ("b", second, y)] {
            let next = b.within(layer.into(), |b| {
                let sum = b.sum(value, &[0], false)?;
                let scaled = b.mul(sum, half)?;
                b.sub(kernel, scaled)
            });
            b.set_state(kernel, next.unwrap());
        }
        b.finish().unwrap()
    }

    fn split(step: &Graph, devices: usize, layer: &dyn Fn(&str) -> Option<usize>) -> Vec<Graph> {
        let state = |name: &str| layer(&name[..1]).unwrap_or(0);
        let parts = partition(step, &Placing { devices, layer, state: &state, other: 0 }).unwrap();
        for part in &parts {
            assert_eq!(parse(&part.to_string()).unwrap(), *part);
            assert_eq!((part.examples, part.micro_batches), (step.examples, step.micro_batches));
        }
        parts
    }

    fn words(part: &Graph) -> Vec<String> {
        let once = part.optimizer_step();
        let word = |(node, once): (&Node, &bool)| {
            let op = match node.op {
                Op::Exchange(Exchange::Give { chain, to }) => format!("give {chain} to {to}"),
                Op::Exchange(Exchange::Take { chain, from, .. }) => format!("take {chain} from {from}"),
                _ => node.op.name().to_string(),
            };
            if *once { format!("{op}, once") } else { op }
        };
        part.nodes.iter().zip(&once).filter(|(node, _)| !node.op.is_view()).map(word).collect()
    }

    fn by_layer(layer: &str) -> Option<usize> {
        match layer {
            "a" => Some(0),
            "b" => Some(1),
            _ => None,
        }
    }

    #[test]
    fn values_pass_where_another_device_reads_them() {
        let parts = split(&step(), 2, &by_layer);
        let first = ["matmul", "relu", "give 0 to 1", "sum", "constant", "mul", "mul", "sub"];
        assert_eq!(words(&parts[0]), first);
        // The loss is with what it reads; what follows from settings alone is computed on both.
        let second = ["take 0 from 0", "matmul", "sum", "sum", "constant", "mul", "mul", "sub"];
        assert_eq!(words(&parts[1]), second);
        let names = |part: &Graph| part.inputs.iter().map(|input| input.name.clone()).collect::<Vec<_>>();
        assert_eq!(
            (names(&parts[0]), names(&parts[1])),
            (vec!["x".into(), "rate".into()], vec!["rate".to_string()])
        );
        assert_eq!(parts[0].outputs.len() + parts[1].outputs.len(), 1);
        assert_eq!(parts[1].outputs[0].name, "loss");
    }

    #[test]
    fn what_is_taken_has_the_marks_that_it_had() {
        let step = step();
        let parts = split(&step, 2, &by_layer);
        let take = parts[1].nodes.iter().find(|node| node.op.name() == "take").unwrap();
        let marks = parts[1].batch_marks();
        assert_eq!(marks[take.outputs[1].index()], BatchMark::input(true));
        // So sums over the batch fold in the same blocks.
        let folds =
            |graph: &Graph| graph.batch_relations().iter().filter(|r| format!("{r:?}") == "Reduced").count();
        assert!(folds(&parts[0]) + folds(&parts[1]) >= folds(&step));
    }

    #[test]
    fn new_versions_of_states_pass_once_after_the_last_micro_batch() {
        let whole = accumulate(&step(), 2).unwrap();
        let placing = Placing { devices: 3, layer: &by_layer, state: &|_| 2, other: 0 };
        let parts = partition(&whole, &placing).unwrap();
        // The kernels are given in every micro-batch, to the products and the updates.
        let held = ["give 0 to 0", "give 2 to 1", "take 3 from 0, once", "take 4 from 1, once"];
        assert_eq!(words(&parts[2]), held);
        assert!(parts[2].states.len() == 2 && parts[2].states.iter().all(|state| state.output.is_some()));
        assert!(parts[2].output(TURN).is_some());
        let given: Vec<String> = words(&parts[1]).into_iter().filter(|word| word.contains("give")).collect();
        assert_eq!(given, ["give 4 to 2, once"]);
    }

    #[test]
    fn one_device_has_the_whole_step() {
        let parts = split(&step(), 1, &|_| Some(0));
        assert_eq!(parts[0].nodes.len(), step().nodes.len());
        assert!(parts[0].accumulators.is_empty());
    }
}
