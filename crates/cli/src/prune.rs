//! The flags of pruning while training.

use super::{Failure, hint, say};
use clap::Args;
use plimsoll::compress::{Pruned, Pruning, Sparsity};
use plimsoll::nn::Optimizer;
use plimsoll::train::Session;

/// Pruning while training.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Pruning")]
pub struct PruneOptions {
    /// Make this share of the weights zero while training, like 0.8, by their magnitudes
    #[arg(long, value_name = "SPARSITY", allow_negative_numbers = true)]
    pub prune: Option<f64>,
    /// How sparse weights are at which step: polynomial:FROM..TO@BEGIN..END or constant:SPARSITY@BEGIN..END, with /STEPS behind it
    /// for other than 100 steps between two masks [default: polynomial from 0 over the first half of the run]
    #[arg(long, value_name = "SCHEDULE", allow_hyphen_values = true)]
    pub prune_schedule: Option<String>,
    /// Prune only these layers: a name, or a pattern like `dense*`; comma-separated [default: all kernels and tables]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub prune_layers: Vec<String>,
}

impl PruneOptions {
    /// The flags that have a value.
    pub fn flags(&self) -> Vec<(&'static str, Option<String>)> {
        vec![
            ("prune", self.prune.map(|share| share.to_string())),
            ("prune-schedule", self.prune_schedule.clone()),
            ("prune-layers", (!self.prune_layers.is_empty()).then(|| self.prune_layers.join(","))),
        ]
    }

    /// The schedule, for a run of so many steps; `None` if nothing is pruned.
    pub fn sparsity(&self, steps: u64) -> Result<Option<Sparsity>, Failure> {
        let Some(text) = &self.prune_schedule else {
            let Some(share) = self.prune else {
                if !self.prune_layers.is_empty() {
                    return Err(Failure::usage("--prune-layers needs --prune: add --prune 0.8"));
                }
                return Ok(None);
            };
            // At least ten masks on the way, the last one at the end.
            let every = (steps / 20).clamp(1, 100);
            let end = (steps / 2 / every * every).max(every);
            let sparsity =
                Sparsity::polynomial(0.0, share, 0, end).and_then(|sparsity| sparsity.every(every));
            return sparsity.map(Some).map_err(|error| Failure::usage(format!("--prune: {error}")));
        };
        let wrong = |error| Failure::usage(format!("--prune-schedule: {error}"));
        let sparsity: Sparsity = text.parse().map_err(wrong)?;
        if let Some(share) = self.prune.filter(|&share| share as f32 != sparsity.target()) {
            let leads_to = sparsity.target();
            return Err(Failure::usage(format!(
                "--prune {share} and --prune-schedule {text} differ: the schedule leads to {leads_to}; leave one of them out"
            )));
        }
        if sparsity.at(steps.saturating_sub(1)) != sparsity.target() {
            let reached = sparsity.at(steps.saturating_sub(1));
            hint(&format!(
                "the schedule of pruning ends after the run's last step, {steps}: the weights end {reached:.3} sparse"
            ));
        }
        Ok(Some(sparsity))
    }

    /// The optimizer with pruning by a schedule.
    pub fn around(&self, sparsity: Sparsity, optimizer: Box<dyn Optimizer>) -> Pruned {
        let layers = self.prune_layers.iter();
        layers.fold(Pruning::new(sparsity), |pruning, name| pruning.layers(name)).around(optimizer)
    }
}

/// Weights that pruning left, and how many there were, in all layers that are pruned.
pub fn kept(session: &Session) -> Result<(usize, usize), Failure> {
    let pruned = session.kept()?;
    Ok(pruned.iter().fold((0, 0), |(kept, all), layer| (kept + layer.kept, all + layer.elements)))
}

/// Tells how many weights are left.
pub fn say_kept((kept, all): (usize, usize)) {
    if all > 0 {
        let zeros = 100.0 * (all - kept) as f64 / all as f64;
        say(&format!("pruned             {zeros:.2} % of {all} weights are zero, {kept} are left"));
    }
}
