//! Weights that several products share, as those of an unrolled recurrence do: one product over the stacked rows of
//! all of them gives the gradient, instead of one product and one addition for each. The products' input gradients read
//! one transposed copy of the weight, the layout that kernels for a few rows want.

use plimsoll_graph::op::{Epilogue, MatMul, Movement};
use plimsoll_graph::{BatchRelation, Builder, GraphError, Node, Op, ValueId};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Products of one weight from which on they are stacked. It must not depend on the batch, or bits would.
const FEWEST_PRODUCTS: usize = 3;

/// The products of each shared weight, as backward visits them.
pub(super) struct SharedWeights {
    /// By node: the weight that it shares.
    weight: BTreeMap<usize, ValueId>,
    /// By weight: its first product, which backward visits last.
    first: BTreeMap<ValueId, usize>,
    /// By weight: rows and their results' gradients, the last product first.
    pending: BTreeMap<ValueId, Vec<(ValueId, ValueId)>>,
    /// By weight: its transpose.
    transposed: BTreeMap<ValueId, ValueId>,
}

impl SharedWeights {
    /// Finds the weights among the values whose gradients are wanted.
    pub fn new(b: &Builder, nodes: &[Node], wanted: &[bool]) -> Self {
        let mut uses: BTreeMap<ValueId, Vec<usize>> = BTreeMap::new();
        let batch_relations = b.graph().batch_relations();
        for (place, node) in nodes.iter().enumerate() {
            let plain = |op: &Op| match *op {
                Op::MatMul(product) => MatMul { output: None, ..product } == MatMul::default(),
                _ => false,
            };
            // Rows are stacked example by example.
            let per_example = |v: ValueId| {
                batch_relations[v.index()] == BatchRelation::PerExample && b.shape(v).rank() == 2
            };
            if plain(&node.op) && wanted[node.inputs[1].index()] && per_example(node.inputs[0]) {
                uses.entry(node.inputs[1]).or_default().push(place);
            }
        }
        uses.retain(|_, places| places.len() >= FEWEST_PRODUCTS);
        let weight = uses.iter().flat_map(|(&v, places)| places.iter().map(move |&p| (p, v))).collect();
        let first = uses.iter().map(|(&v, places)| (v, places[0])).collect();
        Self { weight, first, pending: BTreeMap::new(), transposed: BTreeMap::new() }
    }

    /// Records a product of a shared weight, whose own rule then need not give the weight's gradient. Returns the node to
    /// differentiate: one that reads the weight's transpose.
    pub fn take<'a>(
        &mut self,
        b: &mut Builder,
        (place, node): (usize, &'a Node),
        dy: Option<ValueId>,
        needs: &mut [bool],
    ) -> Result<Cow<'a, Node>, GraphError> {
        let (Some(&weight), Some(dy)) = (self.weight.get(&place), dy) else { return Ok(Cow::Borrowed(node)) };
        needs[1] = false;
        self.pending.entry(weight).or_default().push((node.inputs[0], dy));
        if !needs[0] {
            return Ok(Cow::Borrowed(node));
        }
        let transposed = match self.transposed.entry(weight) {
            Entry::Occupied(made) => *made.get(),
            Entry::Vacant(place) => *place.insert(b.transpose(weight, &[1, 0])?),
        };
        let op = Op::MatMul(MatMul { transpose_b: true, ..MatMul::default() });
        Ok(Cow::Owned(Node { op, inputs: vec![node.inputs[0], transposed], ..node.clone() }))
    }

    /// Once backward has visited the first product of a weight: the weight and its gradient.
    pub fn finish(
        &mut self,
        b: &mut Builder,
        place: usize,
    ) -> Result<Option<(ValueId, ValueId)>, GraphError> {
        let Some(&weight) = self.weight.get(&place) else { return Ok(None) };
        if self.first[&weight] != place {
            return Ok(None);
        }
        let Some(mut products) = self.pending.remove(&weight) else { return Ok(None) };
        products.reverse();
        let (rows, mut gradients): (Vec<_>, Vec<_>) = products.into_iter().unzip();
        let dtype = b.ty(weight).dtype;
        for gradient in &mut gradients {
            *gradient = b.cast(*gradient, dtype)?;
        }
        let (rows, gradients) = (stack(b, &rows)?, stack(b, &gradients)?);
        let output = dtype.is_low().then(|| dtype.wide());
        let product = MatMul { transpose_a: true, transpose_b: false, epilogue: Epilogue::default(), output };
        Ok(Some((weight, b.one(Op::MatMul(product), &[rows, gradients])?)))
    }
}

/// The rows of several matrices, those of an example together.
fn stack(b: &mut Builder, matrices: &[ValueId]) -> Result<ValueId, GraphError> {
    let examples = b.graph().examples.max(1);
    let width = b.shape(matrices[0])[1];
    let mut pieces = Vec::new();
    for &matrix in matrices {
        let rows = b.shape(matrix)[0] / examples;
        pieces.push(b.reshape(matrix, [examples, rows, width])?);
    }
    let all = b.one(Op::Movement(Movement::Concat { axis: 1 }), &pieces)?;
    let rows = b.shape(all).elements() / width.max(1);
    b.reshape(all, [rows, width])
}
