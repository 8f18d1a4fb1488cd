//! Models on bytes, and what stays in f32.

use super::*;
use plimsoll_graph::Numerics;
use plimsoll_graph::op::ResizeMode;
use plimsoll_nn::{
    AveragePool2d, BatchNorm, Conv2d, ConvTranspose2d, CrossEntropy, Dense, DepthwiseConv2d, Flatten,
    GlobalAveragePool, Layer, MaxPool2d, Model, Net, Padding, Policy, Relu, Relu6, Residual, Sequential,
    Silu, Tanh, Upsample, WithLoss, step, zoo,
};
use plimsoll_reference::run_graph;
use plimsoll_tensor::random::Stream;

/// What a graph gives; states by name, inputs by position.
fn run(graph: &Graph, state: &dyn Fn(&str) -> Tensor, inputs: &[Tensor]) -> Vec<Tensor> {
    run_graph(graph, state, inputs).unwrap().outputs
}

/// States with random numbers: variances and gains above zero.
fn state(graph: &Graph, name: &str) -> Tensor {
    let state = graph.states.iter().find(|s| s.name == name).unwrap();
    let (ty, stream) = (graph.ty(state.input).clone(), Stream::new(1, 0, name));
    let positive = name.ends_with("variance") || name.ends_with("gain");
    let fan = (ty.shape.elements() / ty.shape.last().copied().unwrap_or(1).max(1)).max(1) as f64;
    let number = |i: usize| {
        let x = f64::from(stream.uniform(0, i as u64)) * 2.0 - 1.0;
        if positive { 1.0 + 0.5 * x } else { x * (2.0 / fan).sqrt() }
    };
    let values: Vec<f64> = (0..ty.shape.elements()).map(number).collect();
    Tensor::from_f64(ty, &values).unwrap()
}

fn images(shape: &[usize], part: u64) -> Tensor {
    let (count, stream) = (shape.iter().product::<usize>(), Stream::new(2, part, "images"));
    let values: Vec<f64> = (0..count).map(|i| f64::from(stream.uniform(0, i as u64))).collect();
    Tensor::from_f64(TensorType::new(DType::F32, shape.to_vec()), &values).unwrap()
}

/// The largest difference of a model's outputs on bytes from those in f32, as a share of their range; and the graph on bytes.
fn quantized_difference(model: &dyn Model, image: [usize; 3]) -> (f64, Graph) {
    let graph = step::prediction(model, 6).unwrap();
    let read = |name: &str| state(&graph, name);
    let shape = [&[6], &image[..]].concat();
    let calibrated =
        run(&calibration(graph.clone(), &KeptLayers::default()).unwrap(), &read, &[images(&shape, 0)]);
    let ranges: Vec<(f32, f32)> = calibrated[1..]
        .chunks_exact(2)
        .map(|pair| {
            let of = |tensor: &Tensor, f: fn(f32, f32) -> f32| {
                tensor.as_f32().unwrap().iter().copied().reduce(f).unwrap()
            };
            (of(&pair[1], f32::min), of(&pair[0], f32::max))
        })
        .collect();
    let grids = Int8Grids::of_ranges(&ranges);
    let bytes = grids.apply(graph.clone()).unwrap();
    let states = grids.states(&graph, |name| Ok::<_, GraphError>(read(name))).unwrap();
    let state_of = |name: &str| {
        let found = states.iter().find(|(known, _)| known == name);
        found.map_or_else(|| read(name), |(_, tensor)| tensor.clone())
    };
    let x = images(&shape, 1);
    let x = std::slice::from_ref(&x);
    let (expected, found) = (run(&graph, &read, x), run(&bytes, &state_of, x));
    let (expected, found) = (expected[0].to_f64(), found[0].to_f64());
    let compared = run(&grids.comparison(graph.clone()).unwrap(), &state_of, x);
    // Behind an op in f32 a comparison starts anew from exact floats.
    let on_bytes = bytes.nodes.iter().all(|node| matches!(node.op, Op::Int8(_) | Op::Movement(_)));
    let found_there = on_bytes.then_some(&found[..]);
    check_comparison(&compared[1..], grids.compared(&graph).len(), &expected, found_there);
    let range = expected.iter().fold(0f64, |a, b| a.max(b.abs()));
    let worst = expected.iter().zip(&found).fold(0f64, |a, (e, f)| a.max((e - f).abs()));
    (worst / range, bytes)
}

/// The last layer gives the model's outputs; the first has no noise but its own.
fn check_comparison(compared: &[Tensor], layers: usize, expected: &[f64], found: Option<&[f64]>) {
    assert_eq!(compared.len(), LayerNoise::OUTPUTS * layers);
    let sum = |tensor: &Tensor| tensor.to_f64().iter().sum::<f64>();
    let of =
        |layer: &[Tensor]| LayerNoise { signal: sum(&layer[0]), noise: sum(&layer[1]), own: sum(&layer[2]) };
    let layers: Vec<LayerNoise> = compared.chunks_exact(LayerNoise::OUTPUTS).map(of).collect();
    let (first, last) = (layers[0], layers[layers.len() - 1]);
    assert_eq!(first.noise, first.own);
    // Noise from before may also cancel some of a layer's own, so neither need be the larger.
    assert!(last.own > 0.0 && last.own != last.noise, "{last:?}");
    let near = |a: f64, b: f64| assert!((a - b).abs() <= 1e-4 * b, "{a} {b}");
    near(last.signal, expected.iter().map(|e| e * e).sum());
    if let Some(found) = found {
        near(last.noise, expected.iter().zip(found).map(|(e, f)| (e - f) * (e - f)).sum());
    }
    assert!(layers.iter().all(|layer| layer.own_decibels().unwrap() > 15.0), "{layers:?}");
}

#[test]
fn a_model_on_bytes_answers_nearly_the_same() {
    let model = Sequential::classifier([8, 8, 3], 10)
        .layer("first", Conv2d::new(8, 3).without_bias())
        .layer("norm", BatchNorm::new())
        .layer("relu", Relu)
        .layer("block", Residual::new(Conv2d::new(8, 3)))
        .layer("relu2", Relu)
        .layer("depth", DepthwiseConv2d::new(3))
        .layer("relu6", Relu6)
        .layer("pool", MaxPool2d::new(2))
        .layer("flatten", Flatten)
        .layer("head", Dense::new(10));
    let (difference, graph) = quantized_difference(&model, [8, 8, 3]);
    assert!(difference < 0.06, "{difference}");
    let ops: Vec<&str> = graph.nodes.iter().map(|node| node.op.name()).collect();
    let expected = [
        "int8_quantize",
        "int8_conv2d",
        "int8_conv2d",
        "int8_add",
        "int8_conv2d",
        "int8_max_pool",
        "reshape",
        "int8_dense",
        "int8_dequantize",
    ];
    assert_eq!(ops, expected);
    // Nothing of the floats' weights is left.
    assert!(
        graph.states.iter().all(|s| STATES.contains(&s.name.rsplit('/').next().unwrap())),
        "{:?}",
        graph.states
    );
}

#[test]
fn what_has_no_layer_on_bytes_stays_in_floats() {
    let model = Sequential::classifier([6, 6, 2], 4)
        .layer("conv", Conv2d::new(4, 3))
        .layer("tanh", Tanh)
        .layer("conv2", Conv2d::new(6, 3))
        .layer("mean", GlobalAveragePool)
        .layer("head", Dense::new(4));
    let (difference, graph) = quantized_difference(&model, [6, 6, 2]);
    assert!(difference < 0.06, "{difference}");
    let ops: Vec<&str> = graph.nodes.iter().map(|node| node.op.name()).collect();
    assert!(ops.contains(&"tanh") && ops.contains(&"int8_mean"), "{ops:?}");
}

/// What it reads beside a convolution of it, one behind the other.
struct Beside;

impl Layer for Beside {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let y = net.scope("conv", |net| Conv2d::new(4, 3).forward(net, x))?;
        let y = Silu.forward(net, y)?;
        net.concat(&[x, y], 3)
    }
}

/// Every channel times a number between zero and one.
struct Gated;

impl Layer for Gated {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let (n, c) = (net.shape(x)[0], net.shape(x)[3]);
        let mean = GlobalAveragePool.forward(net, x)?;
        let mean = net.reshape(mean, [n, 1, 1, c])?;
        let y = net.scope("conv", |net| Conv2d::new(c, 1).forward(net, mean))?;
        let gate = net.sigmoid(y)?;
        net.mul(x, gate)
    }
}

fn branches() -> Sequential {
    Sequential::classifier([8, 8, 3], 4)
        .layer("first", Conv2d::new(4, 3))
        .layer("beside", Beside)
        .layer("norm", BatchNorm::new())
        .layer("relu", Relu)
        .layer("average", AveragePool2d::new(2))
        .layer("gated", Gated)
        .layer("grow", ConvTranspose2d::new(5, 2).stride(2).padding(Padding::Valid))
        .layer("larger", Upsample::new(2).mode(ResizeMode::Bilinear { align_corners: false }))
        .layer("flatten", Flatten)
        .layer("head", Dense::new(4))
}

#[test]
fn branches_gates_and_norms_run_on_bytes() {
    let (difference, graph) = quantized_difference(&branches(), [8, 8, 3]);
    assert!(difference < 0.06, "{difference}");
    let ops: Vec<&str> = graph.nodes.iter().map(|node| node.op.name()).collect();
    let expected = [
        &["int8_quantize", "int8_conv2d"][..],
        &["int8_conv2d", "int8_swish", "concat"],
        &["int8_conv2d", "int8_average_pool"],
        &["int8_mean", "reshape", "reshape", "int8_conv2d", "int8_sigmoid", "int8_mul"],
        &["int8_conv2d", "reshape", "transpose", "reshape"],
        &["int8_resize", "reshape", "int8_dense", "int8_dequantize"],
    ];
    assert_eq!(ops, expected.concat());
    assert!(graph.states.iter().all(|s| STATES.contains(&s.name.rsplit('/').next().unwrap())));
}

/// What is concatenated has one grid, that of a sigmoid is always the same, and all others are of their range.
#[test]
fn values_that_are_concatenated_share_a_place() {
    let graph = step::prediction(&branches(), 2).unwrap();
    let names = ["", "first", "beside/conv", "relu", "gated", "gated/conv", "gated", "gated", "grow", "head"];
    assert_eq!(places(&graph, &KeptLayers::default()), names);
    let grids = Int8Grids::new((1..=names.len()).map(|i| (0.01 * i as f32, 3))).unwrap();
    let (bytes, found) = grids.apply_with_grids(graph).unwrap();
    let grid = |op: &str, input: Option<usize>| {
        let node = bytes.nodes.iter().find(|node| node.op.name() == op).unwrap();
        found[input.map_or(node.outputs[0], |i| node.inputs[i]).index()].unwrap()
    };
    let shared = Grid { scale: 0.02, zero: 3 };
    assert_eq!([Some(0), Some(1), None].map(|input| grid("concat", input)), [shared; 3]);
    assert_eq!(grid("int8_sigmoid", None), Grid { scale: SIGMOID_SCALE, zero: 0 });
    assert_eq!(grid("int8_average_pool", None), grid("int8_average_pool", Some(0)));
}

/// Ranges are those of all values that share a grid.
#[test]
fn a_calibration_covers_what_is_concatenated() {
    let graph = step::prediction(&branches(), 6).unwrap();
    let read = |name: &str| state(&graph, name);
    let x = [images(&[6, 8, 8, 3], 0)];
    let found = run(&calibration(graph.clone(), &KeptLayers::default()).unwrap(), &read, &x);
    let both = graph.nodes.iter().find(|node| node.op.name() == "concat").unwrap();
    let mut watched = graph.clone();
    watched.outputs[0].value = both.outputs[0];
    let values = run(&watched, &read, &x)[0].to_f64();
    let most = |tensor: &Tensor, f: fn(f64, f64) -> f64| tensor.to_f64().into_iter().reduce(f).unwrap();
    let range = |values: &[f64], f: fn(f64, f64) -> f64| values.iter().copied().reduce(f).unwrap();
    assert_eq!(most(&found[1 + 2], f64::max), range(&values, f64::max));
    assert_eq!(most(&found[1 + 3], f64::min), range(&values, f64::min));
}

#[test]
fn layers_that_are_kept_stay_in_floats() {
    let kept = KeptLayers::new(["beside/conv", "relu"]);
    let graph = step::prediction(&branches(), 2).unwrap();
    // What cannot be folded any more, and what has no codes before it, is in floats, too.
    assert_eq!(kept.layers(&graph), ["beside/conv"]);
    let names = places(&graph, &kept);
    let grids = Int8Grids::new(vec![(0.05, 3); names.len()]).unwrap().keeping(kept.clone());
    let bytes = grids.apply(graph.clone()).unwrap();
    let of = |layer: &str| -> Vec<&str> {
        bytes.nodes.iter().filter(|node| &*node.layer == layer).map(|node| node.op.name()).collect()
    };
    assert_eq!(of("beside/conv"), ["conv2d", "add"]);
    assert_eq!(of("relu"), ["relu"]);
    assert!(of("head").contains(&"int8_dense"));
    assert!(bytes.states.iter().any(|state| state.name == "beside/conv/kernel"));
    assert_eq!(kept.unknown(&graph), None);
    let unknown = KeptLayers::new(["head", "tail*"]);
    assert_eq!(unknown.unknown(&graph).unwrap().to_string(), "tail*");
}

#[test]
fn models_of_the_zoo_run_on_bytes() {
    let small = |name: &str| {
        let entry = zoo::ZOO.iter().find(|entry| entry.name == name).unwrap();
        (entry.make)(&entry.small)
    };
    let models: [(Box<dyn Model>, f64); 4] = [
        (Box::new(zoo::resnet20_of([8, 8, 3], 10)), 0.25),
        (small("densenet121"), 0.5),
        (small("efficientnet_b0"), 0.5),
        (small("unet"), 0.25),
    ];
    for (model, most) in models {
        let shape = model.inputs()[0].ty.shape.clone();
        let (difference, graph) = quantized_difference(&model, [shape[0], shape[1], shape[2]]);
        assert!(difference < most, "{}: {difference}", model.name());
        let floats = graph.nodes.iter().filter(|node| !matches!(node.op, Op::Int8(_) | Op::Movement(_)));
        assert_eq!(floats.count(), 0, "{}", model.name());
        let converts = graph
            .nodes
            .iter()
            .filter(|node| matches!(node.op, Op::Int8(Int8::Quantize(_) | Int8::Dequantize(_))));
        assert_eq!(converts.count(), 2, "{}", model.name());
    }
}

/// Weights so small that a bias is out of reach at their scale are held more coarsely.
#[test]
fn biases_of_tiny_weights_are_kept() {
    let (input, output) = (Grid { scale: 0.02, zero: 0 }, Grid { scale: 0.01, zero: 100 });
    let tensors =
        quantized(&[1e-12, 0.5], &Shape::from([1, 1, 1, 2]), &[1.0; 2], &[1.5, 0.25], true, input, output);
    let [bias, multipliers, shifts] = [1, 2, 3].map(|i| tensors[i].to_f64());
    for (channel, expected) in [150, 25].into_iter().enumerate() {
        let [bias, multiplier, shift] = [&bias, &multipliers, &shifts].map(|of| of[channel] as i32);
        assert_eq!(plimsoll_tensor::fixed_point(bias, multiplier, shift), expected);
    }
}

/// Recurrences that are unrolled read their weights at every position: they stay in floats.
#[test]
fn layers_that_share_weights_stay_in_floats() {
    let entry = zoo::ZOO.iter().find(|entry| entry.name == "seq2seq").unwrap();
    let model = (entry.make)(&entry.small);
    let prediction = step::prediction(&model, 2).unwrap();
    let grids = Int8Grids::new(vec![(0.1, 3); places(&prediction, &KeptLayers::default()).len()]).unwrap();
    grids.apply(prediction).unwrap();
}

/// An evaluation has the same layers, and computes its loss in f32.
#[test]
fn evaluations_have_the_same_layers() {
    let model = zoo::lenet();
    let prediction = step::prediction(&model, 2).unwrap();
    let grids = Int8Grids::new(vec![(0.1, 3); places(&prediction, &KeptLayers::default()).len()]).unwrap();
    let layers = |graph: Graph| {
        let graph = grids.apply(graph).unwrap();
        let layers = graph.nodes.iter().filter(|node| matches!(node.op, Op::Int8(_)));
        layers.map(|node| format!("{:?}", node.op)).collect::<Vec<_>>()
    };
    let evaluation = step::evaluation(&model, 2, step::Report::Classes).unwrap();
    assert_eq!(layers(prediction), layers(evaluation));
    assert_eq!(Int8Grids::new([(0.0, 3)]), None);
}

/// Whole numbers below a bound, for tokens and labels.
fn tokens(shape: &[usize], below: usize) -> Tensor {
    let values: Vec<f64> = (0..shape.iter().product()).map(|i: usize| (7 * i % below) as f64).collect();
    Tensor::from_f64(TensorType::new(DType::I32, shape.to_vec()), &values).unwrap()
}

/// The loss of models whose loss computes their scores itself is that of the scores that they predict on bytes.
#[test]
fn an_evaluation_on_bytes_is_of_what_a_prediction_gives() {
    let smooth = |model: zoo::Gpt| WithLoss::new(model, CrossEntropy::new().smoothing(0.1));
    let gpt =
        || zoo::Gpt { layers: 1, width: 8, heads: 2, context: 4, vocabulary: 12, ..zoo::Gpt::default() };
    for model in [Box::new(gpt()) as Box<dyn Model>, Box::new(smooth(gpt()))] {
        let prediction = step::prediction(&model, 2).unwrap();
        let grids =
            Int8Grids::of_ranges(&vec![(-2.0, 2.0); places(&prediction, &KeptLayers::default()).len()]);
        assert!(
            grids.compared(&prediction).contains(&"head".to_string()),
            "{:?}",
            grids.compared(&prediction)
        );
        let states = grids.states(&prediction, |name| Ok::<_, GraphError>(state(&prediction, name))).unwrap();
        let state_of = |name: &str| {
            let found = states.iter().find(|(known, _)| known == name);
            found.map_or_else(|| state(&prediction, name), |(_, tensor)| tensor.clone())
        };
        let expected =
            run(&grids.apply(prediction.clone()).unwrap(), &state_of, &[tokens(&[2, 4], 12)]).remove(0);
        let labels = tokens(&[2, 4], 5);
        let weights = Tensor::from_f64(TensorType::new(DType::F32, [2, 4]), &[0.125; 8]).unwrap();
        let report = step::Report::Output;
        let evaluation = grids.apply(step::evaluation(&model, 2, report).unwrap()).unwrap();
        assert!(!evaluation.states.iter().any(|state| state.name == "head/kernel"));
        let inputs = [tokens(&[2, 4], 12), labels.clone(), weights];
        let found = run(&evaluation, &state_of, &inputs);
        assert_eq!(found[1], expected);
        let scores = expected.to_f64();
        let smoothing =
            if evaluation.nodes.iter().any(|node| node.op.name() == "cross_entropy") { 0.0 } else { 0.1 };
        let of_row = |(row, label): (&[f64], f64)| {
            let sum = row.iter().map(|score| score.exp()).sum::<f64>().ln();
            let mean = row.iter().sum::<f64>() / row.len() as f64;
            sum - (1.0 - smoothing) * row[label as usize] - smoothing * mean
        };
        let loss = scores.chunks_exact(12).zip(labels.to_f64()).map(of_row).sum::<f64>() / 8.0;
        assert!((found[0].to_f64()[0] - loss).abs() < 1e-4, "{:?} {loss}", found[0]);
        // In f32, the loss still computes them itself.
        let kept = grids.clone().keeping(KeptLayers::new(["head"]));
        let kept = kept.apply(step::evaluation(&model, 2, step::Report::Classes).unwrap()).unwrap();
        assert!(kept.states.iter().any(|state| state.name == "head/kernel"));
    }
}

/// Ranges that are measured with a recurrence as one op serve the model that leaves with it unrolled.
#[test]
fn unrolled_recurrences_have_the_same_layers_on_bytes() {
    let numerics = Numerics { recurrences: false, ..Numerics::default() };
    let entry = zoo::ZOO.iter().find(|entry| entry.name == "lstm").unwrap();
    let model = (entry.make)(&entry.small);
    let one = step::prediction(&model, 2).unwrap();
    let unrolled = step::prediction_as(&Policy::default(), &numerics, &model, 2).unwrap();
    let recurrences = |graph: &Graph| graph.nodes.iter().filter(|node| node.op.name() == "lstm").count();
    assert!(recurrences(&one) > 0 && recurrences(&unrolled) == 0);
    let places_of = |graph: &Graph| places(graph, &KeptLayers::default());
    assert_eq!(places_of(&one), places_of(&unrolled));
    let grids = Int8Grids::of_ranges(&vec![(-2.0, 2.0); places_of(&one).len()]);
    assert_eq!(grids.compared(&one), grids.compared(&unrolled));
}
