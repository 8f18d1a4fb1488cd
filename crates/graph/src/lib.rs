//! The graph: ops, types, builder, checks and text form.
//!
//! A [`Graph`] is pure SSA: every value is written once, by a node, or enters as an input, as a state's old version
//! or as a carried accumulator. A training step (forward, backward, update) is one graph.
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
pub mod op;
mod text;

pub use batch_relation::BatchRelation;
pub use builder::Builder;
pub use dot::Dot;
pub use error::{GraphError, TypeError};
pub use graph::{Accumulator, Graph, Init, Input, Node, NodeId, Origin, Output, Role, State, ValueId};
pub use min_cut::FlowNetwork;
pub use op::Op;
pub use text::parse;
