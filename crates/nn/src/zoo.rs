//! The models that come with the library.

use crate::{
    Activation, BatchNorm, Conv2d, Dense, Embedding, Flatten, GlobalAveragePool, Head, Layer, LayerNorm,
    MaxPool2d, Model, Net, Padding, SelfAttention, Sequential,
};
use plimsoll_graph::{GraphError, Init, ValueId};
use plimsoll_tensor::{DType, Shape, TensorType};

/// Two hidden layers of 2048 for 28×28 images: 784-2048-2048-10.
pub fn mlp() -> Sequential {
    mlp_of(&[28, 28, 1], &[2048, 2048], 10)
}

/// A perceptron with relu between its layers, named `dense1`, `dense2`, ….
pub fn mlp_of(input: &[usize], hidden: &[usize], classes: usize) -> Sequential {
    let mut model = Sequential::classifier("mlp", input, classes);
    if input.len() > 1 {
        model = model.layer("flatten", Flatten);
    }
    for (i, &units) in hidden.iter().enumerate() {
        model = model.layer(&format!("dense{}", i + 1), Dense::new(units));
        model = model.layer(&format!("relu{}", i + 1), Activation::Relu);
    }
    model.layer(&format!("dense{}", hidden.len() + 1), Dense::new(classes))
}

/// LeNet-5 for 28×28 images, with relu and max pooling as it is used today.
pub fn lenet() -> Sequential {
    lenet_of([28, 28, 1], 10)
}

/// LeNet-5 for images of another size.
pub fn lenet_of(input: [usize; 3], classes: usize) -> Sequential {
    Sequential::classifier("lenet", input, classes)
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
    let mut model = Sequential::classifier("resnet20", input, classes)
        .layer("conv", Conv2d::new(16, 3).padding(Padding::Around(1)).without_bias())
        .layer("norm", BatchNorm::default())
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

/// Two 3×3 convolutions with batch norm around a shortcut.
struct ResidualBlock {
    channels: usize,
    stride: usize,
}

impl ResidualBlock {
    fn conv(
        &self,
        net: &mut Net,
        names: [&str; 2],
        x: ValueId,
        window: usize,
        stride: usize,
    ) -> Result<ValueId, GraphError> {
        let conv = Conv2d::new(self.channels, window)
            .stride(stride)
            .padding(Padding::Around(window / 2))
            .without_bias();
        let y = net.scope(names[0], |net| conv.forward(net, x))?;
        net.scope(names[1], |net| BatchNorm::default().forward(net, y))
    }
}

impl Layer for ResidualBlock {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let y = self.conv(net, ["conv1", "norm1"], x, 3, self.stride)?;
        let y = Activation::Relu.forward(net, y)?;
        let y = self.conv(net, ["conv2", "norm2"], y, 3, 1)?;
        let changes = net.shape(x) != net.shape(y);
        let shortcut =
            if changes { self.conv(net, ["shortcut", "shortcut_norm"], x, 1, self.stride)? } else { x };
        let sum = net.add(y, shortcut)?;
        Activation::Relu.forward(net, sum)
    }
}

/// A decoder-only transformer with learned positions and an untied head.
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
}

impl Default for Gpt {
    fn default() -> Self {
        Self { layers: 4, width: 256, heads: 4, context: 256, vocabulary: 4096 }
    }
}

impl Gpt {
    fn block(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let y = net.scope("norm1", |net| LayerNorm::default().forward(net, x))?;
        let attention = SelfAttention { heads: self.heads, causal: true };
        let y = net.scope("attention", |net| attention.forward(net, y))?;
        let x = net.add(x, y)?;
        let y = net.scope("norm2", |net| LayerNorm::default().forward(net, x))?;
        let dense = |units| Dense::new(units).init(Init::Normal(0.02));
        let y = net.scope("mlp", |net| {
            let y = net.scope("up", |net| dense(4 * self.width).forward(net, y))?;
            let y = Activation::Gelu.forward(net, y)?;
            net.scope("down", |net| dense(self.width).forward(net, y))
        })?;
        net.add(x, y)
    }
}

impl Model for Gpt {
    fn name(&self) -> &str {
        "gpt"
    }

    fn input(&self) -> TensorType {
        TensorType::new(DType::I32, [self.context])
    }

    fn input_bound(&self) -> Option<usize> {
        Some(self.vocabulary)
    }

    fn labels(&self) -> Shape {
        Shape::from([self.context])
    }

    fn classes(&self) -> usize {
        self.vocabulary
    }

    fn forward(&self, net: &mut Net, x: ValueId) -> Result<Head, GraphError> {
        let tokens = Embedding { rows: self.vocabulary, width: self.width };
        let tokens = net.scope("tokens", |net| tokens.forward(net, x))?;
        let table = [self.context, self.width];
        let positions = net.scope("positions", |net| net.parameter("table", table, Init::Normal(0.02)));
        let mut h = net.add(tokens, positions)?;
        for i in 1..=self.layers {
            h = net.scope(&format!("block{i}"), |net| self.block(net, h))?;
        }
        let h = net.scope("norm", |net| LayerNorm::default().forward(net, h))?;
        let rows = net.shape(h).elements() / self.width.max(1);
        let features = net.reshape(h, [rows, self.width])?;
        let kernel = [self.width, self.vocabulary];
        let kernel = net.scope("head", |net| net.parameter("kernel", kernel, Init::Normal(0.02)));
        Ok(Head::Linear { features, kernel })
    }
}

/// A model of the zoo, for listings and for the command line.
pub struct ZooEntry {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub description: &'static str,
    /// Makes it; the options apply where a model has them.
    pub make: fn(&ZooOptions) -> Box<dyn Model>,
}

/// What can be chosen about a zoo model.
#[derive(Clone, Copy, Debug, Default)]
pub struct ZooOptions {
    /// Classes, or tokens of a language model; the model's own number if `None`.
    pub classes: Option<usize>,
    /// Positions of a language model.
    pub context: Option<usize>,
    /// Blocks of a language model.
    pub layers: Option<usize>,
    /// Width of a language model.
    pub width: Option<usize>,
    /// Attention heads of a language model.
    pub heads: Option<usize>,
}

/// Every model of the zoo.
pub const ZOO: [ZooEntry; 4] = [
    ZooEntry {
        name: "mlp",
        description: "perceptron 784-2048-2048-10 for 28×28 digits",
        make: |o| Box::new(mlp_of(&[28, 28, 1], &[2048, 2048], o.classes.unwrap_or(10))),
    },
    ZooEntry {
        name: "lenet",
        description: "LeNet-5 for 28×28 digits",
        make: |o| Box::new(lenet_of([28, 28, 1], o.classes.unwrap_or(10))),
    },
    ZooEntry {
        name: "resnet20",
        description: "ResNet-20 for 32×32 colour images",
        make: |o| Box::new(resnet20_of([32, 32, 3], o.classes.unwrap_or(10))),
    },
    ZooEntry {
        name: "gpt",
        description: "decoder-only transformer, 4 layers of width 256",
        make: |o| {
            let d = Gpt::default();
            Box::new(Gpt {
                layers: o.layers.unwrap_or(d.layers),
                width: o.width.unwrap_or(d.width),
                heads: o.heads.unwrap_or(d.heads),
                context: o.context.unwrap_or(d.context),
                vocabulary: o.classes.unwrap_or(d.vocabulary),
            })
        },
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AdamW, step};
    use plimsoll_graph::op::{Conv, Elementwise, Unary};
    use plimsoll_graph::{Op, Role};

    fn parameters(model: &dyn Model) -> usize {
        step::prediction(model, 2).unwrap().parameter_count()
    }

    /// Counts as published, or as PyTorch counts the same layers.
    #[test]
    fn parameter_counts_are_the_published_ones() {
        assert_eq!(parameters(&mlp()), 784 * 2048 + 2048 + 2048 * 2048 + 2048 + 2048 * 10 + 10);
        assert_eq!(parameters(&lenet()), 61_706);
        assert_eq!(parameters(&resnet20()), 272_474);
        assert_eq!(parameters(&Gpt::default()), 5_322_240);
    }

    #[test]
    fn every_zoo_model_makes_all_its_steps() {
        for entry in &ZOO {
            let model = (entry.make)(&ZooOptions::default());
            assert_eq!(model.name(), entry.name);
            let train = step::training(model.as_ref(), &AdamW::new(1e-3), 4).unwrap();
            let small = plimsoll_transform::optimize(&train, &[]).unwrap();
            assert!(small.nodes.len() < train.nodes.len());
            for graph in [train, small, step::evaluation(model.as_ref(), 3).unwrap()] {
                assert_eq!(plimsoll_graph::parse(&graph.to_string()).unwrap(), graph, "{}", entry.name);
            }
        }
    }

    fn lean(model: &dyn Model) -> plimsoll_graph::Graph {
        plimsoll_transform::optimize(&step::training(model, &AdamW::new(1e-3), 4).unwrap(), &[]).unwrap()
    }

    #[test]
    fn bias_and_relu_end_in_the_product_before_them() {
        let graph = lean(&lenet());
        let with_epilogue = |n: &&plimsoll_graph::Node| match &n.op {
            Op::MatMul(op) => op.epilogue.bias,
            Op::Conv(Conv::Forward { epilogue, .. }) => epilogue.bias && epilogue.relu,
            _ => false,
        };
        assert_eq!(graph.nodes.iter().filter(with_epilogue).count(), 5);
        let alone =
            |n: &&plimsoll_graph::Node| matches!(n.op, Op::Elementwise(Elementwise::Unary(Unary::Relu)));
        assert_eq!(graph.nodes.iter().filter(alone).count(), 0);
    }

    #[test]
    fn a_relu_before_a_pool_keeps_a_byte_for_each_element() {
        let graph = lean(&lenet());
        let loss = graph.producer(graph.output("loss").unwrap()).unwrap();
        let masks = graph.value_ids().filter(|&v| graph.ty(v).dtype == DType::Bool);
        let early: Vec<_> = masks.filter(|&v| graph.producer(v).is_some_and(|p| p < loss)).collect();
        let shapes: Vec<_> = early.iter().map(|&v| graph.ty(v).to_string()).collect();
        assert_eq!(shapes, ["bool[4,28,28,6]", "bool[4,10,10,16]"]);
    }

    #[test]
    fn each_update_is_one_pass_over_its_parameter() {
        let graph = lean(&lenet());
        let updates = graph.states.iter().filter(|s| s.role == Role::Parameter).map(|s| s.output.unwrap());
        for value in updates {
            let node = graph.node(graph.producer(value).unwrap());
            assert!(matches!(node.op, Op::Fused(_)) && node.outputs.len() == 3, "{}", node.layer);
        }
    }

    /// Norms and gelu are made again from what is kept; of a block only its products' results stay.
    #[test]
    fn a_transformer_block_keeps_ten_units() {
        let gpt = Gpt { layers: 3, ..Gpt::default() };
        let graph = lean(&gpt);
        let loss = graph.producer(graph.output("loss").unwrap()).unwrap();
        let unit = 4 * 256 * 256 * 4;
        let readers = graph.readers();
        let mut kept = 0;
        for value in graph.value_ids() {
            let in_block =
                graph.producer(value).is_some_and(|p| p < loss && graph.node(p).layer.starts_with("block2"));
            let is_view = graph.producer(value).is_some_and(|p| graph.node(p).op.is_view());
            // A view's readers read what it is a view of.
            let mut late = readers[value.index()].iter().any(|&r| r > loss);
            for &reader in &readers[value.index()] {
                let node = graph.node(reader);
                late |= node.op.is_view() && readers[node.outputs[0].index()].iter().any(|&r| r > loss);
            }
            if in_block && !is_view && late && graph.ty(value).bytes() >= unit {
                kept += graph.ty(value).bytes();
            }
        }
        // q, k, v, the attention's result, two sums of the residual stream, and four for the wide layer.
        assert_eq!(kept, 10 * unit);
    }
}
