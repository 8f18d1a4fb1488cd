//! The entries outside the arena: their names, and how many bytes they take.

use crate::{Action, Entry, ExecutionPlan, PlanSet};
use plimsoll_graph::{Graph, Node, Op};
use std::sync::Arc;

/// Batches on their way to the arena.
pub const BATCH_BUFFERS: &str = "batch buffers";
/// Batches prefetched beyond those, if they turn out to be needed.
pub const BATCHES_AHEAD: &str = "batches ahead";
/// Large inputs of the next batch, in the memory of a device.
pub const NEXT_BATCH: &str = "next batch";
/// The stacks of input workers.
pub const INPUT_STACKS: &str = "input stacks";
/// A model's outputs.
pub const OUTPUTS: &str = "outputs";
/// States on their way to and from files.
pub const STATE_BUFFER: &str = "state buffer";
/// Metrics.
pub const METRICS: &str = "metrics";
/// The trace of the first steps.
pub const TRACE: &str = "trace";
/// The heap.
pub const HEAP_CAP: &str = "heap cap";
/// Making the plans, before the arena is mapped.
pub const PLANNING: &str = "planning";
/// Page tables of the arena.
pub const PAGE_TABLES: &str = "page tables";
/// Buffers and threads between a device's memory and host memory.
pub const LINK_STAGING: &str = "link staging";
/// The structure of a model's file, whose weights are read piece by piece.
pub const MODEL_FILE: &str = "model file";
/// Buffers between arena and disk.
pub const SPILL_STAGING: &str = "spill staging";

/// Heap that a plan and its prepared form hold for each node and for each instruction inside one, measured on the zoo's
/// models (370 to 535 bytes), with what the allocator loses between them; more after a search, which leaves holes.
const HEAP_BYTES_PER_INSTRUCTION: usize = 600;
const SEARCHED_HEAP_BYTES_PER_INSTRUCTION: usize = 650;

/// Resident heap while plans are made, for each instruction of all graphs, with what the allocator cannot return: of the graphs
/// and of plans without any technique, and of a search for rematerialized runs and offloaded values besides. Measured on
/// steps of thousands of nodes and rounded up. A batch that cannot be split has no plans of several micro-batches to try.
const PLANNING_BYTES_PER_INSTRUCTION: usize = 1_140;
const WHOLE_PLANNING_BYTES_PER_INSTRUCTION: usize = 800;
const SEARCH_BYTES_PER_INSTRUCTION: usize = 540;

/// The smallest page of any system: larger ones, as ARM has them, need fewer tables.
const PAGE_BYTES: usize = 4 << 10;
const PAGE_TABLE_ENTRY_BYTES: usize = 8;

/// Page tables of an arena. Huge pages need fewer, but the system may have none to give.
pub(crate) fn page_tables(arena_bytes: usize) -> Entry {
    let bytes = arena_bytes.div_ceil(PAGE_BYTES) * PAGE_TABLE_ENTRY_BYTES;
    Entry::new(PAGE_TABLES, bytes, "of the arena, in the kernel")
}

/// What a device takes of its own memory to reach that of the host, if anything.
pub(crate) fn host_mapping(bytes: usize) -> Option<Entry> {
    (bytes > 0).then(|| Entry::new(PAGE_TABLES, bytes, "of the host memory that is offloaded to"))
}

/// The largest arena that fits in so many bytes together with its page tables.
pub(crate) fn largest_arena(bytes: usize) -> usize {
    bytes / (PAGE_BYTES + PAGE_TABLE_ENTRY_BYTES) * PAGE_BYTES
}

/// The buffers between arena and disk.
pub(crate) fn spill_staging(bytes: usize) -> Entry {
    Entry::new(SPILL_STAGING, bytes, "between memory and the disk")
}

/// What copies between a device's memory and host memory needs.
pub(crate) fn link_staging(bytes: usize) -> Entry {
    Entry::new(LINK_STAGING, bytes, "between device and host memory")
}

/// The cap of the heap.
pub(crate) fn heap_cap(bytes: usize, plans: &[ExecutionPlan]) -> Entry {
    let steps: usize = plans.iter().map(|p| p.steps.len()).sum();
    Entry::new(HEAP_CAP, bytes, format!("plans of {steps} steps, names, text"))
}

/// Heap bytes of plans in which every node of these graphs runs once, found by a search or without.
pub(crate) fn graphs_heap_bytes(graphs: &[(String, Arc<Graph>)], search: bool) -> usize {
    heap_bytes(instructions(graphs.iter().flat_map(|(_, graph)| &graph.nodes)), search)
}

/// Heap bytes of making plans of these graphs, with a search or without, of batches that may be split or not.
pub(crate) fn planning_bytes(graphs: &[(String, Arc<Graph>)], search: bool, splits: bool) -> usize {
    let each = if splits { PLANNING_BYTES_PER_INSTRUCTION } else { WHOLE_PLANNING_BYTES_PER_INSTRUCTION };
    let each = each + if search { SEARCH_BYTES_PER_INSTRUCTION } else { 0 };
    instructions(graphs.iter().flat_map(|(_, graph)| &graph.nodes)) * each
}

/// What planning takes beyond the run. It is over before the arena is mapped, so only the larger of both counts.
pub(crate) fn planning(bytes: usize) -> Entry {
    Entry::new(PLANNING, bytes, "the search, beyond what the run takes after it")
}

/// Heap bytes of plans: of their graphs, of every rematerialized run, and of transfers.
pub(crate) fn plans_heap_bytes(plans: &PlanSet) -> usize {
    let (mut all, mut added) = (0, 0);
    for plan in &plans.plans {
        let is_transfer = |action: &Action| matches!(action, Action::Load { .. } | Action::Store { .. });
        let transfers = plan.steps.iter().filter(|s| is_transfer(&s.action)).count();
        all += instructions(plan.graph.nodes.iter());
        added += instructions(plan.rematerialized().map(|node| plan.graph.node(node))) + transfers;
    }
    heap_bytes(all + added, added > 0)
}

/// The cap of the heap of a process that holds the plans of several devices.
pub fn process_heap(bytes: usize, devices: &[PlanSet]) -> Entry {
    let heap = devices.iter().fold(bytes, |sum, plans| sum.saturating_add(plans_heap_bytes(plans)));
    let steps: usize = devices.iter().flat_map(|set| &set.plans).map(|p| p.steps.len()).sum();
    Entry::new(HEAP_CAP, heap, format!("plans of {steps} steps, names, text"))
}

/// What planning the devices of a process one after the other takes beyond the run, if anything. `first` has the load sheet of
/// the process, of which `before` bytes are there before planning.
pub fn process_planning(first: &PlanSet, others: &[PlanSet], before: usize) -> Option<Entry> {
    let each = PLANNING_BYTES_PER_INSTRUCTION + SEARCH_BYTES_PER_INSTRUCTION;
    let of = |set: &PlanSet| instructions(set.plans.iter().flat_map(|plan| &plan.graph.nodes)) * each;
    let most = std::iter::once(first).chain(others).map(of).max().unwrap_or(0);
    let run_bytes = first.sheet.host_total_and_line().0.saturating_sub(before);
    Some(most.saturating_sub(run_bytes)).filter(|bytes| *bytes > 0).map(planning)
}

fn heap_bytes(instructions: usize, search: bool) -> usize {
    instructions * if search { SEARCHED_HEAP_BYTES_PER_INSTRUCTION } else { HEAP_BYTES_PER_INSTRUCTION }
}

fn instructions<'n>(nodes: impl Iterator<Item = &'n Node>) -> usize {
    let instructions = nodes.map(|node| match &node.op {
        Op::Fused(region) => 1 + region.instructions.len(),
        _ => 1,
    });
    instructions.sum()
}
