//! Vision transformer.

use crate::{
    Conv2d, Dense, Field, Head, Layer, LayerNorm, Model, MultiHeadAttention, Net, Padding, TransformerBlock,
};
use plimsoll_graph::{GraphError, Init, ValueId};

/// A vision transformer (Dosovitskiy et al. 2020): patches as tokens, and a class token that the head reads.
#[derive(Clone, Copy, Debug)]
pub struct Vit {
    /// Height, width and channels of an image; height and width are multiples of the patch.
    pub image: [usize; 3],
    /// Side of a square patch.
    pub patch: usize,
    /// Classes.
    pub classes: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Attention heads.
    pub heads: usize,
}

impl Default for Vit {
    /// ViT-Tiny with patches of 16 (Touvron et al. 2020).
    fn default() -> Self {
        Self { image: [224, 224, 3], patch: 16, classes: 1000, layers: 12, width: 192, heads: 3 }
    }
}

impl Model for Vit {
    fn name(&self) -> &str {
        "vit_tiny"
    }

    fn inputs(&self) -> Vec<Field> {
        vec![Field::floats(self.image)]
    }

    fn target(&self) -> Field {
        Field::below(self.classes, [])
    }

    fn forward(&self, net: &mut Net, inputs: &[ValueId]) -> Result<Head, GraphError> {
        let (x, patch, width) = (inputs[0], self.patch, self.width);
        if patch == 0 || self.image[..2].iter().any(|extent| extent % patch != 0) {
            let reason = format!("height and width must be multiples of the patch, {patch}");
            return Err(net.refuse("vit", &[x], reason));
        }
        let patches = Conv2d::new(width, patch).stride(patch).padding(Padding::Valid);
        let y = net.scope("patches", |net| patches.forward(net, x))?;
        let &[n, rows, columns, _] = &net.shape(y)[..] else {
            return Err(net.refuse("vit", &[y], "needs an image".into()));
        };
        let tokens = net.reshape(y, [n, rows * columns, width])?;
        let class = net.parameter("class_token", [1, 1, width], Init::Zeros);
        let class = net.broadcast_to(class, [n, 1, width])?;
        let tokens = net.concat(&[class, tokens], 1)?;
        let positions = [rows * columns + 1, width];
        let positions = net.scope("positions", |net| net.parameter("table", positions, Init::Normal(0.02)));
        let mut h = net.add(tokens, positions)?;
        let block = TransformerBlock::new(MultiHeadAttention::new(self.heads)).eps(1e-6);
        for i in 1..=self.layers {
            h = net.scope(&format!("block{i}"), |net| block.forward(net, h))?;
        }
        // The head reads the class token only.
        let first = net.slice(h, 1, 0..1)?;
        let first = net.reshape(first, [n, width])?;
        let y = net.scope("norm", |net| LayerNorm::new().eps(1e-6).forward(net, first))?;
        let scores =
            net.scope("head", |net| Dense::new(self.classes).init(Init::Normal(0.02)).forward(net, y))?;
        Ok(Head::Outputs(vec![scores]))
    }
}
