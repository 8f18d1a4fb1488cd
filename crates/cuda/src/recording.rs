//! The steps of a plan as a graph of the driver's, which starts them in less time than they take one by one.

use crate::device::words;
use crate::driver::{Graph, Stream};
use plimsoll_runtime::Recording;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Device memory that the graphs of a GPU may take in all. It is a part of the `kernels` of the load sheet: the plans that take most of
/// that have transfers, and no graphs.
const GRAPH_BYTES: usize = 8 << 20;

/// A graph, with what it takes of a GPU's memory.
struct Captured {
    graph: Graph,
    bytes: usize,
    /// What all graphs of the GPU take.
    taken: Arc<AtomicUsize>,
}

impl Recording for Captured {
    unsafe fn run(&self) -> Result<(), String> {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.graph.launch() }.map_err(words)
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        self.taken.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Captures what a function queues on a stream; `taken` is what all graphs of the GPU take. `None` where the driver cannot, or where
/// it takes more memory for the graph than was planned.
pub(crate) fn capture(
    stream: &Arc<Stream>,
    taken: &Arc<AtomicUsize>,
    queue: &mut dyn FnMut() -> Result<(), String>,
) -> Option<Box<dyn Recording>> {
    let context = &stream.context;
    // What is in the stream may free or take memory as it runs.
    stream.finish().ok()?;
    let before = context.free_bytes().ok()?;
    let graph = Graph::capture(stream, queue).ok()??;
    stream.finish().ok()?;
    let bytes = before.saturating_sub(context.free_bytes().ok()?);
    let all = taken.fetch_add(bytes, Ordering::Relaxed) + bytes;
    // From here on the bytes are given back with the graph.
    let captured = Captured { graph, bytes, taken: taken.clone() };
    (all <= GRAPH_BYTES).then(|| Box::new(captured) as _)
}
