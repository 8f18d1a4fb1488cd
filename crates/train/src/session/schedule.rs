//! Learning rate schedules.

use std::f64::consts::PI;

/// The fraction of a one-cycle run in which the rate rises.
const RISE: f64 = 0.3;
/// A one-cycle run starts at the rate over `START`, and ends at that over `END`.
const START: f64 = 25.0;
const END: f64 = 1e4;
/// A plateau's loss improves if it is below the best by this fraction.
const BETTER: f64 = 1e-4;

/// The learning rate's schedule over a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Schedule {
    /// Constant.
    #[default]
    Constant,
    /// Falls to zero along half a cosine.
    Cosine,
    /// Falls to zero linearly.
    Linear,
    /// Multiplied by a factor every few steps.
    Step {
        /// Steps between two multiplications.
        every: u64,
        /// The factor.
        factor: f64,
    },
    /// Rises from a 25th over three tenths of the run and falls to almost zero, along half cosines (Smith and Topin 2018), as
    /// in PyTorch.
    OneCycle,
    /// Multiplied by a factor whenever the validation loss has not improved for more epochs than its patience.
    Plateau {
        /// Epochs to wait for an improvement.
        patience: u64,
        /// The factor.
        factor: f64,
    },
}

impl Schedule {
    /// The factor of the rate in step `step` (from 0) of `steps`, without a plateau's, which [`Plateau`] holds.
    ///
    /// ```
    /// use plimsoll_train::Schedule;
    /// assert_eq!(Schedule::Linear.scale(25, 100), 0.75);
    /// assert_eq!(Schedule::Step { every: 10, factor: 0.5 }.scale(20, 100), 0.25);
    /// ```
    pub fn scale(self, step: u64, steps: u64) -> f64 {
        let done = (step as f64 / steps.max(1) as f64).min(1.0);
        match self {
            Self::Constant | Self::Plateau { .. } => 1.0,
            Self::Cosine => 0.5 + 0.5 * (PI * done).cos(),
            Self::Linear => 1.0 - done,
            Self::Step { every, factor } => {
                factor.powi(i32::try_from(step / every.max(1)).unwrap_or(i32::MAX))
            }
            Self::OneCycle => one_cycle(step as f64, steps as f64),
        }
    }

    /// As [`Schedule::scale`], after a linear warm-up over the first `warmup` steps.
    pub fn scale_after(self, warmup: u64, step: u64, steps: u64) -> f64 {
        match step < warmup {
            true => (step as f64 + 1.0) / (warmup as f64 + 1.0) * self.scale(0, steps.saturating_sub(warmup)),
            false => self.scale(step - warmup, steps.saturating_sub(warmup)),
        }
    }

    /// In words. Part of a run's identity in checkpoints.
    pub(crate) fn description(self, warmup: u64) -> String {
        let words = format!("{self:?}").to_lowercase();
        if warmup == 0 { words } else { format!("{words} after {warmup} steps of warm-up") }
    }
}

fn one_cycle(step: f64, steps: f64) -> f64 {
    let (top, end) = (RISE * steps - 1.0, steps - 1.0);
    let between = |from: f64, to: f64, share: f64| to + (from - to) / 2.0 * (1.0 + (PI * share).cos());
    if step <= top && top > 0.0 {
        return between(1.0 / START, 1.0, step / top);
    }
    let (top, low) = (top.max(0.0), 1.0 / START / END);
    between(1.0, low, ((step - top) / (end - top).max(1.0)).min(1.0))
}

/// The state of [`Schedule::Plateau`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plateau {
    /// The bits of the best loss, an f64.
    pub best_bits: u64,
    /// Epochs since then.
    pub waited: u64,
    /// How often the rate was lowered.
    pub lowered: u64,
}

impl Default for Plateau {
    fn default() -> Self {
        Self { best_bits: f64::INFINITY.to_bits(), waited: 0, lowered: 0 }
    }
}

impl Plateau {
    /// Records a validation's loss.
    pub(crate) fn observe(&mut self, schedule: Schedule, loss: f64) {
        let Schedule::Plateau { patience, .. } = schedule else { return };
        let best = f64::from_bits(self.best_bits);
        if loss < best - BETTER * best.abs() || (best.is_infinite() && loss.is_finite()) {
            (self.best_bits, self.waited) = (loss.to_bits(), 0);
            return;
        }
        self.waited += 1;
        if self.waited > patience {
            (self.waited, self.lowered) = (0, self.lowered + 1);
        }
    }

    /// The factor of the rate.
    pub(crate) fn scale(&self, schedule: Schedule) -> f64 {
        match schedule {
            Schedule::Plateau { factor, .. } => factor.powi(i32::try_from(self.lowered).unwrap_or(i32::MAX)),
            _ => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-12, "{found}, expected {expected}");
    }

    /// Numbers of `torch.optim.lr_scheduler`: OneCycleLR of 20 steps, and of 7.
    #[test]
    fn one_cycle_matches_pytorch() {
        for (step, scale) in TORCH_20 {
            near(Schedule::OneCycle.scale(step, 20), scale);
        }
        for (step, scale) in TORCH_7 {
            near(Schedule::OneCycle.scale(step, 7), scale);
        }
    }

    const TORCH_20: [(u64, f64); 5] =
        [(0, 0.040000000000000036), (3, 0.6683281572999747), (5, 1.0), (12, 0.500002), (19, 4e-06)];
    const TORCH_7: [(u64, f64); 3] = [(0, 0.040000000000000036), (2, 0.9190443762697106), (6, 4e-06)];

    #[test]
    fn warm_up_ends_where_the_schedule_starts() {
        let scale = |step| Schedule::Cosine.scale_after(3, step, 13);
        near(scale(0), 0.25);
        near(scale(2), 0.75);
        near(scale(3), 1.0);
        near(scale(8), 0.5);
        near(Schedule::Linear.scale_after(0, 5, 10), 0.5);
    }

    #[test]
    fn plateau_lowers_the_rate_after_its_patience() {
        let schedule = Schedule::Plateau { patience: 1, factor: 0.1 };
        let mut plateau = Plateau::default();
        let scales = [3.0, 2.0, 2.0, 1.99999, 1.5, f64::NAN, 1.6].map(|loss| {
            plateau.observe(schedule, loss);
            plateau.scale(schedule)
        });
        for (found, expected) in scales.into_iter().zip([1.0, 1.0, 1.0, 0.1, 0.1, 0.1, 0.01]) {
            near(found, expected);
        }
    }
}
