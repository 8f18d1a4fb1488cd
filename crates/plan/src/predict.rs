//! The predicted time of a plan: its computing, and the transfers that are not hidden behind it.

use crate::offload::{Waits, body, transfer, waits};
use crate::tier::per_mib;
use crate::{
    Action, Buffer, BufferId, BufferKind, Direction, KernelQuery, PerTier, PlanSet, Queue, Step, Target,
    Tier, Tiers, Unsupported,
};
use serde::{Deserialize, Serialize};

/// Time of a chunked update with so many bytes of offloaded states in each tier: computing and transfers overlap.
pub(crate) fn chunked_update_ns(computing: u64, bytes: PerTier<u64>, tiers: &Tiers) -> u64 {
    let moving = |tier: Tier, direction| tiers.ns(tier, direction, bytes[tier] as usize);
    let host = moving(Tier::Host, Direction::Load).max(moving(Tier::Host, Direction::Store));
    let file = moving(Tier::File, Direction::Load) + moving(Tier::File, Direction::Store);
    computing.max(host).max(file)
}

/// Time to copy the inputs in, where the batch is in host memory and the computing space is another.
fn entry_ns(buffers: &[Buffer], tiers: &Tiers) -> u64 {
    let Some(host) = tiers.host else { return 0 };
    let inputs = buffers.iter().filter(|b| matches!(b.kind, BufferKind::Input(_)));
    inputs.map(|b| host.link.latency(b.bytes) + host.link.ns(Direction::Load, b.bytes)).sum()
}

/// Steady-state time of a run whose steps take the given times: transfers run beside the computing, one after the other on
/// each queue, until a step waits for them.
pub(crate) fn predicted(
    steps: &[Step],
    buffers: &[Buffer],
    micro_batches: usize,
    times: &[u64],
    tiers: &Tiers,
) -> u64 {
    let entry_ns = entry_ns(buffers, tiers);
    let (body, rounds) = (body(steps), micro_batches.max(1) as u64);
    if !steps.iter().any(|step| transfer(step).is_some()) {
        let once: u64 = times.iter().sum();
        let again = times[..body].iter().sum::<u64>().saturating_mul(rounds - 1);
        return once.saturating_add(again).saturating_add(entry_ns);
    }
    let waits = waits(steps, buffers);
    let mut clock = Clock::new(steps, buffers, times, tiers, &waits);
    clock.run(body, rounds);
    let before = clock.now;
    clock.run(body, rounds);
    clock.now - before
}

/// When a step of a plan runs, in nanoseconds from the start of the last micro-batch. A transfer runs beside other steps: it
/// starts when its queue takes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepTime {
    /// Its start.
    pub start_ns: u64,
    /// Its end.
    pub end_ns: u64,
}

/// Simulates runs in time.
struct Clock<'a> {
    steps: &'a [Step],
    buffers: &'a [Buffer],
    times: &'a [u64],
    tiers: &'a Tiers,
    waits: &'a Waits,
    /// Time to copy the inputs in.
    entry_ns: u64,
    now: u64,
    /// When each queue has done all transfers so far.
    free_at: [u64; Queue::COUNT],
    /// When each transfer is done, by its step.
    done: Vec<u64>,
    /// When each step ran last, if that is asked for.
    ran: Option<Vec<StepTime>>,
}

impl<'a> Clock<'a> {
    fn new(
        steps: &'a [Step],
        buffers: &'a [Buffer],
        times: &'a [u64],
        tiers: &'a Tiers,
        waits: &'a Waits,
    ) -> Self {
        let (done, free_at) = (vec![0; steps.len()], [0; Queue::COUNT]);
        let entry_ns = entry_ns(buffers, tiers);
        Self { steps, buffers, times, tiers, waits, entry_ns, now: 0, free_at, done, ran: None }
    }

    /// One run after whatever came before.
    fn run(&mut self, body: usize, rounds: u64) {
        self.now = self.after(&self.waits.entry, self.now).saturating_add(self.entry_ns);
        let mut took = 0;
        // The second micro-batch stands for all after it but the last.
        for _ in 1..rounds.min(3) {
            let start = self.now;
            (0..body).filter(|&at| !self.steps[at].optimizer_step).for_each(|at| self.step(at));
            took = self.now - start;
        }
        let skipped_ns = rounds.saturating_sub(3).saturating_mul(took);
        for moment in self.done.iter_mut().chain(&mut self.free_at).chain([&mut self.now]) {
            *moment = moment.saturating_add(skipped_ns);
        }
        (0..self.steps.len()).for_each(|at| self.step(at));
    }

    /// When these transfers are done, but not before a moment.
    fn after(&self, transfers: &[u32], moment: u64) -> u64 {
        transfers.iter().map(|&t| self.done[t as usize]).fold(moment, u64::max)
    }

    fn step(&mut self, at: usize) {
        let (time, waits) = (self.times[at], &self.waits.steps[at]);
        if let Some(moved) = transfer(&self.steps[at]) {
            let (bytes, link) = (self.buffers[moved.buffer.index()].bytes, self.tiers.link(moved.tier));
            self.now = self.now.saturating_add(link.request_cpu(bytes));
            let queue = moved.queue().index();
            // For transfers of its own tier the queue waits, for those of another tier the computing.
            let is_other =
                |t: &&u32| transfer(&self.steps[**t as usize]).is_some_and(|o| o.tier != moved.tier);
            let others = waits.iter().filter(is_other).map(|&t| self.done[t as usize]);
            self.now = others.fold(self.now, u64::max);
            let start = self.after(waits, self.now.max(self.free_at[queue]));
            self.free_at[queue] = start.saturating_add(time);
            self.done[at] = self.free_at[queue].saturating_add(link.latency(bytes));
            self.record(at, start, self.done[at]);
            return;
        }
        self.now = self.after(waits, self.now);
        let start = self.now;
        if let Action::ChunkedUpdate { .. } = self.steps[at].action {
            // It waits for all queues, and keeps them busy.
            self.now = self.free_at.into_iter().fold(self.now, u64::max).saturating_add(time);
            self.free_at = [self.now; Queue::COUNT];
        } else {
            self.now = self.now.saturating_add(time);
        }
        self.record(at, start, self.now);
    }

    fn record(&mut self, at: usize, start_ns: u64, end_ns: u64) {
        if let Some(ran) = &mut self.ran {
            ran[at] = StepTime { start_ns, end_ns };
        }
    }
}

impl PlanSet {
    /// Predicted time of a step of plan `i` on a target with these tiers: the plan's
    /// [`nanoseconds`](crate::ExecutionPlan::nanoseconds), if it was made for them.
    ///
    /// ```
    /// use plimsoll_graph::{Builder, op::Unary};
    /// use plimsoll_plan::{Budget, NullTarget, Tiers, plan};
    /// let mut b = Builder::new(2, 2);
    /// let x = b.batch_input("x", "f32[2,3]".parse()?);
    /// let y = b.unary(Unary::Exp, x)?;
    /// b.output("y", y);
    /// let batches = [("predict".into(), b.finish()?)];
    /// let target = NullTarget::default();
    /// let plans = plan(&batches, &target, &Budget::new(usize::MAX, Vec::new()))?;
    /// assert_eq!(plans.predict(0, &target, &Tiers::default())?, plans.plans[0].nanoseconds);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn predict(&self, i: usize, target: &dyn Target, tiers: &Tiers) -> Result<u64, Unsupported> {
        let plan = &self.plans[i];
        let times = self.times(i, target, tiers)?;
        Ok(predicted(&plan.steps, &plan.buffers, plan.graph.micro_batches, &times, tiers))
    }

    /// When each step of plan `i` runs, as [`PlanSet::predict`] has it: the steps of the last micro-batch, then the optimizer step.
    pub fn step_times(
        &self,
        i: usize,
        target: &dyn Target,
        tiers: &Tiers,
    ) -> Result<Vec<StepTime>, Unsupported> {
        let plan = &self.plans[i];
        let times = self.times(i, target, tiers)?;
        let waits = waits(&plan.steps, &plan.buffers);
        let mut clock = Clock::new(&plan.steps, &plan.buffers, &times, tiers, &waits);
        let (body, rounds) = (body(&plan.steps), plan.graph.micro_batches.max(1) as u64);
        clock.run(body, rounds);
        clock.ran = Some(vec![StepTime::default(); plan.steps.len()]);
        clock.run(body, rounds);
        let mut ran = clock.ran.unwrap_or_default();
        let first = ran.iter().map(|time| time.start_ns).min().unwrap_or(0);
        for time in &mut ran {
            time.start_ns -= first;
            time.end_ns = time.end_ns.saturating_sub(first);
        }
        Ok(ran)
    }

    /// The time of each step of a plan by itself.
    pub(crate) fn times(
        &self,
        i: usize,
        target: &dyn Target,
        tiers: &Tiers,
    ) -> Result<Vec<u64>, Unsupported> {
        let plan = &self.plans[i];
        let graph = plan.graph.as_ref();
        let marks = graph.batch_marks();
        let computing = |node| {
            let kernel = target.kernel(&KernelQuery::new(graph, &marks, graph.node(node)));
            Ok(kernel?.nanoseconds)
        };
        let bytes = |buffer: &BufferId| plan.buffers[buffer.index()].bytes;
        let time = |step: &Step| match &step.action {
            Action::Run { node, .. } => computing(*node),
            Action::ChunkedUpdate { node, reads, .. } => {
                let chunked = plan.chunked_bytes(*node, reads, &self.states);
                Ok(chunked_update_ns(computing(*node)?, chunked, tiers))
            }
            Action::Copy { to, .. } => Ok(per_mib(bytes(to), target.copy_ns_per_mib())),
            Action::Load { to, tier, .. } => Ok(tiers.ns(*tier, Direction::Load, bytes(to))),
            Action::Store { from, tier, .. } => Ok(tiers.ns(*tier, Direction::Store, bytes(from))),
        };
        plan.steps.iter().map(time).collect()
    }
}
