//! Attention and the blocks around it.

use super::{Activation, Dense, Dropout, Layer, LayerNorm};
use crate::Net;
use plimsoll_graph::{GraphError, Init, ValueId};

/// Multi-head attention of a sequence `[examples, positions, width]` to itself or to another.
#[derive(Clone, Copy, Debug)]
pub struct MultiHeadAttention {
    heads: usize,
    key_heads: usize,
    causal: bool,
    window: Option<usize>,
    bias: bool,
    rotary: Option<f64>,
}

impl MultiHeadAttention {
    /// Unmasked attention with this many heads; the width must be a multiple of them.
    pub fn new(heads: usize) -> Self {
        Self { heads, key_heads: heads, causal: false, window: None, bias: true, rotary: None }
    }

    /// The layer with a causal mask: a position attends to itself and earlier ones.
    pub fn causal(self) -> Self {
        Self { causal: true, ..self }
    }

    /// The layer with a causal mask and a sliding window: a position attends to itself and the `window - 1` before.
    pub fn window(self, window: usize) -> Self {
        Self { causal: true, window: Some(window), ..self }
    }

    /// Grouped-query attention: fewer heads for keys and values, shared by groups of query heads.
    pub fn key_heads(self, key_heads: usize) -> Self {
        Self { key_heads, ..self }
    }

    /// The layer with rotary position embeddings; 10 000 is the usual base.
    pub fn rotary(self, base: f64) -> Self {
        Self { rotary: Some(base), ..self }
    }

    /// The layer without biases.
    pub fn without_bias(self) -> Self {
        Self { bias: false, ..self }
    }

    /// Attention of `x` to `memory`. A mask (bool, true: attend) is broadcast to
    /// `[examples, heads, positions of x, positions of memory]`.
    pub fn attend(
        &self,
        net: &mut Net,
        x: ValueId,
        memory: ValueId,
        mask: Option<ValueId>,
    ) -> Result<ValueId, GraphError> {
        let [n, positions, width] = net.sequence("attention", x)?;
        let [_, keys, _] = net.sequence("attention", memory)?;
        let (heads, key_heads) = (self.heads, self.key_heads);
        if heads == 0 || width % heads != 0 {
            let reason = format!(
                "a width of {width} does not split into {heads} heads: it must be a multiple of them"
            );
            return Err(net.refuse("attention", &[x], reason));
        }
        if key_heads == 0 || heads % key_heads != 0 {
            let reason =
                format!("{heads} heads cannot share {key_heads} heads of keys: they must be a multiple");
            return Err(net.refuse("attention", &[x], reason));
        }
        let size = width / heads;
        if self.rotary.is_some() && size % 2 != 0 {
            let reason = format!("rotary positions need heads of an even width, {heads} heads have {size}");
            return Err(net.refuse("attention", &[x], reason));
        }
        let dense = |units| {
            let dense = Dense::new(units).init(Init::Normal(0.02));
            if self.bias { dense } else { dense.without_bias() }
        };
        let mut project = |name: &str, from: ValueId, positions: usize, heads: usize| {
            let y = net.scope(name, |net| dense(heads * size).forward(net, from))?;
            net.reshape(y, [n, positions, heads, size])
        };
        let (mut q, mut k, v) = (
            project("query", x, positions, heads)?,
            project("key", memory, keys, key_heads)?,
            project("value", memory, keys, key_heads)?,
        );
        if let Some(base) = self.rotary {
            (q, k) = (net.rotary(q, base)?, net.rotary(k, base)?);
        }
        let y = match self.window {
            Some(window) => net.window_attention([q, k, v], mask, window)?,
            None => net.attention([q, k, v], mask, self.causal)?,
        };
        let y = net.reshape(y, [n, positions, width])?;
        net.scope("output", |net| dense(width).forward(net, y))
    }
}

impl Layer for MultiHeadAttention {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        self.attend(net, x, x, None)
    }
}

/// Two dense layers with an activation between: `width → hidden → width`.
#[derive(Clone, Copy, Debug)]
pub struct Mlp {
    hidden: usize,
    activation: Activation,
}

impl Mlp {
    /// This many hidden units, with gelu.
    pub const fn new(hidden: usize) -> Self {
        Self { hidden, activation: Activation::Gelu }
    }

    /// The layer with another activation.
    pub const fn activation(self, activation: Activation) -> Self {
        Self { activation, ..self }
    }
}

impl Layer for Mlp {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let width = net.width("mlp", x)?;
        let dense = |units| Dense::new(units).init(Init::Normal(0.02));
        let y = net.scope("up", |net| dense(self.hidden).forward(net, x))?;
        let y = self.activation.forward(net, y)?;
        net.scope("down", |net| dense(width).forward(net, y))
    }
}

/// Where a block has its layer norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPlace {
    /// Pre-norm: on the inputs of attention and MLP, as in GPT-2 and ViT.
    Before,
    /// Post-norm: on the residual sums, as in BERT.
    After,
}

/// A transformer block: attention and an MLP, each with a residual connection.
#[derive(Clone, Copy, Debug)]
pub struct TransformerBlock {
    attention: MultiHeadAttention,
    expansion: usize,
    activation: Activation,
    norm: NormPlace,
    eps: f64,
    dropout: f64,
}

impl TransformerBlock {
    /// A pre-norm block with this attention, gelu, an MLP four times as wide, no dropout.
    pub fn new(attention: MultiHeadAttention) -> Self {
        Self {
            attention,
            expansion: 4,
            activation: Activation::Gelu,
            norm: NormPlace::Before,
            eps: 1e-5,
            dropout: 0.0,
        }
    }

    /// The block with an MLP this many times as wide as the residual stream.
    pub fn expansion(self, expansion: usize) -> Self {
        Self { expansion, ..self }
    }

    /// The block with another activation in its MLP.
    pub fn activation(self, activation: Activation) -> Self {
        Self { activation, ..self }
    }

    /// The block with pre-norm or post-norm.
    pub fn norm(self, norm: NormPlace) -> Self {
        Self { norm, ..self }
    }

    /// The block with another epsilon in its norms.
    pub fn eps(self, eps: f64) -> Self {
        Self { eps, ..self }
    }

    /// The block with dropout after attention and MLP.
    pub fn dropout(self, dropout: f64) -> Self {
        Self { dropout, ..self }
    }

    fn residual(
        &self,
        net: &mut Net,
        x: ValueId,
        names: [&str; 2],
        layer: &dyn Fn(&mut Net, ValueId) -> Result<ValueId, GraphError>,
    ) -> Result<ValueId, GraphError> {
        let norm =
            |net: &mut Net, x| net.scope(names[0], |net| LayerNorm::new().eps(self.eps).forward(net, x));
        let before = self.norm == NormPlace::Before;
        let y = if before { norm(net, x)? } else { x };
        let y = net.scope(names[1], |net| {
            let y = layer(net, y)?;
            Dropout::new(self.dropout).forward(net, y)
        })?;
        let sum = net.add(x, y)?;
        if before { Ok(sum) } else { norm(net, sum) }
    }
}

impl TransformerBlock {
    /// The block with an attention mask, see [`MultiHeadAttention::attend`].
    pub fn masked(&self, net: &mut Net, x: ValueId, mask: Option<ValueId>) -> Result<ValueId, GraphError> {
        let attention = self.attention;
        let x = self.residual(net, x, ["norm1", "attention"], &|net, y| attention.attend(net, y, y, mask))?;
        let hidden = net.width("block", x)?.saturating_mul(self.expansion);
        let mlp = Mlp::new(hidden).activation(self.activation);
        self.residual(net, x, ["norm2", "mlp"], &|net, y| mlp.forward(net, y))
    }
}

impl Layer for TransformerBlock {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        self.masked(net, x, None)
    }
}
