//! Runs plans in one arena.

use crate::arena::Arena;
use crate::call::{self, Call, Operands};
use crate::isa::{Context, Isa};
use crate::pool::Pool;
use crate::shadow::Shadow;
use crate::target::CpuTarget;
use plimsoll_plan::{
    Action, BufferId, BufferKind, ExecuteError, ExecutionPlan, Executor, KernelQuery, PlanSet, Prepared,
    Target, verify,
};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

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
    times: Option<Arc<StepTimes>>,
}

impl Cpu {
    /// An executor on so many threads with this machine's best instruction set.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        Self::with_isa(threads, Isa::detect())
    }

    /// An executor with an instruction set of choice, no better than the machine's.
    pub fn with_isa(threads: usize, isa: Isa) -> std::io::Result<Self> {
        let isa = isa.min(Isa::detect());
        let pool = Arc::new(Pool::new(threads)?);
        Ok(Self { target: CpuTarget::new(isa, pool.threads()), pool, checked: false, times: None })
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

    fn prepare(&self, plans: Arc<PlanSet>) -> Result<Box<dyn Prepared>, ExecuteError> {
        // Kernels trust the plan with raw memory, so a plan from anywhere is checked here.
        verify(&plans).map_err(|e| ExecuteError::Input(format!("the plan failed its check: {e}")))?;
        let compiled =
            plans.plans.iter().map(|plan| compile(plan, &self.target)).collect::<Result<Vec<_>, _>>()?;
        let most = |count: fn(&Ready) -> usize| compiled.iter().flatten().map(count).max().unwrap_or(0);
        let (most_reads, most_writes) = (most(|r| r.reads.len()), most(|r| r.writes.len()));
        let bytes = plans.arena_bytes;
        let arena = Arena::new(bytes).map_err(|e| ExecuteError::Arena { bytes, reason: e.to_string() })?;
        if let Some(times) = &self.times {
            times.start(&plans);
        }
        let shadow = self.checked.then(|| Shadow::new(&arena, &plans));
        Ok(Box::new(CpuPrepared {
            plans,
            compiled,
            arena,
            shadow,
            times: self.times.clone(),
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

/// A step made ready.
struct Ready {
    /// `None`: a copy of the first read into the first write.
    call: Option<Box<dyn Call>>,
    reads: Vec<Place>,
    writes: Vec<Place>,
    workspace: Place,
}

fn place(plan: &ExecutionPlan, id: BufferId) -> Place {
    let buffer = &plan.buffers[id.index()];
    let stride = buffer.micro_stride;
    // What moves on is one micro-batch long.
    let bytes = if stride > 0 { stride } else { buffer.bytes };
    Place { offset: buffer.offset, bytes, stride }
}

fn compile(plan: &ExecutionPlan, target: &CpuTarget) -> Result<Vec<Ready>, ExecuteError> {
    let flows = plan.graph.flows();
    let nowhere = Place { offset: 0, bytes: 0, stride: 0 };
    let places = |ids: &[BufferId]| ids.iter().map(|&id| place(plan, id)).collect::<Vec<_>>();
    let ready = |action: &Action| match action {
        Action::Load { .. } | Action::Store { .. } => {
            Err(ExecuteError::Input("this executor does not spill".into()))
        }
        Action::Copy { from, to, .. } => {
            Ok(Ready { call: None, reads: places(&[*from]), writes: places(&[*to]), workspace: nowhere })
        }
        Action::Run { node, reads, writes, workspace } => {
            let node = plan.graph.node(*node);
            let call = call::find(&KernelQuery::new(&plan.graph, &flows, node));
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
            Ok(Ready { call: Some(call), reads: places(reads), writes: places(writes), workspace })
        }
    };
    plan.steps.iter().map(|step| ready(&step.action)).collect()
}

struct CpuPrepared {
    plans: Arc<PlanSet>,
    compiled: Vec<Vec<Ready>>,
    arena: Arena,
    shadow: Option<Shadow>,
    times: Option<Arc<StepTimes>>,
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
        let ready = &self.compiled[plan][index];
        let arena = &self.arena;
        let at = |p: &Place| arena.at(p.offset + micro_batch * p.stride, p.bytes);
        self.reads.clear();
        self.reads.extend(ready.reads.iter().map(|p| at(p).cast_const()));
        self.writes.clear();
        self.writes.extend(ready.writes.iter().map(at));
        let Some(call) = &ready.call else {
            // SAFETY: two places of the arena of one size; `copy` allows for overlap.
            unsafe { std::ptr::copy(self.reads[0], self.writes[0], ready.reads[0].bytes) };
            return Ok(());
        };
        let operands = Operands {
            reads: &self.reads,
            writes: &self.writes,
            workspace: at(&ready.workspace),
            workspace_bytes: ready.workspace.bytes,
        };
        let context = Context::new(&self.pool, self.isa);
        // SAFETY: the places are the plan's for this node; `verify` has shown that they do not overlap wrongly.
        unsafe { call.run(context, &operands) }.map_err(|reason| {
            let plan = &self.plans.plans[plan];
            let (layer, op) = match &plan.steps[index].action {
                Action::Run { node, .. } => {
                    (plan.graph.node(*node).layer.to_string(), plan.graph.node(*node).op.name())
                }
                Action::Copy { .. } => (String::new(), "copy"),
                Action::Load { .. } => (String::new(), "load"),
                Action::Store { .. } => (String::new(), "store"),
            };
            ExecuteError::Step { layer, op, reason }
        })
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
                BufferKind::Carry(_) => {
                    // SAFETY: as above; sums start at zero.
                    unsafe { self.arena.view_mut::<u8>(buffer.offset, buffer.bytes) }.fill(0);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn state_range(&self, state: usize, offset: usize, bytes: usize) -> Result<usize, ExecuteError> {
        let found = self.plans.states.get(state);
        let fits = found.is_some_and(|s| offset <= s.ty.bytes() && bytes <= s.ty.bytes() - offset);
        let place = found.filter(|_| fits).map(|s| s.arena_range().start + offset);
        place.ok_or_else(|| {
            ExecuteError::Input(format!("state {state} has no bytes {offset}..{}", offset + bytes))
        })
    }
}

impl Prepared for CpuPrepared {
    fn run(&mut self, plan: usize, inputs: &[&[u8]]) -> Result<(), ExecuteError> {
        if plan >= self.plans.plans.len() {
            return Err(ExecuteError::Input(format!("there is no plan {plan}")));
        }
        self.copy_inputs(plan, inputs)?;
        let plans = self.plans.clone();
        let (steps, micro_batches) = (&plans.plans[plan].steps, plans.plans[plan].graph.micro_batches);
        let body = steps.iter().take_while(|s| !s.tail).count();
        let body = (0..micro_batches).flat_map(|m| (0..body).map(move |i| (i, m)));
        let tail = (0..steps.len()).filter(|&i| steps[i].tail).map(|i| (i, 0));
        for (index, micro_batch) in body.chain(tail) {
            if let Some(shadow) = &mut self.shadow {
                shadow.before(&self.arena);
            }
            let started = self.times.as_ref().map(|_| Instant::now());
            self.step(plan, index, micro_batch)?;
            if let (Some(times), Some(started)) = (&self.times, started) {
                times.record(plan, index, started);
            }
            if let Some(shadow) = &mut self.shadow {
                shadow.after(&self.arena, &plans.plans[plan], index, micro_batch)?;
            }
        }
        Ok(())
    }

    fn read_output(&self, plan: usize, output: usize, into: &mut [u8]) -> Result<(), ExecuteError> {
        let found = self.plans.plans.get(plan);
        let buffer = found.and_then(|p| p.outputs.get(output).map(|id| &p.buffers[id.index()]));
        let buffer = buffer.filter(|b| b.bytes == into.len());
        let buffer = buffer.ok_or_else(|| {
            ExecuteError::Input(format!("plan {plan} has no output {output} of {} bytes", into.len()))
        })?;
        // SAFETY: no step runs, so nothing writes to the arena.
        into.copy_from_slice(unsafe { self.arena.view(buffer.offset, buffer.bytes) });
        Ok(())
    }

    fn read_state(&self, state: usize, offset: usize, into: &mut [u8]) -> Result<(), ExecuteError> {
        let place = self.state_range(state, offset, into.len())?;
        // SAFETY: no step runs, so nothing writes to the arena.
        into.copy_from_slice(unsafe { self.arena.view(place, into.len()) });
        Ok(())
    }

    fn write_state(&mut self, state: usize, offset: usize, from: &[u8]) -> Result<(), ExecuteError> {
        let place = self.state_range(state, offset, from.len())?;
        // SAFETY: no step runs, so nothing else uses the arena.
        unsafe { self.arena.view_mut(place, from.len()) }.copy_from_slice(from);
        Ok(())
    }
}
