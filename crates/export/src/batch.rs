//! Which extents of a graph's values grow with the batch.

use crate::{ExportError, Exported, OnnxOptions, TfliteWeights, Weights, onnx, tflite};
use plimsoll_graph::op::Grid;
use plimsoll_graph::{Graph, GraphError, Numerics, ValueId};
use plimsoll_nn::{Field, Model, Policy, step};
use std::path::Path;

/// A format of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// ONNX.
    Onnx,
    /// TFLite, for a fixed batch.
    Tflite(TfliteWeights),
}

/// How many examples an exported model takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Batch {
    /// As many as it is given.
    #[default]
    Dynamic,
    /// Always this many.
    Fixed(usize),
}

/// The prediction step of a model, built so that its shapes tell where the batch is.
pub struct ExportGraph {
    graph: Graph,
    /// The same step with one example more, where the batch is dynamic.
    larger: Option<Graph>,
    /// The grids of values that are codes; empty for a step of floats.
    grids: Vec<Option<Grid>>,
    name: String,
    target: Field,
}

/// An extent of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Always so much.
    Fixed(usize),
    /// So much for each example of the batch.
    PerExample(usize),
}

impl ExportGraph {
    /// The prediction step of a model, in f32, with recurrences unrolled.
    pub fn new(model: &dyn Model, batch: Batch) -> Result<Self, ExportError> {
        Self::built(model, batch, |graph| Ok((graph, Vec::new())))
    }

    /// The prediction step of a model with its layers on bytes, and recurrences unrolled. `pass` puts them there and tells the grid of each value that is codes, as
    /// `Int8Grids::apply_with_grids` of `plimsoll-compress` does.
    pub fn on_bytes(
        model: &dyn Model,
        batch: Batch,
        pass: impl Fn(Graph) -> Result<(Graph, Vec<Option<Grid>>), GraphError>,
    ) -> Result<Self, ExportError> {
        Self::built(model, batch, pass)
    }

    fn built(
        model: &dyn Model,
        batch: Batch,
        pass: impl Fn(Graph) -> Result<(Graph, Vec<Option<Grid>>), GraphError>,
    ) -> Result<Self, ExportError> {
        let numerics = Numerics { recurrences: false, ..Numerics::default() };
        let build = |examples| pass(step::prediction_as(&Policy::default(), &numerics, model, examples)?);
        let (name, target) = (model.name().to_string(), model.target());
        match batch {
            Batch::Fixed(examples) => {
                let (graph, grids) = build(examples)?;
                Ok(Self { graph, larger: None, grids, name, target })
            }
            Batch::Dynamic => {
                let ((graph, grids), (larger, _)) = (build(2)?, build(3)?);
                let same = graph.nodes.len() == larger.nodes.len()
                    && graph.value_count() == larger.value_count()
                    && graph.nodes.iter().zip(&larger.nodes).all(|(a, b)| {
                        a.op.name() == b.op.name() && a.inputs == b.inputs && a.outputs == b.outputs
                    });
                if !same {
                    let reason = "the model is another one for another batch: export it with a fixed batch";
                    return Err(GraphError::Choice(reason.into()).into());
                }
                Ok(Self { graph, larger: Some(larger), grids, name, target })
            }
        }
    }

    /// The graph, whose states [`crate::Weights`] reads.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The grid of a value that is codes.
    pub(crate) fn grid(&self, value: ValueId) -> Option<Grid> {
        self.grids.get(value.index()).copied().flatten()
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The model's target.
    pub(crate) fn target(&self) -> &Field {
        &self.target
    }

    /// Writes the model in a format. The file is written under a partial name and renamed when it is whole; weights pass through
    /// buffers of [`crate::BUFFER_BYTES`].
    pub fn write(&self, format: Format, weights: &dyn Weights, path: &Path) -> Result<Exported, ExportError> {
        match format {
            Format::Onnx => onnx(self, weights, path, &OnnxOptions::default()),
            Format::Tflite(_) if self.larger.is_some() => {
                let reason = "a TFLite file has a fixed batch: export it with a number of examples";
                Err(GraphError::Choice(reason.into()).into())
            }
            Format::Tflite(stored) => tflite(self, weights, path, stored),
        }
    }

    /// The extents of a value.
    pub(crate) fn extents(&self, value: ValueId) -> Vec<Extent> {
        let shape = &self.graph.ty(value).shape;
        let Some(larger) = &self.larger else { return shape.iter().map(|&n| Extent::Fixed(n)).collect() };
        let pairs = shape.iter().zip(larger.ty(value).shape.iter());
        pairs
            .map(
                |(&n, &more)| {
                    if n == more { Extent::Fixed(n) } else { Extent::PerExample(more.saturating_sub(n)) }
                },
            )
            .collect()
    }
}
