//! Building blocks of convolutional models.

use crate::{Activation, BatchNorm, Conv2d, Layer, Net, Padding};
use plimsoll_graph::{GraphError, ValueId};

/// A convolution with half the window as padding and without bias, for a norm to follow.
pub(super) fn conv(channels: usize, window: usize, stride: usize) -> Conv2d {
    Conv2d::new(channels, window).stride(stride).padding(Padding::Around(window / 2)).without_bias()
}

/// A convolution and its batch norm, under two names, and an activation.
pub(super) fn conv_norm(
    net: &mut Net,
    names: [&str; 2],
    x: ValueId,
    conv: impl Layer,
    activation: Option<Activation>,
) -> Result<ValueId, GraphError> {
    let y = net.scope(names[0], |net| conv.forward(net, x))?;
    let y = net.scope(names[1], |net| BatchNorm::new().forward(net, y))?;
    activation.map_or(Ok(y), |activation| activation.forward(net, y))
}

/// The multiple of eight nearest to a number of channels, not more than a tenth below it.
pub(super) fn divisible(channels: usize) -> usize {
    let near = ((channels + 4) / 8 * 8).max(8);
    if near * 10 < channels * 9 { near + 8 } else { near }
}
