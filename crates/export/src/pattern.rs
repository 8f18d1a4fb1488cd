//! Several nodes that other systems have one op for.

use plimsoll_graph::op::{Binary, Elementwise, MatMul, Movement, Unary};
use plimsoll_graph::{Graph, Node, NodeId, Op, Origin, ValueId};
use plimsoll_tensor::DType;

/// What several nodes compute together; it stands at the last of them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Pattern {
    /// `(x - mean) · 1/√(variance + eps) · gain + bias` over the last axis.
    BatchNorm { x: ValueId, gain: ValueId, bias: ValueId, mean: ValueId, variance: ValueId, eps: f64 },
    /// A convolution or a product of matrices, and a bias.
    Bias { product: NodeId, bias: ValueId },
    /// `min(max(x, 0), high)`.
    Clip { x: ValueId, high: f64 },
    /// `x · Φ(x)`, by the error function.
    Gelu { x: ValueId },
    /// A value of one number: padding around nothing.
    Fill { value: f64 },
}

impl Pattern {
    /// The values that it reads.
    pub fn inputs(&self, graph: &Graph) -> Vec<ValueId> {
        match self {
            Self::BatchNorm { x, gain, bias, mean, variance, .. } => vec![*x, *gain, *bias, *mean, *variance],
            Self::Bias { product, bias } => [&graph.node(*product).inputs[..], &[*bias]].concat(),
            Self::Clip { x, .. } | Self::Gelu { x } => vec![*x],
            Self::Fill { .. } => Vec::new(),
        }
    }
}

/// The pattern that ends at each node, if any.
pub(crate) fn find(graph: &Graph) -> Vec<Option<Pattern>> {
    let mut uses = vec![0usize; graph.value_count()];
    graph.nodes.iter().flat_map(|node| node.reads()).for_each(|v| uses[v.index()] += 1);
    graph.outputs.iter().for_each(|output| uses[output.value.index()] += 1);
    let finder = Finder { graph, uses };
    graph.nodes.iter().map(|node| finder.at(node)).collect()
}

struct Finder<'g> {
    graph: &'g Graph,
    uses: Vec<usize>,
}

impl Finder<'_> {
    fn at(&self, node: &Node) -> Option<Pattern> {
        match &node.op {
            Op::Elementwise(Elementwise::Binary(Binary::Add)) => {
                self.batch_norm(node).or_else(|| self.bias(node))
            }
            Op::Elementwise(Elementwise::Binary(Binary::Min)) => {
                let (Op::Elementwise(Elementwise::Unary(Unary::Relu)), relu) = self.only(node.inputs[0])?
                else {
                    return None;
                };
                Some(Pattern::Clip { x: relu.inputs[0], high: self.constant(node.inputs[1])? })
            }
            Op::Elementwise(Elementwise::Binary(Binary::Mul)) => self.gelu(node),
            Op::Movement(Movement::Pad { value, .. }) => {
                let empty = self.graph.ty(node.inputs[0]).shape.elements() == 0;
                empty.then_some(Pattern::Fill { value: *value })
            }
            _ => None,
        }
    }

    /// The node that writes a value.
    fn made(&self, value: ValueId) -> Option<(&Op, &Node)> {
        let node = self.graph.node(self.graph.producer(value)?);
        Some((&node.op, node))
    }

    /// The node that writes a value which is read once.
    fn only(&self, value: ValueId) -> Option<(&Op, &Node)> {
        self.made(value).filter(|_| self.uses[value.index()] == 1)
    }

    /// The operands of a binary op that is read once.
    fn binary(&self, op: Binary, value: ValueId) -> Option<[ValueId; 2]> {
        match self.only(value)? {
            (Op::Elementwise(Elementwise::Binary(found)), node) if *found == op => {
                Some([node.inputs[0], node.inputs[1]])
            }
            _ => None,
        }
    }

    fn constant(&self, value: ValueId) -> Option<f64> {
        match self.made(value)? {
            (Op::Elementwise(Elementwise::Constant { value, .. }), _) => Some(*value),
            _ => None,
        }
    }

    fn is_vector(&self, value: ValueId, extent: usize) -> bool {
        self.graph.ty(value).shape[..] == [extent]
    }

    fn batch_norm(&self, node: &Node) -> Option<Pattern> {
        let bias = node.inputs[1];
        let [normal, gain] = self.binary(Binary::Mul, node.inputs[0])?;
        let [centred, rstd] = self.binary(Binary::Mul, normal)?;
        let [x, mean] = self.binary(Binary::Sub, centred)?;
        let (Op::Elementwise(Elementwise::Unary(Unary::Rsqrt)), rsqrt) = self.only(rstd)? else {
            return None;
        };
        let [variance, eps] = self.binary(Binary::Add, rsqrt.inputs[0])?;
        let ty = self.graph.ty(x);
        let channels = *ty.shape.last()?;
        let vectors = [bias, gain, mean, variance].iter().all(|&v| self.is_vector(v, channels));
        // Other ranks have no order in which the channels are the second axis.
        let fits = vectors && matches!(ty.shape.rank(), 2 | 4) && ty.dtype == DType::F32;
        let eps = self.constant(eps)?;
        fits.then_some(Pattern::BatchNorm { x, gain, bias, mean, variance, eps })
    }

    fn gelu(&self, node: &Node) -> Option<Pattern> {
        let x = node.inputs[0];
        let [above, half] = self.binary(Binary::Mul, node.inputs[1])?;
        let [erf, one] = self.binary(Binary::Add, above)?;
        let (Op::Elementwise(Elementwise::Unary(Unary::Erf)), erf) = self.only(erf)? else { return None };
        let [scaled, factor] = self.binary(Binary::Mul, erf.inputs[0])?;
        let numbers = [half, one, factor].map(|value| self.constant(value));
        let is_gelu = scaled == x && numbers == [Some(0.5), Some(1.0), Some(std::f64::consts::FRAC_1_SQRT_2)];
        is_gelu.then_some(Pattern::Gelu { x })
    }

    fn bias(&self, node: &Node) -> Option<Pattern> {
        let (value, bias) = (node.inputs[0], node.inputs[1]);
        let (op, _) = self.only(value)?;
        let takes = match op {
            Op::Conv(_) => true,
            Op::MatMul(MatMul { transpose_a: false, .. }) => self.graph.ty(value).shape.rank() == 2,
            _ => false,
        };
        let is_state = matches!(self.graph.origin(bias), Origin::State(_));
        let fits = is_state && self.is_vector(bias, *self.graph.ty(value).shape.last()?);
        let product = self.graph.producer(value)?;
        (takes && fits).then_some(Pattern::Bias { product, bias })
    }
}

/// The nodes that an output depends on, with patterns as one.
pub(crate) fn needed(graph: &Graph, patterns: &[Option<Pattern>]) -> Vec<bool> {
    let mut values = vec![false; graph.value_count()];
    graph.outputs.iter().for_each(|output| values[output.value.index()] = true);
    let mut nodes = vec![false; graph.nodes.len()];
    for id in graph.node_ids().rev() {
        let node = graph.node(id);
        if !node.outputs.iter().any(|v| values[v.index()]) {
            continue;
        }
        nodes[id.index()] = true;
        let inputs = match &patterns[id.index()] {
            Some(pattern) => pattern.inputs(graph),
            None => node.inputs.clone(),
        };
        inputs.iter().for_each(|v| values[v.index()] = true);
    }
    nodes
}
