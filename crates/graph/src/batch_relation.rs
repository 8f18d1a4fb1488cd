//! How values relate to the batch.
//!
//! The batch is axis 0 of every per-example value, each example owning the same number of rows. A sum over the batch (a
//! weight's gradient, a loss) is reduced: it folds block by block, and gradient accumulation continues the fold over
//! micro-batches. A batch whose values are mixed in another way (batch norm's statistics) cannot be split.

use crate::{Graph, Origin, ValueId};

/// How a value relates to the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

impl Graph {
    /// Whether axis 0 of a value can be the batch axis: it has as many rows for each example.
    pub(crate) fn fits_batch_axis(&self, value: ValueId) -> bool {
        self.ty(value).shape.first().is_some_and(|rows| rows % self.examples.max(1) == 0)
    }

    /// The relation of every value. A batch can be split if no value is [`BatchRelation::Mixed`]; a per-example value that
    /// depends on a reduced one is.
    pub fn batch_relations(&self) -> Vec<BatchRelation> {
        let mut batch_relations = vec![BatchRelation::Independent; self.value_count()];
        // Whether axis 0 is the batch axis, whatever the value depends on.
        let mut batched = vec![false; self.value_count()];
        for value in self.value_ids() {
            if let Origin::Input(i) = self.origin(value)
                && self.inputs[i].batched
            {
                batch_relations[value.index()] = BatchRelation::PerExample;
                batched[value.index()] = true;
            }
        }
        for node in &self.nodes {
            let from: Vec<bool> = node.inputs.iter().map(|v| batched[v.index()]).collect();
            let mixed = node.inputs.iter().any(|v| batch_relations[v.index()] == BatchRelation::Mixed);
            let reduced = node.inputs.iter().any(|v| batch_relations[v.index()] == BatchRelation::Reduced);
            let outputs = node.op.batch_relation(&from, &self.input_types(node), node.outputs.len());
            for (&value, relation) in node.outputs.iter().zip(outputs) {
                let fits = self.fits_batch_axis(value);
                batched[value.index()] = relation == BatchRelation::PerExample && fits;
                batch_relations[value.index()] = match relation {
                    _ if mixed => BatchRelation::Mixed,
                    BatchRelation::PerExample if reduced || !fits => BatchRelation::Mixed,
                    BatchRelation::Reduced if reduced => BatchRelation::Mixed,
                    BatchRelation::Independent if reduced => BatchRelation::Reduced,
                    relation => relation,
                };
            }
        }
        batch_relations
    }
}
