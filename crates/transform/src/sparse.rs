//! Parameters that are stored sparse.

use crate::rewriter::Rewriter;
use plimsoll_graph::op::Prune;
use plimsoll_graph::{Graph, GraphError, Init, Op, Role};
use plimsoll_tensor::{DType, TensorType, mask_bytes};

/// The last parts of the names of a sparse parameter's states: the elements that are kept, in order, and which they are.
pub const SPARSE: [&str; 2] = ["values", "mask"];

/// Replaces parameters of which only so many elements are kept, as `kept` says by name, by two states, the kept elements and a mask
/// of one bit per element. Each is expanded where it is read, so that memory holds few of them whole at a time. For graphs that do
/// not write their states.
pub fn sparse_parameters(graph: Graph, kept: impl Fn(&str) -> Option<usize>) -> Result<Graph, GraphError> {
    let of = |name: &str, role: Role| kept(name).filter(|_| matches!(role, Role::Parameter | Role::Average));
    if !graph.states.iter().any(|s| of(&s.name, s.role).is_some()) {
        return Ok(graph);
    }
    let mut r = Rewriter::without_states(&graph, |s| of(&s.name, s.role).is_none());
    for state in &graph.states {
        let Some(count) = of(&state.name, state.role) else { continue };
        let ty = graph.ty(state.input);
        let bytes = mask_bytes(ty.shape.elements());
        let types = [TensorType::new(ty.dtype, [count]), TensorType::new(DType::U8, [bytes])];
        let [values, mask] = std::array::from_fn(|i| {
            let name = format!("{}/{}", state.name, SPARSE[i]);
            r.builder.named_state(name, types[i].clone(), Role::Parameter, Init::Zeros)
        });
        let layer = state.name.rsplit_once('/').map_or("", |(layer, _)| layer);
        let op = Op::Prune(Prune::Expand { shape: ty.shape.clone() });
        let whole = r.builder.within(layer.into(), |b| b.one(op, &[values, mask]))?;
        r.map[state.input.index()] = Some(whole);
    }
    for node in &graph.nodes {
        r.copy(node)?;
    }
    r.finish()
}
