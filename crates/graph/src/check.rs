//! The invariants of a graph, checked after every pass.

use crate::{Graph, GraphError, Input, NodeId, Origin, ValueId};
use plimsoll_tensor::TensorType;

impl Graph {
    /// Checks every invariant: ids in range, definitions before uses, origins that agree, types as the ops infer them,
    /// states written at most once with their own type, unique names.
    pub fn check(&self) -> Result<(), GraphError> {
        let broken = |text: String| Err(GraphError::Broken(text));
        let mut defined = vec![false; self.values.len()];
        for (i, input) in self.inputs.iter().enumerate() {
            self.define(&mut defined, input.value, Origin::Input(i))?;
        }
        for (i, state) in self.states.iter().enumerate() {
            self.define(&mut defined, state.input, Origin::State(i))?;
        }
        for (i, accumulator) in self.accumulators.iter().enumerate() {
            self.define(&mut defined, accumulator.input, Origin::Accumulator(i))?;
        }
        let entering = self.inputs.len() + self.states.len() + self.accumulators.len();
        let mut written = 0;
        for (i, node) in self.nodes.iter().enumerate() {
            if let Some(value) = node.reads().find(|v| !defined.get(v.index()).copied().unwrap_or(false)) {
                return broken(format!("node {i} ({}) reads {value} before it is written", node.op.name()));
            }
            let outputs = self.infer(node.op.clone(), &node.inputs, &node.layer)?;
            if outputs.len() != node.outputs.len() {
                return broken(format!("node {i} ({}) has {} outputs", node.op.name(), node.outputs.len()));
            }
            written += outputs.len();
            for (output, (&value, ty)) in node.outputs.iter().zip(&outputs).enumerate() {
                self.define(&mut defined, value, Origin::Node { node: NodeId(i as u32), output })?;
                if self.ty(value) != ty {
                    return broken(format!("{value} is {}, its op gives {ty}", self.ty(value)));
                }
            }
        }
        if entering + written != self.values.len() {
            return broken(format!("{} values, {} are written", self.values.len(), entering + written));
        }
        self.check_folds()?;
        self.check_ends(&defined)
    }

    /// Marks a value as written: once, and by its stated origin.
    fn define(&self, defined: &mut [bool], value: ValueId, origin: Origin) -> Result<(), GraphError> {
        let reason = match self.values.get(value.index()) {
            None => format!("{value} does not exist"),
            Some((_, found)) if *found != origin => {
                format!("{value} should come from {origin:?}, not {found:?}")
            }
            Some(_) if std::mem::replace(&mut defined[value.index()], true) => {
                format!("{value} is written twice")
            }
            Some(_) => return Ok(()),
        };
        Err(GraphError::Broken(reason))
    }

    fn check_folds(&self) -> Result<(), GraphError> {
        if self.examples == 0 || self.example_block == 0 || self.micro_batches == 0 {
            return Err(GraphError::Broken(
                "examples, their block and the micro-batches must be at least 1".into(),
            ));
        }
        if self.unrolled == 0 || self.unrolled > 1 && self.micro_batches > 1 {
            return Err(GraphError::Broken("a body of several micro-batches runs once".into()));
        }
        let part_of_none = |input: &&Input| input.part >= if input.batched { self.unrolled } else { 1 };
        if let Some(input) = self.inputs.iter().find(part_of_none) {
            let (name, part) = (&input.name, input.part);
            return Err(GraphError::Broken(format!(
                "input `{name}` is of micro-batch {part}, which the body has not"
            )));
        }
        for node in self.nodes.iter().filter(|n| !n.accumulate.is_empty()) {
            let types: Vec<&TensorType> = node.accumulate.iter().map(|&v| self.ty(v)).collect();
            let mut outputs = node.outputs.iter().map(|&v| self.ty(v));
            // Accumulators belong to the folding outputs, in order: a subsequence of the outputs' types.
            if !types.iter().all(|t| outputs.any(|o| o == *t)) {
                return Err(GraphError::Broken(format!(
                    "layer `{}`: {}: the accumulators do not have the types of its outputs",
                    node.layer,
                    node.op.name()
                )));
            }
        }
        Ok(())
    }

    fn check_ends(&self, defined: &[bool]) -> Result<(), GraphError> {
        let broken = |text: String| Err(GraphError::Broken(text));
        let exists = |v: ValueId| defined.get(v.index()).copied().unwrap_or(false);
        let mut names = std::collections::BTreeSet::new();
        let mut finals = std::collections::BTreeSet::new();
        for state in &self.states {
            if !names.insert(&state.name) {
                return broken(format!("two states are named `{}`: give one layer another name", state.name));
            }
            let Some(output) = state.output else { continue };
            if !exists(output) || self.ty(output) != self.ty(state.input) {
                return broken(format!("state `{}` ends as another type than it starts", state.name));
            }
            if !finals.insert(output) {
                return broken(format!("state `{}` ends as a value that another state ends as", state.name));
            }
        }
        for accumulator in &self.accumulators {
            if !exists(accumulator.output) || self.ty(accumulator.output) != self.ty(accumulator.input) {
                return broken(format!(
                    "accumulator {} ends as another type than it starts",
                    accumulator.input
                ));
            }
        }
        match self.outputs.iter().find(|o| !exists(o.value)) {
            Some(output) => broken(format!("output `{}` is not written", output.name)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Builder, Init, Op, Role, op::MatMul};
    use plimsoll_tensor::DType;

    /// `y = x · w`, and w ends as itself doubled.
    fn graph() -> Graph {
        let mut b = Builder::new(4, 4);
        let x = b.batch_input("x", TensorType::new(DType::F32, [4, 3]));
        let w = b.state("w", TensorType::new(DType::F32, [3, 2]), Role::Parameter, Init::Ones);
        let y = b.matmul(x, w).unwrap();
        let next = b.add(w, w).unwrap();
        b.set_state(w, next);
        b.output("y", y);
        b.finish().unwrap()
    }

    fn refused(change: impl FnOnce(&mut Graph), words: &str) {
        let mut graph = graph();
        change(&mut graph);
        let error = graph.check().unwrap_err().to_string();
        assert!(error.contains(words), "no `{words}` in: {error}");
    }

    #[test]
    fn broken_graphs_are_refused() {
        refused(|g| g.nodes.swap(0, 1), "should come from");
        refused(|g| g.nodes[0].inputs[0] = ValueId(2), "before it is written");
        refused(|g| g.nodes[0].inputs[0] = ValueId(99), "before it is written");
        refused(|g| g.nodes[1].outputs[0] = ValueId(2), "should come from");
        refused(|g| g.values[2].0 = TensorType::new(DType::F32, [9]), "its op gives");
        refused(
            |g| g.nodes[0].op = Op::MatMul(MatMul { transpose_a: true, ..MatMul::default() }),
            "inner extents",
        );
        refused(|g| g.states[0].output = Some(ValueId(2)), "another type");
        refused(|g| g.states.push(g.states[0].clone()), "should come from");
        refused(|g| g.outputs[0].value = ValueId(50), "is not written");
        refused(|g| g.examples = 0, "at least 1");
        refused(|g| (g.unrolled, g.micro_batches) = (2, 2), "runs once");
        refused(|g| g.inputs[0].part = 1, "which the body has not");
        refused(|g| g.nodes[0].accumulate = vec![ValueId(0)], "accumulators");
        refused(|g| drop(g.nodes.pop()), "are written");
        refused(|g| g.values.push(g.values[0].clone()), "are written");
    }

    #[test]
    fn errors_name_the_layer_and_the_shapes() {
        let mut b = Builder::new(1, 1);
        let x = b.batch_input("x", TensorType::new(DType::F32, [1, 3]));
        let error = b.scope("block1", |b| b.scope("dense", |b| b.matmul(x, x))).unwrap_err().to_string();
        assert_eq!(error, "layer `block1/dense`: matmul(f32[1,3], f32[1,3]): inner extents differ: 3 and 1");
    }
}
