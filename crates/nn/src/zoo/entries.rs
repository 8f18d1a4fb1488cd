//! The list of zoo models.

use super::{Bert, CharLstm, Gpt, Seq2Seq, Vit, ZooEntry, ZooOptions};
use super::{
    autoencoder_of, densenet121_of, efficientnet_b0_of, lenet_of, mlp_of, mobilenet_v2_of, resnet18_of,
    resnet20_of, resnet50_of, vgg16_of,
};

/// No option set: every model as published.
pub(super) const NONE: ZooOptions = ZooOptions {
    classes: None,
    image: None,
    channels: None,
    context: None,
    layers: None,
    width: None,
    heads: None,
    key_heads: None,
    window: None,
    dropout: None,
    features: None,
};

const PHOTO: &[&str] = &["classes", "image", "channels", "width"];
const PHOTO_DROPOUT: &[&str] = &["classes", "image", "channels", "width", "dropout"];
const TEXT: &[&str] = &["classes", "context", "layers", "width", "heads", "key_heads", "window"];

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
                // Small images get small patches.
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
