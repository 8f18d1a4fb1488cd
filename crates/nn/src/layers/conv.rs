//! Convolution.

use super::{Layer, he_uniform};
use crate::{Net, Penalty};
use plimsoll_graph::op::{Geometry, reach, same_padding};
use plimsoll_graph::{GraphError, Init, ValueId};

/// How a window treats the border of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padding {
    /// No padding.
    Valid,
    /// As much as gives `ceil(extent / stride)` outputs; an odd element goes after.
    Same,
    /// This much on every side.
    Around(usize),
    /// `[[top, bottom], [left, right]]`.
    Explicit([[usize; 2]; 2]),
}

pub(super) fn geometry(
    padding: Padding,
    image: [usize; 2],
    window: [usize; 2],
    stride: [usize; 2],
    dilation: [usize; 2],
) -> Geometry {
    let padding = match padding {
        Padding::Valid => [[0; 2]; 2],
        Padding::Same => {
            // A dilated window spans as much as a larger one.
            same_padding(image, reach(window, dilation), stride.map(|s| s.max(1)))
        }
        Padding::Around(p) => [[p; 2]; 2],
        Padding::Explicit(padding) => padding,
    };
    Geometry { window, stride, padding, dilation }
}

/// Window, stride and dilation, each as height and width.
#[derive(Clone, Copy)]
struct Sliding {
    window: [usize; 2],
    stride: [usize; 2],
    dilation: [usize; 2],
}

/// Options shared by all convolutions.
#[derive(Clone, Copy, Debug)]
struct Options {
    stride: usize,
    padding: Padding,
    dilation: usize,
    bias: bool,
    penalty: Penalty,
}

const OPTIONS: Options = Options {
    stride: 1,
    padding: Padding::Same,
    dilation: 1,
    bias: true,
    penalty: Penalty { l1: 0.0, l2: 0.0 },
};

/// Methods that every convolution has.
macro_rules! options {
    () => {
        /// The layer with another stride.
        pub fn stride(mut self, stride: usize) -> Self {
            self.options.stride = stride;
            self
        }

        /// The layer with another padding.
        pub fn padding(mut self, padding: Padding) -> Self {
            self.options.padding = padding;
            self
        }

        /// The layer without a bias.
        pub fn without_bias(mut self) -> Self {
            self.options.bias = false;
            self
        }

        /// The layer with a penalty on its kernel.
        pub fn penalty(mut self, penalty: Penalty) -> Self {
            self.options.penalty = penalty;
            self
        }
    };
    (dilation) => {
        options!();

        /// The layer with a dilated kernel.
        pub fn dilation(mut self, dilation: usize) -> Self {
            self.options.dilation = dilation;
            self
        }
    };
}

impl Options {
    /// Convolves an image with a kernel of `[window, channels in / groups, channels]`, and adds the bias.
    fn convolve(
        &self,
        net: &mut Net,
        x: ValueId,
        sliding: Sliding,
        channels: usize,
        groups: usize,
    ) -> Result<ValueId, GraphError> {
        let [_, h, w, c] = net.image("conv2d", x)?;
        let channels = if groups == 1 { net.channels(channels) } else { channels };
        check_channels(net, "conv2d", x, c, channels, groups)?;
        let Sliding { window, stride, dilation } = sliding;
        let inputs = c / groups;
        let fan_in = window[0].saturating_mul(window[1]).saturating_mul(inputs);
        let kernel = net.parameter("kernel", [window[0], window[1], inputs, channels], he_uniform(fan_in));
        net.penalise(kernel, self.penalty)?;
        let geometry = geometry(self.padding, [h, w], window, stride, dilation);
        let y = net.conv2d(x, kernel, geometry, groups)?;
        self.add_bias(net, y, channels)
    }

    fn add_bias(&self, net: &mut Net, y: ValueId, channels: usize) -> Result<ValueId, GraphError> {
        if !self.bias {
            return Ok(y);
        }
        let bias = net.parameter("bias", [channels], Init::Zeros);
        net.add(y, bias)
    }
}

/// Checks that the channels divide into groups.
fn check_channels(
    net: &Net,
    op: &'static str,
    x: ValueId,
    inputs: usize,
    channels: usize,
    groups: usize,
) -> Result<(), GraphError> {
    net.at_least_one(op, x, channels, "channel")?;
    if groups == 0 || !inputs.is_multiple_of(groups) || !channels.is_multiple_of(groups) {
        let reason = format!(
            "{inputs} channels in and {channels} out do not split into {groups} groups: both must be multiples"
        );
        return Err(net.refuse(op, &[x], reason));
    }
    Ok(())
}

/// 2-D convolution over NHWC images.
#[derive(Clone, Debug)]
pub struct Conv2d {
    channels: usize,
    window: [usize; 2],
    groups: usize,
    options: Options,
}

impl Conv2d {
    /// `channels` outputs from a square window; stride 1, same padding, a bias. The kernel starts He-uniform.
    pub fn new(channels: usize, window: usize) -> Self {
        Self { channels, window: [window; 2], groups: 1, options: OPTIONS }
    }

    /// The layer with another window: height, width.
    pub fn window(self, window: [usize; 2]) -> Self {
        Self { window, ..self }
    }

    /// The layer as a grouped convolution.
    pub fn groups(self, groups: usize) -> Self {
        Self { groups, ..self }
    }

    options!(dilation);
}

impl Layer for Conv2d {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let Options { stride, dilation, .. } = self.options;
        let sliding = Sliding { window: self.window, stride: [stride; 2], dilation: [dilation; 2] };
        self.options.convolve(net, x, sliding, self.channels, self.groups)
    }
}

/// 1-D convolution over sequences `[examples, positions, channels]`.
#[derive(Clone, Debug)]
pub struct Conv1d {
    channels: usize,
    window: usize,
    groups: usize,
    causal: bool,
    options: Options,
}

impl Conv1d {
    /// `channels` outputs from a window of positions; stride 1, same padding, a bias. The kernel starts He-uniform.
    pub fn new(channels: usize, window: usize) -> Self {
        Self { channels, window, groups: 1, causal: false, options: OPTIONS }
    }

    /// The layer as a grouped convolution.
    pub fn groups(self, groups: usize) -> Self {
        Self { groups, ..self }
    }

    /// The layer with padding before the first position only, so that no output depends on a later position.
    pub fn causal(self) -> Self {
        Self { causal: true, ..self }
    }

    options!(dilation);
}

impl Layer for Conv1d {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let [n, positions, channels] = net.sequence("conv1d", x)?;
        check_channels(net, "conv1d", x, channels, self.channels, self.groups)?;
        let image = net.reshape(x, [n, 1, positions, channels])?;
        let mut options = self.options;
        options.padding = match options.padding {
            _ if self.causal => Padding::Explicit([
                [0, 0],
                [self.window.saturating_sub(1).saturating_mul(options.dilation), 0],
            ]),
            Padding::Around(p) => Padding::Explicit([[0, 0], [p, p]]),
            Padding::Explicit([[0, 0], _]) | Padding::Valid | Padding::Same => options.padding,
            Padding::Explicit(_) => {
                let reason = "a sequence has one row: its padding is [[0, 0], [before, after]]".to_string();
                return Err(net.refuse("conv1d", &[x], reason));
            }
        };
        let sliding = Sliding {
            window: [1, self.window],
            stride: [1, options.stride],
            dilation: [1, options.dilation],
        };
        let y = options.convolve(net, image, sliding, self.channels, self.groups)?;
        let &[_, _, positions, channels] = &net.shape(y)[..] else { return Ok(y) };
        net.reshape(y, [n, positions, channels])
    }
}

/// Depthwise convolution: every channel by itself.
#[derive(Clone, Debug)]
pub struct DepthwiseConv2d {
    window: usize,
    multiplier: usize,
    options: Options,
}

impl DepthwiseConv2d {
    /// One output channel for each input channel; stride 1, same padding, a bias.
    pub fn new(window: usize) -> Self {
        Self { window, multiplier: 1, options: OPTIONS }
    }

    /// The layer with this many output channels for each input channel.
    pub fn multiplier(self, multiplier: usize) -> Self {
        Self { multiplier, ..self }
    }

    options!(dilation);
}

impl Layer for DepthwiseConv2d {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let [_, _, _, c] = net.image("depthwise_conv2d", x)?;
        net.at_least_one("depthwise_conv2d", x, self.multiplier, "output for a channel")?;
        let Options { stride, dilation, .. } = self.options;
        let sliding = Sliding { window: [self.window; 2], stride: [stride; 2], dilation: [dilation; 2] };
        self.options.convolve(net, x, sliding, c.saturating_mul(self.multiplier), c)
    }
}

/// A depthwise convolution, then a 1×1 convolution over the channels.
#[derive(Clone, Debug)]
pub struct SeparableConv2d {
    channels: usize,
    window: usize,
    options: Options,
}

impl SeparableConv2d {
    /// `channels` outputs from a square window; stride 1, same padding, a bias at the end.
    pub fn new(channels: usize, window: usize) -> Self {
        Self { channels, window, options: OPTIONS }
    }

    options!(dilation);
}

impl Layer for SeparableConv2d {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let options = Options { bias: false, ..self.options };
        let depthwise = DepthwiseConv2d { window: self.window, multiplier: 1, options };
        let x = net.scope("depthwise", |net| depthwise.forward(net, x))?;
        let pointwise = Conv2d {
            channels: self.channels,
            window: [1; 2],
            groups: 1,
            options: Options { bias: self.options.bias, penalty: self.options.penalty, ..OPTIONS },
        };
        net.scope("pointwise", |net| pointwise.forward(net, x))
    }
}

/// Transposed convolution: the input gradient of a convolution, as a layer. The kernel is
/// `[height, width, channels out, channels in]`.
///
/// Padding is cropped from the result. Same padding crops `window - stride`, an odd element after, as in Keras. An even
/// crop is PyTorch's `padding` of half of it; with an odd one PyTorch (`output_padding` 1) crops the odd element before.
/// A window smaller than the stride is PyTorch's `output_padding` of the difference.
#[derive(Clone, Debug)]
pub struct ConvTranspose2d {
    channels: usize,
    window: usize,
    options: Options,
}

impl ConvTranspose2d {
    /// `channels` outputs from a square window, a bias. Same padding scales images by the stride; valid padding adds the
    /// window's overhang.
    pub fn new(channels: usize, window: usize) -> Self {
        Self { channels, window, options: OPTIONS }
    }

    options!();
}

impl Layer for ConvTranspose2d {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let [_, h, w, c] = net.image("conv_transpose2d", x)?;
        let (window, stride) = (self.window, self.options.stride);
        let around = match self.options.padding {
            Padding::Around(p) => [p.saturating_mul(2); 2],
            Padding::Explicit(padding) => padding.map(|[before, after]| before.saturating_add(after)),
            Padding::Valid | Padding::Same => [0; 2],
        };
        // The image whose convolution gives the extents of x.
        let grown = |extent: usize, around: usize| match self.options.padding {
            Padding::Same => extent.saturating_mul(stride),
            _ => (extent.max(1) - 1).saturating_mul(stride).saturating_add(window).saturating_sub(around),
        };
        let image = [grown(h, around[0]), grown(w, around[1])];
        net.at_least_one("conv_transpose2d", x, self.channels, "channel")?;
        if window > 0 && stride > 0 && image.contains(&0) {
            let reason = format!("a window of {window} with this padding leaves nothing: pad less");
            return Err(net.refuse("conv_transpose2d", &[x], reason));
        }
        let geometry = geometry(self.options.padding, image, [window; 2], [stride; 2], [1; 2]);
        let fan_in = window.saturating_mul(window).saturating_mul(c);
        let kernel = net.parameter("kernel", [window, window, self.channels, c], he_uniform(fan_in));
        net.penalise(kernel, self.options.penalty)?;
        let y = net.conv_transpose2d(x, kernel, geometry, image)?;
        self.options.add_bias(net, y, self.channels)
    }
}
