//! How far layers on bytes are from those on floats.

use super::layers::{Analysis, Layer};
use super::{Emit, Int8Grids};
use plimsoll_graph::op::{Int8, Reduce};
use plimsoll_graph::{Graph, GraphError, Op};
use plimsoll_transform::Rewriter;
use std::collections::BTreeMap;

/// The name of the outputs of a comparison: of each layer and example the sum of squares of its outputs, and of two differences.
const COMPARED: &str = "output/compared";

/// Sums over examples of what a comparison gives for a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LayerNoise {
    /// The squares of its outputs on floats.
    pub signal: f64,
    /// The squares of how far those on bytes are off, with all layers before on bytes, back to the last op in f32: what that gives
    /// is taken as it is on floats.
    pub noise: f64,
    /// The same with the layers before on floats: what this layer adds.
    pub own: f64,
}

impl LayerNoise {
    /// Outputs of a comparison for each layer, in this order.
    pub const OUTPUTS: usize = 3;

    /// The signal by the noise, in decibels: 20 are a tenth, 40 a hundredth. `None` without noise.
    pub fn decibels(self) -> Option<f64> {
        decibels(self.signal, self.noise)
    }

    /// The same by the layer's own noise.
    pub fn own_decibels(self) -> Option<f64> {
        decibels(self.signal, self.own)
    }
}

fn decibels(signal: f64, noise: f64) -> Option<f64> {
    (noise > 0.0).then(|| 10.0 * (signal / noise).log10())
}

impl Int8Grids {
    /// The layers that a [comparison](Int8Grids::comparison) measures, in order.
    pub fn compared(&self, graph: &Graph) -> Vec<String> {
        let analysis = Analysis::of(graph, &self.kept);
        let measured = self.steps(&analysis).filter(|step| step.layer.is_measured());
        measured.map(|step| graph.node(step.nodes[0]).layer.to_string()).collect()
    }

    /// A graph with its layers on floats and on bytes, whose last outputs are, for each layer, the [`LayerNoise`] of each example. It has the
    /// states of both.
    pub fn comparison(&self, graph: Graph) -> Result<Graph, GraphError> {
        let analysis = Analysis::of(&graph, &self.kept);
        let grids = self.grids(&analysis);
        let mut emit = Emit {
            grids: &grids,
            codes: BTreeMap::new(),
            grid_of: BTreeMap::new(),
            states: BTreeMap::new(),
            r: Rewriter::new(&graph),
        };
        for node in &graph.nodes {
            emit.r.copy(node)?;
        }
        let mut measured = Vec::new();
        for step in self.steps(&analysis) {
            let value = step.output.value;
            // Without codes of what is before it, a layer has those of its inputs on floats.
            let before = std::mem::take(&mut emit.codes);
            emit.step(&graph, step)?;
            let own = emit.codes.get(&value).copied();
            emit.codes = before;
            emit.step(&graph, step)?;
            if let (true, Some((own, place)), Some((codes, _))) =
                (step.layer.is_measured(), own, emit.codes.get(&value).copied())
            {
                measured.push((emit.r.get(value), codes, own, grids[place]));
            }
        }
        let mut b = emit.r.close();
        for (layer, (floats, codes, own, grid)) in measured.into_iter().enumerate() {
            let end = b.shape(floats).rank();
            let mut of = vec![("signal", floats)];
            for (name, codes) in [("noise", codes), ("own", own)] {
                let bytes = b.one(Op::Int8(Int8::Dequantize(grid)), &[codes])?;
                of.push((name, b.sub(bytes, floats)?));
            }
            for (name, value) in of {
                let squares = b.mul(value, value)?;
                let sum = b.one(Op::Reduce(Reduce::Sum { start: 1, end }), &[squares])?;
                b.output(&format!("{COMPARED}/{layer}/{name}"), sum);
            }
        }
        b.finish()
    }
}

impl Layer {
    /// Whether it computes, and does not only choose or move codes.
    pub(super) fn is_measured(&self) -> bool {
        match self {
            Self::Product { .. }
            | Self::Sum
            | Self::Mul
            | Self::Sigmoid
            | Self::Swish
            | Self::Mean { .. }
            | Self::AveragePool(_)
            | Self::Resize(..) => true,
            Self::MaxPool(_) | Self::Reshape | Self::Concat { .. } => false,
        }
    }
}
