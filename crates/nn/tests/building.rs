//! Names of layers, constructors, and expressions inside layers.

use plimsoll_graph::op::ResizeMode;
use plimsoll_graph::{Builder, GraphError, Init, ValueId};
use plimsoll_nn::*;
use plimsoll_tensor::DType;

/// The names of a model's parameters and statistics.
fn states(model: &dyn Model) -> Vec<String> {
    step::prediction(model, 2).unwrap().states.iter().map(|state| state.name.clone()).collect()
}

/// A learned gain.
struct MyGain<T>(T);

impl<T: Send + Sync> Layer for MyGain<T> {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let _ = &self.0;
        let gain = net.parameter("gain", [], Init::Ones);
        net.math([x, gain], |[x, gain]| x * gain)
    }
}

/// A layer that was called otherwise once.
struct Renamed;

impl Layer for Renamed {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        MyGain(()).forward(net, x)
    }
    fn kind(&self) -> String {
        "old_name".to_string()
    }
}

#[test]
fn layers_are_named_after_their_kind_and_numbered_from_the_second() {
    let model = Sequential::classifier([4], 2)
        .push(Dense::new(3).without_bias())
        .push(Relu)
        .push(MyGain("text"))
        .push(Dense::new(3).without_bias())
        .push(Relu)
        .push(MyGain(vec![0u8]))
        .push(Renamed)
        .push(Dense::new(2).without_bias());
    let wanted = [
        "dense/kernel",
        "my_gain/gain",
        "dense_1/kernel",
        "my_gain_1/gain",
        "old_name/gain",
        "dense_2/kernel",
    ];
    assert_eq!(states(&model), wanted);
    assert_eq!(Model::name(&model), "sequential");
    let graph = step::prediction(&model, 2).unwrap();
    let layers: Vec<&str> =
        graph.nodes.iter().map(|node| &*node.layer).filter(|l| l.starts_with("relu")).collect();
    assert_eq!(layers, ["relu", "relu_1"]);
}

#[test]
fn a_name_that_is_taken_is_passed_over() {
    let dense = || Dense::new(2).without_bias();
    let model = Sequential::classifier([2], 2)
        .layer("dense_1", dense())
        .push(dense())
        .push(dense())
        .layer(format!("he{}", "ad"), dense())
        .named("mine");
    assert_eq!(states(&model), ["dense_1/kernel", "dense/kernel", "dense_2/kernel", "head/kernel"]);
    assert_eq!(Model::name(&model), "mine");
    let twice = Sequential::classifier([2], 2).push(dense()).layer("dense", dense());
    let error = step::prediction(&twice, 2).unwrap_err().to_string();
    assert!(error.contains("dense/kernel"), "{error}");
}

#[test]
fn a_sequence_inside_another_has_names_of_its_own() {
    let block = || {
        Sequential::block().push(Dense::new(4).without_bias()).push(Tanh).push(Dense::new(4).without_bias())
    };
    let boxed: Box<dyn Layer> = Box::new(Dense::new(2).without_bias());
    let model = Sequential::classifier([4], 2)
        .push(block())
        .push(block())
        .push(block().named("last"))
        .push(Residual::new(block()))
        .push(boxed);
    let inside = |name: &str| [format!("{name}/dense/kernel"), format!("{name}/dense_1/kernel")];
    let wanted: Vec<String> =
        ["sequential", "sequential_1", "last", "residual"].into_iter().flat_map(inside).collect();
    assert_eq!(states(&model), [&wanted[..], &["dense/kernel".to_string()]].concat());
}

#[test]
fn a_block_is_no_model() {
    let block = Sequential::block().push(Dense::new(2)).named("part");
    let error = step::training(&block, &Sgd::new(0.1), 2).unwrap_err().to_string();
    assert!(
        error.contains("`part` is a block of a larger model") && error.contains("Sequential::classifier"),
        "{error}"
    );
}

#[test]
fn every_layer_has_a_kind() {
    let kinds: [(&dyn Layer, &str); 31] = [
        (&Conv1d::new(1, 1), "conv1d"),
        (&Conv2d::new(1, 1), "conv2d"),
        (&ConvTranspose2d::new(1, 1), "conv_transpose2d"),
        (&DepthwiseConv2d::new(1), "depthwise_conv2d"),
        (&SeparableConv2d::new(1, 1), "separable_conv2d"),
        (&Dense::new(1), "dense"),
        (&Embedding::new(1, 1), "embedding"),
        (&Dropout::new(0.5), "dropout"),
        (&SpatialDropout::new(0.5), "spatial_dropout"),
        (&GaussianNoise::new(0.5), "gaussian_noise"),
        (&BatchNorm::new(), "batch_norm"),
        (&LayerNorm::new(), "layer_norm"),
        (&RmsNorm::new(), "rms_norm"),
        (&GroupNorm::new(2), "group_norm"),
        (&MaxPool2d::new(2), "max_pool2d"),
        (&AveragePool2d::new(2), "average_pool2d"),
        (&AdaptiveAveragePool2d::new([1, 1]), "adaptive_average_pool2d"),
        (&GlobalAveragePool, "global_average_pool"),
        (&GlobalMaxPool, "global_max_pool"),
        (&Flatten, "flatten"),
        (&Reshape::new([1]), "reshape"),
        (&Permute::new([0]), "permute"),
        (&Upsample::new(2), "upsample"),
        (&Residual::new(Relu), "residual"),
        (&MultiHeadAttention::new(1), "multi_head_attention"),
        (&TransformerBlock::new(MultiHeadAttention::new(1)), "transformer_block"),
        (&Mlp::new(4), "mlp"),
        (&Bidirectional::new(Lstm::new(1)), "bidirectional"),
        (&Gru::new(1), "gru"),
        (&SimpleRnn::new(1), "simple_rnn"),
        (&Lstm::new(1), "lstm"),
    ];
    for (layer, kind) in kinds {
        assert_eq!(layer.kind(), kind);
    }
    let activations = [
        (Relu, "relu"),
        (Relu6, "relu6"),
        (LeakyRelu(0.1), "leaky_relu"),
        (Elu(1.0), "elu"),
        (Gelu, "gelu"),
        (GeluTanh, "gelu_tanh"),
        (Silu, "silu"),
        (Mish, "mish"),
        (HardSwish, "hard_swish"),
        (HardSigmoid, "hard_sigmoid"),
        (Tanh, "tanh"),
        (Sigmoid, "sigmoid"),
        (Softplus, "softplus"),
        (Softmax, "softmax"),
        (LogSoftmax, "log_softmax"),
    ];
    for (activation, kind) in activations {
        assert_eq!(activation.kind(), kind);
    }
}

/// The text of the graph that a layer makes of an input.
fn graph(layer: &dyn Layer, ty: &str) -> String {
    let mut builder = Builder::new(2, 1);
    let x = builder.batch_input("x", ty.parse().unwrap());
    let mut net = Net::new(builder, Mode::Train, DType::F32);
    layer.forward(&mut net, x).unwrap();
    net.into_builder().graph().to_string()
}

#[test]
fn methods_of_layers_change_their_graphs() {
    let norm = [
        ("LayerNorm", graph(&LayerNorm::new().eps(0.5), "f32[2,4]")),
        ("RmsNorm", graph(&RmsNorm::new().eps(0.5), "f32[2,4]")),
        ("GroupNorm", graph(&GroupNorm::new(2).eps(0.5), "f32[2,4]")),
        ("BatchNorm", graph(&BatchNorm::new().eps(0.5), "f32[2,4]")),
    ];
    for (name, graph) in norm {
        assert!(graph.contains("0.5"), "{name}: {graph}");
    }
    assert!(graph(&BatchNorm::new().momentum(0.25), "f32[2,4]").contains("0.75"));
    let table = graph(&Embedding::new(7, 3).init(Init::Uniform(0.125)), "i32[2,5]");
    assert!(table.contains("f32[7,3]") && table.contains("0.125"), "{table}");
    let bilinear = Upsample::new(3).mode(ResizeMode::Bilinear { align_corners: true });
    assert!(graph(&bilinear, "f32[2,4,4,1]").contains("bilinear"));
    assert!(graph(&Upsample::new(3), "f32[2,4,4,1]").contains("f32[2,12,12,1]"));
    assert!(graph(&Mlp::new(6).activation(Relu), "f32[2,4]").contains("relu"));
    assert!(graph(&Mlp::new(6), "f32[2,4]").contains("erf"));
}

/// The text of the training graph of a regression or classification with a loss.
fn training(loss: impl Loss + 'static, classes: bool) -> String {
    let model = if classes { Sequential::classifier([3], 4) } else { Sequential::regression([3], [4]) };
    let model = WithLoss::new(model.push(Dense::new(4)), loss);
    step::training(&model, &Sgd::new(0.1), 2).unwrap().to_string()
}

#[test]
fn methods_of_losses_change_their_graphs() {
    assert!(training(Huber::new().delta(0.375), false).contains("0.375"));
    assert_eq!(training(Huber::new(), false), training(Huber::default(), false));
    assert!(training(Focal::new().gamma(1.75), false).contains("1.75"));
    assert!(training(Focal::new().alpha(0.375), false).contains("0.625"));
    assert!(training(Dice::new().smooth(0.375), true).contains("0.375"));
    assert!(training(CrossEntropy::new().smoothing(0.25), true).contains("-0.75"));
    assert_eq!(CrossEntropy::new(), CrossEntropy::default());
}

/// The first error of an expression names the layer and the op; nothing after it hides it.
#[test]
fn an_error_inside_math_names_layer_and_op() {
    struct Wrong;
    impl Layer for Wrong {
        fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
            let other = net.parameter("other", [5], Init::Ones);
            net.math([x, other], |[x, other]| (x * other).exp().sum(&[9], false) + 1.0)
        }
    }
    let model = Sequential::classifier([4], 2).push(Dense::new(4)).push(Sequential::block().push(Wrong));
    let error = step::training(&model, &Sgd::new(0.1), 2).unwrap_err().to_string();
    let wanted = "layer `sequential/wrong`: mul(f32[2,4], f32[5]): [5] does not broadcast with [2,4]";
    assert_eq!(error, wanted);
}
