//! A trained model leaves as TFLite files: with weights of f32, 16-bit floats and bytes, and with layers that compute on bytes, whose
//! ranges are measured on some training examples.
//!
//!     cargo run --release --example export_tflite

#![allow(clippy::print_stdout, reason = "an example prints")]

use plimsoll::compress::{Int8Grids, KeptLayers, calibration};
use plimsoll::export::{Batch, ExportGraph, Format, TfliteWeights};
use plimsoll::nn::step;
use plimsoll::prelude::*;
use plimsoll::train::{BatchKind, TrainError};

/// LeNet, for one kind of step that does not train.
fn lenet(kind: BatchKind) -> Trainer {
    Trainer::new(zoo::lenet(), Sgd::new(0.0)).batch(64).memory(MiB(64)).kinds(&[kind])
}

/// Trains LeNet, and writes it in four ways.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let data = datasets::mnist()?;
    let mut run =
        Trainer::new(zoo::lenet(), AdamW::new(2e-3)).memory(MiB(64)).steps(300).plan(&data)?.start()?;
    run.fit()?;
    let folder = std::env::temp_dir().join(format!("plimsoll-export-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;

    // In floats: one call each. A TFLite file has a fixed batch.
    let mut sizes = Vec::new();
    for stored in [TfliteWeights::F32, TfliteWeights::F16, TfliteWeights::DynamicRange] {
        let path = folder.join(format!("{stored:?}.tflite"));
        let exported = run.export(&path, Format::Tflite(stored), Batch::Fixed(1))?;
        println!("{stored:?}: {} ops, {} bytes", exported.ops, exported.bytes);
        assert_eq!(&std::fs::read(&path)?[4..8], b"TFL3");
        sizes.push(exported.bytes);
    }
    assert!(sizes[1] * 10 < sizes[0] * 6 && sizes[2] * 10 < sizes[0] * 4);

    // The smallest and the largest number between layers, of some training examples.
    let pass = |graph| calibration(graph, &KeptLayers::default());
    let mut measuring = lenet(BatchKind::Predict).inference_pass(pass).plan(&data)?.start()?;
    let names: Vec<String> = measuring.parameters().map(|(name, _)| name.to_string()).collect();
    for name in names {
        measuring.set_state(&name, &run.state(&name)?)?;
    }
    let mut ranges: Vec<(f32, f32)> = Vec::new();
    measuring.predict_each(&data.train.clone().take(256), |outputs| {
        // Behind the model's own output: of each place the largest and the smallest element of each example.
        let most = |tensor: &Tensor, of: fn(f32, f32) -> f32| {
            tensor.as_f32().and_then(|numbers| numbers.iter().copied().reduce(of)).unwrap_or_default()
        };
        let found =
            outputs[1..].chunks_exact(2).map(|pair| (most(&pair[1], f32::min), most(&pair[0], f32::max)));
        ranges = match ranges.is_empty() {
            true => found.collect(),
            false => ranges.iter().zip(found).map(|(a, b)| (a.0.min(b.0), a.1.max(b.1))).collect(),
        };
        Ok::<(), TrainError>(())
    })?;

    // The model on bytes: it runs here, and leaves as it runs.
    let grids = Int8Grids::of_ranges(&ranges);
    let apply = grids.clone();
    let evaluation = lenet(BatchKind::Evaluate).inference_pass(move |graph| apply.apply(graph));
    let mut bytes = evaluation.plan(&data)?.start()?;
    let states = grids.states(&step::prediction(&zoo::lenet(), 1)?, |name| run.state(name))?;
    for (name, state) in states {
        bytes.set_state(&name, &state)?;
    }
    let path = folder.join("int8.tflite");
    let graph = ExportGraph::on_bytes(&zoo::lenet(), Batch::Fixed(1), |graph| grids.apply_with_grids(graph))?;
    let exported = bytes.export_step(&path, Format::Tflite(TfliteWeights::F32), &graph)?;
    println!("int8: {} ops, {} bytes", exported.ops, exported.bytes);
    assert!(exported.bytes * 10 < sizes[0] * 4);
    let [floats, codes] = [run.evaluate(&data.test)?, bytes.evaluate(&data.test)?]
        .map(|evaluation| evaluation.accuracy.unwrap_or_default());
    println!("test accuracy {:.2} % in floats, {:.2} % on bytes", 100.0 * floats, 100.0 * codes);
    assert!((floats - codes).abs() < 0.01);
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
