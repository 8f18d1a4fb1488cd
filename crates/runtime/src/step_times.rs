//! How long each step of a run takes.

use plimsoll_plan::PlanSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The shortest time of each step in nanoseconds, by plan and step: what a run with [`Options::times`](crate::Options::times) fills
/// in. A step that has not run has `u64::MAX`.
#[derive(Debug, Default)]
pub struct StepTimes {
    table: Mutex<Vec<Vec<u64>>>,
    stopped: AtomicBool,
}

impl StepTimes {
    /// The steps of a plan, in its order; empty before the plan is prepared.
    pub fn of(&self, plan: usize) -> Vec<u64> {
        self.table().get(plan).cloned().unwrap_or_default()
    }

    /// Records nothing from now on.
    pub fn stop(&self) {
        self.stopped.store(true, Relaxed);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Relaxed)
    }

    fn table(&self) -> MutexGuard<'_, Vec<Vec<u64>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn start(&self, plans: &PlanSet) {
        *self.table() = plans.plans.iter().map(|plan| vec![u64::MAX; plan.steps.len()]).collect();
    }

    pub(super) fn record(&self, plan: usize, step: usize, since: Instant) {
        let took = since.elapsed().as_nanos() as u64;
        // Another plan set may have been prepared since.
        if let Some(least) = self.table().get_mut(plan).and_then(|steps| steps.get_mut(step)) {
            *least = took.min(*least);
        }
    }
}
