//! The graph: ops and their types, the builder, checks, and the text form.
//!
//! A [`Graph`] is pure SSA: every value is written once, by a [`Node`], or enters the graph as an input, as the old version
//! of a state or as an accumulator. A training step (forward, backward, optimizer step) is one graph. In-place work and
//! aliasing are the planner's; here nothing is overwritten.
//!
//! | to find | look at |
//! |---|---|
//! | what an op computes, its type rule, cost and properties | [`op`], a file per family; the closed enum is [`Op`] |
//! | whether an op is cheap to rematerialize, its precision class, whether it may work in place | [`op::Properties`] |
//! | how to build a graph; broadcasting, reductions over any axes, einsum | [`Builder`], `builder/` |
//! | how to write an expression with `+ - * /` | [`Builder::math`], [`Value`] |
//! | how values relate to the batch: per-example, reduced over it, mixed across it, independent of it | [`BatchRelation`], [`BatchMark`] |
//! | which nodes run once, after gradient accumulation | [`Graph::optimizer_step`] |
//! | the invariants of a graph | [`Graph::check`] |
//! | printing and parsing; a drawing | [`parse`] and `Display`; [`Graph::dot`] |
//! | what differs between targets and decides graphs | [`Numerics`] |
//! | minimum cuts, which `save` and the planner's search share | [`FlowNetwork`] |
//!
//! The batch is axis 0 of every per-example value. Sums over it fold from +0, block of examples by block, in order
//! ([`Graph::example_block`]): that is why a batch may be split at blocks without changing a bit.
//!
//! This crate knows types and costs. It does not know gradients or passes (`plimsoll-transform`), plans and memory
//! (`plimsoll-plan`), or kernels (the executors).
//!
//! ```
//! use plimsoll_graph::{Builder, Init, Role};
//! use plimsoll_tensor::{DType, TensorType};
//! let mut b = Builder::new(4, 4);
//! let x = b.batch_input("x", TensorType::new(DType::F32, [4, 3]));
//! let w = b.scope("dense", |b| b.state("kernel", TensorType::new(DType::F32, [3, 2]), Role::Parameter, Init::Zeros));
//! let y = b.matmul(x, w)?;
//! b.output("y", y);
//! let graph = b.finish()?;
//! assert_eq!(graph.ty(y).to_string(), "f32[4,2]");
//! assert_eq!(plimsoll_graph::parse(&graph.to_string())?, graph);
//! # Ok::<(), plimsoll_graph::GraphError>(())
//! ```

mod batch_relation;
mod builder;
mod check;
mod dot;
mod error;
mod graph;
mod min_cut;
mod numerics;
pub mod op;
mod text;

pub use batch_relation::{BatchMark, BatchRelation};
pub use builder::{Builder, Value};
pub use dot::Dot;
pub use error::{GraphError, TypeError};
pub use graph::{Accumulator, Graph, Init, Input, Node, NodeId, Origin, Output, Role, State, ValueId};
pub use min_cut::FlowNetwork;
pub use numerics::{Epilogues, InPlaceKernels, JoinedLoss, Numerics, ProductType};
pub use op::Op;
pub use text::parse;
