//! The invariants of a graph, checked after every pass.

use crate::{Graph, GraphError, NodeId, Origin, ValueId};
use plimsoll_tensor::TensorType;

impl Graph {
    /// Checks every invariant: ids in range, definitions before uses, origins that agree, types as the ops infer them,
    /// states written at most once with their own type, unique names.
    pub fn check(&self) -> Result<(), GraphError> {
        let broken = |text: String| Err(GraphError::Broken(text));
        let mut defined = vec![false; self.values.len()];
        let mut define = |value: ValueId, origin: Origin| match self.values.get(value.index()) {
            None => broken(format!("{value} does not exist")),
            Some((_, found)) if *found != origin => {
                broken(format!("{value} should come from {origin:?}, not {found:?}"))
            }
            Some(_) if std::mem::replace(&mut defined[value.index()], true) => {
                broken(format!("{value} is written twice"))
            }
            Some(_) => Ok(()),
        };
        for (i, input) in self.inputs.iter().enumerate() {
            define(input.value, Origin::Input(i))?;
        }
        for (i, state) in self.states.iter().enumerate() {
            define(state.input, Origin::State(i))?;
        }
        for (i, carry) in self.carries.iter().enumerate() {
            define(carry.input, Origin::Carry(i))?;
        }
        let entering = self.inputs.len() + self.states.len() + self.carries.len();
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
                let origin = Origin::Node { node: NodeId(i as u32), output };
                match self.values.get(value.index()) {
                    None => return broken(format!("{value} does not exist")),
                    Some((_, found)) if *found != origin => {
                        return broken(format!("{value} should come from {origin:?}, not {found:?}"));
                    }
                    Some((found, _)) if found != ty => {
                        return broken(format!("{value} is {found}, its op gives {ty}"));
                    }
                    Some(_) if std::mem::replace(&mut defined[value.index()], true) => {
                        return broken(format!("{value} is written twice"));
                    }
                    Some(_) => {}
                }
            }
        }
        if entering + written != self.values.len() {
            return broken(format!("{} values, {} are written", self.values.len(), entering + written));
        }
        self.check_folds()?;
        self.check_ends(&defined)
    }

    fn check_folds(&self) -> Result<(), GraphError> {
        if self.examples == 0 || self.example_block == 0 || self.micro_batches == 0 {
            return Err(GraphError::Broken(
                "examples, their block and the micro-batches must be at least 1".into(),
            ));
        }
        for node in self.nodes.iter().filter(|n| !n.accumulate.is_empty()) {
            let types: Vec<&TensorType> = node.accumulate.iter().map(|&v| self.ty(v)).collect();
            let mut outputs = node.outputs.iter().map(|&v| self.ty(v));
            // Accumulators belong to the folded outputs, in order: a subsequence of the outputs' types.
            if !types.iter().all(|t| outputs.any(|o| o == *t)) {
                return Err(GraphError::Broken(format!(
                    "layer `{}`: {}: the running sums do not have the types of its outputs",
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
        for carry in &self.carries {
            if !exists(carry.output) || self.ty(carry.output) != self.ty(carry.input) {
                return broken(format!("carry {} ends as another type than it starts", carry.input));
            }
        }
        match self.outputs.iter().find(|o| !exists(o.value)) {
            Some(output) => broken(format!("output `{}` is not written", output.name)),
            None => Ok(()),
        }
    }
}
