//! Reverse-mode differentiation: gradient rules emit ordinary ops, so backward is planned and fused like forward.

mod rules;
mod shared_weight;

use plimsoll_graph::op::Elementwise;
use plimsoll_graph::{Builder, GraphError, Node, Numerics, Op, ValueId};
use shared_weight::SharedWeights;

/// Appends the gradient of the scalar `loss` with respect to `parameters`, for a target with these numerics, and returns one
/// value for each.
///
/// A parameter that no gradient reaches is an error that names it, and the op that stops it if one does.
///
/// ```
/// use plimsoll_graph::{Builder, Init, Numerics, Role, op::Unary};
/// use plimsoll_tensor::{DType, TensorType};
/// let mut b = Builder::new(1, 1);
/// let x = b.state("x", TensorType::scalar(DType::F32), Role::Parameter, Init::Ones);
/// let loss = b.unary(Unary::Square, x)?;
/// let dx = plimsoll_transform::gradient(&mut b, &Numerics::default(), loss, &[x])?;
/// assert_eq!(b.ty(dx[0]), b.ty(x));
/// # Ok::<(), plimsoll_graph::GraphError>(())
/// ```
pub fn gradient(
    b: &mut Builder,
    numerics: &Numerics,
    loss: ValueId,
    parameters: &[ValueId],
) -> Result<Vec<ValueId>, GraphError> {
    let one = b.constant(1.0, b.ty(loss).dtype)?;
    scaled_gradient(b, numerics, loss, one, parameters)
}

/// As [`gradient`], times a scalar of the loss's type.
pub fn scaled_gradient(
    b: &mut Builder,
    numerics: &Numerics,
    loss: ValueId,
    scale: ValueId,
    parameters: &[ValueId],
) -> Result<Vec<ValueId>, GraphError> {
    if b.shape(loss).rank() != 0 || !b.ty(loss).dtype.is_float() {
        let layer = b.graph().producer(loss).map_or("", |id| &*b.graph().node(id).layer);
        return Err(GraphError::Choice(format!(
            "a loss must be one float, that of layer `{layer}` is {}: sum it over its axes",
            b.ty(loss)
        )));
    }
    let nodes = b.graph().nodes.clone();
    let count = b.graph().value_count();
    let wanted = dependents(&nodes, parameters, count);
    let mut shared_weights = SharedWeights::new(b, &nodes, &wanted);
    let mut gradients: Vec<Option<ValueId>> = vec![None; count];
    gradients[loss.index()] = Some(scale);
    // Nodes that a wanted gradient does not pass.
    let mut ends: Vec<usize> = Vec::new();
    for (place, node) in nodes.iter().enumerate().rev() {
        let outer = b.within(node.layer.clone(), |b| outer_gradients(b, node, &gradients))?;
        let mut needs: Vec<bool> = node.inputs.iter().map(|v| wanted[v.index()]).collect();
        let mut add = |b: &mut Builder, input: ValueId, gradient: Option<ValueId>| {
            let slot = &mut gradients[input.index()];
            *slot = match (*slot, gradient) {
                (Some(sum), Some(gradient)) => Some(add_wider(b, sum, gradient)?),
                (sum, gradient) => sum.or(gradient),
            };
            Ok::<(), GraphError>(())
        };
        b.within(node.layer.clone(), |b| {
            if outer.iter().any(Option::is_some) && needs.contains(&true) {
                let taken = shared_weights.take(b, (place, node), outer[0], &mut needs)?;
                let inner = rules::backward(b, numerics, &taken, &outer, &needs)?;
                if inner.iter().zip(&needs).any(|(gradient, &needed)| needed && gradient.is_none()) {
                    ends.push(place);
                }
                for (&input, gradient) in node.inputs.iter().zip(inner) {
                    add(b, input, gradient)?;
                }
            }
            if let Some((weight, gradient)) = shared_weights.finish(b, place)? {
                add(b, weight, Some(gradient))?;
            }
            Ok::<(), GraphError>(())
        })?;
    }
    let found = |&v: &ValueId| gradients[v.index()].ok_or_else(|| unreached(b, &nodes, &ends, v));
    parameters.iter().map(found).collect()
}

/// The gradients of a node's outputs. Wide ones of 16-bit values stay wide for casts and views alone: other rules read the
/// values, too.
fn outer_gradients(
    b: &mut Builder,
    node: &Node,
    gradients: &[Option<ValueId>],
) -> Result<Vec<Option<ValueId>>, GraphError> {
    let stays_wide = node.op.is_view() || matches!(node.op, Op::Elementwise(Elementwise::Cast(_)));
    let outer = |&value: &ValueId| {
        let (gradient, dtype) = (gradients[value.index()], b.ty(value).dtype);
        match gradient {
            Some(gradient) if !stays_wide && dtype.is_low() && b.is_batched(value) => {
                b.cast(gradient, dtype).map(Some)
            }
            gradient => Ok(gradient),
        }
    };
    node.outputs.iter().map(outer).collect()
}

/// The sum of two gradients of one value; where a 16-bit float meets an f32, it is widened.
fn add_wider(b: &mut Builder, x: ValueId, y: ValueId) -> Result<ValueId, GraphError> {
    let types = [b.ty(x).dtype, b.ty(y).dtype];
    if types[0] == types[1] {
        return b.add(x, y);
    }
    let (x, y) = (b.cast(x, types[0].wide())?, b.cast(y, types[1].wide())?);
    b.add(x, y)
}

/// Values that depend on one of `sources`: only they need gradients.
fn dependents(nodes: &[Node], sources: &[ValueId], count: usize) -> Vec<bool> {
    let mut depends = vec![false; count];
    sources.iter().for_each(|v| depends[v.index()] = true);
    for node in nodes {
        if node.inputs.iter().any(|v| depends[v.index()]) {
            node.outputs.iter().for_each(|v| depends[v.index()] = true);
        }
    }
    depends
}

/// Why no gradient reaches a parameter.
fn unreached(b: &Builder, nodes: &[Node], ends: &[usize], parameter: ValueId) -> GraphError {
    let state = b.graph().states.iter().find(|s| s.input == parameter);
    let name = state.map_or(parameter.to_string(), |s| s.name.clone());
    let depends = dependents(nodes, &[parameter], b.graph().value_count());
    let on_path = |&&place: &&usize| nodes[place].inputs.iter().any(|v| depends[v.index()]);
    // A gradient that ends at a cast from integers or bools was lost where those were computed.
    let computed = |v: &ValueId| if b.ty(*v).dtype.is_float() { None } else { b.graph().producer(*v) };
    let lost = |node: &Node| node.inputs.iter().filter(|v| depends[v.index()]).find_map(computed);
    let end = ends.iter().find(on_path).map(|&place| &nodes[place]);
    let end = std::iter::successors(end, |node| lost(node).map(|id| &nodes[id.index()])).last();
    GraphError::Choice(match end {
        Some(node) => format!(
            "no gradient reaches `{name}`: `{}` in layer `{}` is not differentiable",
            node.op.name(),
            node.layer
        ),
        None => format!("the loss does not depend on `{name}`: remove it or use it"),
    })
}
