//! Mixed precision: the memory it saves, side by side; then a run in f16 whose initial loss scale is far too large: the scale
//! halves, those steps are skipped, and the loss falls as in f32.
//!
//!     cargo run --release --example mixed_precision

#![allow(clippy::print_stdout, reason = "an example prints")]

use plimsoll::data::{OneHot, SyntheticSpec};
use plimsoll::nn::LossScale;
use plimsoll::prelude::*;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// The load sheets of one model in every precision.
fn side_by_side() -> Outcome<()> {
    let model = zoo::resnet20();
    let spec = SyntheticSpec { inputs: model.inputs(), label: model.target() };
    let options = OpenOptions { synthetic: Some(spec), examples: 256, ..OpenOptions::default() };
    let data = open("synthetic", &options)?;
    let mut sheets = Vec::new();
    for precision in Precision::ALL {
        let trainer = Trainer::new(zoo::resnet20(), AdamW::new(1e-3)).executor(Cpu::new(2)?).batch(128);
        sheets.push(trainer.precision(Policy::new(precision)).plan(&data)?.load_sheet().clone());
    }
    println!("resnet20, batches of 128, KiB in the arena    f32     bf16      f16");
    for name in ["parameters", "optimizer state", "statistics", "batch", "kept", "in use", "workspace"] {
        let bytes = |sheet: &plimsoll::plan::LoadSheet| {
            sheet.arena.iter().filter(|entry| entry.name == name).map(|entry| entry.bytes).sum::<usize>()
        };
        let [f32, bf16, f16] = [0, 1, 2].map(|i| bytes(&sheets[i]) / 1024);
        println!("  {name:<36} {f32:>10} {bf16:>8} {f16:>8}");
    }
    println!("Activations take half; parameters and optimizer state are f32 in all three.\n");
    Ok(())
}

/// Trains on one-hot digits; returns the final test loss.
fn digits(policy: Policy, verbose: bool) -> Outcome<f64> {
    let model = Sequential::regression([28, 28, 1], [10])
        .push(Conv2d::new(16, 3))
        .push(Relu)
        .push(MaxPool2d::new(2))
        .push(Flatten)
        .layer("head", Dense::new(10));
    let model = WithLoss::new(model, SoftCrossEntropy);
    let data = datasets::mnist()?.map_parts(|part| part.apply(OneHot::new("label")))?;
    let trainer = Trainer::new(model, AdamW::new(2e-3)).batch(64).epochs(1).precision(policy);
    let plans = trainer.plan(&data)?;
    let mut session = plans.start()?;
    let mut before = None;
    let report = session.fit_with(&mut |event| {
        if let TrainEvent::Step { step, loss, scale: Some(found), .. } = event {
            if verbose && before.is_some_and(|before: plimsoll::train::Scale| before.scale != found.scale) {
                println!("  step {step}: loss {loss:.3}, scale {}, {} skipped", found.scale, found.skipped);
            }
            before = Some(*found);
        }
        Control::Continue
    })?;
    if let Some(scale) = report.scale {
        println!("  the scale ends at {}; {} steps were skipped", scale.scale, scale.skipped);
    }
    Ok(report.evaluation.loss)
}

/// Trains in each precision.
pub fn main() -> Outcome<()> {
    side_by_side()?;
    println!("f16, with a loss scale of 2^30 that doubles after 100 steps without overflow:");
    let scale = LossScale { initial: 2f64.powi(30), growth: 100 };
    let f16 = digits(Policy::new(Precision::F16).loss_scale(scale), true)?;
    let bf16 = digits(Policy::new(Precision::BF16), false)?;
    let f32 = digits(Policy::default(), false)?;
    let kept = digits(Policy::new(Precision::BF16).keep_f32("head"), false)?;
    println!(
        "test loss after one epoch: f32 {f32:.4}, bf16 {bf16:.4}, bf16 with its head in f32 {kept:.4}, f16 {f16:.4}"
    );
    Ok(())
}
