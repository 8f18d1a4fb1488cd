//! Runs graphs node by node with [`evaluate`]: no arena, no schedule, no threads.

use crate::evaluate;
use plimsoll_graph::{Graph, Input, Node, Op, ValueId};
use plimsoll_plan::{
    BatchPart, Connection, ExecuteError, Executor, Kernel, KernelQuery, Passing, PlanSet, Prepared, Target,
    Transport, Unsupported, exchange,
};
use plimsoll_tensor::{Tensor, TensorType};
use std::sync::Arc;

/// The executor that defines what a graph means. It runs every op in every element type, slowly.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reference;

/// Everything can be planned for the reference executor; nothing needs scratch.
#[derive(Clone, Copy, Debug, Default)]
struct ReferenceTarget;

impl Target for ReferenceTarget {
    fn name(&self) -> String {
        "reference".into()
    }

    fn alignment(&self) -> usize {
        64
    }

    fn kernel(&self, query: &KernelQuery<'_>) -> Result<Kernel, Unsupported> {
        let nanoseconds = query.op.flops(&query.inputs, &query.outputs);
        Ok(Kernel { workspace: 0, in_place: Vec::new(), nanoseconds })
    }
}

impl Executor for Reference {
    fn target(&self) -> &dyn Target {
        &ReferenceTarget
    }

    fn prepare(&self, plans: Arc<PlanSet>) -> Result<Box<dyn Prepared>, ExecuteError> {
        Ok(Box::new(ReferencePrepared::new(plans, None)))
    }

    fn prepare_connected(
        &self,
        plans: Arc<PlanSet>,
        connection: Connection,
    ) -> Result<Box<dyn Prepared>, ExecuteError> {
        if !connection.owners.is_empty() {
            return Err(ExecuteError::Input(
                "the reference executor holds every state on every device".into(),
            ));
        }
        Ok(Box::new(ReferencePrepared::new(plans, Some(connection))))
    }
}

struct ReferencePrepared {
    plans: Arc<PlanSet>,
    states: Vec<Tensor>,
    /// Outputs of each plan's last run.
    outputs: Vec<Vec<Tensor>>,
    connection: Option<Connection>,
    /// The values of the last run: another device may still read what was sent.
    kept: Vec<Option<Tensor>>,
}

impl ReferencePrepared {
    fn new(plans: Arc<PlanSet>, connection: Option<Connection>) -> Self {
        let states = plans.states.iter().map(|s| Tensor::zeros(s.ty.clone())).collect();
        let outputs = plans.plans.iter().map(|_| Vec::new()).collect();
        Self { plans, states, outputs, connection, kept: Vec::new() }
    }

    /// The index of a planned state.
    fn state(&self, name: &str) -> usize {
        self.plans.states.iter().position(|s| s.name == name).expect("planned states are known")
    }

    /// Takes the new states and the outputs of a run.
    fn collect(&mut self, plan: usize, values: &Values<'_>) -> Result<(), ExecuteError> {
        for state in &values.graph.states {
            if let Some(output) = state.output {
                let index = self.state(&state.name);
                self.states[index] = values.get(output)?.clone();
            }
        }
        let outputs = values.graph.outputs.iter().map(|o| values.get(o.value).cloned());
        self.outputs[plan] = outputs.collect::<Result<_, _>>()?;
        Ok(())
    }
}

/// What a graph's run gave.
#[derive(Clone, Debug)]
pub struct GraphResults {
    /// The outputs, in the graph's order.
    pub outputs: Vec<Tensor>,
    /// The new version of each state, in the graph's order; the old one where the graph has no other.
    pub states: Vec<Tensor>,
}

/// Runs a graph once, without a plan: `state` gives states by name, and inputs hold all micro-batches.
///
/// ```
/// use plimsoll_graph::{Builder, Init, Role};
/// use plimsoll_reference::run_graph;
/// use plimsoll_tensor::{DType, Tensor, TensorType};
/// let mut b = Builder::new(1, 1);
/// let count = b.state("count", TensorType::new(DType::F32, [1]), Role::Statistic, Init::Zeros);
/// let by = b.setting("by", TensorType::new(DType::F32, [1]));
/// let sum = b.add(count, by)?;
/// b.set_state(count, sum);
/// let found = run_graph(&b.finish()?, |_| Tensor::from(vec![2.0f32]), &[Tensor::from(vec![3.0f32])]).unwrap();
/// assert_eq!(found.states[0].to_f64(), [5.0]);
/// # Ok::<(), plimsoll_graph::GraphError>(())
/// ```
pub fn run_graph(
    graph: &Graph,
    state: impl Fn(&str) -> Tensor,
    inputs: &[Tensor],
) -> Result<GraphResults, ExecuteError> {
    let mut values = Values { graph, tensors: vec![None; graph.value_count()], transport: None };
    for known in &graph.states {
        values.tensors[known.input.index()] = Some(state(&known.name));
    }
    values.clear_accumulators();
    let inputs: Vec<&[u8]> = inputs.iter().map(Tensor::as_bytes).collect();
    values.run_checked(&inputs, None)?;
    let outputs = graph.outputs.iter().map(|output| values.get(output.value).cloned());
    let states = graph.states.iter().map(|state| values.get(state.output.unwrap_or(state.input)).cloned());
    Ok(GraphResults {
        outputs: outputs.collect::<Result<_, _>>()?,
        states: states.collect::<Result<_, _>>()?,
    })
}

/// The values of a run so far.
struct Values<'g> {
    graph: &'g Graph,
    tensors: Vec<Option<Tensor>>,
    transport: Option<&'g dyn Transport>,
}

impl Values<'_> {
    fn get(&self, value: ValueId) -> Result<&Tensor, ExecuteError> {
        let found = self.tensors[value.index()].as_ref();
        found.ok_or_else(|| ExecuteError::Input(format!("{value} is read before it is written")))
    }

    fn run(&mut self, node: &Node, micro_batch: usize) -> Result<(), ExecuteError> {
        if matches!(node.op, Op::Exchange(_)) {
            return self.exchange(node, micro_batch);
        }
        let gather = |ids: &[ValueId]| ids.iter().map(|&v| self.get(v)).collect::<Result<Vec<_>, _>>();
        let (inputs, sums) = (gather(&node.inputs)?, gather(&node.accumulate)?);
        let types: Vec<&TensorType> = self.graph.output_types(node);
        let outputs = evaluate(&node.op, &inputs, &sums, &types).map_err(|e| ExecuteError::Step {
            layer: node.layer.to_string(),
            op: node.op.name(),
            reason: e.to_string(),
        })?;
        for (&value, tensor) in node.outputs.iter().zip(outputs) {
            self.tensors[value.index()] = Some(tensor);
        }
        Ok(())
    }

    /// Sums start at zero.
    fn clear_accumulators(&mut self) {
        for accumulator in &self.graph.accumulators {
            let zeros = Tensor::zeros(self.graph.ty(accumulator.input).clone());
            self.tensors[accumulator.input.index()] = Some(zeros);
        }
    }

    /// Runs everything if there are as many inputs as the graph takes.
    fn run_checked(&mut self, inputs: &[&[u8]], part: Option<BatchPart>) -> Result<(), ExecuteError> {
        let (takes, given) = (self.graph.inputs.len(), inputs.len());
        if takes != given {
            return Err(refused(format!("the step takes {takes} inputs, {given} were given")));
        }
        self.run_all(inputs, part)
    }

    /// Runs every micro-batch, then the optimizer step.
    fn run_all(&mut self, inputs: &[&[u8]], part: Option<BatchPart>) -> Result<(), ExecuteError> {
        let graph = self.graph;
        let optimizer_step = graph.optimizer_step();
        for micro_batch in 0..graph.micro_batches {
            for (input, bytes) in graph.inputs.iter().zip(inputs) {
                let mut tensor = Tensor::zeros(graph.ty(input.value).clone());
                tensor.copy_from_bytes(slice(graph, input, bytes, part, micro_batch)?);
                self.tensors[input.value.index()] = Some(tensor);
            }
            for (node, _) in graph.nodes.iter().zip(&optimizer_step).filter(|(_, once)| !**once) {
                self.run(node, micro_batch)?;
            }
            for accumulator in &graph.accumulators {
                self.tensors[accumulator.input.index()] = Some(self.get(accumulator.output)?.clone());
            }
        }
        let after = graph.micro_batches;
        let mut update = graph.nodes.iter().zip(&optimizer_step).filter(|(_, once)| **once);
        update.try_for_each(|(node, _)| self.run(node, after))
    }

    /// Passes sums to other devices or from them.
    fn exchange(&mut self, node: &Node, micro_batch: usize) -> Result<(), ExecuteError> {
        let (Op::Exchange(op), Some(transport)) = (&node.op, self.transport) else {
            return Err(refused("the plan is one of several devices'".into()));
        };
        for (&sum, &output) in node.accumulate.iter().zip(&node.outputs) {
            self.tensors[output.index()] = Some(self.get(sum)?.clone());
        }
        for &output in node.outputs.iter().skip(node.accumulate.len()) {
            self.tensors[output.index()] = Some(Tensor::zeros(self.graph.ty(output).clone()));
        }
        let at = (micro_batch, self.graph.micro_batches);
        let passed = exchange(op, transport, at, |sum, passing| {
            if let Passing::Hand(to, message) = passing {
                let given = node.inputs.first().and_then(|value| self.tensors[value.index()].as_ref());
                let given = given.ok_or("nothing is given")?;
                return transport.hand(to, message, given.as_bytes());
            }
            let Some(tensor) = &mut self.tensors[node.outputs[sum].index()] else { return Ok(()) };
            match passing {
                Passing::Receive(from, message) => transport.receive(from, message, tensor.as_bytes_mut()),
                // SAFETY: the tensor is replaced when this node sends again, in the next micro-batch, when the chain has come
                // around, or in the next run.
                Passing::Send(to, message) => unsafe { transport.send(to, message, tensor.as_bytes()) },
                // It is made of zeros.
                Passing::Clear | Passing::Hand(..) => Ok(()),
                Passing::AllReduce => Err("it adds up in the order of the chain".into()),
            }
        });
        passed.map_err(|reason| {
            let (layer, op) = (node.layer.to_string(), node.op.name());
            ExecuteError::Step { layer, op, reason }
        })
    }
}

/// The bytes of an input in a micro-batch.
fn slice<'b>(
    graph: &Graph,
    input: &Input,
    bytes: &'b [u8],
    part: Option<BatchPart>,
    micro_batch: usize,
) -> Result<&'b [u8], ExecuteError> {
    let size = graph.ty(input.value).bytes();
    let parts = if input.batched { graph.micro_batches } else { 1 };
    let found = match part.filter(|_| input.batched) {
        Some(part) => part.rows(bytes, size, graph.examples, (micro_batch, graph.micro_batches)),
        None if bytes.len() == size * parts => {
            bytes.get(if input.batched { micro_batch } else { 0 } * size..).and_then(|rest| rest.get(..size))
        }
        None => None,
    };
    found.ok_or_else(|| {
        let (name, wants, has) = (&input.name, size * parts, bytes.len());
        refused(format!("input `{name}` takes {wants} bytes, {has} were given"))
    })
}

fn refused(what: String) -> ExecuteError {
    ExecuteError::Input(what)
}

impl Prepared for ReferencePrepared {
    fn run(&mut self, plan: usize, inputs: &[&[u8]]) -> Result<(), ExecuteError> {
        let plans = self.plans.clone();
        let graph = &plans.plans.get(plan).ok_or_else(|| refused(format!("there is no plan {plan}")))?.graph;
        let connection = self.connection.clone();
        let part = connection.as_ref().and_then(|connection| connection.parts[plan]);
        let transport = connection.as_ref().map(|connection| connection.transport.as_ref());
        let mut values = Values { graph, tensors: vec![None; graph.value_count()], transport };
        for state in &graph.states {
            values.tensors[state.input.index()] = Some(self.states[self.state(&state.name)].clone());
        }
        values.clear_accumulators();
        let ran = values.run_checked(inputs, part);
        let result = ran.and_then(|()| self.collect(plan, &values));
        self.kept = values.tensors;
        result
    }

    fn read_output(&self, plan: usize, output: usize, into: &mut [u8]) -> Result<(), ExecuteError> {
        let found = self.outputs.get(plan).and_then(|outputs| outputs.get(output));
        let found = found.filter(|t| t.ty().bytes() == into.len());
        let tensor = found
            .ok_or_else(|| refused(format!("plan {plan} has no output {output} of {} bytes", into.len())))?;
        into.copy_from_slice(tensor.as_bytes());
        Ok(())
    }

    fn read_state(&self, state: usize, offset: usize, into: &mut [u8]) -> Result<(), ExecuteError> {
        let bytes = self.states.get(state).and_then(|t| t.as_bytes().get(offset..offset + into.len()));
        into.copy_from_slice(bytes.ok_or_else(|| refused(format!("state {state} has no such bytes")))?);
        Ok(())
    }

    fn write_state(&mut self, state: usize, offset: usize, from: &[u8]) -> Result<(), ExecuteError> {
        let tensor = self.states.get_mut(state).filter(|t| offset + from.len() <= t.ty().bytes());
        let tensor = tensor.ok_or_else(|| refused(format!("state {state} has no such bytes")))?;
        let mut bytes = tensor.as_bytes().to_vec();
        bytes[offset..offset + from.len()].copy_from_slice(from);
        tensor.copy_from_bytes(&bytes);
        Ok(())
    }
}
