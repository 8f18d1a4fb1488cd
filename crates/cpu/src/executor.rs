//! Runs plans in one arena.

use crate::arena::Arena;
use crate::call::{self, Call, Operands};
use crate::isa::{Context, Isa};
use crate::pool::Pool;
use crate::shadow::Shadow;
use crate::spill::{Rates, STAGING_BYTES, SpillError, SpillFile, SpillQueue, Ticket};
use crate::stream::Stream;
use crate::target::CpuTarget;
use plimsoll_graph::op::Attention;
use plimsoll_graph::{NodeId, Op, ValueId};
use plimsoll_plan::{
    Action, BufferId, BufferKind, Disk, ExecuteError, ExecutionPlan, Executor, Extra, KernelQuery, Offloaded,
    PlanSet, Prepared, StateHome, Target, verify,
};
use plimsoll_tensor::{DType, all_finite};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The least nanoseconds that each step has taken, by plan and step: what [`Cpu::timed`] fills in. A step that has not
/// run has `u64::MAX`.
#[derive(Debug, Default)]
pub struct StepTimes(Mutex<Vec<Vec<u64>>>);

impl StepTimes {
    /// The steps of a plan, in its order; none before it is prepared.
    pub fn of(&self, plan: usize) -> Vec<u64> {
        self.table().get(plan).cloned().unwrap_or_default()
    }

    fn table(&self) -> std::sync::MutexGuard<'_, Vec<Vec<u64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self, plans: &PlanSet) {
        *self.table() = plans.plans.iter().map(|plan| vec![u64::MAX; plan.steps.len()]).collect();
    }

    fn record(&self, plan: usize, step: usize, since: Instant) {
        let took = since.elapsed().as_nanos() as u64;
        // Another plan may have been prepared since.
        if let Some(least) = self.table().get_mut(plan).and_then(|steps| steps.get_mut(step)) {
            *least = took.min(*least);
        }
    }
}

/// The CPU executor.
///
/// ```
/// use plimsoll_cpu::Cpu;
/// use plimsoll_plan::Executor;
/// let cpu = Cpu::new(2)?;
/// assert!(cpu.target().name().ends_with("2 threads"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Cpu {
    target: CpuTarget,
    pool: Arc<Pool>,
    checked: bool,
    spill: Option<PathBuf>,
    disk: Disk,
    times: Option<Arc<StepTimes>>,
}

/// Transfers under way at most; further ones wait.
const MOST_TRANSFERS: usize = 64;

/// Kernel-side records and resident stack of the threads that spill.
const SPILL_THREAD_BYTES: usize = 32 << 10;

/// What a disk is taken to do, unless told otherwise: 2.5 GiB a second both ways, after a tenth of a millisecond, and another
/// one for a MiB by itself.
const DISK: Disk = Disk {
    read_ns_per_mib: 400_000,
    write_ns_per_mib: 400_000,
    latency_ns: 100_000,
    single_request_ns: 100_000,
    request_cpu_ns: 20_000,
    staging_bytes: STAGING_BYTES + SPILL_THREAD_BYTES,
};

impl Cpu {
    /// An executor on so many threads with this machine's best instruction set.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        Self::with_isa(threads, Isa::detect())
    }

    /// An executor with an instruction set of choice, no better than the machine's.
    pub fn with_isa(threads: usize, isa: Isa) -> std::io::Result<Self> {
        let isa = isa.min(Isa::detect());
        let pool = Arc::new(Pool::new(threads)?);
        Ok(Self {
            target: CpuTarget::new(isa, pool.threads()),
            pool,
            checked: false,
            times: None,
            spill: None,
            disk: DISK,
        })
    }

    /// An executor that may spill states to a file in a folder. The file is made, without a name, when a plan that spills
    /// is prepared.
    pub fn spilling(self, folder: impl Into<PathBuf>) -> Self {
        Self { spill: Some(folder.into()), ..self }
    }

    /// An executor whose plans take the disk to be so fast: what [`disk_rates`](crate::spill::disk_rates) found, say.
    pub fn disk_rates(self, rates: Rates) -> Self {
        Self { disk: rates.disk(self.disk.staging_bytes), ..self }
    }

    /// As [`Cpu::disk_rates`], with as many bytes a nanosecond both ways and a latency as disks have.
    pub fn disk_rate(self, bytes_per_ns: f64) -> Self {
        let Disk { latency_ns, single_request_ns, request_cpu_ns, .. } = DISK;
        let [read_bytes_per_ns, write_bytes_per_ns] = [bytes_per_ns; 2];
        self.disk_rates(Rates {
            read_bytes_per_ns,
            write_bytes_per_ns,
            latency_ns,
            single_request_ns,
            request_cpu_ns,
        })
    }

    /// An executor that fills dead memory with NaN and checks after every step that nothing was written outside the
    /// step's own buffers. Slow, and needs a second arena: for finding faults.
    pub fn checked(self) -> Self {
        Self { checked: true, ..self }
    }

    /// An executor that notes how long every step takes, in the table of its last [`Executor::prepare`].
    pub fn timed(self, times: Arc<StepTimes>) -> Self {
        Self { times: Some(times), ..self }
    }
}

impl Executor for Cpu {
    fn target(&self) -> &dyn Target {
        &self.target
    }

    fn disk(&self) -> Option<Disk> {
        self.spill.is_some().then_some(self.disk)
    }

    fn prepare(&self, plans: Arc<PlanSet>) -> Result<Box<dyn Prepared>, ExecuteError> {
        // Kernels trust the plan with raw memory, so a plan from anywhere is checked here.
        verify(&plans).map_err(|e| ExecuteError::Input(format!("the plan failed its check: {e}")))?;
        let compiled = plans
            .plans
            .iter()
            .map(|plan| compile(&plans, plan, &self.target))
            .collect::<Result<Vec<_>, _>>()?;
        let all = || compiled.iter().flat_map(|plan| &plan.steps);
        let most = |count: fn(&Ready) -> usize| all().map(count).max().unwrap_or(0);
        let (most_reads, most_writes) = (most(|r| r.reads.len()), most(|r| r.writes.len()));
        let spill = match (plans.spill_bytes, &self.spill) {
            (0, _) => None,
            (_, None) => return Err(ExecuteError::Spill("this executor has no folder to spill to".into())),
            (bytes, Some(folder)) => {
                let file = SpillFile::create(folder, bytes);
                Some(file.and_then(|file| SpillQueue::new(file, MOST_TRANSFERS)).map_err(spill_error)?)
            }
        };
        let steps = compiled.iter().map(|plan| plan.steps.len()).max().unwrap_or(0);
        let tickets = vec![Ticket::NONE; if spill.is_some() { steps } else { 0 }];
        let bytes = plans.arena_bytes;
        let arena = Arena::new(bytes).map_err(|e| ExecuteError::Arena { bytes, reason: e.to_string() })?;
        if let Some(times) = &self.times {
            times.start(&plans);
        }
        let shadow = self.checked.then(|| Shadow::new(&arena, &plans));
        Ok(Box::new(CpuPrepared {
            plans,
            compiled,
            spill,
            tickets,
            ran: None,
            arena,
            shadow,
            times: self.times.clone(),
            extra: Extra::default(),
            waited_before: Duration::ZERO,
            pool: self.pool.clone(),
            isa: self.target.isa,
            reads: Vec::with_capacity(most_reads),
            writes: Vec::with_capacity(most_writes),
        }))
    }
}

/// A piece of the arena.
#[derive(Clone, Copy)]
struct Place {
    offset: usize,
    bytes: usize,
    /// Bytes by which it moves on from micro-batch to micro-batch.
    stride: usize,
}

/// What a step does.
enum Deed {
    Call(Box<dyn Call>),
    /// Copies the first read into the first write.
    Copy,
    /// Reads the first write from this offset of the spill file.
    Load(u64),
    /// Writes the first read to this offset of the spill file.
    Store(u64),
    /// Runs in pieces.
    Stream(Box<Stream>),
}

/// A plan made ready.
struct Compiled {
    steps: Vec<Ready>,
    /// The transfers, as steps, that must be done before inputs are put in their places.
    entry: Vec<u32>,
    /// Those that write to the arena.
    loads: Vec<u32>,
}

/// A step made ready.
struct Ready {
    deed: Deed,
    reads: Vec<Place>,
    writes: Vec<Place>,
    workspace: Place,
    /// The transfers that must be done before, as steps.
    after: Vec<u32>,
    /// Whether its node has run before.
    again: bool,
}

fn spill_error(error: SpillError) -> ExecuteError {
    ExecuteError::Spill(error.to_string())
}

fn place(plan: &ExecutionPlan, id: BufferId) -> Place {
    let buffer = &plan.buffers[id.index()];
    let stride = buffer.micro_stride;
    // What moves on is one micro-batch long.
    let bytes = if stride > 0 { stride } else { buffer.bytes };
    Place { offset: buffer.offset, bytes, stride }
}

fn compile(set: &PlanSet, plan: &ExecutionPlan, target: &CpuTarget) -> Result<Compiled, ExecuteError> {
    let batch_relations = plan.graph.batch_relations();
    let nowhere = Place { offset: 0, bytes: 0, stride: 0 };
    let places = |ids: &[BufferId]| ids.iter().map(|&id| place(plan, id)).collect::<Vec<_>>();
    let ready = |deed, reads: &[BufferId], writes: &[BufferId], workspace| Ready {
        deed,
        reads: places(reads),
        writes: places(writes),
        workspace,
        after: Vec::new(),
        again: false,
    };
    let in_file = |what: Offloaded| match what {
        Offloaded::Value(i) => Ok(plan.offloaded[i].offset),
        Offloaded::State(i) => match set.states.get(i).map(|s| s.home) {
            Some(StateHome::File(offset)) => Ok(offset),
            _ => Err(ExecuteError::Input(format!("state {i} is not in the spill file"))),
        },
    };
    let compiled = |action: &Action| match action {
        Action::Load { what, to } => Ok(ready(Deed::Load(in_file(*what)?), &[], &[*to], nowhere)),
        Action::Store { what, from } => Ok(ready(Deed::Store(in_file(*what)?), &[*from], &[], nowhere)),
        Action::Copy { from, to, .. } => Ok(ready(Deed::Copy, &[*from], &[*to], nowhere)),
        Action::ChunkedUpdate { node, reads, writes, workspace, chunk_elements: piece } => {
            let state = |value: ValueId| {
                let own = plan.graph.states.iter().find(|s| s.input == value)?;
                set.states.iter().position(|s| s.name == own.name)
            };
            let offsets = |value| in_file(Offloaded::State(state(value).unwrap_or(usize::MAX)));
            let workspace = place(plan, *workspace);
            let stream = Stream::new(&plan.graph, *node, reads, writes, *piece, target, offsets)?;
            if stream.workspace_bytes() > workspace.bytes {
                let node = plan.graph.node(*node);
                return Err(ExecuteError::Step {
                    layer: node.layer.to_string(),
                    op: node.op.name(),
                    reason: "the plan's workspace is too small: it was made for another target".to_string(),
                });
            }
            let flat = |ids: &[Option<BufferId>]| ids.iter().flatten().copied().collect::<Vec<_>>();
            Ok(ready(Deed::Stream(Box::new(stream)), &flat(reads), &flat(writes), workspace))
        }
        Action::Run { node, reads, writes, workspace } => {
            let node = plan.graph.node(*node);
            let call = call::find(&KernelQuery::new(&plan.graph, &batch_relations, node));
            let workspace = workspace.map_or(nowhere, |id| place(plan, id));
            let failed = |reason: &str| ExecuteError::Step {
                layer: node.layer.to_string(),
                op: node.op.name(),
                reason: reason.to_string(),
            };
            let call = call.ok_or_else(|| failed("this executor has no kernel for it"))?;
            if call.workspace(target.isa, target.threads) > workspace.bytes {
                return Err(failed("the plan's workspace is too small: it was made for another target"));
            }
            Ok(ready(Deed::Call(call), reads, writes, workspace))
        }
    };
    let mut steps =
        plan.steps.iter().map(|step| compiled(&step.action)).collect::<Result<Vec<_>, ExecuteError>>()?;
    let waits = plan.waits();
    steps.iter_mut().zip(waits.steps).for_each(|(step, after)| step.after = after);
    let mut ran = vec![false; plan.graph.nodes.len()];
    for (ready, step) in steps.iter_mut().zip(&plan.steps) {
        if let Action::Run { node, .. } = step.action {
            ready.again = std::mem::replace(&mut ran[node.index()], true);
        }
    }
    let loads = |(at, step): (usize, &Ready)| matches!(step.deed, Deed::Load(_)).then_some(at as u32);
    let loads = steps.iter().enumerate().filter_map(loads).collect();
    Ok(Compiled { steps, entry: waits.entry, loads })
}

struct CpuPrepared {
    plans: Arc<PlanSet>,
    compiled: Vec<Compiled>,
    /// Dropped before the arena that it moves bytes in and out of.
    spill: Option<SpillQueue>,
    /// The last transfer of each step.
    tickets: Vec<Ticket>,
    /// The plan whose stores may still be on their way.
    ran: Option<usize>,
    arena: Arena,
    shadow: Option<Shadow>,
    times: Option<Arc<StepTimes>>,
    /// Of the last run; the queue's waiting up to then.
    extra: Extra,
    waited_before: Duration,
    pool: Arc<Pool>,
    isa: Isa,
    /// Operands of the step at work, kept so that running allocates nothing.
    reads: Vec<*const u8>,
    writes: Vec<*mut u8>,
}

// SAFETY: the raw pointers point into the arena, which moves along with them.
unsafe impl Send for CpuPrepared {}

impl CpuPrepared {
    fn step(&mut self, plan: usize, index: usize, micro_batch: usize) -> Result<(), ExecuteError> {
        let ready = &self.compiled[plan].steps[index];
        self.wait_for(&ready.after)?;
        let arena = &self.arena;
        let at = |p: &Place| arena.at(p.offset + micro_batch * p.stride, p.bytes);
        self.reads.clear();
        self.reads.extend(ready.reads.iter().map(|p| at(p).cast_const()));
        self.writes.clear();
        self.writes.extend(ready.writes.iter().map(at));
        let call = match (&ready.deed, &self.spill) {
            (Deed::Call(call), _) => call,
            (Deed::Copy, _) => {
                // SAFETY: two places of the arena of one size; `copy` allows for overlap.
                unsafe { std::ptr::copy(self.reads[0], self.writes[0], ready.reads[0].bytes) };
                return Ok(());
            }
            (Deed::Load(offset), Some(queue)) => {
                // SAFETY: a place of the arena; whatever touches it next waits for the ticket, in this run or the next of
                // the same plan (`ExecutionPlan::waits`), and any other run for all of them.
                self.tickets[index] = unsafe { queue.load(*offset, self.writes[0], ready.writes[0].bytes) };
                return Ok(());
            }
            (Deed::Store(offset), Some(queue)) => {
                // SAFETY: as for loads, of whatever writes there; `write_state` waits for all of them.
                self.tickets[index] = unsafe { queue.store(*offset, self.reads[0], ready.reads[0].bytes) };
                return Ok(());
            }
            (Deed::Stream(stream), Some(queue)) => {
                let context = Context::new(&self.pool, self.isa);
                // SAFETY: the places are the plan's for this node, as below; nothing else uses the workspace, and every
                // transfer is over when this returns.
                let ran =
                    unsafe { stream.run(context, queue, &self.reads, &self.writes, at(&ready.workspace)) };
                return ran.map_err(spill_error);
            }
            (Deed::Load(_) | Deed::Store(_) | Deed::Stream(_), None) => {
                return Err(ExecuteError::Spill("there is no spill file".into()));
            }
        };
        let operands = Operands {
            reads: &self.reads,
            writes: &self.writes,
            workspace: at(&ready.workspace),
            workspace_bytes: ready.workspace.bytes,
        };
        let context = Context::new(&self.pool, self.isa);
        let started = ready.again.then(Instant::now);
        // SAFETY: the places are the plan's for this node; `verify` has shown that they do not overlap wrongly.
        let ran = unsafe { call.run(context, &operands) };
        self.extra.again += started.map_or(Duration::ZERO, |started| started.elapsed());
        ran.map_err(|reason| {
            let plan = &self.plans.plans[plan];
            let (layer, op) = match &plan.steps[index].action {
                Action::Run { node, .. } | Action::ChunkedUpdate { node, .. } => {
                    (plan.graph.node(*node).layer.to_string(), plan.graph.node(*node).op.name())
                }
                Action::Copy { .. } => (String::new(), "copy"),
                Action::Load { .. } => (String::new(), "load"),
                Action::Store { .. } => (String::new(), "store"),
            };
            ExecuteError::Step { layer, op, reason }
        })
    }

    /// A step, timed where that is wanted; in a checked executor, with its transfers done and the arena looked through.
    fn checked_step(&mut self, plan: usize, index: usize, micro_batch: usize) -> Result<(), ExecuteError> {
        let Some(mut shadow) = self.shadow.take() else {
            let started = self.times.as_ref().map(|_| Instant::now());
            self.step(plan, index, micro_batch)?;
            if let (Some(times), Some(started)) = (&self.times, started) {
                times.record(plan, index, started);
            }
            return Ok(());
        };
        shadow.before(&self.arena);
        let result = self
            .step(plan, index, micro_batch)
            .and_then(|()| self.drain())
            .and_then(|()| shadow.after(&self.arena, &self.plans.plans[plan], index, micro_batch));
        self.shadow = Some(shadow);
        result
    }

    /// Copies the inputs in and does every step of a plan, micro-batch after micro-batch and then the tail.
    fn run_each(
        &mut self,
        plan: usize,
        inputs: &[&[u8]],
        mut step: impl FnMut(&mut Self, usize, usize, usize) -> Result<(), ExecuteError>,
    ) -> Result<(), ExecuteError> {
        if plan >= self.plans.plans.len() {
            return Err(ExecuteError::Input(format!("there is no plan {plan}")));
        }
        (self.extra, self.waited_before) = (Extra::default(), self.waited());
        // Another plan's places are not these.
        if self.ran.replace(plan) == Some(plan) {
            self.wait_for(&self.compiled[plan].entry)?
        } else {
            self.drain()?
        }
        self.copy_inputs(plan, inputs)?;
        let plans = self.plans.clone();
        let mut rounds = plans.plans[plan].execution_order();
        let result = rounds.try_for_each(|(index, micro_batch)| step(self, plan, index, micro_batch));
        result.or_else(|error| self.drain().and(Err(error)))?;
        // Stores may go on while the caller reads the arena.
        self.wait_for(&self.compiled[plan].loads)?;
        self.extra.waiting = self.waited() - self.waited_before;
        Ok(())
    }

    /// Waits for the transfers of steps.
    fn wait_for(&self, steps: &[u32]) -> Result<(), ExecuteError> {
        match (&self.spill, steps.iter().filter_map(|&step| self.tickets.get(step as usize)).max()) {
            (Some(queue), Some(&ticket)) => queue.wait(ticket).map_err(spill_error),
            _ => Ok(()),
        }
    }

    /// The node of a step that has just written something that is not finite.
    fn bad_node(&self, plan: usize, index: usize, micro_batch: usize) -> Option<NodeId> {
        let plan = &self.plans.plans[plan];
        let (node, writes): (NodeId, Vec<Option<BufferId>>) = match &plan.steps[index].action {
            Action::Run { node, writes, .. } => (*node, writes.iter().copied().map(Some).collect()),
            Action::ChunkedUpdate { node, writes, .. } => (*node, writes.clone()),
            Action::Copy { .. } | Action::Load { .. } | Action::Store { .. } => return None,
        };
        let (op, outputs) = (&plan.graph.node(node).op, &plan.graph.node(node).outputs);
        let is_bad = |(&value, &buffer): (&ValueId, &Option<BufferId>)| {
            let Some(place) = buffer.map(|id| place(plan, id)) else { return false };
            let ty = plan.graph.ty(value);
            let offset = place.offset + micro_batch * place.stride;
            // SAFETY: no step runs and no load is under way, so nothing writes to the arena.
            let bytes: &[u8] = unsafe { self.arena.view(offset, place.bytes.min(ty.bytes())) };
            // Where nothing may be attended to, the logarithm of attention's sums is that of zero.
            let sums = value != outputs[0] && matches!(op, Op::Attention(Attention::Forward { .. }));
            match sums && ty.dtype == DType::F32 {
                true => {
                    let mut words =
                        bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
                    !words.all(|sum| sum.is_finite() || sum == f32::NEG_INFINITY)
                }
                false => !all_finite(ty.dtype, bytes),
            }
        };
        plan.graph.node(node).outputs.iter().zip(&writes).any(is_bad).then_some(node)
    }

    /// Waits for every transfer.
    fn drain(&self) -> Result<(), ExecuteError> {
        match (&self.spill, self.tickets.iter().max()) {
            (Some(queue), Some(&ticket)) => queue.wait(ticket).map_err(spill_error),
            _ => Ok(()),
        }
    }

    fn copy_inputs(&mut self, plan: usize, inputs: &[&[u8]]) -> Result<(), ExecuteError> {
        let plan = &self.plans.plans[plan];
        if inputs.len() != plan.graph.inputs.len() {
            let (wants, has) = (plan.graph.inputs.len(), inputs.len());
            return Err(ExecuteError::Input(format!(
                "the plan `{}` takes {wants} inputs, {has} were given",
                plan.name
            )));
        }
        for buffer in &plan.buffers {
            match buffer.kind {
                BufferKind::Input(i) => {
                    if inputs[i].len() != buffer.bytes {
                        let (name, wants, has) = (&plan.graph.inputs[i].name, buffer.bytes, inputs[i].len());
                        return Err(ExecuteError::Input(format!(
                            "input `{name}` takes {wants} bytes, {has} were given"
                        )));
                    }
                    // SAFETY: no step runs, so nothing else uses the arena.
                    unsafe { self.arena.view_mut(buffer.offset, buffer.bytes) }.copy_from_slice(inputs[i]);
                }
                BufferKind::Accumulator(_) => {
                    // SAFETY: as above; sums start at zero.
                    unsafe { self.arena.view_mut::<u8>(buffer.offset, buffer.bytes) }.fill(0);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Where bytes of a state lie.
    fn state_home(&self, state: usize, offset: usize, bytes: usize) -> Result<StateHome, ExecuteError> {
        let found = self.plans.states.get(state);
        let fits = found.is_some_and(|s| offset <= s.ty.bytes() && bytes <= s.ty.bytes() - offset);
        let home = found.filter(|_| fits).map(|s| match s.home {
            StateHome::Arena(start) => StateHome::Arena(start + offset),
            StateHome::File(start) => StateHome::File(start + offset as u64),
        });
        home.ok_or_else(|| {
            ExecuteError::Input(format!("state {state} has no bytes {offset}..{}", offset + bytes))
        })
    }

    fn waited(&self) -> Duration {
        self.spill.as_ref().map_or(Duration::ZERO, SpillQueue::waited)
    }

    fn queue(&self) -> Result<&SpillQueue, ExecuteError> {
        self.spill.as_ref().ok_or_else(|| ExecuteError::Spill("there is no spill file".into()))
    }
}

impl Prepared for CpuPrepared {
    fn run(&mut self, plan: usize, inputs: &[&[u8]]) -> Result<(), ExecuteError> {
        self.run_each(plan, inputs, Self::checked_step)
    }

    fn run_until_bad(&mut self, plan: usize, inputs: &[&[u8]]) -> Result<Option<NodeId>, ExecuteError> {
        let mut bad = None;
        let look = |prepared: &mut Self, plan, index, micro_batch| {
            if bad.is_none() {
                prepared.step(plan, index, micro_batch)?;
                prepared.drain()?;
                bad = prepared.bad_node(plan, index, micro_batch);
            }
            Ok(())
        };
        self.run_each(plan, inputs, look)?;
        Ok(bad)
    }

    fn extra(&self) -> Extra {
        self.extra
    }

    fn read_output(&self, plan: usize, output: usize, into: &mut [u8]) -> Result<(), ExecuteError> {
        let found = self.plans.plans.get(plan);
        let buffer = found.and_then(|p| p.outputs.get(output).map(|id| &p.buffers[id.index()]));
        let buffer = buffer.filter(|b| b.bytes == into.len());
        let buffer = buffer.ok_or_else(|| {
            ExecuteError::Input(format!("plan {plan} has no output {output} of {} bytes", into.len()))
        })?;
        // SAFETY: no step runs and no load is under way, so nothing writes to the arena.
        into.copy_from_slice(unsafe { self.arena.view(buffer.offset, buffer.bytes) });
        Ok(())
    }

    fn read_state(&self, state: usize, offset: usize, into: &mut [u8]) -> Result<(), ExecuteError> {
        match self.state_home(state, offset, into.len())? {
            StateHome::Arena(place) => {
                // SAFETY: no step runs and no load is under way, so nothing writes to the arena.
                into.copy_from_slice(unsafe { self.arena.view(place, into.len()) });
                Ok(())
            }
            StateHome::File(place) => self.queue()?.read_now(place, into).map_err(spill_error),
        }
    }

    fn write_state(&mut self, state: usize, offset: usize, from: &[u8]) -> Result<(), ExecuteError> {
        self.drain()?;
        match self.state_home(state, offset, from.len())? {
            StateHome::Arena(place) => {
                // SAFETY: no step runs, so nothing else uses the arena.
                unsafe { self.arena.view_mut(place, from.len()) }.copy_from_slice(from);
                Ok(())
            }
            StateHome::File(place) => self.queue()?.write_now(place, from).map_err(spill_error),
        }
    }
}
