//! The models that come with the library.

mod small;
mod text;
mod unet;
mod vision;
mod vit;

pub use small::{autoencoder_of, lenet, lenet_of, mlp, mlp_of, resnet20, resnet20_of};
pub use text::{Bert, CharLstm, Gpt, Seq2Seq};
pub use unet::Unet;
pub use vision::{densenet121_of, efficientnet_b0_of, mobilenet_v2_of, resnet18_of, resnet50_of, vgg16_of};
pub use vit::Vit;

use crate::Model;

/// The multiple of eight nearest to a number of channels, not more than a tenth below it.
fn divisible(channels: usize) -> usize {
    let near = ((channels + 4) / 8 * 8).max(8);
    if near * 10 < channels * 9 { near + 8 } else { near }
}

/// A model of the zoo, for listings and for the command line.
pub struct ZooEntry {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub description: &'static str,
    /// The options that it has, by their names in [`ZooOptions`].
    pub options: &'static [&'static str],
    /// A batch to start with.
    pub batch: usize,
    /// Small sizes that keep the whole structure: for tests and first tries.
    pub small: ZooOptions,
    /// Whether batches can be split: nothing mixes examples, as batch norm does.
    pub splits: bool,
    /// Makes it; the options apply where a model has them.
    pub make: fn(&ZooOptions) -> Box<dyn Model>,
}

impl ZooEntry {
    /// Its own number of layers and its own width, where it has such options.
    pub fn own_layers_and_width(&self) -> (Option<usize>, Option<usize>) {
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

/// What can be chosen about a zoo model; the model's own number where it is `None`.
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
    /// Blocks of a transformer, or recurrences on top of each other.
    pub layers: Option<usize>,
    /// Width of a stream, or channels of the first convolution (densenet: its growth).
    pub width: Option<usize>,
    /// Attention heads.
    pub heads: Option<usize>,
    /// Share of activations that training drops.
    pub dropout: Option<f64>,
    /// Numbers of a row, where the input is no image.
    pub features: Option<usize>,
}

impl ZooOptions {
    /// An image with this side and so many channels unless chosen otherwise.
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

/// Every model as it was published.
const NONE: ZooOptions = ZooOptions {
    classes: None,
    image: None,
    channels: None,
    context: None,
    layers: None,
    width: None,
    heads: None,
    dropout: None,
    features: None,
};

const PHOTO: &[&str] = &["classes", "image", "channels", "width"];
const PHOTO_DROPOUT: &[&str] = &["classes", "image", "channels", "width", "dropout"];
const TEXT: &[&str] = &["classes", "context", "layers", "width", "heads"];

/// Every model of the zoo.
pub const ZOO: [ZooEntry; 18] = [
    ZooEntry {
        name: "mlp",
        description: "perceptron 784-2048-2048-10 for 28×28 digits, or for rows of numbers",
        options: &["classes", "image", "channels", "width", "features"],
        batch: 64,
        small: ZooOptions { image: Some(8), width: Some(40), ..NONE },
        splits: true,
        make: |o| {
            let width = o.width(2048);
            let input = o.features.map_or_else(|| o.image(28, 1).to_vec(), |features| vec![features]);
            Box::new(mlp_of(&input, &[width, width], o.classes(10)))
        },
    },
    ZooEntry {
        name: "lenet",
        description: "LeNet-5 for 28×28 digits",
        options: &["classes", "image", "channels"],
        batch: 64,
        small: ZooOptions { image: Some(12), ..NONE },
        splits: true,
        make: |o| Box::new(lenet_of(o.image(28, 1), o.classes(10))),
    },
    ZooEntry {
        name: "autoencoder",
        description: "convolutional autoencoder for 28×28 digits",
        options: &["image", "channels", "width"],
        batch: 64,
        small: ZooOptions { image: Some(12), width: Some(8), ..NONE },
        splits: true,
        make: |o| Box::new(autoencoder_of(o.image(28, 1), o.width(32))),
    },
    ZooEntry {
        name: "resnet20",
        description: "ResNet-20 for 32×32 colour images",
        options: &["classes", "image", "channels"],
        batch: 64,
        small: ZooOptions { image: Some(8), ..NONE },
        splits: false,
        make: |o| Box::new(resnet20_of(o.image(32, 3), o.classes(10))),
    },
    ZooEntry {
        name: "resnet18",
        description: "ResNet-18 for 224×224 colour images",
        options: PHOTO,
        batch: 32,
        small: ZooOptions { image: Some(32), width: Some(8), classes: Some(10), ..NONE },
        splits: false,
        make: |o| Box::new(resnet18_of(o.image(224, 3), o.classes(1000), o.width(64))),
    },
    ZooEntry {
        name: "resnet50",
        description: "ResNet-50 for 224×224 colour images",
        options: PHOTO,
        batch: 32,
        small: ZooOptions { image: Some(32), width: Some(8), classes: Some(10), ..NONE },
        splits: false,
        make: |o| Box::new(resnet50_of(o.image(224, 3), o.classes(1000), o.width(64))),
    },
    ZooEntry {
        name: "vgg16",
        description: "VGG-16 for 224×224 colour images",
        options: PHOTO_DROPOUT,
        batch: 16,
        small: ZooOptions { image: Some(32), width: Some(4), classes: Some(10), ..NONE },
        splits: true,
        make: |o| Box::new(vgg16_of(o.image(224, 3), o.classes(1000), o.width(64), o.dropout(0.5))),
    },
    ZooEntry {
        name: "mobilenet_v2",
        description: "MobileNetV2 for 224×224 colour images",
        options: PHOTO_DROPOUT,
        batch: 32,
        small: ZooOptions { image: Some(32), width: Some(8), classes: Some(10), ..NONE },
        splits: false,
        make: |o| Box::new(mobilenet_v2_of(o.image(224, 3), o.classes(1000), o.width(32), o.dropout(0.2))),
    },
    ZooEntry {
        name: "efficientnet_b0",
        description: "EfficientNet-B0 for 224×224 colour images",
        options: PHOTO_DROPOUT,
        batch: 32,
        small: ZooOptions { image: Some(32), width: Some(8), classes: Some(10), ..NONE },
        splits: false,
        make: |o| Box::new(efficientnet_b0_of(o.image(224, 3), o.classes(1000), o.width(32), o.dropout(0.2))),
    },
    ZooEntry {
        name: "densenet121",
        description: "DenseNet-121 for 224×224 colour images",
        options: PHOTO,
        batch: 32,
        small: ZooOptions { image: Some(32), width: Some(4), classes: Some(10), ..NONE },
        splits: false,
        make: |o| Box::new(densenet121_of(o.image(224, 3), o.classes(1000), o.width(32))),
    },
    ZooEntry {
        name: "unet",
        description: "U-Net with batch norm, a class per pixel of 128×128",
        options: PHOTO,
        batch: 8,
        small: ZooOptions { image: Some(16), width: Some(4), ..NONE },
        splits: false,
        make: |o| Box::new(o.unet(true)),
    },
    ZooEntry {
        name: "unet_plain",
        description: "U-Net without batch norm: its batches can be split",
        options: PHOTO,
        batch: 8,
        small: ZooOptions { image: Some(16), width: Some(4), ..NONE },
        splits: true,
        make: |o| Box::new(o.unet(false)),
    },
    ZooEntry {
        name: "vit_tiny",
        description: "ViT-Tiny, patches of 16, for 224×224 colour images",
        options: &["classes", "image", "channels", "layers", "width", "heads"],
        batch: 32,
        small: ZooOptions {
            image: Some(16),
            layers: Some(2),
            width: Some(24),
            heads: Some(3),
            classes: Some(10),
            ..NONE
        },
        splits: true,
        make: |o| {
            let d = Vit::default();
            let side = o.image.unwrap_or(d.image[0]);
            Box::new(Vit {
                image: o.image(d.image[0], 3),
                // Patches of small pictures are small.
                patch: if side < 64 { 4 } else { d.patch },
                classes: o.classes(d.classes),
                layers: o.layers.unwrap_or(d.layers),
                width: o.width(d.width),
                heads: o.heads.unwrap_or(d.heads),
            })
        },
    },
    ZooEntry {
        name: "gpt",
        description: "decoder-only transformer, 4 layers of width 256",
        options: TEXT,
        batch: 16,
        small: ZooOptions {
            context: Some(16),
            layers: Some(2),
            width: Some(32),
            heads: Some(2),
            classes: Some(50),
            ..NONE
        },
        splits: true,
        make: |o| Box::new(o.gpt(Gpt::default())),
    },
    ZooEntry {
        name: "gpt2",
        description: "GPT-2 of 124 million parameters, tied head",
        options: TEXT,
        batch: 4,
        small: ZooOptions {
            context: Some(16),
            layers: Some(2),
            width: Some(32),
            heads: Some(2),
            classes: Some(50),
            ..NONE
        },
        splits: true,
        make: |o| Box::new(o.gpt(Gpt::gpt2())),
    },
    ZooEntry {
        name: "bert_tiny",
        description: "BERT-Tiny as a masked language model",
        options: &["classes", "context", "layers", "width", "heads", "dropout"],
        batch: 32,
        small: ZooOptions { context: Some(16), width: Some(32), classes: Some(50), ..NONE },
        splits: true,
        make: |o| {
            let d = Bert::default();
            let context = o.context.unwrap_or(d.context);
            Box::new(Bert {
                layers: o.layers.unwrap_or(d.layers),
                width: o.width(d.width),
                heads: o.heads.unwrap_or(d.heads),
                context,
                positions: d.positions.max(context),
                vocabulary: o.classes(d.vocabulary),
                dropout: o.dropout(d.dropout),
            })
        },
    },
    ZooEntry {
        name: "lstm",
        description: "character model, 2 LSTMs of 256 units",
        options: &["classes", "context", "layers", "width"],
        batch: 32,
        small: ZooOptions { context: Some(8), width: Some(16), classes: Some(50), ..NONE },
        splits: true,
        make: |o| {
            let d = CharLstm::default();
            Box::new(CharLstm {
                layers: o.layers.unwrap_or(d.layers),
                width: o.width(d.width),
                context: o.context.unwrap_or(d.context),
                vocabulary: o.classes(d.vocabulary),
            })
        },
    },
    ZooEntry {
        name: "seq2seq",
        description: "GRU encoder and decoder with attention",
        options: &["classes", "context", "width"],
        batch: 32,
        small: ZooOptions { context: Some(6), width: Some(16), classes: Some(50), ..NONE },
        splits: true,
        make: |o| {
            let d = Seq2Seq::default();
            let context = o.context.unwrap_or(d.source);
            let (width, vocabulary) = (o.width(d.width), o.classes(d.vocabulary));
            Box::new(Seq2Seq { width, source: context, target: context, vocabulary })
        },
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AdamW, step};
    use plimsoll_graph::op::{Conv, Elementwise, Unary};
    use plimsoll_graph::{Op, Role};
    use plimsoll_tensor::DType;

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
        for (name, count) in [
            ("resnet18", 11_689_512),
            ("resnet50", 25_557_032),
            ("vgg16", 138_357_544),
            ("mobilenet_v2", 3_504_872),
            ("efficientnet_b0", 5_288_548),
            ("densenet121", 7_978_856),
            ("unet", 31_037_698),
            ("vit_tiny", 5_717_416),
            ("gpt2", 124_439_808),
            // BertForMaskedLM's 4 416 698 without the decoder's bias of 30 522.
            ("bert_tiny", 4_386_176),
        ] {
            let entry = ZOO.iter().find(|e| e.name == name).unwrap();
            assert_eq!(parameters((entry.make)(&ZooOptions::default()).as_ref()), count, "{name}");
        }
    }

    #[test]
    fn every_zoo_model_makes_all_its_steps() {
        for (entry, options) in ZOO.iter().flat_map(|entry| [(entry, NONE), (entry, entry.small)]) {
            let model = (entry.make)(&options);
            assert_eq!(model.name(), entry.name);
            let train = step::training(model.as_ref(), &AdamW::new(1e-3), 4).unwrap();
            let small = plimsoll_transform::optimize(train.clone(), &[]).unwrap();
            assert!(small.nodes.len() < train.nodes.len());
            for graph in [train, small, step::evaluation(model.as_ref(), 3, step::Report::Classes).unwrap()] {
                assert_eq!(plimsoll_graph::parse(&graph.to_string()).unwrap(), graph, "{}", entry.name);
            }
        }
    }

    #[test]
    fn own_sizes_are_what_the_zoo_builds_without_options() {
        for entry in &ZOO {
            let (layers, width) = entry.own_layers_and_width();
            for (name, own) in [("layers", layers), ("width", width)] {
                assert_eq!(own.is_some(), entry.options.contains(&name), "{}: {name}", entry.name);
            }
            let own = parameters((entry.make)(&ZooOptions { layers, width, ..NONE }).as_ref());
            assert_eq!(own, parameters((entry.make)(&NONE).as_ref()), "{}", entry.name);
        }
    }

    #[test]
    fn batches_split_where_the_zoo_says_so() {
        for entry in &ZOO {
            let model = (entry.make)(&entry.small);
            let block = step::example_block(model.as_ref());
            let graph = step::training(model.as_ref(), &AdamW::new(1e-3), block).unwrap();
            let split = plimsoll_transform::accumulate(&graph, 2);
            assert_eq!(split.is_ok(), entry.splits, "{}: {:?}", entry.name, split.err());
        }
    }

    fn lean(model: &dyn Model) -> plimsoll_graph::Graph {
        plimsoll_transform::optimize(step::training(model, &AdamW::new(1e-3), 4).unwrap(), &[]).unwrap()
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
