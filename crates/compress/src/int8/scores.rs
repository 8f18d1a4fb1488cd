//! Losses that compute the scores of a model's last layer themselves, where that layer runs on bytes.

use super::Int8Grids;
use super::layers::{Analysis, Layer};
use plimsoll_graph::op::{Loss, MatMul};
use plimsoll_graph::{Graph, GraphError, Node, Op, Origin, ValueId};
use plimsoll_transform::Rewriter;

impl Int8Grids {
    /// A graph whose losses read the scores that a layer on bytes gives. A loss of features and a kernel would read the weights in f32,
    /// which a model on bytes does not have, and tell the loss of another model than the one that predicts. And what computes the same
    /// scores twice does so once, as weights that two layers read stay in f32.
    pub(super) fn scored(&self, graph: Graph) -> Result<Graph, GraphError> {
        let kernels = graph.nodes.iter().enumerate().filter_map(|(i, node)| {
            let repeats = |other: &Node| other.op == node.op && other.inputs == node.inputs;
            let again = matches!(node.op, Op::MatMul(_)) && graph.nodes[..i].iter().any(repeats);
            (again || computes_scores(node)).then(|| node.inputs[1])
        });
        let names: Vec<&str> = kernels.filter_map(|kernel| state_name(&graph, kernel)).collect();
        if names.is_empty() {
            return Ok(graph);
        }
        let scored = with_scores(&graph)?;
        let analysis = Analysis::of(&scored, &self.kept);
        let on_bytes = self.steps(&analysis).any(|step| match &step.layer {
            Layer::Product { weights, .. } => names.contains(&weights.name(&scored)),
            _ => false,
        });
        Ok(if on_bytes { scored } else { graph })
    }
}

/// Whether a node is a loss that computes scores itself.
fn computes_scores(node: &Node) -> bool {
    matches!(node.op, Op::Loss(Loss::LinearCrossEntropy { .. }))
}

fn state_name(graph: &Graph, value: ValueId) -> Option<&str> {
    match graph.origin(value) {
        Origin::State(state) => Some(&graph.states[state].name),
        Origin::Input(_) | Origin::Accumulator(_) | Origin::Node { .. } => None,
    }
}

/// The same graph with a product before each such loss, in the layer of its kernel. Equal products are one.
fn with_scores(graph: &Graph) -> Result<Graph, GraphError> {
    let mut r = Rewriter::new(graph);
    let mut products: Vec<(Op, [ValueId; 2], ValueId)> = Vec::new();
    for node in &graph.nodes {
        let (op, loss) = match node.op {
            Op::Loss(Loss::LinearCrossEntropy { transposed }) => {
                (Op::MatMul(MatMul { transpose_b: transposed, ..MatMul::default() }), true)
            }
            _ => (node.op.clone(), false),
        };
        let &[x, kernel, ..] = &node.inputs[..] else {
            r.copy(node)?;
            continue;
        };
        let known = products.iter().find(|(known, of, _)| *known == op && *of == [x, kernel]);
        let scores = match known {
            Some(&(_, _, scores)) => scores,
            None if loss => {
                let layer = state_name(graph, kernel).and_then(|name| name.rsplit_once('/'));
                let layer = layer.map_or_else(|| node.layer.clone(), |(layer, _)| layer.into());
                let inputs = [r.get(x), r.get(kernel)];
                let scores = r.builder.within(layer, |b| b.one(op.clone(), &inputs))?;
                products.push((op, [x, kernel], scores));
                scores
            }
            None => {
                r.copy(node)?;
                if matches!(op, Op::MatMul(_)) {
                    products.push((op, [x, kernel], r.get(node.outputs[0])));
                }
                continue;
            }
        };
        if !loss {
            r.set(node, &[scores]);
            continue;
        }
        let inputs = [scores, r.get(node.inputs[2]), r.get(node.inputs[3])];
        let outputs = r.replace(node, Op::Loss(Loss::CrossEntropy), &inputs)?;
        r.set(node, &outputs);
    }
    r.finish()
}
