//! Graphs for Graphviz.

use crate::{Graph, Origin, ValueId};
use std::fmt;

/// A graph in Graphviz' language: a box for each node, an edge for each value read.
pub struct Dot<'g>(&'g Graph);

impl Graph {
    /// The graph for Graphviz.
    ///
    /// ```
    /// use plimsoll_graph::{Builder, op::Unary};
    /// let mut b = Builder::new(2, 1);
    /// let x = b.batch_input("x", "f32[2,3]".parse().unwrap());
    /// let y = b.unary(Unary::Exp, x)?;
    /// b.output("y", y);
    /// let dot = b.finish()?.dot().to_string();
    /// assert!(dot.starts_with("digraph") && dot.contains("exp"));
    /// # Ok::<(), plimsoll_graph::GraphError>(())
    /// ```
    pub fn dot(&self) -> Dot<'_> {
        Dot(self)
    }
}

/// A string in quotes.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

impl Dot<'_> {
    /// The name of the box that a value comes from.
    fn origin(&self, value: ValueId) -> String {
        match self.0.origin(value) {
            Origin::Input(i) => format!("input{i}"),
            Origin::State(i) => format!("state{i}"),
            Origin::Accumulator(i) => format!("accumulator{i}"),
            Origin::Node { node, .. } => format!("node{}", node.index()),
        }
    }
}

impl fmt::Display for Dot<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let graph = self.0;
        writeln!(f, "digraph step {{\n  node [shape=box, fontname=\"sans-serif\"];")?;
        for (i, input) in graph.inputs.iter().enumerate() {
            let label = quoted(&format!("{} {}", input.name, graph.ty(input.value)));
            writeln!(f, "  input{i} [shape=ellipse, label={label}];")?;
        }
        for (i, state) in graph.states.iter().enumerate() {
            let label = quoted(&format!("{} {}", state.name, graph.ty(state.input)));
            writeln!(f, "  state{i} [shape=cylinder, label={label}];")?;
        }
        for (i, accumulator) in graph.accumulators.iter().enumerate() {
            writeln!(
                f,
                "  accumulator{i} [shape=cylinder, label={}];",
                quoted(&graph.ty(accumulator.input).to_string())
            )?;
        }
        for id in graph.node_ids() {
            let node = graph.node(id);
            let types: Vec<_> = node.outputs.iter().map(|&v| graph.ty(v).to_string()).collect();
            let label = quoted(&format!("{}\\n{}\\n{}", node.op.name(), node.layer, types.join(" ")));
            // Graphviz' line breaks stay escapes.
            let label = label.replace("\\\\n", "\\n");
            writeln!(f, "  node{} [label={label}];", id.index())?;
            for value in node.reads() {
                let label = quoted(&graph.ty(value).to_string());
                writeln!(f, "  {} -> node{} [label={label}];", self.origin(value), id.index())?;
            }
        }
        for (i, output) in graph.outputs.iter().enumerate() {
            writeln!(f, "  output{i} [shape=ellipse, label={}];", quoted(&output.name))?;
            writeln!(f, "  {} -> output{i};", self.origin(output.value))?;
        }
        for (i, state) in graph.states.iter().enumerate() {
            if let Some(value) = state.output {
                writeln!(f, "  {} -> state{i} [style=dashed];", self.origin(value))?;
            }
        }
        writeln!(f, "}}")
    }
}
