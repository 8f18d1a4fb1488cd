//! Fingerprints: hashes of everything that plans depend on.

use crate::lower::{CHUNK_ELEMENTS, chunkable_updates};
use crate::{Budget, ChunkTypes, KernelQuery, PerTier, Target, Tiers};
use plimsoll_graph::Graph;
use std::borrow::Borrow;
use std::fmt::{self, Write};
use twox_hash::xxhash3_128::Hasher;

/// The planner's version and a hash of its sources: another planner may find other plans for the same graphs.
pub const PLANNER: &str = concat!(env!("CARGO_PKG_VERSION"), "-", env!("PLIMSOLL_PLANNER"));

/// No arena is as large: limits from here on are no limit.
const NO_LIMIT: usize = 1 << 62;

/// A hash of everything that plans depend on except their budget: graphs, the target's numerics, its kernel for each of their
/// nodes, and the planner.
///
/// ```
/// use plimsoll_graph::{Builder, op::Unary};
/// use plimsoll_plan::{Budget, Fingerprint, NullTarget};
/// let graph = |op| {
///     let mut b = Builder::new(2, 2);
///     let x = b.batch_input("x", "f32[2,3]".parse()?);
///     let y = b.unary(op, x)?;
///     b.output("y", y);
///     Ok::<_, Box<dyn std::error::Error>>([("predict".to_string(), b.finish()?)])
/// };
/// let fingerprint =
///     |op| Ok::<_, Box<dyn std::error::Error>>(Fingerprint::new(&graph(op)?, &NullTarget::default()));
/// let under = |line_bytes| Budget::new(line_bytes, Vec::new());
/// let key = fingerprint(Unary::Relu)?.key(&under(1_000));
/// assert_eq!(fingerprint(Unary::Relu)?.key(&under(1_000)), key);
/// assert_ne!(fingerprint(Unary::Exp)?.key(&under(1_000)), key);
/// assert_ne!(fingerprint(Unary::Relu)?.key(&under(1_001)), key);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(u128);

impl Fingerprint {
    /// The fingerprint of graphs on a target.
    pub fn new(batches: &[(String, impl Borrow<Graph>)], target: &dyn Target) -> Self {
        let mut text = Text(Hasher::new());
        let numerics = target.numerics();
        text.add(format_args!(
            "{PLANNER} {:?} {} {} {numerics:?}",
            target.name(),
            target.alignment(),
            target.copy_ns_per_mib()
        ));
        for (name, graph) in batches {
            let graph = graph.borrow();
            text.add(format_args!("{name:?} {graph}"));
            // Ops determine batch relations; the graph's text does not show them.
            let marks = graph.batch_marks();
            text.add(format_args!("{marks:?} {:?}", graph.optimizer_step()));
            for node in graph.nodes.iter().filter(|node| !node.op.is_view()) {
                text.add(format_args!("{:?}", target.kernel(&KernelQuery::new(graph, &marks, node))));
            }
            for node in chunkable_updates(graph, &numerics).into_iter().flatten().map(|id| graph.node(id)) {
                let types = ChunkTypes::new(graph, node, CHUNK_ELEMENTS);
                text.add(format_args!("{:?}", types.map(|types| target.kernel(&types.query(&node.op)))));
            }
        }
        Self(text.0.finish_128())
    }

    /// The key of the plans under a budget. Memory outside the arena matters only by the limits of arena and tiers that it leaves.
    pub fn key(&self, budget: &Budget) -> PlanKey {
        let Budget { line_bytes: _, outside: _, host: _, rematerialize, tiers, offload, time_limit_ns } =
            budget;
        let limit = Some(budget.arena_bytes()).filter(|&limit| limit < NO_LIMIT);
        let mut text = Text(Hasher::new());
        // What is not offloaded passes the host link alone, on its way in.
        let tiers = if *offload { *tiers } else { Tiers { host: tiers.host, file: None } };
        let room = PerTier::<u64>::from_fn(|tier| budget.tier_capacity(tier));
        let given = format_args!("{rematerialize} {offload} {tiers:?} {room:?} {time_limit_ns}");
        text.add(format_args!("{:032x} {limit:?} {given}", self.0));
        PlanKey(text.0.finish_128())
    }
}

/// A fingerprint together with a budget: the key that plans are cached under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PlanKey(u128);

impl fmt::Display for PlanKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Text that is hashed as it is written.
struct Text(Hasher);

impl Text {
    fn add(&mut self, arguments: fmt::Arguments<'_>) {
        // Writing into a hash does not fail.
        let _ = writeln!(self, "{arguments}");
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}
