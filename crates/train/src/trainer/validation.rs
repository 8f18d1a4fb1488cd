//! The metrics of validations, and the figure by which they are compared.

use super::Trainer;
use crate::metrics::{Metric, MetricSpec, reported_figures};
use crate::{Evaluation, Monitor, TrainError};
use plimsoll_nn::step;
use plimsoll_plan::Whole;

impl Trainer {
    /// Classes of the labels; one for values.
    pub(super) fn classes(&self) -> usize {
        self.model.target().bound.unwrap_or(1)
    }

    /// Allocates the metrics, and checks that the monitored figure is among them.
    pub(crate) fn make_metrics(&self, plans: &Whole) -> Result<Vec<Box<dyn Metric>>, TrainError> {
        let made = self.metrics.iter().map(|metric| metric.make(self.classes()));
        let made: Vec<Box<dyn Metric>> = made.collect::<Result<_, _>>()?;
        self.check_figure(plans, &made)?;
        Ok(made)
    }

    /// Refuses a monitor of a figure that validations will not have. Allocates no confusion matrix unless it is monitored.
    pub(super) fn check_monitor(&self, plans: &Whole) -> Result<(), TrainError> {
        if self.monitor == Monitor::Loss {
            return Ok(());
        }
        let monitors_cell = self.monitor.name().starts_with("confusion/");
        let small =
            self.metrics.iter().filter(|m| monitors_cell || !matches!(m, MetricSpec::Confusion { .. }));
        let made: Vec<_> = small.map(|metric| metric.make(self.classes())).collect::<Result<_, _>>()?;
        self.check_figure(plans, &made)
    }

    /// Looks up the monitored figure in an empty evaluation.
    fn check_figure(&self, plans: &Whole, metrics: &[Box<dyn Metric>]) -> Result<(), TrainError> {
        let classes = self.model.target().bound.is_some();
        let mut outputs = plans.plans.iter().flat_map(|plan| &plan.outputs);
        let predicts = outputs.any(|output| output.name == step::PREDICTIONS);
        let empty = Evaluation { loss: 0.0, accuracy: predicts.then_some(0.0), examples: 0, classes };
        self.monitor.cost(&empty, &reported_figures(metrics)).map(|_| ())
    }
}
