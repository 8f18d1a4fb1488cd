//! The step loop: runs the steps of a plan in order, and waits for transfers where there is a hazard.

use super::checked::ShadowArena;
use super::device::{Device, Input, KernelSession, Memory, Operands};
use super::exchange::{Way, staging_bytes};
use super::inputs_ahead::InputsAhead;
use super::joined::Join;
use super::lower::{Command, LoweredPlan, LoweredStep, Region, lower};
use super::non_finite::non_finite_node;
use super::queues::{Queues, Transfers, failed};
use super::recorded::Recorded;
use super::step_name;
use super::step_times::StepTimes;
use super::tracing::{self, StepSpans};
use plimsoll_graph::{NodeId, Op};
use plimsoll_plan::{
    BatchPart, Buffer, BufferKind, Connection, Direction, ExecuteError, ExecutionPlan, Extra, Message,
    Passing, PlanSet, Prepared, STATE_PIECE, StateHome, Target, Transport, exchange, sheet::NEXT_BATCH,
    verify, verify_hazards,
};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How an executor runs its plans.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Whether dead memory is filled with NaN and every step is checked for writes outside its own buffers. Slow, and needs a
    /// second arena: for debugging.
    pub checked: bool,
    /// Where the time of every step is recorded, for the plans prepared last.
    pub times: Option<Arc<StepTimes>>,
    /// The other devices of the run, if there are any.
    pub connection: Option<Connection>,
}

/// Checks plans, which are a target's, lowers them for its device, opens the queues of the tiers they use, and maps their arena.
pub fn prepare<D: Device + 'static>(
    plans: Arc<PlanSet>,
    target: &dyn Target,
    device: Arc<D>,
    queues: impl FnOnce(&PlanSet) -> Result<Queues, ExecuteError>,
    options: &Options,
) -> Result<Box<dyn KernelSession>, ExecuteError> {
    // Kernels trust the plan with raw memory, so a plan from anywhere is checked here.
    if plans.numerics != target.numerics() {
        let other = &plans.target;
        return Err(ExecuteError::Input(format!("the plan was made for {other}, whose numerics differ")));
    }
    // The hazards of transfers are checked apart from what made the waits.
    let waits: Vec<_> = plans.plans.iter().map(ExecutionPlan::waits).collect();
    let checked = verify(&plans).and_then(|()| verify_hazards(&plans, &waits));
    checked.map_err(|e| ExecuteError::Input(format!("the plan failed its check: {e}")))?;
    let exchanges = |plan: &ExecutionPlan| plan.graph.nodes.iter().any(|n| matches!(n.op, Op::Exchange(_)));
    if options.connection.is_none() && plans.plans.iter().any(exchanges) {
        return Err(ExecuteError::Input("the plan is one of several devices'".into()));
    }
    let shares = |connection: &Connection| connection.parts.iter().any(Option::is_some);
    if !device.in_host_memory() && options.connection.as_ref().is_some_and(shares) {
        // Sums stay where they are until others have read them there.
        let name = target.name();
        return Err(ExecuteError::Input(format!(
            "{name} computes in memory of its own, so it cannot share batches with other devices: train on it alone, or place \
             layers on it"
        )));
    }
    let lowered =
        plans.plans.iter().zip(waits).map(|(plan, waits)| lower(&plans, plan, waits, device.as_ref()));
    let lowered = lowered.collect::<Result<Vec<_>, _>>()?;
    let steps = lowered.iter().map(|plan| plan.steps.len()).max().unwrap_or(0);
    let recorded = lowered.iter().map(Recorded::of).collect();
    let transfers = Transfers::new(queues(&plans)?, steps);
    // One allocation, also with memory for inputs ahead.
    let bytes = plans.arena_bytes.saturating_add(plans.sheet.outside_bytes(NEXT_BATCH));
    let ahead = match bytes > plans.arena_bytes {
        true => device.input_lane().map_err(ExecuteError::Device)?,
        false => None,
    };
    let arena = device.map(bytes).map_err(|reason| ExecuteError::Arena { bytes, reason })?;
    let most_inputs = plans.plans.iter().map(|plan| plan.graph.inputs.len()).max().unwrap_or(0);
    let ahead =
        ahead.map(|lane| InputsAhead::new(lane, plans.arena_bytes..bytes, plans.alignment, most_inputs));
    if let Some(times) = &options.times {
        times.start(&plans);
    }
    let spans = StepSpans::new(&plans);
    let shadow = options.checked.then(|| ShadowArena::new(&arena, &plans)).transpose();
    let shadow = shadow.map_err(ExecuteError::Device)?;
    let most = |count: fn(&LoweredStep<D::Call>) -> usize| {
        lowered.iter().flat_map(|plan| &plan.steps).map(count).max().unwrap_or(0)
    };
    let staging = vec![0; staging_bytes(&plans, options.connection.as_ref(), device.in_host_memory())];
    let most_reads = most(|step| step.join.joined().map_or(step.reads().len(), |joined| joined.reads.len()));
    let most_writes =
        most(|step| step.join.joined().map_or(step.writes().len(), |joined| joined.writes.len()));
    Ok(Box::new(StepLoop {
        plans,
        lowered,
        transfers,
        recorded,
        last_plan: None,
        ahead,
        arena,
        shadow,
        times: options.times.clone(),
        spans,
        connection: options.connection.clone(),
        staging,
        extra: Extra::default(),
        device,
        reads: Vec::with_capacity(most_reads),
        writes: Vec::with_capacity(most_writes),
    }))
}

/// The inputs of a run.
#[derive(Clone, Copy)]
enum Inputs<'a> {
    Host(&'a [&'a [u8]]),
    /// The same, of which some may be in the device's memory already.
    Ahead(&'a [&'a [u8]]),
    Anywhere(&'a [Input<'a>]),
}

impl<'a> Inputs<'a> {
    fn count(self) -> usize {
        match self {
            Self::Host(inputs) | Self::Ahead(inputs) => inputs.len(),
            Self::Anywhere(inputs) => inputs.len(),
        }
    }

    fn get(self, i: usize) -> Input<'a> {
        match self {
            Self::Host(inputs) | Self::Ahead(inputs) => Input::Host(inputs[i]),
            Self::Anywhere(inputs) => inputs[i],
        }
    }
}

/// Plans with their arena, ready to run.
struct StepLoop<D: Device> {
    plans: Arc<PlanSet>,
    lowered: Vec<LoweredPlan<D::Call>>,
    /// Dropped before the arena that it transfers to and from.
    transfers: Transfers,
    /// What the device keeps of each plan. Dropped before the arena, too.
    recorded: Vec<Recorded>,
    /// The plan that ran last: its stores may still be in flight.
    last_plan: Option<usize>,
    /// Inputs of the next run, behind the arena. Dropped before it.
    ahead: Option<InputsAhead>,
    arena: D::Memory,
    shadow: Option<ShadowArena>,
    times: Option<Arc<StepTimes>>,
    spans: StepSpans,
    connection: Option<Connection>,
    /// What is on its way to or from another device: a piece of an offloaded state, or a value of an arena elsewhere.
    staging: Vec<u8>,
    /// Of the last run.
    extra: Extra,
    device: Arc<D>,
    /// Addresses of the current step's operands, kept so that running allocates nothing.
    reads: Vec<*const u8>,
    writes: Vec<*mut u8>,
}

// SAFETY: the raw pointers point into the arena, which moves along with them.
unsafe impl<D: Device> Send for StepLoop<D> {}

impl<D: Device> StepLoop<D> {
    fn step(&mut self, plan: usize, index: usize, micro_batch: usize) -> Result<(), ExecuteError> {
        let step = &self.lowered[plan].steps[index];
        if !step.waits.is_empty() {
            tracing::wait(|| self.transfers.wait_for(&step.waits))?;
        }
        let arena = &self.arena;
        let at = |region: &Region| arena.at(region.offset + micro_batch * region.stride, region.bytes);
        self.reads.clear();
        self.reads.extend(step.reads().iter().map(|region| at(region).cast_const()));
        self.writes.clear();
        self.writes.extend(step.writes().iter().map(at));
        match &step.command {
            Command::Kernel(call) => {
                let operands = Operands {
                    reads: &self.reads,
                    writes: &self.writes,
                    workspace: at(&step.workspace),
                    workspace_bytes: step.workspace.bytes,
                };
                let started = step.rematerialized.then(Instant::now);
                // SAFETY: the regions are the plan's for this node; `verify` has shown that they do not overlap wrongly.
                let ran = unsafe { self.device.run(call, &operands) };
                self.extra.again += started.map_or(Duration::ZERO, |started| started.elapsed());
                ran.map_err(|reason| {
                    let (layer, op) = step_name(&self.plans.plans[plan], index);
                    ExecuteError::Step { layer: layer.into(), op, reason }
                })
            }
            Command::Copy => {
                // SAFETY: two regions of the arena of one size.
                let copied =
                    unsafe { self.device.copy(self.reads[0], self.writes[0], step.reads()[0].bytes) };
                copied.map_err(ExecuteError::Device)
            }
            Command::Load(from) => {
                // SAFETY: a region of the arena. The next step that touches it waits for the transfer, in this run or the
                // next of the same plan (`ExecutionPlan::waits`); a run of another plan waits for all transfers.
                unsafe {
                    let (into, bytes) = (self.writes[0], step.writes()[0].bytes);
                    self.transfers.start_step(index, Direction::Load, *from, into, bytes)
                }
            }
            Command::Store(to) => {
                // SAFETY: as for loads, of the next step that writes to it; `write_state` waits for all transfers.
                unsafe {
                    let (from, bytes) = (self.reads[0].cast_mut(), step.reads()[0].bytes);
                    self.transfers.start_step(index, Direction::Store, *to, from, bytes)
                }
            }
            Command::Exchange(op) => {
                let micro_batches = self.plans.plans[plan].graph.micro_batches;
                let Some(connection) = &self.connection else {
                    return Err(ExecuteError::Input("there is no other device".into()));
                };
                let (transport, staging) = (connection.transport.as_ref(), &mut self.staging);
                let mut way = Way { device: self.device.as_ref(), arena, transport, staging };
                let ran = exchange(op, transport, (micro_batch, micro_batches), |sum, passing| {
                    let operand = match passing {
                        Passing::Hand(..) => &step.reads()[0],
                        _ => &step.writes()[sum],
                    };
                    // SAFETY: a region of the arena, which no other step uses now. `verify` has shown that sums lie in their
                    // accumulators: nothing is written there before the chain comes around, or the next run.
                    unsafe { way.pass(passing, operand.offset + micro_batch * operand.stride, operand.bytes) }
                });
                ran.map_err(|reason| {
                    let (layer, op) = step_name(&self.plans.plans[plan], index);
                    ExecuteError::Step { layer: layer.into(), op, reason }
                })
            }
            Command::ChunkedUpdate(update) => {
                let (device, transfers) = (self.device.as_ref(), &self.transfers);
                // SAFETY: the regions are the plan's for this node, as for kernels; nothing else uses the workspace, and
                // every transfer has completed when this returns.
                let ran =
                    unsafe { update.run(device, transfers, &self.reads, &self.writes, at(&step.workspace)) };
                ran.map_err(|error| match error {
                    ExecuteError::Step { reason, .. } => {
                        let (layer, op) = step_name(&self.plans.plans[plan], index);
                        ExecuteError::Step { layer: layer.into(), op, reason }
                    }
                    other => other,
                })
            }
        }
    }

    /// Runs a step, and times it if asked to. In the checked mode, its transfers complete and the arena is compared.
    fn checked_step(&mut self, plan: usize, index: usize, micro_batch: usize) -> Result<(), ExecuteError> {
        let Some(mut shadow) = self.shadow.take() else {
            let started = self.times.as_ref().filter(|times| !times.is_stopped()).map(|_| Instant::now());
            let traced = self.spans.begin(plan, index);
            self.step(plan, index, micro_batch)?;
            if started.is_some() || traced.is_some() {
                self.device.finish().map_err(ExecuteError::Device)?;
            }
            if let Some(started) = traced {
                let rematerialized = self.lowered[plan].steps[index].rematerialized;
                self.spans.end(&self.plans, [plan, index, micro_batch], started, rematerialized);
            }
            if let (Some(times), Some(started)) = (&self.times, started) {
                times.record(plan, index, started);
            }
            return Ok(());
        };
        let result = shadow
            .before(&self.arena)
            .map_err(ExecuteError::Device)
            .and_then(|()| self.step(plan, index, micro_batch))
            .and_then(|()| self.transfers.drain())
            .and_then(|()| shadow.after(&self.arena, &self.plans.plans[plan], index, micro_batch));
        self.shadow = Some(shadow);
        result
    }

    /// Runs a step as [`StepLoop::step`], with all that it is joined with.
    fn joined_step(&mut self, plan: usize, index: usize, micro_batch: usize) -> Result<(), ExecuteError> {
        let step = &self.lowered[plan].steps[index];
        match &step.join {
            Join::Alone => self.step(plan, index, micro_batch),
            Join::Later => Ok(()),
            Join::First(joined) => {
                if !step.waits.is_empty() {
                    tracing::wait(|| self.transfers.wait_for(&step.waits))?;
                }
                let at = |r: &Region| self.arena.at(r.offset + micro_batch * r.stride, r.bytes);
                self.reads.clear();
                self.reads.extend(joined.reads.iter().map(|region| at(region).cast_const()));
                self.writes.clear();
                self.writes.extend(joined.writes.iter().map(at));
                let (workspace, workspace_bytes) = (at(&step.workspace), step.workspace.bytes);
                let operands =
                    Operands { reads: &self.reads, writes: &self.writes, workspace, workspace_bytes };
                // SAFETY: as for single steps; `joined` has shown that they do not depend on each other.
                let ran = unsafe { self.device.run(&joined.call, &operands) };
                ran.map_err(|reason| {
                    let (layer, op) = step_name(&self.plans.plans[plan], index);
                    ExecuteError::Step { layer: layer.into(), op, reason }
                })
            }
        }
    }

    /// Runs every step of a plan; with others, or all at once, where nothing looks at single steps.
    fn run_all(&mut self, plan: usize, inputs: Inputs<'_>) -> Result<(), ExecuteError> {
        let timed = self.times.as_ref().is_some_and(|times| !times.is_stopped());
        if timed || self.shadow.is_some() || plimsoll_trace::is_recording() {
            return self.run_each(plan, inputs, Self::checked_step);
        }
        let ran = self.run_steps(plan, inputs, Self::queue_all);
        ran.map_err(|error| self.or_lost(error))
    }

    /// Queues every step of a plan.
    fn queue_all(&mut self, plan: usize) -> Result<(), ExecuteError> {
        if let Recorded::Next = self.recorded[plan] {
            let (device, mut recorded) = (self.device.clone(), Recorded::Next);
            recorded.record(device.as_ref(), &mut || self.queue_each(plan).map_err(|e| e.to_string()));
            self.recorded[plan] = recorded;
        }
        if let Recorded::All(recording) = &self.recorded[plan] {
            // SAFETY: it has the plan's steps in their order, in the arena, which is alive; inputs are there.
            return unsafe { recording.run() }.map_err(ExecuteError::Device);
        }
        self.queue_each(plan)?;
        self.recorded[plan].after_a_run();
        Ok(())
    }

    /// Queues the steps of a plan one after the other, or with others.
    fn queue_each(&mut self, plan: usize) -> Result<(), ExecuteError> {
        let plans = self.plans.clone();
        let mut order = plans.plans[plan].execution_order();
        order.try_for_each(|(index, micro_batch)| self.joined_step(plan, index, micro_batch))
    }

    /// Runs every step of a plan, each by itself.
    fn run_each(
        &mut self,
        plan: usize,
        inputs: Inputs<'_>,
        mut step: impl FnMut(&mut Self, usize, usize, usize) -> Result<(), ExecuteError>,
    ) -> Result<(), ExecuteError> {
        let ran = self.run_steps(plan, inputs, |this, plan| {
            let plans = this.plans.clone();
            let mut order = plans.plans[plan].execution_order();
            let result = order.try_for_each(|(index, micro_batch)| step(this, plan, index, micro_batch));
            this.spans.write(&plans);
            result
        });
        ran.map_err(|error| self.or_lost(error))
    }

    /// An error, or that the device was lost, where that is the cause.
    fn or_lost(&self, error: ExecuteError) -> ExecuteError {
        match self.device.lost() {
            Some(reason) => ExecuteError::Lost { device: self.plans.target.clone(), reason },
            None => error,
        }
    }

    /// The error of what the device was told to do.
    fn device_error(&self, reason: String) -> ExecuteError {
        self.or_lost(ExecuteError::Device(reason))
    }

    /// Copies the inputs in, but for those that are there ahead, and has every step of a plan run: micro-batch after micro-batch, then
    /// the optimizer step.
    fn run_steps(
        &mut self,
        plan: usize,
        inputs: Inputs<'_>,
        all: impl FnOnce(&mut Self, usize) -> Result<(), ExecuteError>,
    ) -> Result<(), ExecuteError> {
        if plan >= self.plans.plans.len() {
            return Err(ExecuteError::Input(format!("there is no plan {plan}")));
        }
        self.extra = Extra::default();
        let waited_before = self.transfers.waited();
        // The waits of a plan know its own transfers only.
        if self.last_plan.replace(plan) == Some(plan) {
            self.transfers.wait_for(&self.lowered[plan].entry_waits)?
        } else {
            self.transfers.drain()?
        }
        if let Some(ahead) = &mut self.ahead {
            let own = matches!(inputs, Inputs::Ahead(_)).then_some(plan);
            ahead.begin(own).map_err(ExecuteError::Device)?;
        }
        self.copy_inputs(plan, inputs)?;
        if let Some(ahead) = &mut self.ahead {
            ahead.end().map_err(ExecuteError::Device)?;
        }
        let result = all(self, plan);
        let result = result.and_then(|()| self.share_states(plan));
        let result = result.and_then(|()| match &self.connection {
            Some(connection) if connection.parts[plan].is_some() => {
                connection.transport.finish().map_err(ExecuteError::Device)
            }
            _ => Ok(()),
        });
        // Stores may stay in flight while the caller reads the arena; after a failure nothing does.
        let result = result.and_then(|()| self.transfers.wait_for(&self.lowered[plan].loads));
        result.or_else(|error| self.transfers.drain().and(Err(error)))?;
        self.extra.waiting = self.transfers.waited() - waited_before;
        Ok(())
    }

    /// Passes the new versions of states from the devices that updated them to all others, in the order of the states: what a device
    /// waits for, another one has sent before it waited itself for a state after it.
    fn share_states(&mut self, plan: usize) -> Result<(), ExecuteError> {
        let connection = self.connection.as_ref().filter(|connection| connection.parts[plan].is_some());
        let Some(connection) = connection else { return Ok(()) };
        let (transport, states) = (connection.transport.clone(), connection.owners.len());
        let (transport, mut number) = (transport.as_ref(), 0);
        for state in 0..states {
            let Some(owner) = self.connection.as_ref().and_then(|connection| connection.owners[state]) else {
                continue;
            };
            // States that all devices hold are in the same order on all of them.
            let message = Message { chain: number, micro_batch: Message::SHARED };
            number += 1;
            let bytes = self.plans.states[state].ty.bytes();
            for first in (0..bytes).step_by(STATE_PIECE) {
                let count = STATE_PIECE.min(bytes - first);
                match owner == transport.device() {
                    true => self.send_state(transport, message, state, first..first + count),
                    false => self.receive_state(transport, owner, message, state, first..first + count),
                }?;
            }
        }
        Ok(())
    }

    /// Sends a piece of a state to all other devices.
    fn send_state(
        &mut self,
        transport: &dyn Transport,
        message: Message,
        state: usize,
        piece: Range<usize>,
    ) -> Result<(), ExecuteError> {
        let others = (0..transport.devices()).filter(|&device| device != transport.device());
        let home = self.state_home(state, piece.start, piece.len())?;
        let staged = matches!(home, StateHome::Offloaded { .. });
        let start = match home {
            StateHome::Arena(offset) => self.arena.at(offset, piece.len()).cast_const(),
            StateHome::Offloaded { tier, offset } => {
                self.transfers
                    .queue(tier)?
                    .read_now(offset, &mut self.staging[..piece.len()])
                    .map_err(failed)?;
                self.staging.as_ptr()
            }
        };
        for to in others {
            // SAFETY: a state's bytes in the arena, or the staging buffer. No step runs, so that a state stays as it is until all was
            // received, before the run ends; the buffer is not written before the wait below is over.
            let sent = unsafe { transport.send(to, message, std::slice::from_raw_parts(start, piece.len())) };
            sent.map_err(ExecuteError::Device)?;
        }
        if staged {
            transport.finish().map_err(ExecuteError::Device)?;
        }
        Ok(())
    }

    fn receive_state(
        &mut self,
        transport: &dyn Transport,
        owner: usize,
        message: Message,
        state: usize,
        piece: Range<usize>,
    ) -> Result<(), ExecuteError> {
        match self.state_home(state, piece.start, piece.len())? {
            StateHome::Arena(offset) => {
                let start = self.arena.at(offset, piece.len());
                // SAFETY: the bytes of a state in the arena, which no step and no transfer uses now: states in the arena are not
                // transferred.
                let bytes = unsafe { std::slice::from_raw_parts_mut(start, piece.len()) };
                transport.receive(owner, message, bytes).map_err(ExecuteError::Device)
            }
            StateHome::Offloaded { tier, offset } => {
                transport
                    .receive(owner, message, &mut self.staging[..piece.len()])
                    .map_err(ExecuteError::Device)?;
                self.transfers.drain()?;
                self.transfers.queue(tier)?.write_now(offset, &self.staging[..piece.len()]).map_err(failed)
            }
        }
    }

    fn copy_inputs(&mut self, plan: usize, inputs: Inputs<'_>) -> Result<(), ExecuteError> {
        let part = self.connection.as_ref().and_then(|connection| connection.parts[plan]);
        let plan = &self.plans.plans[plan];
        if inputs.count() != plan.graph.inputs.len() {
            let (wants, has) = (plan.graph.inputs.len(), inputs.count());
            return Err(ExecuteError::Input(format!(
                "the plan `{}` takes {wants} inputs, {has} were given",
                plan.name
            )));
        }
        for buffer in &plan.buffers {
            match buffer.kind {
                BufferKind::Input(i) if plan.graph.inputs[i].batched && part.is_some() => {
                    let Input::Host(batch) = inputs.get(i) else {
                        let reason = "a batch that several devices share is in host memory";
                        return Err(ExecuteError::Input(reason.into()));
                    };
                    self.copy_part(plan, part, buffer, batch)?;
                    Ok(())
                }
                BufferKind::Input(i) => {
                    let input = inputs.get(i);
                    if input.bytes() != buffer.bytes {
                        let (name, wants, has) = (&plan.graph.inputs[i].name, buffer.bytes, input.bytes());
                        return Err(ExecuteError::Input(format!(
                            "input `{name}` takes {wants} bytes, {has} were given"
                        )));
                    }
                    let (device, arena) = (self.device.as_ref(), &self.arena);
                    // SAFETY: no transfer uses inputs.
                    let there = self.ahead.as_ref().map_or(Ok(false), |ahead| unsafe {
                        ahead.take(device, arena, i, buffer.offset..buffer.offset + buffer.bytes)
                    });
                    match (there, input) {
                        (Ok(true), _) | (Ok(false), Input::Device(_, 0)) => Ok(()),
                        // SAFETY: as above.
                        (Ok(false), Input::Host(bytes)) => unsafe {
                            device.copy_in(arena, buffer.offset, bytes)
                        },
                        // SAFETY: as above, and what is outside the arena is valid by the promise of who runs.
                        (Ok(false), Input::Device(from, bytes)) => unsafe {
                            device.copy(from, arena.at(buffer.offset, bytes), bytes)
                        },
                        (Err(error), _) => Err(error),
                    }
                }
                // SAFETY: nor accumulators, which start at zero.
                BufferKind::Accumulator(_) => unsafe { self.arena.fill(buffer.offset, buffer.bytes, 0) },
                BufferKind::State(_) | BufferKind::Value | BufferKind::Workspace => Ok(()),
            }
            .map_err(ExecuteError::Device)?;
        }
        Ok(())
    }

    /// Copies this device's rows of an input, which has those of the whole batch or these alone.
    fn copy_part(
        &self,
        plan: &ExecutionPlan,
        part: Option<BatchPart>,
        buffer: &Buffer,
        batch: &[u8],
    ) -> Result<(), ExecuteError> {
        let (examples, micro_batches) = (plan.graph.examples, plan.graph.micro_batches);
        let bytes = buffer.bytes / micro_batches;
        for micro_batch in 0..micro_batches {
            let at = (micro_batch, micro_batches);
            let rows = part.and_then(|part| part.rows(batch, bytes, examples, at));
            let rows = rows.ok_or_else(|| {
                ExecuteError::Input(format!("the batch is too small for the plan `{}`", plan.name))
            })?;
            // SAFETY: no transfer uses inputs.
            let copied =
                unsafe { self.device.copy_in(&self.arena, buffer.offset + micro_batch * bytes, rows) };
            copied.map_err(ExecuteError::Device)?;
        }
        Ok(())
    }

    /// The buffer of an output of so many bytes.
    fn output_buffer(&self, plan: usize, output: usize, bytes: usize) -> Result<&Buffer, ExecuteError> {
        let found = self.plans.plans.get(plan);
        let buffer = found.and_then(|p| p.outputs.get(output).map(|id| &p.buffers[id.index()]));
        buffer.filter(|b| b.bytes == bytes).ok_or_else(|| {
            ExecuteError::Input(format!("plan {plan} has no output {output} of {bytes} bytes"))
        })
    }

    /// Where a range of a state's bytes is.
    fn state_home(&self, state: usize, offset: usize, bytes: usize) -> Result<StateHome, ExecuteError> {
        let found = self.plans.states.get(state);
        let fits = found.is_some_and(|s| offset <= s.ty.bytes() && bytes <= s.ty.bytes() - offset);
        let home = found.filter(|_| fits).map(|s| match s.home {
            StateHome::Arena(start) => StateHome::Arena(start + offset),
            StateHome::Offloaded { tier, offset: start } => {
                StateHome::Offloaded { tier, offset: start + offset as u64 }
            }
        });
        home.ok_or_else(|| {
            ExecuteError::Input(format!("state {state} has no bytes {offset}..{}", offset + bytes))
        })
    }
}

impl<D: Device> Prepared for StepLoop<D> {
    fn run(&mut self, plan: usize, inputs: &[&[u8]]) -> Result<(), ExecuteError> {
        self.run_all(plan, Inputs::Host(inputs))
    }

    fn prefetch(&mut self, plan: usize, inputs: &[&[u8]]) -> Result<bool, ExecuteError> {
        // Of several devices each takes a part of the batch.
        let ahead = self.ahead.as_mut().filter(|_| self.connection.is_none());
        let Some((ahead, planned)) = ahead.zip(self.plans.plans.get(plan)) else { return Ok(false) };
        // SAFETY: the range behind the arena, which nothing else uses.
        let started = unsafe { ahead.start(&self.arena, plan, planned, inputs) };
        started.map_err(|reason| self.device_error(reason))
    }

    fn run_prefetched(&mut self, plan: usize, inputs: &[&[u8]]) -> Result<(), ExecuteError> {
        self.run_all(plan, Inputs::Ahead(inputs))
    }

    fn is_running(&self) -> bool {
        self.device.is_running()
    }

    fn run_until_bad(&mut self, plan: usize, inputs: &[&[u8]]) -> Result<Option<NodeId>, ExecuteError> {
        let mut bad = None;
        let look = |this: &mut Self, plan, index, micro_batch| {
            if bad.is_none() {
                this.step(plan, index, micro_batch)?;
                this.transfers.drain()?;
                // SAFETY: the step has run and all transfers have completed.
                let found =
                    unsafe { non_finite_node(&this.arena, &this.plans.plans[plan], index, micro_batch) };
                bad = found.map_err(ExecuteError::Device)?;
            }
            Ok(())
        };
        self.run_each(plan, Inputs::Host(inputs), look)?;
        Ok(bad)
    }

    fn extra(&self) -> Extra {
        self.extra
    }

    fn read_output(&self, plan: usize, output: usize, into: &mut [u8]) -> Result<(), ExecuteError> {
        let buffer = self.output_buffer(plan, output, into.len())?;
        // SAFETY: no step runs and no load is in flight, so nothing writes to the arena.
        unsafe { self.arena.read(buffer.offset, into) }.map_err(|reason| self.device_error(reason))
    }

    fn read_state(&self, state: usize, offset: usize, into: &mut [u8]) -> Result<(), ExecuteError> {
        match self.state_home(state, offset, into.len())? {
            StateHome::Arena(offset) => {
                // SAFETY: no step runs and no load is in flight, so nothing writes to the arena.
                unsafe { self.arena.read(offset, into) }.map_err(|reason| self.device_error(reason))
            }
            StateHome::Offloaded { tier, offset } => {
                let read = self.transfers.queue(tier)?.read_now(offset, into);
                read.map_err(|error| self.or_lost(failed(error)))
            }
        }
    }

    fn write_state(&mut self, state: usize, offset: usize, from: &[u8]) -> Result<(), ExecuteError> {
        self.transfers.drain().map_err(|error| self.or_lost(error))?;
        match self.state_home(state, offset, from.len())? {
            StateHome::Arena(offset) => {
                // SAFETY: no step runs, so nothing else uses the arena.
                unsafe { self.arena.write(offset, from) }.map_err(|reason| self.device_error(reason))
            }
            StateHome::Offloaded { tier, offset } => {
                let written = self.transfers.queue(tier)?.write_now(offset, from);
                written.map_err(|error| self.or_lost(failed(error)))
            }
        }
    }
}

impl<D: Device> KernelSession for StepLoop<D> {
    unsafe fn run_on_device(&mut self, plan: usize, inputs: &[Input<'_>]) -> Result<(), ExecuteError> {
        self.run_all(plan, Inputs::Anywhere(inputs))
    }

    unsafe fn copy_output(
        &self,
        plan: usize,
        output: usize,
        to: *mut u8,
        bytes: usize,
    ) -> Result<(), ExecuteError> {
        let buffer = self.output_buffer(plan, output, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        let from = self.arena.at(buffer.offset, bytes).cast_const();
        // SAFETY: no load is in flight, and steps of the next run come after the copy; the rest is the caller's promise.
        unsafe { self.device.copy(from, to, bytes) }.map_err(|reason| self.device_error(reason))
    }
}
