//! Turns the steps of a plan into commands: kernels found, buffers resolved to ranges of the arena.

use super::chunked_update::ChunkedUpdate;
use super::device::Device;
use super::joined::{Join, join};
use super::queues::Place;
use plimsoll_graph::op::Exchange;
use plimsoll_graph::{BatchMark, NodeId, Op, ValueId};
use plimsoll_plan::{
    Action, BufferId, ExecuteError, ExecutionPlan, KernelQuery, Offloaded, PlanSet, StateHome, Waits,
};

/// A plan, ready to run.
pub struct LoweredPlan<C> {
    pub steps: Vec<LoweredStep<C>>,
    /// The transfers, as steps, that must have completed before the inputs are copied in.
    pub entry_waits: Vec<u32>,
    /// The steps that load from a tier.
    pub loads: Vec<u32>,
}

/// A step, ready to run.
pub struct LoweredStep<C> {
    pub command: Command<C>,
    /// What it reads, then what it writes: one allocation, since plans have thousands of steps.
    pub operands: Box<[Region]>,
    /// How many of the operands it reads.
    pub read_count: usize,
    pub workspace: Region,
    /// The transfers, as steps, that must have completed before this one.
    pub waits: Box<[u32]>,
    /// Whether its node has run before in the same plan.
    pub rematerialized: bool,
    /// With which others it is one call, where steps are not looked at one by one.
    pub join: Join<C>,
}

impl<C> LoweredStep<C> {
    pub fn reads(&self) -> &[Region] {
        &self.operands[..self.read_count]
    }

    pub fn writes(&self) -> &[Region] {
        &self.operands[self.read_count..]
    }
}

/// What a step does.
pub enum Command<C> {
    Kernel(C),
    /// Copies the first read into the first write.
    Copy,
    /// Starts a load of the first write.
    Load(Place),
    /// Starts a store of the first read.
    Store(Place),
    ChunkedUpdate(Box<ChunkedUpdate<C>>),
    /// Passes sums, the writes, to other devices or from them.
    Exchange(Exchange),
}

/// A range of the arena.
#[derive(Clone, Copy)]
pub struct Region {
    pub offset: usize,
    pub bytes: usize,
    /// Bytes between its starts in consecutive micro-batches.
    pub stride: usize,
}

impl Region {
    const NONE: Self = Self { offset: 0, bytes: 0, stride: 0 };

    pub fn of(plan: &ExecutionPlan, id: BufferId) -> Self {
        let buffer = &plan.buffers[id.index()];
        let stride = buffer.micro_stride;
        // With a stride, a region is one micro-batch of its buffer.
        let bytes = if stride > 0 { stride } else { buffer.bytes };
        Self { offset: buffer.offset, bytes, stride }
    }
}

/// Lowers a plan of the set.
pub fn lower<D: Device>(
    set: &PlanSet,
    plan: &ExecutionPlan,
    waits: Waits,
    device: &D,
) -> Result<LoweredPlan<D::Call>, ExecuteError> {
    let lowering = Lowering { set, plan, device, marks: plan.graph.batch_marks() };
    let steps = plan.steps.iter().map(|step| lowering.step(&step.action));
    let mut steps = steps.collect::<Result<Vec<_>, ExecuteError>>()?;
    let tier = |at: usize| match plan.steps[at].action {
        Action::Load { tier, .. } | Action::Store { tier, .. } => Some(tier),
        _ => None,
    };
    for (at, (step, mut waits)) in steps.iter_mut().zip(waits.steps).enumerate() {
        // A tier's queue orders its own transfers.
        waits.retain(|&transfer| tier(at).is_none() || tier(at) != tier(transfer as usize));
        step.waits = waits.into();
    }
    let mut ran = vec![false; plan.graph.nodes.len()];
    for (lowered, step) in steps.iter_mut().zip(&plan.steps) {
        if let Action::Run { node, .. } = step.action {
            lowered.rematerialized = std::mem::replace(&mut ran[node.index()], true);
        }
    }
    join(&mut steps, |at| plan.steps[at].optimizer_step, plan.graph.micro_batches, device);
    let loads = steps.iter().enumerate().filter(|(_, step)| matches!(step.command, Command::Load(_)));
    let loads = loads.map(|(at, _)| at as u32).collect();
    Ok(LoweredPlan { steps, entry_waits: waits.entry, loads })
}

struct Lowering<'a, D> {
    set: &'a PlanSet,
    plan: &'a ExecutionPlan,
    device: &'a D,
    marks: Vec<BatchMark>,
}

impl<D: Device> Lowering<'_, D> {
    fn step(&self, action: &Action) -> Result<LoweredStep<D::Call>, ExecuteError> {
        let none = Region::NONE;
        Ok(match action {
            Action::Load { what, to, .. } => {
                self.lowered(Command::Load(self.place(*what)?), &[], &[*to], none)
            }
            Action::Store { what, from, .. } => {
                self.lowered(Command::Store(self.place(*what)?), &[*from], &[], none)
            }
            Action::Copy { from, to, .. } => self.lowered(Command::Copy, &[*from], &[*to], none),
            Action::ChunkedUpdate { node, reads, writes, workspace, chunk_elements } => {
                let place = |value| self.place(Offloaded::State(self.state_of(value)));
                let update = ChunkedUpdate::new(
                    &self.plan.graph,
                    *node,
                    reads,
                    writes,
                    *chunk_elements,
                    self.device,
                    place,
                )?;
                let workspace = Region::of(self.plan, *workspace);
                self.check_workspace(*node, update.workspace_bytes(), workspace)?;
                let present = |ids: &[Option<BufferId>]| ids.iter().flatten().copied().collect::<Vec<_>>();
                let command = Command::ChunkedUpdate(Box::new(update.in_workspace(workspace.bytes)));
                self.lowered(command, &present(reads), &present(writes), workspace)
            }
            Action::Run { node, reads, writes, workspace } => {
                if let Op::Exchange(op) = &self.plan.graph.node(*node).op {
                    return Ok(self.lowered(Command::Exchange(op.clone()), reads, writes, none));
                }
                let query = KernelQuery::new(&self.plan.graph, &self.marks, self.plan.graph.node(*node));
                let call = self.device.find(&query);
                let call = call.ok_or_else(|| self.failed(*node, "this executor has no kernel for it"))?;
                let workspace = workspace.map_or(none, |id| Region::of(self.plan, id));
                self.check_workspace(*node, self.device.workspace_bytes(&call), workspace)?;
                self.lowered(Command::Kernel(call), reads, writes, workspace)
            }
        })
    }

    fn lowered(
        &self,
        command: Command<D::Call>,
        reads: &[BufferId],
        writes: &[BufferId],
        workspace: Region,
    ) -> LoweredStep<D::Call> {
        let operands = reads.iter().chain(writes).map(|&id| Region::of(self.plan, id));
        LoweredStep {
            command,
            operands: operands.collect(),
            read_count: reads.len(),
            workspace,
            waits: Box::default(),
            rematerialized: false,
            join: Join::Alone,
        }
    }

    /// Where an offloaded state or value is.
    fn place(&self, what: Offloaded) -> Result<Place, ExecuteError> {
        match what {
            Offloaded::Value(i) => {
                let offloaded = &self.plan.offloaded[i];
                Ok(Place { tier: offloaded.tier, offset: offloaded.offset })
            }
            Offloaded::State(i) => match self.set.states.get(i).map(|s| s.home) {
                Some(StateHome::Offloaded { tier, offset }) => Ok(Place { tier, offset }),
                Some(StateHome::Arena(_)) | None => {
                    Err(ExecuteError::Input(format!("state {i} is not offloaded")))
                }
            },
        }
    }

    /// The index in the set of the state that a value is the old version of; past the end if there is none.
    fn state_of(&self, value: ValueId) -> usize {
        let own = self.plan.graph.states.iter().find(|s| s.input == value);
        let index = own.and_then(|own| self.set.states.iter().position(|s| s.name == own.name));
        index.unwrap_or(usize::MAX)
    }

    fn check_workspace(&self, node: NodeId, needed: usize, planned: Region) -> Result<(), ExecuteError> {
        if needed <= planned.bytes {
            return Ok(());
        }
        Err(self.failed(node, "the plan's workspace is too small: it was made for another target"))
    }

    fn failed(&self, node: NodeId, reason: &str) -> ExecuteError {
        let node = self.plan.graph.node(node);
        let (layer, op) = (node.layer.to_string(), node.op.name());
        ExecuteError::Step { layer, op, reason: reason.to_string() }
    }
}
