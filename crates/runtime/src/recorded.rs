//! The steps of a plan as a device keeps them, to queue them all at once: the same kernels with the same addresses in every run. What
//! differs from run to run, like the learning rate and the number of the step, are inputs, in the arena like all others.

use super::device::{Device, Recording};
use super::lower::{Command, LoweredPlan};

/// What a device keeps of a plan.
pub enum Recorded {
    /// Nothing: its steps are not the device's alone, or it could not keep them.
    Nothing,
    /// Nothing yet. The first run makes ready what a device makes ready when it is needed.
    Later,
    /// Nothing yet: the next run is kept.
    Next,
    /// All steps.
    All(Box<dyn Recording>),
}

impl Recorded {
    /// Of a plan that has not run.
    pub fn of<C>(plan: &LoweredPlan<C>) -> Self {
        // The host has a part in all others: it asks for transfers, and passes values to other devices.
        let own = |command: &Command<C>| matches!(command, Command::Kernel(_) | Command::Copy);
        if plan.steps.iter().all(|step| own(&step.command)) { Self::Later } else { Self::Nothing }
    }

    /// After a run that was queued step by step.
    pub fn after_a_run(&mut self) {
        if let Self::Later = self {
            *self = Self::Next;
        }
    }

    /// Keeps what is queued by a function, if it is time and the device can.
    pub fn record<D: Device>(&mut self, device: &D, queue: &mut dyn FnMut() -> Result<(), String>) {
        if let Self::Next = self {
            *self = device.record(queue).map_or(Self::Nothing, Self::All);
        }
    }
}

#[cfg(test)]
mod tests;
