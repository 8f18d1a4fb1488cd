//! Image classifiers. Layers have torchvision's names (`layer1/0/conv1` for `layer1.0.conv1`), so that weights files
//! convert by spelling alone.

use super::blocks::{conv, conv_norm, divisible};
use crate::{
    Activation, AdaptiveAveragePool2d, AveragePool2d, BatchNorm, Conv2d, Dense, DepthwiseConv2d, Dropout,
    Flatten, GlobalAveragePool, Layer, MaxPool2d, Net, Padding, Sequential,
};
use plimsoll_graph::{GraphError, ValueId};

/// A residual block as in torchvision: two 3×3 convolutions, or a bottleneck.
struct ResidualBlock {
    channels: usize,
    stride: usize,
    bottleneck: bool,
}

impl Layer for ResidualBlock {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let (c, stride, relu) = (self.channels, self.stride, Some(Activation::Relu));
        let wide = if self.bottleneck { 4 * c } else { c };
        let y = if self.bottleneck {
            let y = conv_norm(net, ["conv1", "bn1"], x, conv(c, 1, 1), relu)?;
            let y = conv_norm(net, ["conv2", "bn2"], y, conv(c, 3, stride), relu)?;
            conv_norm(net, ["conv3", "bn3"], y, conv(wide, 1, 1), None)?
        } else {
            let y = conv_norm(net, ["conv1", "bn1"], x, conv(c, 3, stride), relu)?;
            conv_norm(net, ["conv2", "bn2"], y, conv(c, 3, 1), None)?
        };
        let shortcut = if net.shape(x) == net.shape(y) {
            x
        } else {
            conv_norm(net, ["downsample/0", "downsample/1"], x, conv(wide, 1, stride), None)?
        };
        let sum = net.add(y, shortcut)?;
        net.relu(sum)
    }
}

fn resnet(
    name: &str,
    image: [usize; 3],
    classes: usize,
    width: usize,
    blocks: [usize; 4],
    bottleneck: bool,
) -> Sequential {
    let mut model = Sequential::classifier(image, classes)
        .named(name)
        .layer("conv1", conv(width, 7, 2))
        .layer("bn1", BatchNorm::new())
        .layer("relu", Activation::Relu)
        .layer("maxpool", MaxPool2d::new(3).stride(2).padding(Padding::Around(1)));
    for (stage, count) in blocks.into_iter().enumerate() {
        for block in 0..count {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            let block = (format!("layer{}/{block}", stage + 1), width << stage);
            model = model.layer(&block.0, ResidualBlock { channels: block.1, stride, bottleneck });
        }
    }
    model.layer("avgpool", GlobalAveragePool).layer("fc", Dense::new(classes))
}

/// ResNet-18 (He et al. 2015); published with a width of 64.
pub fn resnet18_of(image: [usize; 3], classes: usize, width: usize) -> Sequential {
    resnet("resnet18", image, classes, width, [2, 2, 2, 2], false)
}

/// ResNet-50, with the stride in the 3×3 convolution; published with a width of 64.
pub fn resnet50_of(image: [usize; 3], classes: usize, width: usize) -> Sequential {
    resnet("resnet50", image, classes, width, [3, 4, 6, 3], true)
}

/// VGG-16 (Simonyan and Zisserman 2014); published with a width of 64 and a dropout of one half.
pub fn vgg16_of(image: [usize; 3], classes: usize, width: usize, dropout: f64) -> Sequential {
    let mut model = Sequential::classifier(image, classes).named("vgg16");
    let mut place = 0;
    for (stage, count) in [2, 2, 3, 3, 3].into_iter().enumerate() {
        for _ in 0..count {
            let channels = width << stage.min(3);
            let layer = Conv2d::new(channels, 3).padding(Padding::Around(1));
            model = model.layer(format!("features/{place}"), layer);
            model = model.layer(format!("features/{}", place + 1), Activation::Relu);
            place += 2;
        }
        model = model.layer(format!("features/{place}"), MaxPool2d::new(2));
        place += 1;
    }
    let hidden = 64 * width;
    model
        .layer("avgpool", AdaptiveAveragePool2d::new([7, 7]))
        .layer("flatten", Flatten)
        .layer("classifier/0", Dense::new(hidden))
        .layer("classifier/1", Activation::Relu)
        .layer("classifier/2", Dropout::new(dropout))
        .layer("classifier/3", Dense::new(hidden))
        .layer("classifier/4", Activation::Relu)
        .layer("classifier/5", Dropout::new(dropout))
        .layer("classifier/6", Dense::new(classes))
}

/// Expand, depthwise, project, with a shortcut where shapes allow (MobileNetV2).
struct InvertedResidual {
    channels: usize,
    stride: usize,
    expansion: usize,
}

impl Layer for InvertedResidual {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let [.., c] = net.image("inverted_residual", x)?;
        let relu6 = Some(Activation::Relu6);
        let mut y = x;
        let mut place = 0;
        if self.expansion != 1 {
            y = conv_norm(net, ["conv/0/0", "conv/0/1"], y, conv(c * self.expansion, 1, 1), relu6)?;
            place = 1;
        }
        let depthwise =
            DepthwiseConv2d::new(3).stride(self.stride).padding(Padding::Around(1)).without_bias();
        let name = |part: usize| format!("conv/{place}/{part}");
        y = conv_norm(net, [&name(0), &name(1)], y, depthwise, relu6)?;
        let name = |offset: usize| format!("conv/{}", place + offset);
        y = conv_norm(net, [&name(1), &name(2)], y, conv(self.channels, 1, 1), None)?;
        if net.shape(x) == net.shape(y) { net.add(x, y) } else { Ok(y) }
    }
}

/// A convolution, batch norm and an activation; the first two are named `0` and `1`.
struct ConvNorm {
    conv: Conv2d,
    activation: Activation,
}

impl Layer for ConvNorm {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        conv_norm(net, ["0", "1"], x, self.conv.clone(), Some(self.activation))
    }
}

/// MobileNetV2 (Sandler et al. 2018); published with a first width of 32 and a dropout of 0.2.
pub fn mobilenet_v2_of(image: [usize; 3], classes: usize, width: usize, dropout: f64) -> Sequential {
    // Expansion, channels, blocks, stride.
    const STAGES: [[usize; 4]; 7] = [
        [1, 16, 1, 1],
        [6, 24, 2, 2],
        [6, 32, 3, 2],
        [6, 64, 4, 2],
        [6, 96, 3, 1],
        [6, 160, 3, 2],
        [6, 320, 1, 1],
    ];
    let scaled = |channels: usize| divisible(channels * width / 32);
    let first = ConvNorm { conv: conv(scaled(32), 3, 2), activation: Activation::Relu6 };
    let mut model = Sequential::classifier(image, classes).named("mobilenet_v2").layer("features/0", first);
    let mut place = 1;
    for [expansion, channels, blocks, stride] in STAGES {
        for block in 0..blocks {
            let stride = if block == 0 { stride } else { 1 };
            let layer = InvertedResidual { channels: scaled(channels), stride, expansion };
            model = model.layer(format!("features/{place}"), layer);
            place += 1;
        }
    }
    let last = ConvNorm { conv: conv(scaled(1280).max(1280), 1, 1), activation: Activation::Relu6 };
    model
        .layer(format!("features/{place}"), last)
        .layer("avgpool", GlobalAveragePool)
        .layer("classifier/0", Dropout::new(dropout))
        .layer("classifier/1", Dense::new(classes))
}

/// EfficientNet's block: expand, depthwise, squeeze and excitation, project.
struct MbConv {
    channels: usize,
    window: usize,
    stride: usize,
    expansion: usize,
}

impl Layer for MbConv {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let [.., c] = net.image("mb_conv", x)?;
        let silu = Some(Activation::Silu);
        let wide = c * self.expansion;
        let (mut y, mut place) = (x, 0);
        let name = |place: usize, part: usize| format!("block/{place}/{part}");
        if self.expansion != 1 {
            y = conv_norm(net, [&name(place, 0), &name(place, 1)], y, conv(wide, 1, 1), silu)?;
            place += 1;
        }
        let around = Padding::Around(self.window / 2);
        let depthwise = DepthwiseConv2d::new(self.window).stride(self.stride).padding(around).without_bias();
        y = conv_norm(net, [&name(place, 0), &name(place, 1)], y, depthwise, silu)?;
        place += 1;
        y = net.scope(&format!("block/{place}"), |net| squeeze_excite(net, y, (c / 4).max(1)))?;
        place += 1;
        y = conv_norm(net, [&name(place, 0), &name(place, 1)], y, conv(self.channels, 1, 1), None)?;
        if net.shape(x) == net.shape(y) { net.add(x, y) } else { Ok(y) }
    }
}

/// Squeeze and excitation (Hu et al. 2017): gates every channel by a function of all channels' means.
fn squeeze_excite(net: &mut Net, x: ValueId, units: usize) -> Result<ValueId, GraphError> {
    let [n, _, _, c] = net.image("squeeze", x)?;
    let mean = GlobalAveragePool.forward(net, x)?;
    let mean = net.reshape(mean, [n, 1, 1, c])?;
    let y = net.scope("fc1", |net| Conv2d::new(units, 1).forward(net, mean))?;
    let y = Activation::Silu.forward(net, y)?;
    let y = net.scope("fc2", |net| Conv2d::new(c, 1).forward(net, y))?;
    let gate = net.sigmoid(y)?;
    net.mul(x, gate)
}

/// EfficientNet-B0 (Tan and Le 2019) without stochastic depth; published with a first width of 32 and a dropout of
/// 0.2.
pub fn efficientnet_b0_of(image: [usize; 3], classes: usize, width: usize, dropout: f64) -> Sequential {
    // Expansion, window, stride, channels, blocks.
    const STAGES: [[usize; 5]; 7] = [
        [1, 3, 1, 16, 1],
        [6, 3, 2, 24, 2],
        [6, 5, 2, 40, 2],
        [6, 3, 2, 80, 3],
        [6, 5, 1, 112, 3],
        [6, 5, 2, 192, 4],
        [6, 3, 1, 320, 1],
    ];
    let scaled = |channels: usize| divisible(channels * width / 32);
    let first = ConvNorm { conv: conv(scaled(32), 3, 2), activation: Activation::Silu };
    let mut model =
        Sequential::classifier(image, classes).named("efficientnet_b0").layer("features/0", first);
    for (stage, [expansion, window, stride, channels, blocks]) in STAGES.into_iter().enumerate() {
        for block in 0..blocks {
            let stride = if block == 0 { stride } else { 1 };
            let layer = MbConv { channels: scaled(channels), window, stride, expansion };
            model = model.layer(format!("features/{}/{block}", stage + 1), layer);
        }
    }
    let last = ConvNorm { conv: conv(scaled(320) * 4, 1, 1), activation: Activation::Silu };
    model
        .layer("features/8", last)
        .layer("avgpool", GlobalAveragePool)
        .layer("classifier/0", Dropout::new(dropout))
        .layer("classifier/1", Dense::new(classes))
}

/// Norm, relu, 1×1, norm, relu, 3×3; the result is concatenated to the input (DenseNet).
struct DenseLayer {
    growth: usize,
}

fn norm_relu(net: &mut Net, name: &str, x: ValueId) -> Result<ValueId, GraphError> {
    let y = net.scope(name, |net| BatchNorm::new().forward(net, x))?;
    net.relu(y)
}

impl Layer for DenseLayer {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let y = norm_relu(net, "norm1", x)?;
        let y = net.scope("conv1", |net| conv(4 * self.growth, 1, 1).forward(net, y))?;
        let y = norm_relu(net, "norm2", y)?;
        let y = net.scope("conv2", |net| conv(self.growth, 3, 1).forward(net, y))?;
        net.concat(&[x, y], 3)
    }
}

/// Halves channels, height and width (DenseNet).
struct Transition;

impl Layer for Transition {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let [.., c] = net.image("transition", x)?;
        let y = norm_relu(net, "norm", x)?;
        let y = net.scope("conv", |net| conv(c / 2, 1, 1).forward(net, y))?;
        AveragePool2d::new(2).forward(net, y)
    }
}

/// DenseNet-121 (Huang et al. 2016); published with a growth rate of 32.
pub fn densenet121_of(image: [usize; 3], classes: usize, growth: usize) -> Sequential {
    let mut model = Sequential::classifier(image, classes)
        .named("densenet121")
        .layer("features/conv0", conv(2 * growth, 7, 2))
        .layer("features/norm0", BatchNorm::new())
        .layer("features/relu0", Activation::Relu)
        .layer("features/pool0", MaxPool2d::new(3).stride(2).padding(Padding::Around(1)));
    for (block, layers) in [6, 12, 24, 16].into_iter().enumerate() {
        for layer in 1..=layers {
            let name = format!("features/denseblock{}/denselayer{layer}", block + 1);
            model = model.layer(&name, DenseLayer { growth });
        }
        if block < 3 {
            model = model.layer(format!("features/transition{}", block + 1), Transition);
        }
    }
    model
        .layer("features/norm5", BatchNorm::new())
        .layer("relu", Activation::Relu)
        .layer("avgpool", GlobalAveragePool)
        .layer("classifier", Dense::new(classes))
}
