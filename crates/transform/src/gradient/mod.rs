//! Reverse-mode differentiation: gradient rules emit ordinary ops, so backward is planned and fused like forward.

mod rules;

use plimsoll_graph::{Builder, GraphError, ValueId};

/// Appends the gradient of the scalar `loss` with respect to `parameters` and returns one value for each.
///
/// A parameter that the loss does not depend on is an error that names it.
///
/// ```
/// use plimsoll_graph::{Builder, Init, Role, op::Unary};
/// use plimsoll_tensor::{DType, TensorType};
/// let mut b = Builder::new(1, 1);
/// let x = b.state("x", TensorType::scalar(DType::F32), Role::Parameter, Init::Ones);
/// let loss = b.unary(Unary::Square, x)?;
/// let dx = plimsoll_transform::gradient(&mut b, loss, &[x])?;
/// assert_eq!(b.ty(dx[0]), b.ty(x));
/// # Ok::<(), plimsoll_graph::GraphError>(())
/// ```
pub fn gradient(b: &mut Builder, loss: ValueId, parameters: &[ValueId]) -> Result<Vec<ValueId>, GraphError> {
    if b.shape(loss).rank() != 0 {
        return Err(GraphError::Broken(format!("a loss must be a scalar, this one is {}", b.ty(loss))));
    }
    let nodes = b.graph().nodes.clone();
    let count = b.graph().value_count();
    // Values that depend on a parameter: only they need gradients.
    let mut wanted = vec![false; count];
    parameters.iter().for_each(|v| wanted[v.index()] = true);
    for node in &nodes {
        if node.inputs.iter().any(|v| wanted[v.index()]) {
            node.outputs.iter().for_each(|v| wanted[v.index()] = true);
        }
    }
    let mut gradients: Vec<Option<ValueId>> = vec![None; count];
    gradients[loss.index()] = Some(b.constant(1.0, b.ty(loss).dtype)?);
    for node in nodes.iter().rev() {
        let outer: Vec<Option<ValueId>> = node.outputs.iter().map(|v| gradients[v.index()]).collect();
        let needs: Vec<bool> = node.inputs.iter().map(|v| wanted[v.index()]).collect();
        if outer.iter().all(Option::is_none) || !needs.contains(&true) {
            continue;
        }
        b.within(node.layer.clone(), |b| {
            let inner = rules::backward(b, node, &outer, &needs)?;
            for (&input, gradient) in node.inputs.iter().zip(inner) {
                let slot = &mut gradients[input.index()];
                *slot = match (*slot, gradient) {
                    (Some(sum), Some(gradient)) => Some(b.add(sum, gradient)?),
                    (sum, gradient) => sum.or(gradient),
                };
            }
            Ok(())
        })?;
    }
    let found = |&v: &ValueId| {
        let name =
            || b.graph().states.iter().find(|s| s.input == v).map_or(v.to_string(), |s| s.name.clone());
        gradients[v.index()].ok_or_else(|| {
            GraphError::Broken(format!("the loss does not depend on `{}`: remove it or use it", name()))
        })
    };
    parameters.iter().map(found).collect()
}
