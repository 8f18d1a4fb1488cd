//! The layers and losses under test.

use plimsoll_graph::{GraphError, ValueId};
use plimsoll_nn::{
    Activation, AdaptiveAveragePool2d, AveragePool2d, BatchNorm, Bidirectional, BinaryCrossEntropy, Conv1d,
    Conv2d, ConvTranspose2d, CosineDistance, CrossEntropy, Dense, DepthwiseConv2d, Dice, Embedding, Flatten,
    Focal, GlobalAveragePool, GlobalMaxPool, GroupNorm, Gru, Huber, KlDivergence, Layer, LayerNorm, Loss,
    Lstm, MaxPool2d, MeanAbsoluteError, MeanSquaredError, Mlp, MultiHeadAttention, Net, NormPlace, Padding,
    Permute, Reshape, Residual, ResizeMode, RmsNorm, SeparableConv2d, SimpleRnn, SoftCrossEntropy,
    TransformerBlock, Upsample,
};

/// Adds a layer to a net that has its inputs.
pub type BuildLayer = Box<dyn Fn(&mut Net, &[ValueId]) -> Result<ValueId, GraphError>>;

fn of(layer: impl Layer + 'static) -> BuildLayer {
    Box::new(move |net, inputs| layer.forward(net, inputs[0]))
}

fn activations() -> Vec<(&'static str, BuildLayer)> {
    use Activation as A;
    vec![
        ("activation/relu", of(A::Relu)),
        ("activation/relu6", of(A::Relu6)),
        ("activation/leaky_relu", of(A::LeakyRelu(0.1))),
        ("activation/elu", of(A::Elu(0.7))),
        ("activation/gelu", of(A::Gelu)),
        ("activation/gelu_tanh", of(A::GeluTanh)),
        ("activation/silu", of(A::Silu)),
        ("activation/mish", of(A::Mish)),
        ("activation/hard_swish", of(A::HardSwish)),
        ("activation/hard_sigmoid", of(A::HardSigmoid)),
        ("activation/tanh", of(A::Tanh)),
        ("activation/sigmoid", of(A::Sigmoid)),
        ("activation/softplus", of(A::Softplus)),
        ("activation/softmax", of(A::Softmax)),
        ("activation/log_softmax", of(A::LogSoftmax)),
    ]
}

fn products() -> Vec<(&'static str, BuildLayer)> {
    let line = || Conv1d::new(2, 4);
    let transposed = |window, padding| ConvTranspose2d::new(2, window).padding(padding);
    vec![
        ("dense/bias", of(Dense::new(5))),
        ("dense/plain", of(Dense::new(5).without_bias())),
        ("embedding", of(Embedding::new(5, 3))),
        ("conv1d/valid", of(line().padding(Padding::Valid))),
        ("conv1d/same", of(line())),
        ("conv1d/causal", of(line().causal())),
        ("conv1d/dilation", of(line().dilation(2))),
        ("conv1d/causal_dilation", of(line().causal().dilation(2))),
        ("conv1d/stride", of(line().stride(2))),
        ("conv1d/groups", of(line().groups(2))),
        ("conv2d/same", of(Conv2d::new(4, 3))),
        ("conv2d/valid", of(Conv2d::new(4, 3).window([3, 2]).padding(Padding::Valid))),
        ("conv2d/stride", of(Conv2d::new(4, 3).stride(2))),
        ("conv2d/dilation", of(Conv2d::new(4, 2).dilation(2))),
        ("conv2d/groups", of(Conv2d::new(4, 3).groups(2).padding(Padding::Around(1)))),
        ("conv2d/explicit", of(Conv2d::new(4, 3).padding(Padding::Explicit([[0, 2], [1, 0]])))),
        ("conv2d/plain", of(Conv2d::new(4, 1).without_bias())),
        ("depthwise_conv2d", of(DepthwiseConv2d::new(3).multiplier(2))),
        ("separable_conv2d", of(SeparableConv2d::new(3, 3).stride(2))),
        ("conv_transpose2d/valid", of(transposed(3, Padding::Valid))),
        ("conv_transpose2d/valid_stride", of(transposed(3, Padding::Valid).stride(2))),
        ("conv_transpose2d/same", of(transposed(3, Padding::Same))),
        ("conv_transpose2d/same_even", of(transposed(4, Padding::Same).stride(2))),
        ("conv_transpose2d/same_odd", of(transposed(3, Padding::Same).stride(2))),
        ("conv_transpose2d/same_window_below_stride", of(transposed(2, Padding::Same).stride(3))),
        ("conv_transpose2d/around", of(transposed(3, Padding::Around(1)).stride(2))),
        ("conv_transpose2d/explicit", of(transposed(3, Padding::Explicit([[1, 0], [2, 1]])).stride(2))),
    ]
}

fn images() -> Vec<(&'static str, BuildLayer)> {
    let upsample = |mode| of(Upsample::new(2).mode(mode));
    let average = || AveragePool2d::new(3).stride(2).padding(Padding::Around(1));
    vec![
        ("max_pool2d/valid", of(MaxPool2d::new(2))),
        ("max_pool2d/padded", of(MaxPool2d::new(3).stride(2).padding(Padding::Around(1)))),
        ("average_pool2d/valid", of(AveragePool2d::new(2))),
        ("average_pool2d/inside", of(average())),
        ("average_pool2d/all", of(average().count_padding())),
        ("adaptive_average_pool2d", of(AdaptiveAveragePool2d::new([3, 2]))),
        ("global_average_pool", of(GlobalAveragePool)),
        ("global_max_pool", of(GlobalMaxPool)),
        ("upsample/nearest", upsample(ResizeMode::Nearest)),
        ("upsample/bilinear", upsample(ResizeMode::Bilinear { align_corners: false })),
        ("upsample/aligned", upsample(ResizeMode::Bilinear { align_corners: true })),
        ("batch_norm/train", of(BatchNorm::new())),
        ("batch_norm/infer", of(BatchNorm::new())),
        ("layer_norm", of(LayerNorm::new())),
        ("rms_norm", of(RmsNorm::new())),
        ("group_norm/1", of(GroupNorm::new(1))),
        ("group_norm/2", of(GroupNorm::new(2))),
        ("group_norm/4", of(GroupNorm::new(4))),
        ("flatten", of(Flatten)),
        ("reshape", of(Reshape::new([4, 2]))),
        ("permute", of(Permute::new([2, 0, 1]))),
        ("residual", of(Residual::new(Dense::new(4)))),
    ]
}

fn sequences() -> Vec<(&'static str, BuildLayer)> {
    let heads = MultiHeadAttention::new;
    let block = || TransformerBlock::new(heads(2)).expansion(2);
    vec![
        ("attention/plain", of(heads(2))),
        ("attention/causal", of(heads(2).causal())),
        ("attention/mask", Box::new(|net, x| MultiHeadAttention::new(2).attend(net, x[0], x[0], Some(x[1])))),
        ("attention/cross", Box::new(|net, x| MultiHeadAttention::new(2).attend(net, x[0], x[1], None))),
        ("attention/grouped", of(heads(4).key_heads(2))),
        ("attention/rotary", of(heads(2).rotary(10_000.0))),
        ("attention/grouped_rotary_causal", of(heads(2).key_heads(1).rotary(10_000.0).causal())),
        ("mlp", of(Mlp::new(6).activation(Activation::Tanh))),
        ("transformer_block/before", of(block())),
        ("transformer_block/after", of(block().norm(NormPlace::After))),
        ("simple_rnn/last", of(SimpleRnn::new(2))),
        ("simple_rnn/all", of(SimpleRnn::new(2).all())),
        ("simple_rnn/bidirectional_last", of(Bidirectional::new(SimpleRnn::new(2)))),
        ("simple_rnn/bidirectional_all", of(Bidirectional::new(SimpleRnn::new(2).all()))),
        ("lstm/last", of(Lstm::new(2))),
        ("lstm/all", of(Lstm::new(2).all())),
        ("lstm/bidirectional_last", of(Bidirectional::new(Lstm::new(2)))),
        ("lstm/bidirectional_all", of(Bidirectional::new(Lstm::new(2).all()))),
        ("gru/last", of(Gru::new(2))),
        ("gru/all", of(Gru::new(2).all())),
        ("gru/bidirectional_last", of(Bidirectional::new(Gru::new(2)))),
        ("gru/bidirectional_all", of(Bidirectional::new(Gru::new(2).all()))),
    ]
}

/// Every layer, by the name of its golden case.
pub fn layers() -> Vec<(&'static str, BuildLayer)> {
    [activations(), products(), images(), sequences()].into_iter().flatten().collect()
}

/// Every loss, by the name of its golden case.
pub fn losses() -> Vec<(&'static str, Box<dyn Loss>)> {
    let entropy = CrossEntropy::default;
    let focal = |gamma| Box::new(Focal::new().gamma(gamma));
    vec![
        ("loss/cross_entropy/plain", Box::new(entropy())),
        ("loss/cross_entropy/plain_extreme", Box::new(entropy())),
        ("loss/cross_entropy/smoothing", Box::new(entropy().smoothing(0.1))),
        ("loss/cross_entropy/smoothing_extreme", Box::new(entropy().smoothing(0.1))),
        (
            "loss/cross_entropy/class_weights",
            Box::new(entropy().class_weights(vec![0.5, 2.0, 1.0, 0.25, 1.5])),
        ),
        ("loss/cross_entropy/ignore", Box::new(entropy())),
        ("loss/cross_entropy/ignore_smoothing", Box::new(entropy().smoothing(0.1))),
        ("loss/soft_cross_entropy", Box::new(SoftCrossEntropy)),
        ("loss/soft_cross_entropy_extreme", Box::new(SoftCrossEntropy)),
        ("loss/soft_cross_entropy/positions", Box::new(SoftCrossEntropy)),
        ("loss/soft_cross_entropy/positions_extreme", Box::new(SoftCrossEntropy)),
        ("loss/kl_divergence", Box::new(KlDivergence)),
        ("loss/kl_divergence_extreme", Box::new(KlDivergence)),
        ("loss/binary_cross_entropy", Box::new(BinaryCrossEntropy)),
        ("loss/binary_cross_entropy_extreme", Box::new(BinaryCrossEntropy)),
        ("loss/focal", focal(2.0)),
        ("loss/focal_extreme", focal(2.0)),
        ("loss/focal_half", focal(0.5)),
        ("loss/focal_half_extreme", focal(0.5)),
        ("loss/focal_zero", focal(0.0)),
        ("loss/focal_zero_extreme", focal(0.0)),
        ("loss/dice", Box::new(Dice::new())),
        ("loss/dice_extreme", Box::new(Dice::new())),
        ("loss/mean_squared_error", Box::new(MeanSquaredError)),
        ("loss/mean_absolute_error", Box::new(MeanAbsoluteError)),
        ("loss/huber", Box::new(Huber::new().delta(0.7))),
        ("loss/cosine_distance", Box::new(CosineDistance)),
    ]
}
