//! Gradient accumulation with batch norm, whose statistics are then those of each micro-batch (ghost batch norm).
//!
//! That makes the step another one than the whole batch's. A sum that backward reads inside a micro-batch and the optimizer
//! step reads over the whole batch becomes two values: the micro-batch's, and an accumulator. Running statistics move
//! towards the mean of the micro-batches' statistics.

use super::SplitError;
use crate::rewriter::Rewriter;
use plimsoll_graph::op::{Norm, NormAxis};
use plimsoll_graph::{BatchRelation, Graph, Node, Op, Origin, ValueId};

/// How a value relates to the micro-batch: a [`BatchRelation`] that distinguishes batch norm's statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
enum Kind {
    /// It does not depend on it.
    Independent,
    /// A sum over its examples, or computed from such sums alone.
    Reduced,
    /// A statistic of batch norm, or computed from one.
    Statistic,
    /// Its first axis is the batch axis.
    PerExample,
}

/// Turns a step over `graph.examples` examples into one over `micro_batches` times as many, in which batch norm takes the
/// statistics of each micro-batch: gradients are summed over the micro-batches, and running statistics move once, towards
/// the mean of the micro-batches' statistics.
///
/// The results differ from those of the whole batch at once, and from one number of micro-batches to another.
pub fn accumulate_split_batch_norm(graph: &Graph, micro_batches: usize) -> Result<Graph, SplitError> {
    if micro_batches == 1 {
        return Ok(graph.clone());
    }
    let phases = Phases::new(graph)?;
    let mut r = Rewriter::new(graph);
    r.builder.set_micro_batches(micro_batches);
    // What the optimizer step reads for a value: its sum or its mean over the micro-batches.
    let mut late: Vec<Option<ValueId>> = vec![None; graph.value_count()];
    for (i, node) in graph.nodes.iter().enumerate() {
        if phases.per_micro_batch[i] || phases.is_independent(node) {
            r.copy(node)?;
        }
        let wanted: Vec<ValueId> = node.outputs.iter().copied().filter(|v| phases.late[v.index()]).collect();
        if phases.is_independent(node) || wanted.is_empty() {
            continue;
        }
        if phases.reads_batch[i] || (phases.per_micro_batch[i] && phases.kind(wanted[0]) == Kind::Statistic) {
            for value in wanted {
                let accumulator = r.builder.accumulator(graph.ty(value).clone());
                let (inside, mean) = (r.get(value), phases.kind(value) == Kind::Statistic);
                let (sum, found) = r.builder.within(node.layer.clone(), |b| {
                    let sum = b.add(accumulator, inside)?;
                    let share = 1.0 / micro_batches as f64;
                    Ok::<_, SplitError>((sum, if mean { b.scale(sum, share)? } else { sum }))
                })?;
                r.builder.set_accumulator(accumulator, sum);
                late[value.index()] = Some(found);
            }
        } else {
            let outputs = r.emit(node, |r, v| late[v.index()].unwrap_or_else(|| r.get(v)))?;
            for (value, new) in node.outputs.iter().zip(outputs) {
                late[value.index()] = Some(new);
            }
        }
    }
    for (new, late) in r.map.iter_mut().zip(late) {
        *new = late.or(*new);
    }
    Ok(r.finish()?)
}

/// Which nodes run in every micro-batch, and which values the optimizer step reads.
struct Phases {
    kinds: Vec<Kind>,
    /// Nodes that read a per-example value.
    reads_batch: Vec<bool>,
    /// Nodes whose results a micro-batch itself needs.
    per_micro_batch: Vec<bool>,
    /// Values that leave the step, or that a node after the last micro-batch reads.
    late: Vec<bool>,
}

impl Phases {
    fn new(graph: &Graph) -> Result<Self, SplitError> {
        let mut phases = Self {
            kinds: vec![Kind::Independent; graph.value_count()],
            reads_batch: vec![false; graph.nodes.len()],
            per_micro_batch: vec![false; graph.nodes.len()],
            late: vec![false; graph.value_count()],
        };
        for value in graph.value_ids() {
            if matches!(graph.origin(value), Origin::Input(i) if graph.inputs[i].batched) {
                phases.kinds[value.index()] = Kind::PerExample;
            }
        }
        for (i, node) in graph.nodes.iter().enumerate() {
            phases.classify(graph, i, node)?;
        }
        phases.assign(graph)?;
        Ok(phases)
    }

    fn kind(&self, value: ValueId) -> Kind {
        self.kinds[value.index()]
    }

    /// Whether no output of a node depends on the batch.
    fn is_independent(&self, node: &Node) -> bool {
        node.outputs.iter().all(|&v| self.kind(v) == Kind::Independent)
    }

    fn classify(&mut self, graph: &Graph, i: usize, node: &Node) -> Result<(), SplitError> {
        let batched: Vec<bool> = node.inputs.iter().map(|&v| self.kind(v) == Kind::PerExample).collect();
        let inherited = node
            .inputs
            .iter()
            .map(|&v| self.kind(v))
            .fold(Kind::Independent, |a, b| if b > a { b } else { a });
        self.reads_batch[i] = batched.contains(&true);
        let statistics =
            matches!(node.op, Op::Norm(Norm::Batch { .. } | Norm::Stats { axis: NormAxis::Channel }));
        let batch_relations = node.op.batch_relation(&batched, &graph.input_types(node), node.outputs.len());
        for (&value, relation) in node.outputs.iter().zip(batch_relations) {
            let has_batch_axis =
                graph.ty(value).shape.first().is_some_and(|rows| rows % graph.examples.max(1) == 0);
            self.kinds[value.index()] = match relation {
                BatchRelation::Independent => inherited,
                BatchRelation::Reduced => Kind::Reduced,
                BatchRelation::PerExample if has_batch_axis => Kind::PerExample,
                BatchRelation::Mixed if statistics => Kind::Statistic,
                BatchRelation::PerExample | BatchRelation::Mixed => {
                    return Err(SplitError::Mixes { layer: node.layer.to_string(), op: node.op.name() });
                }
            };
        }
        Ok(())
    }

    /// Goes back from the values that leave the step to what each phase needs.
    fn assign(&mut self, graph: &Graph) -> Result<(), SplitError> {
        let mut early = vec![false; graph.value_count()];
        let states = graph.states.iter().filter_map(|s| s.output);
        states.chain(graph.outputs.iter().map(|o| o.value)).for_each(|v| self.late[v.index()] = true);
        for (i, node) in graph.nodes.iter().enumerate().rev() {
            if self.is_independent(node) {
                continue;
            }
            self.per_micro_batch[i] = self.reads_batch[i] || node.outputs.iter().any(|v| early[v.index()]);
            if self.per_micro_batch[i] {
                node.inputs.iter().for_each(|v| early[v.index()] = true);
            }
            let late = node.outputs.iter().copied().filter(|v| self.late[v.index()]);
            let kinds: Vec<Kind> = late.map(|v| self.kind(v)).collect();
            let per_example = kinds.contains(&Kind::PerExample);
            // A statistic is averaged over the micro-batches and a sum is not: one node cannot give both.
            if per_example || kinds.windows(2).any(|pair| pair[0] != pair[1]) {
                return Err(SplitError::Mixes { layer: node.layer.to_string(), op: node.op.name() });
            }
            let accumulated =
                self.reads_batch[i] || (self.per_micro_batch[i] && kinds.first() == Some(&Kind::Statistic));
            if !kinds.is_empty() && !accumulated {
                node.inputs.iter().for_each(|v| self.late[v.index()] = true);
            }
        }
        Ok(())
    }
}
