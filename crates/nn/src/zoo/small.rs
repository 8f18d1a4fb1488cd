//! Small models for digits and small images.

use super::blocks::{conv, conv_norm};
use crate::{
    Activation, BatchNorm, Conv2d, ConvTranspose2d, Dense, Flatten, GlobalAveragePool, Layer, MaxPool2d, Net,
    Padding, Reshape, Sequential,
};
use plimsoll_graph::{GraphError, ValueId};

/// Two hidden layers of 2048 for 28×28 images: 784-2048-2048-10.
pub fn mlp() -> Sequential {
    mlp_of(&[28, 28, 1], &[2048, 2048], 10)
}

/// A multilayer perceptron with relu; its layers are `dense1`, `dense2`, ….
pub fn mlp_of(input: &[usize], hidden: &[usize], classes: usize) -> Sequential {
    let mut model = Sequential::classifier(input, classes).named("mlp");
    if input.len() > 1 {
        model = model.layer("flatten", Flatten);
    }
    for (i, &units) in hidden.iter().enumerate() {
        model = model.layer(format!("dense{}", i + 1), Dense::new(units));
        model = model.layer(format!("relu{}", i + 1), Activation::Relu);
    }
    model.layer(format!("dense{}", hidden.len() + 1), Dense::new(classes))
}

/// LeNet-5 for 28×28 images, with relu and max pooling as it is used today.
pub fn lenet() -> Sequential {
    lenet_of([28, 28, 1], 10)
}

/// LeNet-5 for images of another size.
pub fn lenet_of(input: [usize; 3], classes: usize) -> Sequential {
    Sequential::classifier(input, classes)
        .named("lenet")
        .layer("conv1", Conv2d::new(6, 5).padding(Padding::Around(2)))
        .layer("relu1", Activation::Relu)
        .layer("pool1", MaxPool2d::new(2))
        .layer("conv2", Conv2d::new(16, 5).padding(Padding::Valid))
        .layer("relu2", Activation::Relu)
        .layer("pool2", MaxPool2d::new(2))
        .layer("flatten", Flatten)
        .layer("dense1", Dense::new(120))
        .layer("relu3", Activation::Relu)
        .layer("dense2", Dense::new(84))
        .layer("relu4", Activation::Relu)
        .layer("dense3", Dense::new(classes))
}

/// ResNet-20 for 32×32 colour images (He et al. 2015), with projection shortcuts.
pub fn resnet20() -> Sequential {
    resnet20_of([32, 32, 3], 10)
}

/// ResNet-20 for images of another size.
pub fn resnet20_of(input: [usize; 3], classes: usize) -> Sequential {
    let mut model = Sequential::classifier(input, classes)
        .named("resnet20")
        .layer("conv", conv(16, 3, 1))
        .layer("norm", BatchNorm::new())
        .layer("relu", Activation::Relu);
    for (stage, channels) in [16, 32, 64].into_iter().enumerate() {
        for block in 0..3 {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            let name = format!("stage{}/block{}", stage + 1, block + 1);
            model = model.layer(&name, ResidualBlock { channels, stride });
        }
    }
    model.layer("pool", GlobalAveragePool).layer("head", Dense::new(classes))
}

/// Two 3×3 convolutions with batch norm, and a shortcut.
struct ResidualBlock {
    channels: usize,
    stride: usize,
}

impl Layer for ResidualBlock {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let (channels, stride) = (self.channels, self.stride);
        let relu = Some(Activation::Relu);
        let y = conv_norm(net, ["conv1", "norm1"], x, conv(channels, 3, stride), relu)?;
        let y = conv_norm(net, ["conv2", "norm2"], y, conv(channels, 3, 1), None)?;
        let shortcut = if net.shape(x) == net.shape(y) {
            x
        } else {
            conv_norm(net, ["shortcut", "shortcut_norm"], x, conv(channels, 1, stride), None)?
        };
        let sum = net.add(y, shortcut)?;
        net.relu(sum)
    }
}

/// A convolutional autoencoder: two stride-2 convolutions down to `code` numbers and back; the target is the input.
pub fn autoencoder_of([height, width, channels]: [usize; 3], code: usize) -> Sequential {
    let small = [height.div_ceil(4), width.div_ceil(4)];
    let input = [height, width, channels];
    Sequential::regression(input, input)
        .named("autoencoder")
        .layer("conv1", Conv2d::new(16, 3).stride(2))
        .layer("relu1", Activation::Relu)
        .layer("conv2", Conv2d::new(32, 3).stride(2))
        .layer("relu2", Activation::Relu)
        .layer("flatten", Flatten)
        .layer("code", Dense::new(code))
        .layer("spread", Dense::new(small[0] * small[1] * 32))
        .layer("relu3", Activation::Relu)
        .layer("image", Reshape::new([small[0], small[1], 32]))
        .layer("up1", ConvTranspose2d::new(16, 3).stride(2))
        .layer("relu4", Activation::Relu)
        .layer("up2", ConvTranspose2d::new(channels, 3).stride(2))
}
