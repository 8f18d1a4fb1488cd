//! RMSprop.

use super::{Decay, Optimizer, Parameter, descend, exactly, moment, moving_average, velocity};
use plimsoll_graph::op::Binary;
use plimsoll_graph::{Builder, GraphError, ValueId};

/// RMSprop (Hinton 2012), as in PyTorch: gradients over the root of their running mean square. 4 bytes of state per
/// parameter, 4 more each if centred and with momentum.
#[derive(Clone, Debug)]
pub struct RmsProp {
    rate: f64,
    smoothing: f64,
    eps: f64,
    momentum: f64,
    centred: bool,
    decay: Decay,
}

impl RmsProp {
    /// With smoothing 0.99 and eps 1e-8.
    pub fn new(rate: f64) -> Self {
        let decay = Decay::new(0.0);
        Self { rate, smoothing: 0.99, eps: 1e-8, momentum: 0.0, centred: false, decay }
    }

    /// With momentum; costs one moment per parameter.
    pub fn momentum(self, momentum: f64) -> Self {
        Self { momentum, ..self }
    }

    /// With gradients over their running standard deviation; costs one moment per parameter.
    pub fn centred(self) -> Self {
        Self { centred: true, ..self }
    }

    /// With L2 weight decay: added to the gradient.
    pub fn weight_decay(self, decay: impl Into<Decay>) -> Self {
        Self { decay: decay.into(), ..self }
    }
}

impl Optimizer for RmsProp {
    fn setting_names(&self) -> Vec<String> {
        vec!["rate".into()]
    }

    fn settings(&self, _: u64, scale: f64, values: &mut [f64]) {
        values.copy_from_slice(&[self.rate * scale]);
    }

    fn description(&self) -> String {
        let Self { rate, smoothing, eps, momentum, centred, decay } = self;
        let centred = if *centred { ", centred" } else { "" };
        let decay = decay.description();
        format!(
            "rmsprop (rate {rate}, smoothing {smoothing}, eps {eps}, momentum {momentum}{centred}, {decay})"
        )
    }

    fn decay(&self) -> Option<&Decay> {
        Some(&self.decay)
    }

    fn update(
        &self,
        b: &mut Builder,
        parameter: &Parameter,
        gradient: ValueId,
        settings: &[ValueId],
    ) -> Result<(), GraphError> {
        let [rate] = exactly(settings)?;
        let gradient = self.decay.add_to_gradient(b, parameter, gradient)?;
        let old = moment(b, parameter, "square");
        let square = b.square(gradient)?;
        let square = moving_average(b, old, square, self.smoothing)?;
        b.set_state(old, square);
        let mut spread = square;
        if self.centred {
            let old = moment(b, parameter, "mean");
            let mean = moving_average(b, old, gradient, self.smoothing)?;
            b.set_state(old, mean);
            let mean = b.square(mean)?;
            spread = b.sub(square, mean)?;
        }
        let root = b.sqrt(spread)?;
        let root = b.with_constant(Binary::Add, root, self.eps)?;
        let mut direction = b.div(gradient, root)?;
        if self.momentum != 0.0 {
            direction = velocity(b, parameter, direction, self.momentum)?;
        }
        descend(b, parameter, parameter.value, direction, rate)
    }
}
