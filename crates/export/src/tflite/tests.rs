//! Which models leave as TFLite, and how large their files are. That they run is checked by `benches/export_peers.py`.

use super::emit::{Scales, emit};
use super::schema::{Activation, Code, Options, element};
use super::{TfliteWeights, tflite};
use crate::test_models::{branches_on_bytes, layers_on_bytes, on_bytes};
use crate::weights::Source;
use crate::{Batch, ExportError, ExportGraph, Weights};
use plimsoll_nn::zoo::{self, ZOO};
use plimsoll_nn::{Conv2d, Dense, Flatten, Model, Sequential, Tanh};
use plimsoll_testing::Scratch;
use std::fs;

struct Ones;

impl Weights for Ones {
    fn read(&self, _: usize, _: usize, into: &mut [u8]) -> Result<(), ExportError> {
        into.chunks_mut(4).for_each(|element| element.copy_from_slice(&1.0f32.to_le_bytes()));
        Ok(())
    }
}

#[test]
fn classifiers_segmentations_and_dense_models_leave_and_others_say_why() {
    let scratch = Scratch::new("tflite-zoo");
    let path = scratch.0.join("model.tflite");
    let mut refused = Vec::new();
    for entry in &ZOO {
        let step = ExportGraph::new((entry.make)(&entry.small).as_ref(), Batch::Fixed(2)).unwrap();
        match tflite(&step, &Ones, &path, TfliteWeights::F32) {
            Ok(exported) => {
                let bytes = fs::read(&path).unwrap();
                assert_eq!(&bytes[4..8], b"TFL3", "{}", entry.name);
                assert_eq!(exported.bytes, bytes.len() as u64, "{}", entry.name);
            }
            Err(error) => refused.push((entry.name, error.to_string())),
        }
    }
    let names: Vec<&str> = refused.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["gpt", "gpt2"], "{refused:?}");
    let said = &refused[0].1;
    assert_eq!(said, "layer `block1/attention`: TFLite has no op for `attention` with a mask");
}

#[test]
fn weights_of_fewer_bits_take_fewer_bytes() {
    let scratch = Scratch::new("tflite-bytes");
    let model = zoo::mlp_of(&[64], &[256, 256], 10);
    let step = ExportGraph::new(&model, Batch::Fixed(1)).unwrap();
    let bytes = [TfliteWeights::F32, TfliteWeights::F16, TfliteWeights::DynamicRange].map(|stored| {
        let path = scratch.0.join("mlp.tflite");
        tflite(&step, &Ones, &path, stored).unwrap().bytes as f64
    });
    let [f16, range] = [bytes[1] / bytes[0], bytes[2] / bytes[0]];
    assert!((0.5..0.52).contains(&f16) && (0.25..0.28).contains(&range), "{bytes:?}");
}

#[test]
fn a_model_on_bytes_has_integers_from_its_input_to_its_output() {
    let (step, weights) = on_bytes(&layers_on_bytes(), Batch::Fixed(2), (0.125, 20));
    let source = Source { graph: step.graph(), weights: &weights };
    let emitted = emit(&step, &source, TfliteWeights::F32).unwrap();
    let codes: Vec<Code> = emitted.ops.iter().map(|op| op.code).collect();
    let expected = [
        Code::Pad,
        Code::Conv2d,
        Code::MaxPool2d,
        Code::Conv2d,
        Code::Mean,
        Code::Reshape,
        Code::FullyConnected,
    ];
    assert_eq!(codes, expected);
    assert!(emitted.ops.iter().all(|op| op.codes));
    // Activations have the grid, 128 less; shapes and axes are no activations.
    let grid = Scales { scales: vec![0.125], zero: -108, axis: 0 };
    for op in &emitted.ops {
        for &tensor in [op.inputs[0]].iter().chain(&op.outputs) {
            let tensor = &emitted.tensors[tensor as usize];
            assert_eq!(
                (tensor.element, tensor.scales.as_ref()),
                (element::INT8, Some(&grid)),
                "{}",
                tensor.name
            );
        }
    }
    assert_eq!((emitted.inputs.len(), emitted.outputs.len()), (1, 1));
    // Weights have a scale for each channel of a convolution and one for a dense layer; biases that times the input's.
    let weight = 0.5f32 / 127.0;
    for (op, scales) in [(1, 5), (3, 6), (6, 1)] {
        let [weights, bias] = [1, 2].map(|input| &emitted.tensors[emitted.ops[op].inputs[input] as usize]);
        assert_eq!((weights.element, bias.element), (element::INT8, element::INT32));
        assert_eq!(weights.scales, Some(Scales { scales: vec![weight; scales], zero: 0, axis: 0 }));
        assert_eq!(bias.scales, Some(Scales { scales: vec![weight * 0.125; scales], zero: 0, axis: 0 }));
    }
    let activation = |op: usize| match emitted.ops[op].options {
        Options::Conv { activation, .. } | Options::FullyConnected { activation } => Some(activation),
        _ => None,
    };
    let found = [1, 3, 6].map(activation);
    assert_eq!(found, [Some(Activation::Relu), Some(Activation::Relu6), Some(Activation::None)]);
}

#[test]
fn branches_on_bytes_are_integers_on_the_grids_that_ops_ask_for() {
    let (step, weights) = on_bytes(&branches_on_bytes(), Batch::Fixed(2), (0.125, 20));
    let source = Source { graph: step.graph(), weights: &weights };
    let emitted = emit(&step, &source, TfliteWeights::F32).unwrap();
    let codes: Vec<Code> = emitted.ops.iter().map(|op| op.code).collect();
    let expected = [
        &[Code::Conv2d, Code::Conv2d, Code::Logistic, Code::Mul][..],
        &[Code::Conv2d, Code::Logistic, Code::Mul, Code::Concatenation],
        &[Code::DepthwiseConv2d, Code::AveragePool2d],
        &[Code::Conv2d, Code::Reshape, Code::Transpose, Code::Reshape],
        &[Code::Mean, Code::Reshape, Code::FullyConnected],
    ];
    assert_eq!(codes, expected.concat());
    assert!(emitted.ops.iter().all(|op| op.codes));
    let scales = |tensor: i32| emitted.tensors[tensor as usize].scales.clone().unwrap();
    for op in &emitted.ops {
        match op.code {
            Code::Logistic => {
                let sigmoid = Scales { scales: vec![1.0 / 256.0], zero: -128, axis: 0 };
                assert_eq!(scales(op.outputs[0]), sigmoid);
            }
            Code::Concatenation | Code::AveragePool2d => {
                assert!(op.inputs.iter().all(|&input| scales(input) == scales(op.outputs[0])));
            }
            _ => {}
        }
    }
    // A norm has one weight for each channel.
    let norm = emitted.ops.iter().find(|op| op.code == Code::DepthwiseConv2d).unwrap();
    assert_eq!(emitted.tensors[norm.inputs[1] as usize].shape, [1, 1, 1, 8]);
    assert_eq!(emitted.tensors[norm.inputs[2] as usize].scales, None);
}

#[test]
fn what_has_no_layer_on_bytes_is_floats_between_them() {
    let model = Sequential::classifier([4, 4, 3], 4)
        .layer("conv", Conv2d::new(5, 3))
        .layer("tanh", Tanh)
        .layer("flatten", Flatten)
        .layer("head", Dense::new(4));
    let (step, weights) = on_bytes(&model, Batch::Fixed(1), (0.125, 20));
    let source = Source { graph: step.graph(), weights: &weights };
    let emitted = emit(&step, &source, TfliteWeights::F32).unwrap();
    let codes: Vec<Code> = emitted.ops.iter().map(|op| op.code).collect();
    let expected =
        [Code::Conv2d, Code::Dequantize, Code::Tanh, Code::Reshape, Code::Quantize, Code::FullyConnected];
    assert_eq!(codes, expected);
    let versions: Vec<i32> = emitted.ops.iter().map(|op| op.code.version(op.codes)).collect();
    assert_eq!(versions, [3, 2, 1, 1, 1, 4]);
}

#[test]
fn a_model_on_bytes_takes_a_quarter_of_its_file() {
    let scratch = Scratch::new("tflite-int8");
    let path = scratch.0.join("model.tflite");
    let unet = zoo::Unet { width: 24, ..zoo::Unet::default() };
    let models: [Box<dyn Model>; 5] = [
        Box::new(zoo::lenet()),
        Box::new(zoo::resnet20()),
        Box::new(zoo::densenet121_of([64, 64, 3], 1000, 32)),
        Box::new(zoo::efficientnet_b0_of([64, 64, 3], 1000, 32, 0.2)),
        Box::new(unet),
    ];
    for model in &models {
        let (step, weights) = on_bytes(model, Batch::Fixed(1), (0.1, 3));
        let bytes = tflite(&step, &weights, &path, TfliteWeights::F32).unwrap().bytes;
        assert_eq!(bytes, fs::metadata(&path).unwrap().len());
        let floats = ExportGraph::new(model, Batch::Fixed(1)).unwrap();
        let floats = tflite(&floats, &Ones, &path, TfliteWeights::F32).unwrap().bytes;
        assert!(100 * bytes <= 27 * floats, "{}: {bytes} {floats}", model.name());
    }
}

/// Recurrences are unrolled, as in a file of floats.
#[test]
fn recurrences_beside_layers_on_bytes_are_unrolled() {
    let scratch = Scratch::new("tflite-recurrence");
    let path = scratch.0.join("model.tflite");
    let lstm = ZOO.iter().find(|entry| entry.name == "lstm").unwrap();
    let (step, weights) = on_bytes((lstm.make)(&lstm.small).as_ref(), Batch::Fixed(1), (0.125, 20));
    tflite(&step, &weights, &path, TfliteWeights::F32).unwrap();
    assert_eq!(&fs::read(&path).unwrap()[4..8], b"TFL3");
}
