//! `fit` in bf16 on one-hot labels: weights and optimizer state are not halved, activations are, and the loss falls as in f32.
//!
//!     cargo run --release --example mixed_precision_fit

#![allow(clippy::print_stdout, reason = "an example prints")]

use plimsoll::plan::LoadSheet;
use plimsoll::prelude::*;

/// Scores of ten classes, compared with one-hot labels.
fn model() -> impl Model {
    let layers = Sequential::regression([28, 28, 1], [10])
        .push(Conv2d::new(16, 3))
        .push(Relu)
        .push(Conv2d::new(16, 3))
        .push(Relu)
        .push(MaxPool2d::new(2))
        .push(Flatten)
        .push(Dense::new(10));
    WithLoss::new(layers, SoftCrossEntropy)
}

/// Bytes of entries of the arena at its peak.
fn bytes(sheet: &LoadSheet, names: &[&str]) -> usize {
    let entries = sheet.arena.iter().filter(|entry| names.contains(&entry.name.as_str()));
    entries.map(|entry| entry.bytes).sum()
}

/// Plans and trains in both precisions, and compares.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let data = datasets::mnist()?.map_parts(|part| part.apply(OneHot::new("label")))?;
    println!("labels: {}", data.train.schema().in_words());
    let (mut sheets, mut losses) = (Vec::new(), Vec::new());
    for precision in [Precision::F32, Precision::BF16] {
        let trainer = Trainer::new(model(), AdamW::new(2e-3)).batch(128).epochs(1).micro_batches(1);
        let plan = trainer.precision(Policy::new(precision)).plan(&data)?;
        sheets.push(plan.load_sheet().clone());
        losses.push(plan.start()?.fit()?.evaluation.loss);
    }
    println!("KiB in the arena      f32     bf16");
    let rows: [(&str, &[&str]); 3] = [
        ("parameters", &["parameters"]),
        ("optimizer state", &["optimizer state"]),
        ("activations", &["kept", "in use"]),
    ];
    let found = rows.map(|(name, entries)| {
        let [f32, bf16] = [0, 1].map(|i| bytes(&sheets[i], entries));
        println!("{name:<16} {:>8} {:>8}", f32 >> 10, bf16 >> 10);
        (f32, bf16)
    });
    println!("test loss after one epoch: f32 {:.4}, bf16 {:.4}", losses[0], losses[1]);
    let [parameters, moments, activations] = found;
    assert!(parameters.0 == parameters.1 && moments.0 == moments.1 && moments.0 == 2 * parameters.0);
    let share = activations.1 as f64 / activations.0 as f64;
    assert!((0.45..0.6).contains(&share), "activations take {share:.2} of those in f32");
    assert!((losses[0] - losses[1]).abs() < 0.05);
    Ok(())
}
