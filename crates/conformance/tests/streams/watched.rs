//! The executor under test: opens the mock's GPU, and says in its record when runs begin.

use super::mock::{memory, say, with};
use super::program::{Addresses, Kind, Mark};
use plimsoll_cuda::{Cuda, CudaError};
use plimsoll_plan::{
    Entry, ExecuteError, Executor, Link, PerTier, PlanSet, Prepared, StateHome, Target, Tier, TierSpec, Tiers,
};
use std::path::Path;
use std::sync::Arc;

/// Links of the same speed on every machine, so that plans are the same, too.
const LINK: Link = Link {
    load_ns_per_mib: 50_000,
    store_ns_per_mib: 50_000,
    latency_ns: 0,
    single_request_ns: 0,
    request_cpu_ns: 0,
};

/// Less than a trial of a GPU's rates takes.
const TRIAL_BYTES: u64 = 256 << 20;

/// A GPU whose calls are recorded.
#[derive(Clone)]
pub struct Watched(Arc<Cuda>);

impl Watched {
    /// Opens it; it may offload to a folder, too.
    pub fn open(folder: Option<&Path>) -> Result<Self, CudaError> {
        let before = memory(Kind::PageLocked);
        // Without room for a trial of its rates, which differ from run to run here, and plans with them.
        with(|machine| machine.most_bytes = Some(TRIAL_BYTES));
        let gpu = Cuda::open(0, None);
        with(|machine| machine.most_bytes = None);
        let gpu = gpu?;
        let gpu = match folder {
            Some(folder) => gpu.spilling(folder, LINK),
            None => gpu,
        };
        say(Mark::Opened { staging: new(Kind::PageLocked, &before) });
        Ok(Self(Arc::new(gpu)))
    }
}

/// The memory of a kind that was not there before; empty if there is none.
fn new(kind: Kind, before: &[Addresses]) -> Addresses {
    let mut found = memory(kind).into_iter().filter(|memory| !before.contains(memory));
    let own = found.next().unwrap_or_default();
    assert!(found.next().is_none(), "more memory than one piece");
    own
}

impl Executor for Watched {
    fn target(&self) -> &dyn Target {
        self.0.target()
    }

    fn tiers(&self) -> Tiers {
        let with = |tier: Option<TierSpec>, link| tier.map(|tier| TierSpec { link, ..tier });
        let PerTier { host, file } = self.0.tiers();
        Tiers { host: with(host, LINK), file: with(file, LINK.through(LINK)) }
    }

    fn prefetches_from(&self) -> Option<usize> {
        self.0.prefetches_from()
    }

    fn prepare(&self, plans: Arc<PlanSet>) -> Result<Box<dyn Prepared>, ExecuteError> {
        let (device, host) = (memory(Kind::Device), memory(Kind::PageLocked));
        let prepared = self.0.prepare(plans.clone())?;
        let (arena, tier) = (new(Kind::Device, &device).start, new(Kind::PageLocked, &host));
        say(Mark::Prepared { plans: plans.clone(), arena, tier: tier.clone() });
        Ok(Box::new(WatchedPlans { prepared, plans, tier }))
    }

    fn host_entries(&self) -> Vec<Entry> {
        self.0.host_entries()
    }

    fn device_bytes(&self) -> Option<usize> {
        self.0.device_bytes()
    }
}

struct WatchedPlans {
    prepared: Box<dyn Prepared>,
    plans: Arc<PlanSet>,
    tier: Addresses,
}

impl WatchedPlans {
    /// Says that the host has used bytes of a state, if it is in host memory.
    fn used(&self, state: usize, offset: usize, bytes: usize, writes: bool) {
        if let StateHome::Offloaded { tier: Tier::Host, offset: start } = self.plans.states[state].home {
            let start = self.tier.start + start + offset as u64;
            say(Mark::Used { range: start..start + bytes as u64, writes });
        }
    }
}

impl Prepared for WatchedPlans {
    fn run(&mut self, plan: usize, inputs: &[&[u8]]) -> Result<(), ExecuteError> {
        say(Mark::Run(plan));
        let ran = self.prepared.run(plan, inputs);
        say(Mark::Ran);
        ran
    }

    fn prefetch(&mut self, plan: usize, inputs: &[&[u8]]) -> Result<bool, ExecuteError> {
        self.prepared.prefetch(plan, inputs)
    }

    fn run_prefetched(&mut self, plan: usize, inputs: &[&[u8]]) -> Result<(), ExecuteError> {
        say(Mark::Run(plan));
        let ran = self.prepared.run_prefetched(plan, inputs);
        say(Mark::Ran);
        ran
    }

    fn is_running(&self) -> bool {
        self.prepared.is_running()
    }

    fn read_output(&self, plan: usize, output: usize, into: &mut [u8]) -> Result<(), ExecuteError> {
        self.prepared.read_output(plan, output, into)
    }

    fn read_state(&self, state: usize, offset: usize, into: &mut [u8]) -> Result<(), ExecuteError> {
        let read = self.prepared.read_state(state, offset, into);
        self.used(state, offset, into.len(), false);
        read
    }

    fn write_state(&mut self, state: usize, offset: usize, from: &[u8]) -> Result<(), ExecuteError> {
        let written = self.prepared.write_state(state, offset, from);
        self.used(state, offset, from.len(), true);
        written
    }
}
