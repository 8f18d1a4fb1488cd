//! How a trainer's loop goes: what is saved, when it is looked at, and when it ends.

use super::Trainer;
use crate::files::Checkpoints;
use crate::metrics::{Metric, MetricSpec, told};
use crate::{Evaluation, Monitor, TrainError};
use plimsoll_nn::step;
use plimsoll_plan::sheet::METRICS;
use plimsoll_plan::{Entry, PlanSet};
use std::path::PathBuf;
use std::time::Duration;

impl Trainer {
    /// Saves a checkpoint in this folder every so many steps, after the best validation so far, and whenever
    /// [`crate::Session::fit`] ends or is stopped.
    pub fn checkpoints(self, folder: impl Into<PathBuf>, every: Option<u64>) -> Self {
        Self { checkpoints: Some(Checkpoints { folder: folder.into(), every }), ..self }
    }

    /// How many of the last checkpoints stay, at least one; the best stays besides. Without it, two.
    pub fn keep(self, checkpoints: usize) -> Self {
        Self { keep: checkpoints.max(1), ..self }
    }

    /// The figure by which one validation is better than another; without it, the loss.
    pub fn monitor(self, monitor: Monitor) -> Self {
        Self { monitor, ..self }
    }

    /// Figures of validations besides the loss. Evaluations then give the model's output, and the plan has room for it. A
    /// metric of more than [`crate::metrics::MOST_TOLD`] figures is counted, and read in place ([`crate::Session::metrics`]).
    pub fn metrics(self, metrics: &[MetricSpec]) -> Self {
        let classes = self.classes();
        let bytes = metrics.iter().fold(0, |sum: usize, metric| sum.saturating_add(metric.bytes(classes)));
        let names: Vec<String> = metrics.iter().map(ToString::to_string).collect();
        if metrics.is_empty() {
            return self;
        }
        let with = self.report(step::Report::Output).outside(Entry::new(METRICS, bytes, names.join(", ")));
        Self { metrics: metrics.to_vec(), ..with }
    }

    /// Classes of the labels; one for values.
    fn classes(&self) -> usize {
        self.model.target().bound.unwrap_or(1)
    }

    /// The metrics with their memory, the figure among them by which validations are compared.
    pub(crate) fn make_metrics(&self, plans: &PlanSet) -> Result<Vec<Box<dyn Metric>>, TrainError> {
        let made = self.metrics.iter().map(|metric| metric.make(self.classes()));
        let made: Vec<Box<dyn Metric>> = made.collect::<Result<_, _>>()?;
        self.check_figure(plans, &made)?;
        Ok(made)
    }

    /// Refuses a monitor of a figure that validations will not have. Tables of classes are not made for it.
    pub(crate) fn check_monitor(&self, plans: &PlanSet) -> Result<(), TrainError> {
        if self.monitor == Monitor::Loss {
            return Ok(());
        }
        let cells = self.monitor.name().starts_with("confusion/");
        let small = self.metrics.iter().filter(|m| cells || !matches!(m, MetricSpec::Confusion { .. }));
        let made: Vec<_> = small.map(|metric| metric.make(self.classes())).collect::<Result<_, _>>()?;
        self.check_figure(plans, &made)
    }

    /// Asks for the figure by which validations are compared, before there is one.
    fn check_figure(&self, plans: &PlanSet, metrics: &[Box<dyn Metric>]) -> Result<(), TrainError> {
        let classes = self.model.target().bound.is_some();
        let predicts = plans.plans.iter().any(|plan| plan.graph.output(step::PREDICTIONS).is_some());
        let empty = Evaluation { loss: 0.0, accuracy: predicts.then_some(0.0), examples: 0, classes };
        self.monitor.cost(&empty, &told(metrics)).map(|_| ())
    }

    /// Evaluates the test part every so many steps, instead of after each epoch.
    pub fn validate_every(self, steps: u64) -> Self {
        Self { validate_every: Some(steps), ..self }
    }

    /// Counts so many steps as an epoch, wherever in the data they are.
    pub fn steps_per_epoch(self, steps: u64) -> Self {
        Self { steps_per_epoch: Some(steps), ..self }
    }

    /// Ends [`crate::Session::fit`] after the step in which it has taken so long: with a checkpoint, from which it goes on.
    pub fn time_limit(self, limit: Duration) -> Self {
        Self { time_limit: Some(limit), ..self }
    }
}
