//! Language models.

use crate::{
    Activation, Dense, Dropout, Embedding, Field, Gru, Head, Layer, LayerNorm, Lstm, Model,
    MultiHeadAttention, Net, NormPlace, Recurrent, TransformerBlock,
};
use plimsoll_graph::{GraphError, Init, ValueId};

/// A decoder-only transformer with learned positions.
#[derive(Clone, Copy, Debug)]
pub struct Gpt {
    /// Number of blocks.
    pub layers: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Attention heads.
    pub heads: usize,
    /// Positions of an example.
    pub context: usize,
    /// Number of tokens.
    pub vocabulary: usize,
    /// As published by OpenAI: the head is tied to the token embedding, gelu is the tanh approximation.
    pub gpt2: bool,
    /// Heads of keys and values, each shared by a group of heads; as many as heads unless set.
    pub key_heads: Option<usize>,
    /// Positions that a position attends to at most, its own and those before it; all unless set.
    pub window: Option<usize>,
}

impl Default for Gpt {
    fn default() -> Self {
        Self {
            layers: 4,
            width: 256,
            heads: 4,
            context: 256,
            vocabulary: 4096,
            gpt2: false,
            key_heads: None,
            window: None,
        }
    }
}

impl Gpt {
    /// GPT-2 of 124 million parameters (Radford et al. 2019), without dropout.
    pub fn gpt2() -> Self {
        Self {
            layers: 12,
            width: 768,
            heads: 12,
            context: 1024,
            vocabulary: 50257,
            gpt2: true,
            key_heads: None,
            window: None,
        }
    }
}

/// An embedding: its table, and the rows of `x`.
fn embed(
    net: &mut Net,
    name: &str,
    rows: usize,
    width: usize,
    x: ValueId,
) -> Result<[ValueId; 2], GraphError> {
    let table = net.scope(name, |net| net.parameter("table", [rows, width], Init::Normal(0.02)));
    Ok([table, net.scope(name, |net| net.gather(table, x))?])
}

/// Features `[rows, width]` for a [`Head::Linear`].
fn feature_rows(net: &mut Net, h: ValueId) -> Result<ValueId, GraphError> {
    let width = net.width("head", h)?;
    let rows = net.shape(h).elements() / width.max(1);
    net.reshape(h, [rows, width])
}

/// A head with a kernel of its own.
fn head(net: &mut Net, h: ValueId, classes: usize) -> Result<Head, GraphError> {
    let features = feature_rows(net, h)?;
    let width = net.shape(features)[1];
    let kernel = net.scope("head", |net| net.parameter("kernel", [width, classes], Init::Normal(0.02)));
    Ok(Head::Linear { features, kernel, transposed: false })
}

impl Model for Gpt {
    fn name(&self) -> &str {
        if self.gpt2 { "gpt2" } else { "gpt" }
    }

    fn inputs(&self) -> Vec<Field> {
        vec![Field::below(self.vocabulary, [self.context])]
    }

    fn target(&self) -> Field {
        Field::below(self.vocabulary, [self.context])
    }

    fn forward(&self, net: &mut Net, inputs: &[ValueId]) -> Result<Head, GraphError> {
        let [table, tokens] = embed(net, "tokens", self.vocabulary, self.width, inputs[0])?;
        let positions = [self.context, self.width];
        let positions = net.scope("positions", |net| net.parameter("table", positions, Init::Normal(0.02)));
        let mut h = net.add(tokens, positions)?;
        let gelu = if self.gpt2 { Activation::GeluTanh } else { Activation::Gelu };
        let mut attention = MultiHeadAttention::new(self.heads).causal();
        if let Some(key_heads) = self.key_heads {
            attention = attention.key_heads(key_heads);
        }
        if let Some(window) = self.window {
            attention = attention.window(window);
        }
        let block = TransformerBlock::new(attention).activation(gelu);
        for i in 1..=self.layers {
            h = net.scope(&format!("block{i}"), |net| block.forward(net, h))?;
        }
        let h = net.scope("norm", |net| LayerNorm::new().forward(net, h))?;
        if self.gpt2 {
            let features = feature_rows(net, h)?;
            return Ok(Head::Linear { features, kernel: table, transposed: true });
        }
        head(net, h, self.vocabulary)
    }
}

/// BERT as a masked language model: a token for every position; positions with negative labels are ignored.
#[derive(Clone, Copy, Debug)]
pub struct Bert {
    /// Number of blocks.
    pub layers: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Attention heads.
    pub heads: usize,
    /// Positions of an example.
    pub context: usize,
    /// Rows of the position embedding; published with 512.
    pub positions: usize,
    /// Number of tokens.
    pub vocabulary: usize,
    /// Dropout probability.
    pub dropout: f64,
}

impl Default for Bert {
    /// BERT-Tiny (Turc et al. 2019), one segment, without the bias of its decoder.
    fn default() -> Self {
        Self {
            layers: 2,
            width: 128,
            heads: 2,
            context: 128,
            positions: 512,
            vocabulary: 30522,
            dropout: 0.1,
        }
    }
}

impl Model for Bert {
    fn name(&self) -> &str {
        "bert_tiny"
    }

    fn inputs(&self) -> Vec<Field> {
        vec![Field::below(self.vocabulary, [self.context])]
    }

    fn target(&self) -> Field {
        Field::below(self.vocabulary, [self.context])
    }

    fn forward(&self, net: &mut Net, inputs: &[ValueId]) -> Result<Head, GraphError> {
        let (width, eps) = (self.width, 1e-12);
        let (table, h) = net.scope("embeddings", |net| {
            let [table, tokens] = embed(net, "tokens", self.vocabulary, width, inputs[0])?;
            let init = Init::Normal(0.02);
            let positions =
                net.scope("positions", |net| net.parameter("table", [self.positions, width], init));
            let segments = net.scope("segments", |net| net.parameter("table", [2, width], init));
            let positions = net.slice(positions, 0, 0..self.context)?;
            let segment = net.slice(segments, 0, 0..1)?;
            let h = net.add(tokens, positions)?;
            let h = net.add(h, segment)?;
            let h = net.scope("norm", |net| LayerNorm::new().eps(eps).forward(net, h))?;
            Ok::<_, GraphError>((table, Dropout::new(self.dropout).forward(net, h)?))
        })?;
        let attention = MultiHeadAttention::new(self.heads);
        let block = TransformerBlock::new(attention).norm(NormPlace::After).eps(eps).dropout(self.dropout);
        let mut h = h;
        for i in 1..=self.layers {
            h = net.scope(&format!("block{i}"), |net| block.forward(net, h))?;
        }
        let h = net.scope("head", |net| {
            let dense = Dense::new(width).init(Init::Normal(0.02));
            let h = net.scope("dense", |net| dense.forward(net, h))?;
            let h = Activation::Gelu.forward(net, h)?;
            net.scope("norm", |net| LayerNorm::new().eps(eps).forward(net, h))
        })?;
        let features = feature_rows(net, h)?;
        Ok(Head::Linear { features, kernel: table, transposed: true })
    }
}

/// A character-level recurrent language model.
#[derive(Clone, Copy, Debug)]
pub struct CharLstm {
    /// Stacked LSTM layers.
    pub layers: usize,
    /// Units of each, and width of the embedding.
    pub width: usize,
    /// Positions of an example.
    pub context: usize,
    /// Number of characters.
    pub vocabulary: usize,
}

impl Default for CharLstm {
    fn default() -> Self {
        Self { layers: 2, width: 256, context: 64, vocabulary: 256 }
    }
}

impl Model for CharLstm {
    fn name(&self) -> &str {
        "lstm"
    }

    fn inputs(&self) -> Vec<Field> {
        vec![Field::below(self.vocabulary, [self.context])]
    }

    fn target(&self) -> Field {
        Field::below(self.vocabulary, [self.context])
    }

    fn forward(&self, net: &mut Net, inputs: &[ValueId]) -> Result<Head, GraphError> {
        let tokens = Embedding::new(self.vocabulary, self.width);
        let mut h = net.scope("tokens", |net| tokens.forward(net, inputs[0]))?;
        for i in 1..=self.layers {
            h = net.scope(&format!("lstm{i}"), |net| Lstm::new(self.width).all().forward(net, h))?;
        }
        head(net, h, self.vocabulary)
    }
}

/// GRU encoder and decoder: the decoder starts from the encoder's last state and attends to all of its states (Luong et al.
/// 2015).
///
/// Inputs are the source and the target shifted by one; labels are the target.
#[derive(Clone, Copy, Debug)]
pub struct Seq2Seq {
    /// Units of both GRUs, and width of the embeddings.
    pub width: usize,
    /// Positions of the source.
    pub source: usize,
    /// Positions of the target.
    pub target: usize,
    /// Number of tokens, the same for both.
    pub vocabulary: usize,
}

impl Default for Seq2Seq {
    fn default() -> Self {
        Self { width: 256, source: 32, target: 32, vocabulary: 4096 }
    }
}

impl Model for Seq2Seq {
    fn name(&self) -> &str {
        "seq2seq"
    }

    fn inputs(&self) -> Vec<Field> {
        vec![Field::below(self.vocabulary, [self.source]), Field::below(self.vocabulary, [self.target])]
    }

    fn target(&self) -> Field {
        Field::below(self.vocabulary, [self.target])
    }

    fn forward(&self, net: &mut Net, inputs: &[ValueId]) -> Result<Head, GraphError> {
        let (width, gru) = (self.width, Gru::new(self.width));
        let tokens = Embedding::new(self.vocabulary, width);
        let (memory, last) = net.scope("encoder", |net| {
            let x = net.scope("tokens", |net| tokens.forward(net, inputs[0]))?;
            net.scope("gru", |net| gru.run(net, x, None, false))
        })?;
        net.scope("decoder", |net| {
            let x = net.scope("tokens", |net| tokens.forward(net, inputs[1]))?;
            let (states, _) = net.scope("gru", |net| gru.run(net, x, Some(last), false))?;
            let context = net.scope("attention", |net| self.attend(net, states, memory))?;
            let both = net.concat(&[states, context], 2)?;
            let h = net.scope("combine", |net| Dense::new(width).forward(net, both))?;
            let h = net.tanh(h)?;
            head(net, h, self.vocabulary)
        })
    }
}

impl Seq2Seq {
    /// Dot-product attention of the decoder's states to the encoder's.
    fn attend(&self, net: &mut Net, states: ValueId, memory: ValueId) -> Result<ValueId, GraphError> {
        let [n, positions, width] = net.sequence("attention", states)?;
        let query = net.reshape(states, [n, positions, 1, width])?;
        let [_, keys, _] = net.sequence("attention", memory)?;
        let memory = net.reshape(memory, [n, keys, 1, width])?;
        let context = net.attention([query, memory, memory], None, false)?;
        net.reshape(context, [n, positions, width])
    }
}
