//! How long a plan takes: its computing, and what of the disk's work does not go on beside it.

use crate::{Action, Buffer, BufferId, Disk, ExecutionPlan, KernelQuery, Step, Target, Unsupported};

/// Nanoseconds to copy bytes from one buffer to another. No target is asked: each byte moves in and out once, at some 8
/// bytes a nanosecond.
pub(crate) fn copying(bytes: usize) -> u64 {
    bytes as u64 / 4
}

/// Nanoseconds of a node that runs in pieces, with so many bytes passing through it.
pub(crate) fn streaming(computing: u64, bytes: usize, disk: Disk) -> u64 {
    computing.max(disk.reading(bytes) + disk.writing(bytes))
}

/// Time of all steps, each of which takes what is given for it: transfers go on beside the computing, one after the other,
/// until something waits for them.
pub(crate) fn predicted(
    steps: &[Step],
    buffers: &[Buffer],
    micro_batches: usize,
    times: &[u64],
    latency_ns: u64,
) -> u64 {
    // When the disk has moved its bytes, and when the last transfer is done.
    let (mut now, mut disk, mut landed) = (0_u64, 0_u64, 0_u64);
    let mut body: Option<u64> = None;
    let mut done = vec![0_u64; buffers.len()];
    // Stores that must be done before the step after a buffer's last.
    let mut ends: Vec<Vec<usize>> = vec![Vec::new(); steps.len() + 1];
    for (at, (step, &time)) in steps.iter().zip(times).enumerate() {
        if step.tail && body.is_none() {
            now = now.max(landed);
            body = Some(now);
        }
        for &buffer in &ends[at] {
            now = now.max(done[buffer]);
        }
        match &step.action {
            Action::Load { to, .. } => {
                disk = disk.max(now) + time;
                landed = disk + latency_ns;
                done[to.index()] = landed;
            }
            Action::Store { from, .. } => {
                disk = disk.max(now) + time;
                landed = disk + latency_ns;
                done[from.index()] = landed;
                ends[(buffers[from.index()].last + 1).max(at + 1)].push(from.index());
            }
            Action::Run { reads, .. } => {
                now = reads.iter().map(|b| done[b.index()]).fold(now, u64::max) + time;
            }
            Action::Stream { reads, .. } => {
                // It waits for the disk, and keeps it busy.
                now = reads.iter().flatten().map(|b| done[b.index()]).fold(now.max(disk), u64::max);
                now += time;
                disk = now;
            }
            Action::Copy { from, .. } => now = now.max(done[from.index()]) + time,
        }
    }
    now = now.max(landed);
    let tail = body.map_or(0, |body| now - body);
    (now - tail).saturating_mul(micro_batches as u64).saturating_add(tail)
}

impl ExecutionPlan {
    /// Predicted time of a step on a target with this disk: [`ExecutionPlan::nanoseconds`], if it was planned for them.
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
        let flows = self.graph.flows();
        let computing = |node| {
            let kernel = target.kernel(&KernelQuery::new(&self.graph, &flows, self.graph.node(node)));
            Ok(kernel?.nanoseconds)
        };
        let bytes = |buffer: &BufferId| self.buffers[buffer.index()].bytes;
        let time = |step: &Step| match &step.action {
            Action::Run { node, .. } => computing(*node),
            Action::Stream { node, writes, .. } => {
                Ok(streaming(computing(*node)?, self.passing_bytes(*node, writes), disk))
            }
            Action::Copy { to, .. } => Ok(copying(bytes(to))),
            Action::Load { to, .. } => Ok(disk.reading(bytes(to))),
            Action::Store { from, .. } => Ok(disk.writing(bytes(from))),
        };
        let times = self.steps.iter().map(time).collect::<Result<Vec<_>, _>>()?;
        Ok(predicted(&self.steps, &self.buffers, self.graph.micro_batches, &times, disk.latency_ns))
    }
}
