//! From a graph to tasks and tensors, before any order.

mod aliasing;
mod build;
mod chunked_update;
mod states;
mod task_graph;
mod unroll;

pub use chunked_update::ChunkTypes;
pub(crate) use chunked_update::{CHUNK_ELEMENTS, chunkable_updates};
pub(crate) use states::{StateLayout, find_states};
pub(crate) use task_graph::{Home, StateTier, Task, TaskGraph, TaskId, TaskKind, Tensor, TensorId};
pub(crate) use unroll::{ListEntry, unroll};
