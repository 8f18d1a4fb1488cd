//! U-Net: semantic segmentation.

use crate::{
    Activation, BatchNorm, Conv2d, ConvTranspose2d, Field, Head, Layer, MaxPool2d, Model, Net, Padding,
};
use plimsoll_graph::{GraphError, ValueId};

/// U-Net (Ronneberger et al. 2015) with padded convolutions: four poolings down and four transposed convolutions up, with
/// skip connections.
#[derive(Clone, Copy, Debug)]
pub struct Unet {
    /// Height, width and channels of an image; height and width are multiples of 16.
    pub image: [usize; 3],
    /// Classes per pixel.
    pub classes: usize,
    /// Channels of the first convolution, doubled at every level; published with 64.
    pub width: usize,
    /// Whether convolutions are followed by batch norm. Without it, batches can be split into micro-batches.
    pub norm: bool,
}

impl Default for Unet {
    fn default() -> Self {
        Self { image: [128, 128, 3], classes: 2, width: 64, norm: true }
    }
}

impl Unet {
    /// Two convolutions of 3×3, each with its norm and relu.
    fn double_conv(&self, net: &mut Net, x: ValueId, channels: usize) -> Result<ValueId, GraphError> {
        let mut y = x;
        for i in ["1", "2"] {
            let conv = Conv2d::new(channels, 3).padding(Padding::Around(1));
            let conv = if self.norm { conv.without_bias() } else { conv };
            y = net.scope(&format!("conv{i}"), |net| conv.forward(net, y))?;
            if self.norm {
                y = net.scope(&format!("norm{i}"), |net| BatchNorm::new().forward(net, y))?;
            }
            y = Activation::Relu.forward(net, y)?;
        }
        Ok(y)
    }
}

impl Model for Unet {
    fn name(&self) -> &str {
        if self.norm { "unet" } else { "unet_plain" }
    }

    fn inputs(&self) -> Vec<Field> {
        vec![Field::floats(self.image)]
    }

    fn target(&self) -> Field {
        Field::below(self.classes, [self.image[0], self.image[1]])
    }

    fn forward(&self, net: &mut Net, inputs: &[ValueId]) -> Result<Head, GraphError> {
        if self.image[..2].iter().any(|extent| extent % 16 != 0) {
            let reason = "height and width must be multiples of 16: each is halved four times".to_string();
            return Err(net.refuse("unet", &[inputs[0]], reason));
        }
        let mut y = net.scope("down0", |net| self.double_conv(net, inputs[0], self.width))?;
        let mut skips = Vec::new();
        for level in 1..=4 {
            skips.push(y);
            y = net.scope(&format!("down{level}"), |net| {
                let half = MaxPool2d::new(2).forward(net, y)?;
                self.double_conv(net, half, self.width << level)
            })?;
        }
        for level in (0..4).rev() {
            y = net.scope(&format!("up{level}"), |net| {
                let up = ConvTranspose2d::new(self.width << level, 2).stride(2).padding(Padding::Valid);
                let up = net.scope("grow", |net| up.forward(net, y))?;
                let both = net.concat(&[skips[level], up], 3)?;
                self.double_conv(net, both, self.width << level)
            })?;
        }
        let scores = net.scope("head", |net| Conv2d::new(self.classes, 1).forward(net, y))?;
        Ok(Head::Outputs(vec![scores]))
    }
}
