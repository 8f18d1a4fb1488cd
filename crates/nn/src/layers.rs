//! Layers: descriptions that add nodes and parameters to a [`Net`].

use crate::{Mode, Net};
use plimsoll_graph::op::{
    Attention, Binary, Conv, Epilogue, Geometry, Index, Norm, Pool, Unary, Windows, same_padding,
};
use plimsoll_graph::{GraphError, Init, Op, TypeError, ValueId};

/// Something that turns a value into another, with parameters of its own.
pub trait Layer: Send + Sync {
    /// Adds the layer to the net, inside its scope.
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError>;
}

/// An error in the current layer, for what an op's own type rule cannot say.
fn refuse(net: &Net, op: &'static str, x: ValueId, reason: String) -> GraphError {
    let layer = net.layer().to_string();
    GraphError::Type { layer, op, inputs: vec![net.ty(x).clone()], reason: TypeError(reason) }
}

fn last_extent(net: &Net, op: &'static str, x: ValueId) -> Result<usize, GraphError> {
    net.shape(x).last().copied().ok_or_else(|| refuse(net, op, x, "needs at least one axis".into()))
}

fn image(net: &Net, op: &'static str, x: ValueId) -> Result<[usize; 4], GraphError> {
    net.shape(x)[..]
        .try_into()
        .map_err(|_| refuse(net, op, x, "needs an image [examples, height, width, channels]".into()))
}

/// `y = x · kernel + bias` along the last axis.
#[derive(Clone, Debug)]
pub struct Dense {
    units: usize,
    bias: bool,
    init: Option<Init>,
}

impl Dense {
    /// A layer with this many outputs. The kernel starts uniform in ±√(6 / inputs) (He), the bias at zero.
    pub fn new(units: usize) -> Self {
        Self { units, bias: true, init: None }
    }

    /// The layer without a bias.
    pub fn without_bias(self) -> Self {
        Self { bias: false, ..self }
    }

    /// The layer with another start for its kernel.
    pub fn init(self, init: Init) -> Self {
        Self { init: Some(init), ..self }
    }

    /// The kernel's start for this many inputs.
    fn kernel_init(&self, inputs: usize) -> Init {
        self.init.unwrap_or(he_uniform(inputs))
    }
}

/// Uniform in ±√(6 / inputs): keeps the size of activations through relu layers.
fn he_uniform(inputs: usize) -> Init {
    Init::Uniform((6.0 / inputs.max(1) as f64).sqrt())
}

impl Layer for Dense {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let width = last_extent(net, "dense", x)?;
        let kernel = net.parameter("kernel", [width, self.units], self.kernel_init(width));
        let bias = self.bias.then(|| net.parameter("bias", [self.units], Init::Zeros));
        net.linear(x, kernel, bias)
    }
}

/// How a window treats the border of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padding {
    /// No padding.
    Valid,
    /// As much as gives `ceil(extent / stride)` outputs, the odd element after.
    Same,
    /// This much on every side.
    Around(usize),
}

fn geometry(padding: Padding, image: [usize; 2], window: usize, stride: usize) -> Geometry {
    let (window, stride) = ([window; 2], [stride; 2]);
    let padding = match padding {
        Padding::Valid => [[0; 2]; 2],
        Padding::Same => same_padding(image, window, stride.map(|s| s.max(1))),
        Padding::Around(p) => [[p; 2]; 2],
    };
    Geometry { window, stride, padding, dilation: [1, 1] }
}

/// 2-D convolution over NHWC images.
#[derive(Clone, Debug)]
pub struct Conv2d {
    channels: usize,
    window: usize,
    stride: usize,
    padding: Padding,
    bias: bool,
}

impl Conv2d {
    /// `channels` outputs from a square window; stride 1, same padding, a bias. The kernel starts He-uniform.
    pub fn new(channels: usize, window: usize) -> Self {
        Self { channels, window, stride: 1, padding: Padding::Same, bias: true }
    }

    /// The layer with another stride.
    pub fn stride(self, stride: usize) -> Self {
        Self { stride, ..self }
    }

    /// The layer with another padding.
    pub fn padding(self, padding: Padding) -> Self {
        Self { padding, ..self }
    }

    /// The layer without a bias.
    pub fn without_bias(self) -> Self {
        Self { bias: false, ..self }
    }
}

impl Layer for Conv2d {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let [_, h, w, c] = image(net, "conv2d", x)?;
        let fan_in = self.window * self.window * c;
        let kernel =
            net.parameter("kernel", [self.window, self.window, c, self.channels], he_uniform(fan_in));
        let geometry = geometry(self.padding, [h, w], self.window, self.stride);
        let y = net.one(
            Op::Conv(Conv::Forward { geometry, groups: 1, epilogue: Epilogue::default() }),
            &[x, kernel],
        )?;
        if !self.bias {
            return Ok(y);
        }
        let bias = net.parameter("bias", [self.channels], Init::Zeros);
        net.add(y, bias)
    }
}

/// The largest element of each window.
#[derive(Clone, Debug)]
pub struct MaxPool2d {
    window: usize,
    stride: usize,
    padding: Padding,
}

impl MaxPool2d {
    /// Windows side by side, without padding.
    pub fn new(window: usize) -> Self {
        Self { window, stride: window, padding: Padding::Valid }
    }

    /// The layer with another stride.
    pub fn stride(self, stride: usize) -> Self {
        Self { stride, ..self }
    }

    /// The layer with another padding.
    pub fn padding(self, padding: Padding) -> Self {
        Self { padding, ..self }
    }
}

impl Layer for MaxPool2d {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let [_, h, w, _] = image(net, "max_pool", x)?;
        let geometry = geometry(self.padding, [h, w], self.window, self.stride);
        net.one(Op::Pool(Pool::Max { windows: Windows::Sliding(geometry) }), &[x])
    }
}

/// The mean over an image's height and width.
#[derive(Clone, Copy, Debug)]
pub struct GlobalAveragePool;

impl Layer for GlobalAveragePool {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let [n, h, w, c] = image(net, "global_average_pool", x)?;
        let sum = net.sum(x, 1, 3)?;
        let flat = net.reshape(sum, [n, c])?;
        net.scale(flat, 1.0 / (h * w).max(1) as f64)
    }
}

/// All axes after the first as one.
#[derive(Clone, Copy, Debug)]
pub struct Flatten;

impl Layer for Flatten {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let shape = net.shape(x).clone();
        let Some((&examples, rest)) = shape.split_first() else {
            return Err(refuse(net, "flatten", x, "needs at least one axis".into()));
        };
        net.reshape(x, [examples, rest.iter().product()])
    }
}

/// A function applied to every element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// max(x, 0).
    Relu,
    /// x · Φ(x), exact.
    Gelu,
    /// Hyperbolic tangent.
    Tanh,
    /// 1 / (1 + exp(-x)).
    Sigmoid,
}

impl Layer for Activation {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        match self {
            Self::Relu => net.unary(Unary::Relu, x),
            Self::Tanh => net.unary(Unary::Tanh, x),
            Self::Sigmoid => net.unary(Unary::Sigmoid, x),
            Self::Gelu => {
                let scaled = net.scale(x, std::f64::consts::FRAC_1_SQRT_2)?;
                let erf = net.unary(Unary::Erf, scaled)?;
                let above = net.with_constant(Binary::Add, erf, 1.0)?;
                let half = net.scale(above, 0.5)?;
                net.mul(x, half)
            }
        }
    }
}

/// Layer norm over the last axis.
#[derive(Clone, Copy, Debug)]
pub struct LayerNorm {
    /// Added to the variance.
    pub eps: f64,
}

impl Default for LayerNorm {
    fn default() -> Self {
        Self { eps: 1e-5 }
    }
}

impl Layer for LayerNorm {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let width = last_extent(net, "layer_norm", x)?;
        let gain = net.parameter("gain", [width], Init::Ones);
        let bias = net.parameter("bias", [width], Init::Zeros);
        net.one(Op::Norm(Norm::Layer { eps: self.eps }), &[x, gain, bias])
    }
}

/// Batch norm over all axes but the last. Training uses the batch's statistics and moves the running ones towards
/// them by `momentum`; evaluation uses the running ones.
#[derive(Clone, Copy, Debug)]
pub struct BatchNorm {
    /// Added to the variance.
    pub eps: f64,
    /// Share of the new statistics in the running ones.
    pub momentum: f64,
}

impl Default for BatchNorm {
    fn default() -> Self {
        Self { eps: 1e-5, momentum: 0.1 }
    }
}

impl BatchNorm {
    /// `running · (1 - momentum) + new · momentum · factor`.
    fn moved(&self, net: &mut Net, running: ValueId, new: ValueId, factor: f64) -> Result<(), GraphError> {
        let old = net.scale(running, 1.0 - self.momentum)?;
        let share = net.scale(new, self.momentum * factor)?;
        let moved = net.add(old, share)?;
        net.set_state(running, moved);
        Ok(())
    }
}

impl Layer for BatchNorm {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let channels = last_extent(net, "batch_norm", x)?;
        let gain = net.parameter("gain", [channels], Init::Ones);
        let bias = net.parameter("bias", [channels], Init::Zeros);
        let mean = net.statistic("running_mean", [channels], Init::Zeros);
        let variance = net.statistic("running_variance", [channels], Init::Ones);
        if net.mode == Mode::Train {
            let outputs = net.node(Op::Norm(Norm::Batch { eps: self.eps }), &[x, gain, bias])?;
            // The running variance estimates the population's, hence n / (n - 1).
            let n = (net.shape(x).elements() / channels.max(1)) as f64;
            self.moved(net, mean, outputs[1], 1.0)?;
            self.moved(net, variance, outputs[2], n / (n - 1.0).max(1.0))?;
            return Ok(outputs[0]);
        }
        let shifted = net.with_constant(Binary::Add, variance, self.eps)?;
        let rstd = net.unary(Unary::Rsqrt, shifted)?;
        let centred = net.sub(x, mean)?;
        let normal = net.mul(centred, rstd)?;
        let scaled = net.mul(normal, gain)?;
        net.add(scaled, bias)
    }
}

/// A table of vectors looked up by i32 tokens.
#[derive(Clone, Copy, Debug)]
pub struct Embedding {
    /// Rows of the table: tokens are below it.
    pub rows: usize,
    /// Width of a vector.
    pub width: usize,
}

impl Layer for Embedding {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let table = net.parameter("table", [self.rows, self.width], Init::Normal(0.02));
        net.one(Op::Index(Index::Gather), &[table, x])
    }
}

/// Multi-head attention of a sequence `[examples, positions, width]` to itself.
#[derive(Clone, Copy, Debug)]
pub struct SelfAttention {
    /// Number of heads; the width must be a multiple of it.
    pub heads: usize,
    /// Whether a position sees only itself and those before it.
    pub causal: bool,
}

impl Layer for SelfAttention {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let [n, positions, width]: [usize; 3] = net.shape(x)[..]
            .try_into()
            .map_err(|_| refuse(net, "self_attention", x, "needs [examples, positions, width]".into()))?;
        if self.heads == 0 || width % self.heads != 0 {
            let reason = format!("a width of {width} does not split into {} heads", self.heads);
            return Err(refuse(net, "self_attention", x, reason));
        }
        let dense = Dense::new(width).init(Init::Normal(0.02));
        let mut head = |name: &str| {
            let y = net.scope(name, |net| dense.forward(net, x))?;
            net.reshape(y, [n, positions, self.heads, width / self.heads])
        };
        let (q, k, v) = (head("query")?, head("key")?, head("value")?);
        let y = net.one(Op::Attention(Attention::Forward { causal: self.causal }), &[q, k, v])?;
        let y = net.reshape(y, [n, positions, width])?;
        net.scope("output", |net| dense.forward(net, y))
    }
}
