//! The predicted time of a plan: its computing, and the transfers that are not hidden behind it.

use crate::offload::{Waits, body, transfer, waits};
use crate::{Action, Buffer, BufferId, Disk, ExecutionPlan, KernelQuery, Step, Target, Unsupported};

/// Time to copy bytes from one buffer to another. No target is asked: each byte is read and written once, at some 8 bytes a
/// nanosecond.
pub(crate) fn copy_ns(bytes: usize) -> u64 {
    bytes as u64 / 4
}

/// Time of a chunked update with so many bytes of offloaded states: computing and transfers overlap.
pub(crate) fn chunked_update_ns(computing: u64, bytes: usize, disk: Disk) -> u64 {
    computing.max(disk.read_ns(bytes) + disk.write_ns(bytes))
}

/// Steady-state time of a run whose steps take the given times: transfers run beside the computing, one after the other, until
/// a step waits for them.
pub(crate) fn predicted(
    steps: &[Step],
    buffers: &[Buffer],
    micro_batches: usize,
    times: &[u64],
    disk: Disk,
) -> u64 {
    let (body, rounds) = (body(steps), micro_batches.max(1) as u64);
    if !steps.iter().any(|step| transfer(step).is_some()) {
        let once: u64 = times.iter().sum();
        let again = times[..body].iter().sum::<u64>().saturating_mul(rounds - 1);
        return once.saturating_add(again);
    }
    let waits = waits(steps, buffers);
    let done = vec![0; steps.len()];
    let mut clock = Clock { steps, buffers, times, disk, waits: &waits, now: 0, disk_free_at: 0, done };
    clock.run(body, rounds);
    let before = clock.now;
    clock.run(body, rounds);
    clock.now - before
}

/// Simulates runs in time.
struct Clock<'a> {
    steps: &'a [Step],
    buffers: &'a [Buffer],
    times: &'a [u64],
    disk: Disk,
    waits: &'a Waits,
    now: u64,
    /// When the disk has done all transfers so far.
    disk_free_at: u64,
    /// When each transfer is done, by its step.
    done: Vec<u64>,
}

impl Clock<'_> {
    /// One run after whatever came before.
    fn run(&mut self, body: usize, rounds: u64) {
        self.wait(&self.waits.entry);
        let mut took = 0;
        // The second micro-batch stands for all after it but the last.
        for _ in 1..rounds.min(3) {
            let start = self.now;
            (0..body).filter(|&at| !self.steps[at].optimizer_step).for_each(|at| self.step(at));
            took = self.now - start;
        }
        let skipped_ns = rounds.saturating_sub(3).saturating_mul(took);
        for moment in self.done.iter_mut().chain([&mut self.now, &mut self.disk_free_at]) {
            *moment = moment.saturating_add(skipped_ns);
        }
        (0..self.steps.len()).for_each(|at| self.step(at));
    }

    fn wait(&mut self, transfers: &[u32]) {
        self.now = transfers.iter().map(|&t| self.done[t as usize]).fold(self.now, u64::max);
    }

    fn step(&mut self, at: usize) {
        self.wait(&self.waits.steps[at]);
        let time = self.times[at];
        match self.steps[at].action {
            Action::Load { .. } | Action::Store { .. } => {
                let bytes = transfer(&self.steps[at]).map_or(0, |(id, _)| self.buffers[id.index()].bytes);
                self.now = self.now.saturating_add(self.disk.request_cpu(bytes));
                self.disk_free_at = self.disk_free_at.max(self.now).saturating_add(time);
                self.done[at] = self.disk_free_at.saturating_add(self.disk.latency(bytes));
            }
            Action::ChunkedUpdate { .. } => {
                // It waits for the disk, and keeps it busy.
                self.now = self.now.max(self.disk_free_at).saturating_add(time);
                self.disk_free_at = self.now;
            }
            Action::Run { .. } | Action::Copy { .. } => self.now = self.now.saturating_add(time),
        }
    }
}

impl ExecutionPlan {
    /// Predicted time of a step on a target with this disk: [`ExecutionPlan::nanoseconds`], if the plan was made for them.
    ///
    /// ```
    /// use plimsoll_graph::{Builder, op::Unary};
    /// use plimsoll_plan::{Budget, Disk, NullTarget, plan};
    /// let mut b = Builder::new(2, 2);
    /// let x = b.batch_input("x", "f32[2,3]".parse()?);
    /// let y = b.unary(Unary::Exp, x)?;
    /// b.output("y", y);
    /// let batches = [("predict".into(), b.finish()?)];
    /// let target = NullTarget::default();
    /// let plans = plan(&batches, &target, &Budget::new(usize::MAX, Vec::new()))?;
    /// assert_eq!(plans.plans[0].predict(&target, Disk::default())?, plans.plans[0].nanoseconds);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn predict(&self, target: &dyn Target, disk: Disk) -> Result<u64, Unsupported> {
        let batch_relations = self.graph.batch_relations();
        let computing = |node| {
            let kernel =
                target.kernel(&KernelQuery::new(&self.graph, &batch_relations, self.graph.node(node)));
            Ok(kernel?.nanoseconds)
        };
        let bytes = |buffer: &BufferId| self.buffers[buffer.index()].bytes;
        let time = |step: &Step| match &step.action {
            Action::Run { node, .. } => computing(*node),
            Action::ChunkedUpdate { node, writes, .. } => {
                Ok(chunked_update_ns(computing(*node)?, self.chunked_bytes(*node, writes), disk))
            }
            Action::Copy { to, .. } => Ok(copy_ns(bytes(to))),
            Action::Load { to, .. } => Ok(disk.read_ns(bytes(to))),
            Action::Store { from, .. } => Ok(disk.write_ns(bytes(from))),
        };
        let times = self.steps.iter().map(time).collect::<Result<Vec<_>, _>>()?;
        Ok(predicted(&self.steps, &self.buffers, self.graph.micro_batches, &times, disk))
    }
}
