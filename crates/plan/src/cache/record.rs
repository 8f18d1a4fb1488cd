//! Records of plans, to be stored outside the program and restored as untrusted input.

use crate::choice::plan_set;
use crate::lower::CHUNK_ELEMENTS;
use crate::lower::find_states;
use crate::{
    Action, Budget, Buffer, BufferId, ChunkTypes, ExecutionPlan, Kernel, KernelQuery, LoadSheet,
    OffloadedValue, PerTier, PlanError, PlanSet, SharedGraph, StateHome, Step, TIER_ALIGNMENT, Target,
    VerifyError, verify,
};
use plimsoll_graph::{BatchMark, Graph, NodeId};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Bytes and nanoseconds of a record, at most: sums of a few of them do not overflow.
const MAX_FIGURE: u64 = 1 << 60;

/// The planner's choices in a plan set: everything that does not follow from graphs, target and budget.
///
/// ```
/// use plimsoll_graph::{Builder, op::Unary};
/// use plimsoll_plan::{Budget, NullTarget, PlanRecord, plan};
/// let mut b = Builder::new(2, 2);
/// let x = b.batch_input("x", "f32[2,3]".parse()?);
/// let y = b.unary(Unary::Relu, x)?;
/// b.output("y", y);
/// let batches = [("predict".to_string(), b.finish()?)];
/// let (target, budget) = (NullTarget::default(), Budget::new(1 << 20, Vec::new()));
/// let plans = plan(&batches, &target, &budget)?;
/// let text = serde_json::to_string(&PlanRecord::of(&plans))?;
/// let record: PlanRecord = serde_json::from_str(&text)?;
/// assert_eq!(record.restore(&batches, &target, &budget)?, plans);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanRecord {
    plans: Vec<Choices>,
    /// The home of each state.
    homes: Vec<StateHome>,
    tier_bytes: PerTier<u64>,
}

/// The choices of one plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Choices {
    steps: Vec<Step>,
    buffers: Vec<Buffer>,
    outputs: Vec<BufferId>,
    offloaded: Vec<OffloadedValue>,
    peak_bytes: usize,
    live_bytes: usize,
    peak_step: usize,
    nanoseconds: u64,
}

/// Why a record is rejected.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RecordError {
    /// The graphs cannot be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The restored plans do not pass verification.
    #[error(transparent)]
    Verify(#[from] VerifyError),
    /// It belongs to other graphs or another target, or it is damaged.
    #[error("{0}")]
    Mismatch(String),
}

impl PlanRecord {
    /// The record of plans.
    pub fn of(plans: &PlanSet) -> Self {
        let choices = |plan: &ExecutionPlan| Choices {
            steps: plan.steps.clone(),
            buffers: plan.buffers.clone(),
            outputs: plan.outputs.clone(),
            offloaded: plan.offloaded.clone(),
            peak_bytes: plan.peak_bytes,
            live_bytes: plan.live_bytes,
            peak_step: plan.peak_step,
            nanoseconds: plan.nanoseconds,
        };
        Self {
            plans: plans.plans.iter().map(choices).collect(),
            homes: plans.states.iter().map(|s| s.home).collect(),
            tier_bytes: plans.tier_bytes,
        }
    }

    /// Restores the plans of these graphs under a budget, whose line they may exceed. A record is untrusted input: the
    /// plans must pass [`verify`](crate::verify), and their workspaces must suffice for the target's kernels.
    pub fn restore(
        self,
        batches: &[(String, impl SharedGraph)],
        target: &dyn Target,
        budget: &Budget,
    ) -> Result<PlanSet, RecordError> {
        let mismatch = |reason: &str| Err(RecordError::Mismatch(reason.to_string()));
        let mut states = find_states(batches.iter().map(|(name, graph)| (name.as_str(), graph.borrow())))?;
        if self.homes.len() != states.len() || self.plans.len() != batches.len() {
            return mismatch("its states or batch types differ");
        }
        if self.plans.iter().any(|p| p.nanoseconds.max(p.peak_bytes as u64) > MAX_FIGURE)
            || self.tier_bytes.host.max(self.tier_bytes.file) > MAX_FIGURE
        {
            return mismatch("its figures are out of range");
        }
        states.iter_mut().zip(self.homes).for_each(|(state, home)| state.home = home);
        let plans: Vec<_> =
            self.plans.into_iter().zip(batches).map(|(choices, batch)| choices.plan(batch)).collect();
        let plans = PlanSet {
            target: target.name(),
            numerics: target.numerics(),
            alignment: target.alignment().max(1),
            arena_bytes: plans.iter().map(|p| p.peak_bytes).max().unwrap_or(0),
            plans,
            states,
            tier_bytes: self.tier_bytes,
            sheet: LoadSheet::default(),
        };
        verify::places(&plans)?;
        if plans.tier_bytes != tier_ends(&plans) {
            return mismatch("its tiers have other sizes");
        }
        plans.plans.iter().try_for_each(|plan| check_kernels(plan, target))?;
        let PlanSet { plans, states, tier_bytes, .. } = plans;
        Ok(plan_set(target, plans, states, tier_bytes, budget))
    }
}

impl Choices {
    /// The plan of a graph, without spare capacity: deserialized lists have some.
    fn plan(self, (name, graph): &(String, impl SharedGraph)) -> ExecutionPlan {
        let Self {
            mut steps,
            mut buffers,
            outputs,
            offloaded,
            peak_bytes,
            live_bytes,
            peak_step,
            nanoseconds,
        } = self;
        steps.shrink_to_fit();
        buffers.shrink_to_fit();
        for step in &mut steps {
            match &mut step.action {
                Action::Run { reads, writes, .. } => [reads, writes].into_iter().for_each(Vec::shrink_to_fit),
                Action::ChunkedUpdate { reads, writes, .. } => {
                    [reads, writes].into_iter().for_each(Vec::shrink_to_fit);
                }
                Action::Copy { .. } | Action::Load { .. } | Action::Store { .. } => {}
            }
        }
        let graph = graph.shared();
        let name = name.clone();
        ExecutionPlan {
            name,
            graph,
            steps,
            buffers,
            outputs,
            offloaded,
            peak_bytes,
            live_bytes,
            peak_step,
            nanoseconds,
        }
    }
}

/// The end of the last page of each tier.
fn tier_ends(plans: &PlanSet) -> PerTier<u64> {
    let mut ends = PerTier::<u64>::default();
    let mut reach = |tier, offset: u64, bytes: usize| {
        let end: &mut u64 = &mut ends[tier];
        *end = (offset + bytes as u64).next_multiple_of(TIER_ALIGNMENT).max(*end);
    };
    for state in &plans.states {
        if let StateHome::Offloaded { tier, offset } = state.home {
            reach(tier, offset, state.ty.bytes());
        }
    }
    for plan in &plans.plans {
        plan.offloaded.iter().for_each(|s| reach(s.tier, s.offset, plan.graph.ty(s.value).bytes()));
    }
    ends
}

/// Checks that every kernel has its workspace and works in place only where it may.
fn check_kernels(plan: &ExecutionPlan, target: &dyn Target) -> Result<(), RecordError> {
    let graph = plan.graph.as_ref();
    let marks = graph.batch_marks();
    let mismatch = |node: NodeId| {
        let layer = &graph.node(node).layer;
        RecordError::Mismatch(format!(
            "layer `{layer}`: workspace or in-place writes do not match the target's kernel"
        ))
    };
    for step in &plan.steps {
        match &step.action {
            Action::Run { node, reads, writes, workspace } => {
                let kernel = kernel(graph, &marks, *node, target)?;
                let scratch = workspace.map_or(0, |id| plan.buffers[id.index()].bytes);
                let inputs = &reads[..graph.node(*node).inputs.len()];
                let may_write = |(output, to): (usize, &BufferId)| {
                    let mut aliased = inputs.iter().enumerate().filter(|(_, from)| *from == to);
                    aliased.all(|(input, _)| kernel.in_place.contains(&(output, input)))
                };
                if scratch < kernel.workspace || !writes.iter().enumerate().all(may_write) {
                    return Err(mismatch(*node));
                }
            }
            Action::ChunkedUpdate { node, reads, workspace, chunk_elements, .. } => {
                let of = graph.node(*node);
                let types = ChunkTypes::new(graph, of, CHUNK_ELEMENTS).ok_or_else(|| mismatch(*node))?;
                let kernel = target.kernel(&types.query(&of.op)).map_err(|_| mismatch(*node))?;
                let chunked = of.inputs.iter().zip(reads).filter(|(_, buffer)| buffer.is_none());
                let chunks: usize =
                    chunked.map(|(v, _)| 2 * CHUNK_ELEMENTS * graph.ty(*v).dtype.bytes()).sum();
                let alignment = target.alignment().max(1);
                let scratch = plan.buffers[workspace.index()].bytes;
                if *chunk_elements != CHUNK_ELEMENTS
                    || scratch < kernel.workspace.next_multiple_of(alignment) + chunks
                {
                    return Err(mismatch(*node));
                }
            }
            Action::Copy { .. } | Action::Load { .. } | Action::Store { .. } => {}
        }
    }
    Ok(())
}

fn kernel(
    graph: &Graph,
    marks: &[BatchMark],
    node: NodeId,
    target: &dyn Target,
) -> Result<Kernel, RecordError> {
    let node = graph.node(node);
    let unsupported = |source| PlanError::Unsupported { layer: node.layer.to_string(), source };
    Ok(target.kernel(&KernelQuery::new(graph, marks, node)).map_err(unsupported)?)
}
