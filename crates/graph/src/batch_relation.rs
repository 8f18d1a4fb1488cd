//! How values relate to the batch.
//!
//! The batch is axis 0 of every per-example value, each example owning the same number of rows. A sum over the batch (a
//! weight's gradient, a loss) is reduced: it folds block by block, and gradient accumulation continues the fold over
//! micro-batches. A batch whose values are mixed in another way (batch norm's statistics) cannot be split.

use crate::op::Exchange;
use crate::{Graph, Node, Op, Origin, ValueId};
use serde::{Deserialize, Serialize};

/// How a value relates to the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchRelation {
    /// It does not depend on the batch.
    Independent,
    /// Axis 0 is the batch axis, and each example's rows depend on that example alone.
    PerExample,
    /// A sum over the batch, folded block by block.
    Reduced,
    /// It depends on several examples in another way.
    Mixed,
}

/// What is known of a value and the batch while a graph grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BatchMark {
    /// Whether axis 0 is the batch axis, whatever the value depends on.
    pub axis: bool,
    /// Its relation.
    pub relation: BatchRelation,
}

impl BatchMark {
    /// The mark of a value from outside.
    pub const fn input(batched: bool) -> Self {
        let relation = if batched { BatchRelation::PerExample } else { BatchRelation::Independent };
        Self { axis: batched, relation }
    }

    /// The mark of a sum over the batch.
    pub const SUM: Self = Self { axis: false, relation: BatchRelation::Reduced };
}

impl Graph {
    /// Whether axis 0 of a value can be the batch axis: it has as many rows for each example.
    fn fits_batch_axis(&self, value: ValueId) -> bool {
        self.ty(value).shape.first().is_some_and(|rows| rows % self.examples.max(1) == 0)
    }

    /// How a node's outputs relate to the batch by its op alone: what its inputs depend on is left out. An output that is reduced
    /// folds over the batch, whatever it is a sum of.
    pub fn own_relations(&self, node: &Node, marks: &[BatchMark]) -> Vec<BatchRelation> {
        let from: Vec<bool> = node.inputs.iter().map(|v| marks[v.index()].axis).collect();
        node.op.batch_relation(&from, &self.input_types(node), node.outputs.len())
    }

    /// The marks of a node's outputs, from those of all values before it.
    pub(crate) fn marks_of(&self, node: &Node, marks: &[BatchMark]) -> Vec<BatchMark> {
        // What another device had of the value is known of it here.
        if let Op::Exchange(Exchange::Take { mark, .. }) = node.op {
            return vec![BatchMark::SUM, mark];
        }
        // The inputs of an exchange only say when it happens.
        let passes = matches!(node.op, Op::Exchange(_));
        let any = |relation| !passes && node.inputs.iter().any(|v| marks[v.index()].relation == relation);
        let (mixed, reduced) = (any(BatchRelation::Mixed), any(BatchRelation::Reduced));
        let outputs = self.own_relations(node, marks);
        let mark = |(&value, relation): (&ValueId, BatchRelation)| {
            let fits = self.fits_batch_axis(value);
            let axis = relation == BatchRelation::PerExample && fits;
            let relation = match relation {
                _ if mixed => BatchRelation::Mixed,
                BatchRelation::PerExample if reduced || !fits => BatchRelation::Mixed,
                BatchRelation::Reduced if reduced => BatchRelation::Mixed,
                BatchRelation::Independent if reduced => BatchRelation::Reduced,
                relation => relation,
            };
            BatchMark { axis, relation }
        };
        node.outputs.iter().zip(outputs).map(mark).collect()
    }

    /// The relation of every value. A batch can be split if no value is [`BatchRelation::Mixed`]; a per-example value that
    /// depends on a reduced one is.
    pub fn batch_relations(&self) -> Vec<BatchRelation> {
        self.batch_marks().into_iter().map(|mark| mark.relation).collect()
    }

    /// The mark of every value.
    pub fn batch_marks(&self) -> Vec<BatchMark> {
        self.batch_marks_from(|input| BatchMark::input(self.inputs[input].batched))
    }

    /// As [`Graph::batch_marks`], with the marks of the inputs, by index, from outside.
    pub fn batch_marks_from(&self, input: impl Fn(usize) -> BatchMark) -> Vec<BatchMark> {
        let mark = |value| match self.origin(value) {
            Origin::Input(i) => input(i),
            _ => BatchMark::input(false),
        };
        let mut marks: Vec<BatchMark> = self.value_ids().map(mark).collect();
        for node in &self.nodes {
            for (value, mark) in node.outputs.iter().zip(self.marks_of(node, &marks)) {
                marks[value.index()] = mark;
            }
        }
        marks
    }
}
