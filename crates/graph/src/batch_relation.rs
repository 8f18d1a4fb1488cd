//! How values relate to the examples of a batch.
//!
//! Examples always run along the first axis, each owning the same number of rows. What sums over them (a weight's
//! gradient, a loss) folds; what else mixes them (batch norm's statistics) cannot be split into micro-batches.

use crate::{Graph, Origin, ValueId};

/// How a value relates to the batch's examples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchRelation {
    /// It does not depend on the batch.
    Independent,
    /// Its first axis runs over the examples, and each example's rows depend on that example alone.
    PerExample,
    /// A sum over the examples, folded block by block.
    Reduced,
    /// It depends on several examples in another way.
    Mixed,
}

impl Graph {
    /// Whether the first axis of a value has rows for each example.
    pub(crate) fn holds_examples(&self, value: ValueId) -> bool {
        self.ty(value).shape.first().is_some_and(|rows| rows % self.examples.max(1) == 0)
    }

    /// The flow of every value. A batch can be split if nothing is [`BatchRelation::Mixed`] and no per-example value depends
    /// on a folded one.
    pub fn batch_relations(&self) -> Vec<BatchRelation> {
        let mut batch_relations = vec![BatchRelation::Independent; self.value_count()];
        // Whether the first axis runs over examples, whatever the value depends on.
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
            let folded = node.inputs.iter().any(|v| batch_relations[v.index()] == BatchRelation::Reduced);
            let outputs = node.op.batch_relation(&from, &self.input_types(node), node.outputs.len());
            for (&value, flow) in node.outputs.iter().zip(outputs) {
                let whole = self.holds_examples(value);
                batched[value.index()] = flow == BatchRelation::PerExample && whole;
                batch_relations[value.index()] = match flow {
                    _ if mixed => BatchRelation::Mixed,
                    BatchRelation::PerExample if folded || !whole => BatchRelation::Mixed,
                    BatchRelation::Reduced if folded => BatchRelation::Mixed,
                    BatchRelation::Independent if folded => BatchRelation::Reduced,
                    flow => flow,
                };
            }
        }
        batch_relations
    }
}
