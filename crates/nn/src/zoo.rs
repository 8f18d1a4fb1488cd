//! The models that come with the library.

mod blocks;
mod entries;
mod small;
mod text;
mod unet;
mod vision;
mod vit;

pub use entries::ZOO;
pub use small::{autoencoder_of, lenet, lenet_of, mlp, mlp_of, resnet20, resnet20_of};
pub use text::{Bert, CharLstm, Gpt, Seq2Seq};
pub use unet::Unet;
pub use vision::{densenet121_of, efficientnet_b0_of, mobilenet_v2_of, resnet18_of, resnet50_of, vgg16_of};
pub use vit::Vit;

use crate::Model;

/// A model of the zoo, for listings and the command line.
pub struct ZooEntry {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub description: &'static str,
    /// Its options, by their names in [`ZooOptions`].
    pub options: &'static [&'static str],
    /// The default batch size.
    pub batch: usize,
    /// Small sizes with the same structure, for tests and first tries.
    pub small: ZooOptions,
    /// Whether batches can be split into micro-batches: no op mixes the batch, as batch norm does.
    pub splits: bool,
    /// Builds it; options that the model does not have are ignored.
    pub make: fn(&ZooOptions) -> Box<dyn Model>,
}

impl ZooEntry {
    /// Its default number of attention heads, where keys and values may have fewer.
    pub fn default_heads(&self) -> Option<usize> {
        match self.name {
            "gpt" => Some(Gpt::default().heads),
            "gpt2" => Some(Gpt::gpt2().heads),
            _ => None,
        }
    }

    /// Its default number of layers and width, where it has these options.
    pub fn default_layers_and_width(&self) -> (Option<usize>, Option<usize>) {
        let (gpt, gpt2, bert, lstm) = (Gpt::default(), Gpt::gpt2(), Bert::default(), CharLstm::default());
        let (layers, width) = match self.name {
            "gpt" => (gpt.layers, gpt.width),
            "gpt2" => (gpt2.layers, gpt2.width),
            "bert_tiny" => (bert.layers, bert.width),
            "lstm" => (lstm.layers, lstm.width),
            "vit_tiny" => (Vit::default().layers, Vit::default().width),
            "seq2seq" => (0, Seq2Seq::default().width),
            "unet" | "unet_plain" => (0, Unet::default().width),
            "mlp" => (0, 2048),
            "autoencoder" | "mobilenet_v2" | "efficientnet_b0" | "densenet121" => (0, 32),
            "resnet18" | "resnet50" | "vgg16" => (0, 64),
            _ => (0, 0),
        };
        let known = |n: usize| (n > 0).then_some(n);
        (known(layers), known(width))
    }
}

/// Options of a zoo model; `None` is the model's default.
#[derive(Clone, Copy, Debug, Default)]
pub struct ZooOptions {
    /// Classes, or tokens of a language model.
    pub classes: Option<usize>,
    /// Height and width of an image.
    pub image: Option<usize>,
    /// Channels of an image.
    pub channels: Option<usize>,
    /// Positions of a language model.
    pub context: Option<usize>,
    /// Transformer blocks, or stacked recurrent layers.
    pub layers: Option<usize>,
    /// Width of the residual stream, or channels of the first convolution (densenet: its growth rate).
    pub width: Option<usize>,
    /// Attention heads.
    pub heads: Option<usize>,
    /// Heads of keys and values.
    pub key_heads: Option<usize>,
    /// Positions that a position attends to.
    pub window: Option<usize>,
    /// Dropout probability.
    pub dropout: Option<f64>,
    /// Numbers per row, where the input is not an image.
    pub features: Option<usize>,
}

impl ZooOptions {
    /// The image's shape, by default with this side and these channels.
    fn image(&self, side: usize, channels: usize) -> [usize; 3] {
        let side = self.image.unwrap_or(side);
        [side, side, self.channels.unwrap_or(channels)]
    }

    fn classes(&self, classes: usize) -> usize {
        self.classes.unwrap_or(classes)
    }

    fn width(&self, width: usize) -> usize {
        self.width.unwrap_or(width)
    }

    fn dropout(&self, dropout: f64) -> f64 {
        self.dropout.unwrap_or(dropout)
    }

    fn gpt(&self, d: Gpt) -> Gpt {
        Gpt {
            layers: self.layers.unwrap_or(d.layers),
            width: self.width(d.width),
            heads: self.heads.unwrap_or(d.heads),
            context: self.context.unwrap_or(d.context),
            vocabulary: self.classes(d.vocabulary),
            gpt2: d.gpt2,
            key_heads: self.key_heads.or(d.key_heads),
            window: self.window.or(d.window),
        }
    }

    fn unet(&self, norm: bool) -> Unet {
        let d = Unet::default();
        Unet {
            image: self.image(d.image[0], 3),
            classes: self.classes(d.classes),
            width: self.width(d.width),
            norm,
        }
    }
}

#[cfg(test)]
mod tests;
