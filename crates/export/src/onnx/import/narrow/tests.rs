//! A file as other programs write it, with fewer channels.

use crate::onnx::OnnxModel;
use crate::onnx::proto::{
    AttributeProto, DimensionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
    TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto, element,
};
use plimsoll_compress::{ChannelError, Channels};
use plimsoll_graph::Graph;
use plimsoll_nn::{Narrow, Sgd, step};
use plimsoll_reference::run_graph;
use plimsoll_tensor::random::Stream;
use plimsoll_tensor::{DType, Tensor, TensorType};
use plimsoll_testing::Scratch;
use prost::Message;

/// What a graph gives; states by name, inputs by position.
fn run(graph: &Graph, state: &dyn Fn(&str) -> Tensor, inputs: &[Tensor]) -> Vec<Tensor> {
    run_graph(graph, state, inputs).unwrap().outputs
}

/// Random numbers of a shape: variances and gains are above zero.
fn numbers(ty: TensorType, name: &str) -> Tensor {
    let stream = Stream::new(1, 0, name);
    let positive = name.ends_with("variance") || name.ends_with("gain");
    let number = |i: usize| {
        let x = f64::from(stream.uniform(0, i as u64)) - 0.5;
        if positive { 1.0 + x } else { x }
    };
    let values: Vec<f64> = (0..ty.shape.elements()).map(number).collect();
    Tensor::from_f64(ty, &values).unwrap()
}

fn node(op: &str, inputs: &[&str], output: &str, attributes: &[(&str, &[i64])]) -> NodeProto {
    let own = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    let attribute = |(name, values): &(&str, &[i64])| match values {
        [value] if *name != "axes" => {
            AttributeProto { name: name.to_string(), i: Some(*value), ..Default::default() }
        }
        values => AttributeProto { name: name.to_string(), ints: values.to_vec(), ..Default::default() },
    };
    NodeProto {
        input: own(inputs),
        output: own(&[output]),
        name: format!("/{output}/{op}"),
        op_type: op.into(),
        attribute: attributes.iter().map(attribute).collect(),
        ..Default::default()
    }
}

fn floats(name: &str, dims: &[i64]) -> TensorProto {
    let elements = dims.iter().product::<i64>() as usize;
    let data = vec![0.5; elements];
    TensorProto {
        name: name.into(),
        dims: dims.to_vec(),
        data_type: element::FLOAT,
        float_data: data,
        ..Default::default()
    }
}

fn ints(name: &str, values: &[i64]) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: vec![values.len() as i64],
        data_type: element::INT64,
        int64_data: values.to_vec(),
        ..Default::default()
    }
}

fn value(name: &str, dims: &[i64]) -> ValueInfoProto {
    let extent = |&n: &i64| DimensionProto {
        dim_value: (n > 0).then_some(n),
        dim_param: (n == 0).then(|| "n".into()),
    };
    let shape = Some(TensorShapeProto { dim: dims.iter().map(extent).collect() });
    let tensor_type = Some(TensorTypeProto { elem_type: element::FLOAT, shape });
    ValueInfoProto { name: name.into(), r#type: Some(TypeProto { tensor_type }) }
}

/// A file of these nodes on images of three channels.
fn file(scratch: &Scratch, nodes: Vec<NodeProto>, initializer: Vec<TensorProto>) -> OnnxModel {
    let graph = GraphProto {
        node: nodes,
        name: "graph".into(),
        initializer,
        input: vec![value("x", &[0, 3, 8, 8])],
        output: vec![value("y", &[0, 5])],
    };
    let model = ModelProto {
        ir_version: 9,
        graph: Some(graph),
        opset_import: vec![OperatorSetIdProto { domain: String::new(), version: 17 }],
        ..Default::default()
    };
    let path = scratch.0.join("model.onnx");
    std::fs::write(&path, model.encode_to_vec()).unwrap();
    OnnxModel::open(&path).unwrap()
}

const PADS: (&str, &[i64]) = ("pads", &[1, 1, 1, 1]);

/// Batch norm, channels that are counted from a shape, a depthwise convolution, a residual block with a gate, and rows of pixels of
/// each channel.
fn network(scratch: &Scratch) -> OnnxModel {
    let nodes = vec![
        node("Conv", &["x", "c1.weight", "c1.bias"], "c1", &[PADS]),
        node("BatchNormalization", &["c1", "n.gain", "n.bias", "n.mean", "n.variance"], "n", &[]),
        node("Relu", &["n"], "r", &[]),
        node("Conv", &["r", "dw.weight", "dw.bias"], "dw", &[PADS, ("group", &[8])]),
        node("Conv", &["dw", "c2.weight", "c2.bias"], "c2", &[PADS]),
        node("Add", &["c2", "r"], "sum", &[]),
        node("GlobalAveragePool", &["sum"], "mean", &[]),
        node("Conv", &["mean", "g1.weight", "g1.bias"], "g1", &[]),
        node("Relu", &["g1"], "gr", &[]),
        node("Conv", &["gr", "g2.weight", "g2.bias"], "g2", &[]),
        node("Sigmoid", &["g2"], "gs", &[]),
        node("Mul", &["sum", "gs"], "gated", &[]),
        node("Mul", &["gated", "scale"], "scaled", &[]),
        node("MaxPool", &["scaled"], "pool", &[("kernel_shape", &[2, 2]), ("strides", &[2, 2])]),
        // [n, 8, 4, 4] → [n, 8, 16] → [n, 8, 8] → [n, 64], with numbers of the file.
        node("Reshape", &["pool", "to_rows"], "rows", &[]),
        node("Transpose", &["rows"], "turned", &[("perm", &[0, 2, 1])]),
        // As many pixels as there are channels in the file.
        node("Shape", &["turned"], "channels", &[("start", &[2]), ("end", &[3])]),
        node("Slice", &["turned", "zero", "channels", "one"], "pixels", &[]),
        node("Transpose", &["pixels"], "back", &[("perm", &[0, 2, 1])]),
        node("Shape", &["back"], "shape", &[]),
        node("Gather", &["shape", "zero"], "examples", &[]),
        node("Concat", &["examples", "columns"], "flat_shape", &[("axis", &[0])]),
        node("Reshape", &["back", "flat_shape"], "flat", &[]),
        node("Gemm", &["flat", "head.weight", "head.bias"], "y", &[("transB", &[1])]),
    ];
    let tensors = vec![
        floats("c1.weight", &[8, 3, 3, 3]),
        floats("c1.bias", &[8]),
        floats("n.gain", &[8]),
        floats("n.bias", &[8]),
        floats("n.mean", &[8]),
        floats("n.variance", &[8]),
        floats("dw.weight", &[8, 1, 3, 3]),
        floats("dw.bias", &[8]),
        floats("c2.weight", &[8, 8, 3, 3]),
        floats("c2.bias", &[8]),
        floats("g1.weight", &[4, 8, 1, 1]),
        floats("g1.bias", &[4]),
        floats("g2.weight", &[8, 4, 1, 1]),
        floats("g2.bias", &[8]),
        floats("scale", &[1, 8, 1, 1]),
        floats("head.weight", &[5, 64]),
        floats("head.bias", &[5]),
        ints("to_rows", &[0, 8, 16]),
        ints("zero", &[0]),
        ints("one", &[1]),
        ints("columns", &[64]),
    ];
    file(scratch, nodes, tensors)
}

fn state<'g>(graph: &'g Graph, name: &str) -> &'g TensorType {
    graph.ty(graph.states.iter().find(|state| state.name == name).unwrap().input)
}

#[test]
fn a_narrowed_file_computes_what_the_whole_one_does_without_the_removed_channels() {
    let scratch = Scratch::new("onnx-narrow");
    let model = network(&scratch);
    let whole = step::prediction(&model, 2).unwrap();
    let own = |name: &str| numbers(state(&whole, name).clone(), name);
    let channels = Channels::smallest(&model, 0.5, |name| Ok::<_, ChannelError>(own(name))).unwrap();
    let widths: Vec<_> = channels.widths().iter().map(|(name, n)| (name.as_str(), *n)).collect();
    assert_eq!(widths, [("c1.weight", 4), ("c2.weight", 4), ("g1.weight", 2), ("g2.weight", 4)]);
    let narrow = Narrow::new(&model, channels.widths().clone());
    let small = step::prediction(&narrow, 2).unwrap();
    assert_eq!(state(&small, "dw.weight").shape.to_vec(), [3, 3, 1, 4]);
    assert_eq!(state(&small, "head.weight").shape.to_vec(), [5, 32]);
    // Zeros wherever a state loses elements.
    let masked = |name: &str| {
        let all = own(name);
        let (elements, values) = (all.ty().shape.elements(), all.to_f64());
        let places: Vec<f64> = (0..elements).map(|i| i as f64).collect();
        let kept = channels.cut(name, &Tensor::from_f64(all.ty().clone(), &places).unwrap());
        let mut left = vec![0.0; elements];
        kept.to_f64().into_iter().for_each(|i| left[i as usize] = values[i as usize]);
        Tensor::from_f64(all.ty().clone(), &left).unwrap()
    };
    let images = numbers(TensorType::new(DType::F32, [2, 8, 8, 3]), "images");
    let wanted = run(&whole, &masked, std::slice::from_ref(&images))[0].to_f64();
    let found = run(&small, &|name| channels.cut(name, &own(name)), &[images])[0].to_f64();
    assert!(wanted.iter().any(|x| x.abs() > 0.1), "{wanted:?}");
    for (a, b) in wanted.iter().zip(&found) {
        assert!((a - b).abs() <= 1e-5 * (1.0 + a.abs()), "{wanted:?} {found:?}");
    }
    // It trains, and can be narrowed once more.
    step::training(&narrow, &Sgd::new(0.1), 4).unwrap();
    let again = |name: &str| Ok::<_, ChannelError>(channels.cut(name, &own(name)));
    assert_eq!(Channels::smallest(&narrow, 0.5, again).unwrap().widths()["c1.weight"], 2);
}

/// Channels that a concatenation reads are left, and a width for them is refused with the layer and the op.
#[test]
fn channels_that_an_op_cannot_follow_are_left_or_refused_by_name() {
    let scratch = Scratch::new("onnx-narrow-fixed");
    let nodes = vec![
        node("Conv", &["x", "a.weight"], "a", &[PADS]),
        node("Conv", &["a", "b.weight"], "b", &[PADS]),
        node("Concat", &["b", "x"], "both", &[("axis", &[1])]),
        node("GlobalAveragePool", &["both"], "mean", &[]),
        node("Flatten", &["mean"], "flat", &[]),
        node("Gemm", &["flat", "head.weight", "head.bias"], "y", &[("transB", &[1])]),
    ];
    let tensors = vec![
        floats("a.weight", &[8, 3, 3, 3]),
        floats("b.weight", &[6, 8, 3, 3]),
        floats("head.weight", &[5, 9]),
        floats("head.bias", &[5]),
    ];
    let model = file(&scratch, nodes, tensors);
    let widths = Channels::widths_after(&model, 0.5).unwrap();
    assert_eq!(widths, [("a.weight".to_string(), 4)].into());
    for (layer, width, says) in [
        ("b.weight", 3, "`b.weight` keeps its channels: the op concat of `both` cannot follow"),
        ("a.weight", 9, "has 8 channels, 9 cannot be left"),
        ("c", 3, "no convolution makes channels that are named `c`"),
    ] {
        let narrow = Narrow::new(&model, [(layer.to_string(), width)].into());
        let error = step::prediction(&narrow, 1).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    let error = Channels::widths_after(&model, 0.95).unwrap_err().to_string();
    assert!(error.contains("leaves none of the 8 channels of `a.weight`: remove at most 0.93"), "{error}");
}
