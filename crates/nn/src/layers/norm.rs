//! Normalisation.

use super::Layer;
use crate::{Mode, Net};
use plimsoll_graph::op::Norm;
use plimsoll_graph::{GraphError, Init, Op, ValueId};

/// Methods of a norm: `new` without arguments, and another epsilon.
macro_rules! norm {
    ($name:ident { eps: $eps:expr $(, $field:ident: $value:expr)* }) => {
        impl $name {
            #[doc = concat!("The norm with an epsilon of ", stringify!($eps), ".")]
            pub const fn new() -> Self {
                Self { eps: $eps $(, $field: $value)* }
            }

            /// The layer with another epsilon.
            pub const fn eps(mut self, eps: f64) -> Self {
                self.eps = eps;
                self
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::new()
            }
        }
    };
}

/// Layer norm over the last axis.
#[derive(Clone, Copy, Debug)]
pub struct LayerNorm {
    /// Added to the variance.
    eps: f64,
}

norm!(LayerNorm { eps: 1e-5 });

impl Layer for LayerNorm {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let width = net.width("layer_norm", x)?;
        let gain = net.parameter("gain", [width], Init::Ones);
        let bias = net.parameter("bias", [width], Init::Zeros);
        net.one(Op::Norm(Norm::Layer { eps: self.eps }), &[x, gain, bias])
    }
}

/// RMS norm over the last axis: `x / √(mean(x²) + eps) · gain`.
#[derive(Clone, Copy, Debug)]
pub struct RmsNorm {
    /// Added to the mean square.
    eps: f64,
}

norm!(RmsNorm { eps: 1e-6 });

impl Layer for RmsNorm {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let width = net.width("rms_norm", x)?;
        let gain = net.parameter("gain", [width], Init::Ones);
        let rank = net.shape(x).rank();
        let square = net.square(x)?;
        let sum = net.sum(square, &[rank - 1], true)?;
        let mean = net.scale(sum, 1.0 / width.max(1) as f64)?;
        let shifted = net.shift(mean, self.eps)?;
        let factor = net.rsqrt(shifted)?;
        let normal = net.mul(x, factor)?;
        net.mul(normal, gain)
    }
}

/// Group norm: each example's channels (the last axis) in groups, each normalised over its channels and all positions.
/// One group is layer norm over the whole example; as many groups as channels are instance norm.
#[derive(Clone, Copy, Debug)]
pub struct GroupNorm {
    groups: usize,
    /// Added to the variance.
    eps: f64,
}

impl GroupNorm {
    /// Group norm with this many groups, of which the channels must be a multiple, and an epsilon of 1e-5.
    pub const fn new(groups: usize) -> Self {
        Self { groups, eps: 1e-5 }
    }

    /// The layer with another epsilon.
    pub const fn eps(self, eps: f64) -> Self {
        Self { eps, ..self }
    }
}

impl Layer for GroupNorm {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let channels = net.width("group_norm", x)?;
        let shape = net.shape(x).clone();
        if self.groups == 0 || channels % self.groups != 0 || shape.rank() < 2 {
            let reason =
                format!("{channels} channels of an example do not split into {} groups", self.groups);
            return Err(net.refuse("group_norm", &[x], reason));
        }
        let gain = net.parameter("gain", [channels], Init::Ones);
        let bias = net.parameter("bias", [channels], Init::Zeros);
        let positions: usize = shape[1..shape.rank() - 1].iter().product();
        let inside = channels / self.groups;
        let grouped = net.reshape(x, [shape[0], positions, self.groups, inside])?;
        let share = 1.0 / (positions * inside).max(1) as f64;
        // Over a group's channels, then over positions: the axis between is the groups.
        let mean = |net: &mut Net, x: ValueId| {
            let channels = net.sum(x, &[3], true)?;
            let all = net.sum(channels, &[1], true)?;
            net.scale(all, share)
        };
        let centre = mean(net, grouped)?;
        let centred = net.sub(grouped, centre)?;
        let square = net.square(centred)?;
        let variance = mean(net, square)?;
        let shifted = net.shift(variance, self.eps)?;
        let rstd = net.rsqrt(shifted)?;
        let normal = net.mul(centred, rstd)?;
        let normal = net.reshape(normal, shape)?;
        let scaled = net.mul(normal, gain)?;
        net.add(scaled, bias)
    }
}

/// Batch norm over all axes but the last. Training uses the batch's statistics and updates the running ones with
/// a momentum of 0.1; evaluation uses the running ones.
#[derive(Clone, Copy, Debug)]
pub struct BatchNorm {
    /// Added to the variance.
    eps: f64,
    /// Weight of the new statistics in the running ones.
    momentum: f64,
}

norm!(BatchNorm { eps: 1e-5, momentum: 0.1 });

impl BatchNorm {
    /// The layer with another weight of the new statistics in the running ones: PyTorch's momentum, one minus Keras's.
    pub const fn momentum(self, momentum: f64) -> Self {
        Self { momentum, ..self }
    }

    /// `running · (1 - momentum) + new · momentum · factor`.
    fn update_running(
        &self,
        net: &mut Net,
        running: ValueId,
        new: ValueId,
        factor: f64,
    ) -> Result<(), GraphError> {
        let old = net.scale(running, 1.0 - self.momentum)?;
        let new = net.scale(new, self.momentum * factor)?;
        let updated = net.add(old, new)?;
        net.set_state(running, updated);
        Ok(())
    }
}

/// Gain, bias, running mean and running variance of a [`BatchNorm`].
type BatchNormStates = [ValueId; 4];

impl BatchNorm {
    /// The norm with these states: gain, bias, running mean and running variance. Training uses the batch's statistics, and the
    /// running ones move.
    pub fn normalise(
        &self,
        net: &mut Net,
        x: ValueId,
        [gain, bias, mean, variance]: BatchNormStates,
    ) -> Result<ValueId, GraphError> {
        if net.mode == Mode::Infer {
            return self.with_running(net, x, [gain, bias, mean, variance]);
        }
        let channels = net.width("batch_norm", x)?;
        let outputs = net.node(Op::Norm(Norm::Batch { eps: self.eps }), &[x, gain, bias])?;
        // The running variance is unbiased, hence n / (n - 1).
        let n = (net.shape(x).elements() / channels.max(1)) as f64;
        self.update_running(net, mean, outputs[1], 1.0)?;
        self.update_running(net, variance, outputs[2], n / (n - 1.0).max(1.0))?;
        Ok(outputs[0])
    }

    /// As [`BatchNorm::normalise`], with the running statistics in every mode.
    pub fn with_running(
        &self,
        net: &mut Net,
        x: ValueId,
        [gain, bias, mean, variance]: BatchNormStates,
    ) -> Result<ValueId, GraphError> {
        let shifted = net.shift(variance, self.eps)?;
        let rstd = net.rsqrt(shifted)?;
        let centred = net.sub(x, mean)?;
        let normal = net.mul(centred, rstd)?;
        let scaled = net.mul(normal, gain)?;
        net.add(scaled, bias)
    }
}

impl Layer for BatchNorm {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let channels = net.width("batch_norm", x)?;
        let gain = net.parameter("gain", [channels], Init::Ones);
        let bias = net.parameter("bias", [channels], Init::Zeros);
        let mean = net.statistic("running_mean", [channels], Init::Zeros);
        let variance = net.statistic("running_variance", [channels], Init::Ones);
        self.normalise(net, x, [gain, bias, mean, variance])
    }
}
