//! Micro-batches that flow through the devices of a placed run: when they do, and what a step of all devices takes.

use super::{BatchKind, Replication, Trainer};
use crate::TrainError;
use plimsoll_data::Dataset;
use plimsoll_plan::{PlacedDevice, PlanError, PlanSet, predict_placed};

/// What the slowest device takes of a step, in percent, at which there is nothing to gain.
const LEAST_PERCENT: u64 = 95;

/// Micro-batches that flow through devices at most: graphs and plans, and the time of planning, grow with them.
const MOST_MICRO_BATCHES: usize = 16;

impl Trainer {
    /// Whether micro-batches flow through the devices of a placed run, which then work at the same time and save values for several of them. Results
    /// are the same. Unless this is called, they do where the processor has cores for the threads of all devices, lines have room, and a step is
    /// predicted to be faster; `true` does not ask for the first and the last.
    ///
    /// ```
    /// use plimsoll_data::datasets;
    /// use plimsoll_nn::{AdamW, zoo};
    /// use plimsoll_train::{LogicalDevices, Placement, Trainer};
    /// let data = datasets::mnist()?;
    /// let run = |flows| {
    ///     let trainer = Trainer::new(zoo::lenet(), AdamW::new(1e-3)).steps(2).micro_batches(2);
    ///     let placement = Placement::new(["*1=cpu:0", "*=cpu:1"])?;
    ///     trainer.place(&LogicalDevices::cpu(2, 1)?, placement).overlap(flows).plan(&data)?.start()?.fit()
    /// };
    /// assert_eq!(run(true)?.final_loss, run(false)?.final_loss);
    /// # Ok::<(), plimsoll_train::TrainError>(())
    /// ```
    pub fn overlap(self, flows: bool) -> Self {
        Self { overlap: Some(flows), ..self }
    }

    /// The plans of all devices, or others in which they work at the same time, if a step is then predicted to be faster under the same lines.
    pub(super) fn overlapped(
        &self,
        data: &Dataset,
        share: usize,
        plans: Vec<PlanSet>,
    ) -> Result<Vec<PlanSet>, TrainError> {
        let mut best = plans;
        let counts = self.overlapping_counts()?;
        if counts.is_empty() {
            return Ok(best);
        }
        let overlapping = self.overlapping();
        let mut best_ns = if self.overlap.is_some() { u64::MAX } else { self.together_ns(&best, 0)? };
        // However they overlap, a step takes the time of the slowest device.
        let slowest = best.iter().filter_map(|set| set.plans.first()).map(|plan| plan.nanoseconds).max();
        if slowest.is_none_or(|ns| ns >= best_ns / 100 * LEAST_PERCENT) {
            return Ok(best);
        }
        let mut last_ns = u64::MAX;
        for count in counts {
            match overlapping.plan_each(data, share, Some(count)) {
                Ok(found) => {
                    let ns = self.together_ns(&found, 0)?;
                    if ns < best_ns {
                        (best, best_ns) = (found, ns);
                    }
                    // More are slower still.
                    if std::mem::replace(&mut last_ns, ns) <= ns {
                        break;
                    }
                }
                // A line without room for what devices save ahead, or a batch that cannot be split, is none for this.
                Err(TrainError::Plan(PlanError::Infeasible(_)) | TrainError::Split(_)) => {}
                Err(other) => return Err(other),
            }
        }
        Ok(best)
    }

    /// The numbers of micro-batches to try with devices that work at the same time: none where they cannot. The processor's cores must be
    /// enough for all of their threads.
    fn overlapping_counts(&self) -> Result<Vec<usize>, TrainError> {
        let trains = self.kinds.contains(&BatchKind::Train);
        if !self.is_placed() || !trains || self.splits_statistics() {
            return Ok(Vec::new());
        }
        let devices = self.logical_devices()?;
        let busy: usize = (0..devices.len()).map(|at| devices.executor(at).target().cores()).sum();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        if devices.len() < 2 || !self.overlap.unwrap_or(busy <= cores) {
            return Ok(Vec::new());
        }
        let mut counts = self.micro_batch_counts();
        counts.retain(|count| (2..=MOST_MICRO_BATCHES).contains(count));
        // The first and the last micro-batch leave devices idle, so a few for each device are worth it; more only make kernels smaller.
        let least = [1, 2, 4].map(|each| counts.iter().copied().find(|&count| count >= each * devices.len()));
        let mut tried: Vec<usize> = least.into_iter().flatten().collect();
        // One that was asked for is the only one.
        if let (true, &[count]) = (tried.is_empty(), &counts[..]) {
            tried.push(count);
        }
        tried.dedup();
        Ok(tried)
    }

    /// The trainer whose devices overlap.
    fn overlapping(&self) -> Self {
        let mut replication = self.replication.clone();
        if let Some(Replication::Placed { overlaps, .. }) = &mut replication {
            *overlaps = true;
        }
        Self { replication, ..self.clone() }
    }

    /// What a step of each plan takes on all devices together, and what the first would take without a line.
    pub(super) fn times_together(&self, plans: &[PlanSet]) -> Result<(Vec<u64>, u64), TrainError> {
        let count = plans.first().map_or(0, |set| set.plans.len());
        let times = (0..count).map(|i| self.together_ns(plans, i)).collect::<Result<Vec<_>, _>>()?;
        let more = |set: &PlanSet| {
            let own = set.plans.first().map_or(0, |plan| plan.nanoseconds);
            own.saturating_sub(set.sheet.unlimited_ns)
        };
        let more: u64 = plans.iter().map(more).sum();
        let unlimited_ns = times.first().map_or(0, |ns| ns.saturating_sub(more));
        Ok((times, unlimited_ns))
    }

    /// What a step of one plan takes on all devices together.
    fn together_ns(&self, plans: &[PlanSet], i: usize) -> Result<u64, TrainError> {
        let devices = self.logical_devices()?;
        let device = |(at, plans)| {
            let executor = devices.executor(at);
            PlacedDevice { plans, target: executor.target(), tiers: executor.tiers() }
        };
        let all: Vec<PlacedDevice<'_>> = plans.iter().enumerate().map(device).collect();
        predict_placed(&all, i).map_err(|e| TrainError::Setting(e.to_string()))
    }
}
