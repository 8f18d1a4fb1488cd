//! Common mistakes: each is an error that names the layer, the shapes, and what to change.

use plimsoll_graph::op::{Binary, Reduce, Unary};
use plimsoll_graph::{Builder, GraphError, Init, Numerics, Op, Role, ValueId};
use plimsoll_nn::{
    Activation, AdaptiveAveragePool2d, AveragePool2d, BatchNorm, Bidirectional, Conv1d, Conv2d,
    ConvTranspose2d, CrossEntropy, Dense, DepthwiseConv2d, Dice, Dropout, Embedding, Flatten, GaussianNoise,
    GlobalAveragePool, GlobalMaxPool, GroupNorm, Gru, Layer, LayerNorm, Lstm, MaxPool2d, MeanSquaredError,
    Mlp, Mode, Model, MultiHeadAttention, Net, Padding, Permute, Reshape, Residual, RmsNorm, SeparableConv2d,
    Sequential, Sgd, SimpleRnn, SoftCrossEntropy, SpatialDropout, TransformerBlock, Upsample, WithLoss, step,
    zoo,
};
use plimsoll_tensor::{DType, TensorType};
use plimsoll_transform::gradient;

/// Checks that a layer named `odd` refuses a value of type `ty`; the error names the layer, the type and `words`.
fn refused(layer: &dyn Layer, ty: &str, words: &str) {
    let mut net = Net::new(Builder::new(2, 1), Mode::Train, DType::F32);
    let x = net.batch_input("x", ty.parse().unwrap());
    let error = match net.scope("odd", |net| layer.forward(net, x)) {
        Ok(y) => panic!("{ty} was accepted, expected {words:?}: {}", net.ty(y)),
        Err(error) => error.to_string(),
    };
    for word in ["layer `odd", ty, words] {
        assert!(error.contains(word), "no `{word}` in: {error}");
    }
}

const IMAGE: &str = "f32[2,8,8,3]";

#[test]
fn values_of_the_wrong_rank() {
    let images: [&dyn Layer; 9] = [
        &Conv2d::new(4, 3),
        &DepthwiseConv2d::new(3),
        &SeparableConv2d::new(4, 3),
        &ConvTranspose2d::new(4, 3),
        &MaxPool2d::new(2),
        &AveragePool2d::new(2),
        &GlobalAveragePool,
        &GlobalMaxPool,
        &Upsample::new(2),
    ];
    for layer in images {
        refused(layer, "f32[2,8,8]", "needs an image [examples, height, width, channels]");
    }
    refused(&AdaptiveAveragePool2d::new([2, 2]), "f32[2,8]", "the image must have 4 axes");
    let sequences: [&dyn Layer; 7] = [
        &Conv1d::new(4, 3),
        &MultiHeadAttention::new(2),
        &TransformerBlock::new(MultiHeadAttention::new(2)),
        &SimpleRnn::new(4),
        &Lstm::new(4),
        &Gru::new(4),
        &Bidirectional::new(Gru::new(4)),
    ];
    for layer in sequences {
        refused(layer, "f32[2,8]", "needs a sequence [examples, positions, width]");
    }
    // The last axis must not be the batch axis.
    let widths: [&dyn Layer; 9] = [
        &Dense::new(4),
        &BatchNorm::new(),
        &LayerNorm::new(),
        &RmsNorm::new(),
        &GroupNorm::new(1),
        &Mlp::new(4).activation(Activation::Relu),
        &SpatialDropout::new(0.5),
        &Activation::Softmax,
        &Activation::LogSoftmax,
    ];
    for layer in widths {
        refused(layer, "f32[2]", "needs [examples, .., width]");
        refused(layer, "f32[]", "needs [examples, .., width]");
    }
    refused(&Flatten, "f32[]", "needs at least one axis");
}

#[test]
fn values_of_the_wrong_element_type() {
    refused(&Embedding::new(5, 4), "f32[2,3]", "indices must be i32");
    refused(&Dense::new(4), "i32[2,3]", "needs floats");
    refused(&Conv2d::new(4, 3), "i32[2,8,8,3]", "needs floats");
    refused(&Activation::Relu, "i32[2,3]", "needs a float");
    refused(&Dropout::new(0.5), "i32[2,3]", "needs floats: drop after the embedding");
}

#[test]
fn channels_and_heads_that_do_not_divide() {
    refused(&Conv2d::new(4, 3).groups(2), IMAGE, "3 channels in and 4 out do not split into 2 groups");
    refused(&Conv2d::new(4, 3).groups(0), IMAGE, "into 0 groups: both must be multiples");
    refused(&Conv1d::new(3, 3).groups(2), "f32[2,8,4]", "conv1d(f32[2,8,4]): 4 channels in and 3 out");
    refused(&GroupNorm::new(2), IMAGE, "3 channels of an example do not split into 2 groups");
    refused(&GroupNorm::new(0), IMAGE, "into 0 groups");
    refused(&MultiHeadAttention::new(3), "f32[2,4,8]", "a width of 8 does not split into 3 heads");
    refused(&MultiHeadAttention::new(0), "f32[2,4,8]", "into 0 heads: it must be a multiple");
    refused(&MultiHeadAttention::new(4).key_heads(3), "f32[2,4,8]", "4 heads cannot share 3 heads of keys");
    refused(&MultiHeadAttention::new(4).key_heads(0), "f32[2,4,8]", "cannot share 0 heads of keys");
    refused(&MultiHeadAttention::new(8).rotary(10_000.0), "f32[2,4,8]", "need heads of an even width, 8");
    refused(&Residual::new(Dense::new(3)), "f32[2,8]", "the layer inside gives f32[2,3]");
    refused(&Reshape::new([3, 3]), "f32[2,8]", "[2,3,3] has 18 elements, f32[2,8] has 16");
    refused(&Permute::new([0, 0]), "f32[2,8,2]", "is not an order of the 3 axes");
    refused(&Permute::new([usize::MAX]), "f32[2,8]", "is not an order of the 2 axes");
}

#[test]
fn options_out_of_range() {
    for rate in [1.0, 1.5, -0.1, f64::NAN] {
        refused(&Dropout::new(rate), "f32[2,8]", "a rate is at least 0 and below 1");
        refused(&SpatialDropout::new(rate), "f32[2,8]", "a rate is at least 0 and below 1");
        let block = TransformerBlock::new(MultiHeadAttention::new(2)).dropout(rate);
        refused(&block, "f32[2,3,8]", "layer `odd/attention`: dropout(f32[2,3,8])");
    }
    for deviation in [-1.0, f64::NAN, f64::INFINITY] {
        refused(&GaussianNoise::new(deviation), "f32[2,8]", "a deviation is a number of at least 0");
    }
    for layer in [Conv2d::new(4, 0), Conv2d::new(4, 3).stride(0)] {
        refused(&layer, IMAGE, "window and stride must be at least 1");
    }
    refused(&Conv2d::new(4, 3).dilation(0), IMAGE, "dilation must be at least 1");
    refused(&Conv2d::new(4, 9).padding(Padding::Valid), IMAGE, "a window of 9 does not fit an image of 8");
    refused(&MaxPool2d::new(9), IMAGE, "a window of 9 does not fit an image of 8");
    refused(&ConvTranspose2d::new(4, 3).stride(0), IMAGE, "window and stride must be at least 1");
    let cropped = ConvTranspose2d::new(4, 3).padding(Padding::Around(9));
    refused(&cropped, IMAGE, "leaves nothing: pad less");
    let rows = Conv1d::new(4, 3).padding(Padding::Explicit([[1, 1], [1, 1]]));
    refused(&rows, "f32[2,8,4]", "its padding is [[0, 0], [before, after]]");
    refused(&AdaptiveAveragePool2d::new([0, 2]), IMAGE, "an output [0, 2] has no elements");
    refused(&Upsample::new(0), IMAGE, "cannot become one of 0 × 0");
    let nothing: [(&dyn Layer, &str, &str); 7] = [
        (&Dense::new(0), "f32[2,3]", "one unit"),
        (&Conv2d::new(0, 3), IMAGE, "one channel"),
        (&DepthwiseConv2d::new(3).multiplier(0), IMAGE, "one output for a channel"),
        (&ConvTranspose2d::new(0, 3), IMAGE, "one channel"),
        (&Gru::new(0), "f32[2,3,4]", "one unit"),
        (&Embedding::new(0, 2), "i32[2,3]", "one row"),
        (&Embedding::new(2, 0), "i32[2,3]", "one element in a row"),
    ];
    for (layer, ty, words) in nothing {
        refused(layer, ty, &format!("needs at least {words}"));
    }
}

#[test]
fn a_recurrence_over_one_position() {
    let layers: [&dyn Layer; 3] = [&SimpleRnn::new(2), &Lstm::new(2), &Gru::new(2)];
    for layer in layers {
        refused(layer, "f32[2,1,8]", "needs at least two positions: for one, use a dense layer");
    }
}

#[test]
fn a_mask_that_does_not_fit() {
    let mut net = Net::new(Builder::new(2, 1), Mode::Train, DType::F32);
    let x = net.batch_input("x", "f32[2,3,4]".parse().unwrap());
    for ty in ["bool[2,1,3,5]", "f32[2,1,3,3]", "bool[2,3]"] {
        let mask = net.batch_input("mask", ty.parse().unwrap());
        let attention = MultiHeadAttention::new(2);
        let error = net.scope(ty, |net| attention.attend(net, x, x, Some(mask))).unwrap_err().to_string();
        assert!(error.contains(&format!("layer `{ty}`")) && error.contains("mask"), "{error}");
    }
}

/// The error of building a model's training step.
fn training_error(model: &dyn Model) -> String {
    match step::training(model, &Sgd::new(0.1), 4) {
        Ok(_) => panic!("model `{}` was accepted", model.name()),
        Err(error) => error.to_string(),
    }
}

#[track_caller]
fn mentions(error: &str, words: &[&str]) {
    for word in words {
        assert!(error.contains(word), "no `{word}` in: {error}");
    }
}

fn regression() -> Sequential {
    Sequential::regression([3], [2]).named("line")
}

#[test]
fn a_model_that_ends_in_another_shape() {
    let model = Sequential::classifier([3], 4).named("small").layer("head", Dense::new(5));
    mentions(
        &training_error(&model),
        &["layer `head` of model `small` ends in [4,5]", "4 classes need [4,4]"],
    );
    let model = regression().layer("head", Dense::new(3));
    mentions(&training_error(&model), &["`head`", "ends in [4,3]; the target needs [4,2]"]);
    mentions(&training_error(&regression()), &["model `line` has no layers"]);
}

#[test]
fn two_layers_under_one_name() {
    let model = regression().layer("same", Dense::new(4)).layer("same", Dense::new(2));
    mentions(&training_error(&model), &["two states are named `same/kernel`: give one layer another name"]);
    let error = step::prediction(&model, 4).unwrap_err().to_string();
    mentions(&error, &["two states are named `same/kernel`"]);
    // Layers without states may share a name.
    let relu = || Activation::Relu;
    let model = regression().layer("head", Dense::new(2)).layer("relu", relu()).layer("relu", relu());
    step::training(&model, &Sgd::new(0.1), 4).unwrap();
}

#[test]
fn a_loss_that_does_not_fit() {
    let head = || regression().layer("head", Dense::new(2));
    type Answer = Result<ValueId, GraphError>;
    let every = |net: &mut Net, y: &[ValueId], target: ValueId| -> Answer { net.sub(y[0], target) };
    let wanted = "a loss gives one float for each of the rows [4]: sum or average over other axes";
    mentions(&training_error(&WithLoss::new(head(), every)), &["layer `loss`", "f32[4,2]", wanted]);
    let all = |net: &mut Net, y: &[ValueId], target: ValueId| -> Answer {
        let error = net.sub(y[0], target)?;
        net.sum(error, &[0, 1], true)
    };
    mentions(&training_error(&WithLoss::new(head(), all)), &["f32[1,1]", wanted]);
    // As many numbers as rows, but along the wrong axis.
    let across = |net: &mut Net, y: &[ValueId], target: ValueId| -> Answer {
        let error = net.sub(y[0], target)?;
        net.sum(error, &[0], true)
    };
    let wide = Sequential::regression([3], [4]).named("wide").layer("head", Dense::new(4));
    mentions(&training_error(&WithLoss::new(wide, across)), &["f32[1,4]", wanted]);
    let classes = || Sequential::classifier([3], 2).named("two").layer("head", Dense::new(2));
    mentions(
        &training_error(&WithLoss::new(head(), CrossEntropy::new())),
        &["cross_entropy(f32[4,2])", "not i32 class labels", "SoftCrossEntropy"],
    );
    mentions(&training_error(&WithLoss::new(head(), Dice::new())), &["not i32 class labels"]);
    mentions(
        &training_error(&WithLoss::new(classes(), MeanSquaredError)),
        &["f32[4,2]", "the target is i32[4]: output and target must have the same type"],
    );
    mentions(
        &training_error(&WithLoss::new(classes(), SoftCrossEntropy)),
        &["output and target must have the same type"],
    );
    let weighted = CrossEntropy::new().class_weights(vec![1.0; 3]);
    mentions(
        &training_error(&WithLoss::new(classes(), weighted)),
        &["3 class weights for 2 classes: give one for each"],
    );
    for smoothing in [1.5, -0.1, f64::NAN] {
        let smoothed = CrossEntropy::new().smoothing(smoothing);
        mentions(
            &training_error(&WithLoss::new(classes(), smoothed)),
            &["smoothing is a fraction between 0 and 1"],
        );
    }
}

/// A layer through which no gradient flows.
#[derive(Clone, Copy)]
enum Flat {
    Floor,
    Sign,
    Greater,
    Argmax,
    Whole,
    Idle,
}

impl Layer for Flat {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let y = match self {
            Self::Floor => net.unary(Unary::Floor, x)?,
            Self::Sign => net.unary(Unary::Sign, x)?,
            Self::Greater => net.with_constant(Binary::Greater, x, 0.0)?,
            Self::Argmax => net.one(Op::Reduce(Reduce::Argmax), &[x])?,
            Self::Whole => net.cast(x, DType::I32)?,
            Self::Idle => {
                net.parameter("idle", [3], Init::Ones);
                x
            }
        };
        let y = net.cast(y, DType::F32)?;
        let rows = net.shape(y).clone();
        net.reshape(y, if rows.rank() == 1 { vec![rows[0], 1] } else { rows.to_vec() })
    }
}

#[test]
fn parameters_that_no_gradient_reaches() {
    let steps = [
        (Flat::Floor, "floor", 2),
        (Flat::Sign, "sign", 2),
        (Flat::Greater, "greater", 2),
        (Flat::Argmax, "argmax", 1),
        (Flat::Whole, "cast", 2),
    ];
    for (layer, op, width) in steps {
        let model = Sequential::regression([3], [width]).named("flat");
        let model = model.layer("first", Dense::new(2)).layer("odd", layer);
        let reason = format!("`{op}` in layer `odd` is not differentiable");
        mentions(&training_error(&model), &["no gradient reaches `first/kernel`", &reason]);
    }
    let model = regression().layer("first", Dense::new(2)).layer("odd", Flat::Idle);
    mentions(&training_error(&model), &["the loss does not depend on `odd/idle`: remove it or use it"]);
}

#[test]
fn a_gradient_of_a_value_that_is_not_a_scalar() {
    let mut b = Builder::new(4, 1);
    let x = b.state("x", TensorType::new(DType::F32, [3]), Role::Parameter, Init::Ones);
    let y = b.scope("square", |b| b.unary(Unary::Square, x)).unwrap();
    let error = gradient(&mut b, &Numerics::default(), y, &[x]).unwrap_err().to_string();
    mentions(&error, &["that of layer `square` is f32[3]: sum it over its axes"]);
}

#[test]
fn images_of_unsupported_sizes() {
    let image = [20, 16, 3];
    mentions(
        &training_error(&zoo::Unet { image, ..Default::default() }),
        &["unet(f32[4,20,16,3])", "must be multiples of 16"],
    );
    mentions(
        &training_error(&zoo::Vit { image, ..Default::default() }),
        &["vit(f32[4,20,16,3])", "must be multiples of the patch, 16"],
    );
    let vit = zoo::Vit { image: [32, 32, 3], heads: 5, ..Default::default() };
    mentions(
        &training_error(&vit),
        &["layer `block1/attention`", "a width of 192 does not split into 5 heads"],
    );
}
