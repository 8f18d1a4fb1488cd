//! Turns the step of one micro-batch with batch norm into a step of several.
//!
//! Batch norm's statistics stay those of each micro-batch, so the step is another one than the whole batch's. A value that
//! backward reads inside a micro-batch and the update reads of the whole batch is two values: its own, and a running sum.
//! What the update reads of statistics (the running ones move towards them) is their mean over the micro-batches.

use crate::SplitError;
use crate::rewriter::Rewriter;
use plimsoll_graph::op::{Norm, NormAxis};
use plimsoll_graph::{BatchRelation, Graph, Node, Op, Origin, ValueId};

/// How a value relates to the micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
enum Kind {
    /// It does not depend on it.
    Shared,
    /// A sum over its examples, or made of sums alone.
    Sum,
    /// One of its statistics, or made of one.
    Statistic,
    /// It has rows for each example.
    Rows,
}

/// Makes of a step over `graph.examples` examples one over `micro_batches` times as many, in which batch norm takes the
/// statistics of each micro-batch: gradients are summed over the micro-batches, and running statistics move once, towards
/// the mean of the micro-batches' statistics.
///
/// The results differ from those of the whole batch at once, and from one number of micro-batches to another.
pub fn accumulate_local(graph: &Graph, micro_batches: usize) -> Result<Graph, SplitError> {
    if micro_batches == 1 {
        return Ok(graph.clone());
    }
    let parts = Parts::new(graph)?;
    let mut r = Rewriter::new(graph);
    r.builder.set_micro_batches(micro_batches);
    // What the update reads of a value: its sum or its mean over the micro-batches.
    let mut late: Vec<Option<ValueId>> = vec![None; graph.value_count()];
    for (i, node) in graph.nodes.iter().enumerate() {
        if parts.inner[i] || parts.is_shared(node) {
            r.copy(node)?;
        }
        let wanted: Vec<ValueId> = node.outputs.iter().copied().filter(|v| parts.late[v.index()]).collect();
        if parts.is_shared(node) || wanted.is_empty() {
            continue;
        }
        if parts.made[i] || (parts.inner[i] && parts.kind(wanted[0]) == Kind::Statistic) {
            for value in wanted {
                let accumulator = r.builder.accumulator(graph.ty(value).clone());
                let (inside, mean) = (r.get(value), parts.kind(value) == Kind::Statistic);
                let (sum, found) = r.builder.within(node.layer.clone(), |b| {
                    let sum = b.add(accumulator, inside)?;
                    let share = 1.0 / micro_batches as f64;
                    Ok::<_, SplitError>((sum, if mean { b.scale(sum, share)? } else { sum }))
                })?;
                r.builder.set_carry(accumulator, sum);
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

/// Which nodes run in every micro-batch, and which values the update reads.
struct Parts {
    kinds: Vec<Kind>,
    /// Nodes that look at examples: they make rows, sums or statistics.
    made: Vec<bool>,
    /// Nodes whose results a micro-batch itself needs.
    inner: Vec<bool>,
    /// Values that leave the step, or that something after the last micro-batch reads.
    late: Vec<bool>,
}

impl Parts {
    fn new(graph: &Graph) -> Result<Self, SplitError> {
        let mut parts = Self {
            kinds: vec![Kind::Shared; graph.value_count()],
            made: vec![false; graph.nodes.len()],
            inner: vec![false; graph.nodes.len()],
            late: vec![false; graph.value_count()],
        };
        for value in graph.value_ids() {
            if matches!(graph.origin(value), Origin::Input(i) if graph.inputs[i].batched) {
                parts.kinds[value.index()] = Kind::Rows;
            }
        }
        for (i, node) in graph.nodes.iter().enumerate() {
            parts.classify(graph, i, node)?;
        }
        parts.place(graph)?;
        Ok(parts)
    }

    fn kind(&self, value: ValueId) -> Kind {
        self.kinds[value.index()]
    }

    /// Whether nothing that a node makes depends on the batch.
    fn is_shared(&self, node: &Node) -> bool {
        node.outputs.iter().all(|&v| self.kind(v) == Kind::Shared)
    }

    fn classify(&mut self, graph: &Graph, i: usize, node: &Node) -> Result<(), SplitError> {
        let rows: Vec<bool> = node.inputs.iter().map(|&v| self.kind(v) == Kind::Rows).collect();
        let inherited =
            node.inputs.iter().map(|&v| self.kind(v)).fold(Kind::Shared, |a, b| if b > a { b } else { a });
        self.made[i] = rows.contains(&true);
        let statistics =
            matches!(node.op, Op::Norm(Norm::Batch { .. } | Norm::Stats { axis: NormAxis::Channel }));
        let batch_relations = node.op.batch_relation(&rows, &graph.input_types(node), node.outputs.len());
        for (&value, flow) in node.outputs.iter().zip(batch_relations) {
            let whole = graph.ty(value).shape.first().is_some_and(|rows| rows % graph.examples.max(1) == 0);
            self.kinds[value.index()] = match flow {
                BatchRelation::Independent => inherited,
                BatchRelation::Reduced => Kind::Sum,
                BatchRelation::PerExample if whole => Kind::Rows,
                BatchRelation::Mixed if statistics => Kind::Statistic,
                BatchRelation::PerExample | BatchRelation::Mixed => {
                    return Err(SplitError::Mixes { layer: node.layer.to_string(), op: node.op.name() });
                }
            };
        }
        Ok(())
    }

    /// Goes back from what leaves the step to what each part of it needs.
    fn place(&mut self, graph: &Graph) -> Result<(), SplitError> {
        let mut early = vec![false; graph.value_count()];
        let states = graph.states.iter().filter_map(|s| s.output);
        states.chain(graph.outputs.iter().map(|o| o.value)).for_each(|v| self.late[v.index()] = true);
        for (i, node) in graph.nodes.iter().enumerate().rev() {
            if self.is_shared(node) {
                continue;
            }
            self.inner[i] = self.made[i] || node.outputs.iter().any(|v| early[v.index()]);
            if self.inner[i] {
                node.inputs.iter().for_each(|v| early[v.index()] = true);
            }
            let late = node.outputs.iter().copied().filter(|v| self.late[v.index()]);
            let kinds: Vec<Kind> = late.map(|v| self.kind(v)).collect();
            let per_example = kinds.contains(&Kind::Rows);
            // One statistic and one sum would have to be carried in two ways.
            if per_example || kinds.windows(2).any(|pair| pair[0] != pair[1]) {
                return Err(SplitError::Mixes { layer: node.layer.to_string(), op: node.op.name() });
            }
            let carried = self.made[i] || (self.inner[i] && kinds.first() == Some(&Kind::Statistic));
            if !kinds.is_empty() && !carried {
                node.inputs.iter().for_each(|v| self.late[v.index()] = true);
            }
        }
        Ok(())
    }
}
