//! Runs graphs node by node with [`evaluate`]: no arena, no schedule, no threads.

use crate::evaluate;
use plimsoll_graph::{Graph, Node, ValueId};
use plimsoll_plan::{ExecuteError, Executor, Kernel, KernelQuery, PlanSet, Prepared, Target, Unsupported};
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
        let states = plans.states.iter().map(|s| Tensor::zeros(s.ty.clone())).collect();
        let outputs = plans.plans.iter().map(|_| Vec::new()).collect();
        Ok(Box::new(ReferencePrepared { plans, states, outputs }))
    }
}

struct ReferencePrepared {
    plans: Arc<PlanSet>,
    states: Vec<Tensor>,
    /// Outputs of each plan's last run.
    outputs: Vec<Vec<Tensor>>,
}

/// The values of a run so far.
struct Values<'g> {
    graph: &'g Graph,
    tensors: Vec<Option<Tensor>>,
}

impl Values<'_> {
    fn get(&self, value: ValueId) -> Result<&Tensor, ExecuteError> {
        let found = self.tensors[value.index()].as_ref();
        found.ok_or_else(|| ExecuteError::Input(format!("{value} is read before it is written")))
    }

    fn run(&mut self, node: &Node) -> Result<(), ExecuteError> {
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
}

fn refused(what: String) -> ExecuteError {
    ExecuteError::Input(what)
}

impl Prepared for ReferencePrepared {
    fn run(&mut self, plan: usize, inputs: &[&[u8]]) -> Result<(), ExecuteError> {
        let plans = self.plans.clone();
        let graph = &plans.plans.get(plan).ok_or_else(|| refused(format!("there is no plan {plan}")))?.graph;
        if inputs.len() != graph.inputs.len() {
            return Err(refused(format!(
                "the plan takes {} inputs, {} were given",
                graph.inputs.len(),
                inputs.len()
            )));
        }
        let index =
            |name: &str| plans.states.iter().position(|s| s.name == name).expect("planned states are known");
        let mut values = Values { graph, tensors: vec![None; graph.value_count()] };
        for state in &graph.states {
            values.tensors[state.input.index()] = Some(self.states[index(&state.name)].clone());
        }
        for accumulator in &graph.accumulators {
            values.tensors[accumulator.input.index()] =
                Some(Tensor::zeros(graph.ty(accumulator.input).clone()));
        }
        let optimizer_step = graph.optimizer_step();
        for micro_batch in 0..graph.micro_batches {
            for (input, bytes) in graph.inputs.iter().zip(inputs) {
                let mut tensor = Tensor::zeros(graph.ty(input.value).clone());
                let (size, parts) =
                    (tensor.ty().bytes(), if input.batched { graph.micro_batches } else { 1 });
                if bytes.len() != size * parts {
                    let (name, wants, has) = (&input.name, size * parts, bytes.len());
                    return Err(refused(format!("input `{name}` takes {wants} bytes, {has} were given")));
                }
                let part = if input.batched { micro_batch } else { 0 };
                tensor.copy_from_bytes(&bytes[part * size..(part + 1) * size]);
                values.tensors[input.value.index()] = Some(tensor);
            }
            for (node, _) in graph.nodes.iter().zip(&optimizer_step).filter(|(_, once)| !**once) {
                values.run(node)?;
            }
            for accumulator in &graph.accumulators {
                values.tensors[accumulator.input.index()] = Some(values.get(accumulator.output)?.clone());
            }
        }
        for (node, _) in graph.nodes.iter().zip(&optimizer_step).filter(|(_, once)| **once) {
            values.run(node)?;
        }
        for state in &graph.states {
            if let Some(output) = state.output {
                self.states[index(&state.name)] = values.get(output)?.clone();
            }
        }
        let outputs = graph.outputs.iter().map(|o| values.get(o.value).cloned());
        self.outputs[plan] = outputs.collect::<Result<_, _>>()?;
        Ok(())
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
