//! A batch of 1024 that does not fit: without batch norm it is split, with the same loss in every step; with batch norm, which
//! mixes the batch, values are computed twice or wait in a file, or the answer is what is missing. And the largest batch.
//!
//!     cargo run --release --example batch_too_large

#![allow(clippy::print_stdout, reason = "an example prints")]

use plimsoll::plan::{PlanError, in_words};
use plimsoll::prelude::*;
use plimsoll::train::tally;

const BATCH: usize = 1024;
const STEPS: u64 = 4;

fn model(batch_norm: bool) -> Sequential {
    let norm = |layers: Sequential| if batch_norm { layers.push(BatchNorm::new()) } else { layers };
    let layers = Sequential::classifier([28, 28, 1], 10);
    let layers = (0..4).fold(layers, |layers, _| norm(layers.push(Conv2d::new(8, 3))).push(Relu));
    layers.push(MaxPool2d::new(2)).push(Flatten).push(Dense::new(10))
}

/// A trainer whose line covers the arena and the batches.
fn trainer(batch_norm: bool, line: usize) -> Trainer {
    Trainer::new(model(batch_norm), Sgd::new(0.01)).batch(BATCH).steps(STEPS).line(line)
}

/// What a plan did, and the losses of its run.
struct Curve {
    bytes: usize,
    micro_batches: usize,
    rematerialized: usize,
    offloaded: usize,
    losses: Vec<f64>,
}

/// Plans, trains and prints.
fn curve(what: &str, trainer: &Trainer, data: &Dataset) -> Result<Curve, TrainError> {
    let plan = trainer.plan(data)?;
    let (tally, micro_batches, mut losses) = (tally(&plan), plan.plans[0].graph.micro_batches, Vec::new());
    let (bytes, rematerialized) = (plan.sheet.total_bytes, tally.recomputed);
    plan.start()?.fit_with(&mut |event| {
        if let TrainEvent::Step { loss, .. } = event {
            losses.push(*loss);
        }
        Control::Continue
    })?;
    let offloaded = tally.offloaded_bytes.file;
    let (total, file) = (in_words(bytes), in_words(offloaded));
    println!(
        "{what:<24} {total:>10}: {micro_batches} micro-batches, {rematerialized} rematerialized, {file} offloaded"
    );
    println!("{:<24} losses {losses:.5?}", "");
    Ok(Curve { bytes, micro_batches, rematerialized, offloaded, losses })
}

/// Trains with and without a line, with and without batch norm.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let data = datasets::mnist()?;
    let data = Dataset::new("digits", data.train, data.test.take(500));
    println!("batches of {BATCH}:");
    let free = curve("no line", &trainer(false, usize::MAX).micro_batches(1), &data)?;
    let third = curve("1/3 of that", &trainer(false, free.bytes / 3), &data)?;
    assert!(third.bytes <= free.bytes / 3 && third.micro_batches > 1);
    assert_eq!(third.losses, free.losses, "a line changes no bit of a loss");

    let free = curve("batch norm, no line", &trainer(true, usize::MAX), &data)?;
    let (whole, line) = (free.bytes, free.bytes / 2);
    let lined = curve("batch norm, 3/4 of that", &trainer(true, whole / 4 * 3), &data)?;
    assert!(lined.bytes <= whole / 4 * 3 && lined.rematerialized > 0 && lined.losses == free.losses);
    let spilling = trainer(true, line).spill(std::env::temp_dir());
    let lined = curve("1/2, and a file", &spilling, &data)?;
    assert!(lined.bytes <= line && lined.offloaded > 0 && lined.losses == free.losses);

    let Err(TrainError::Plan(PlanError::Infeasible(short))) = trainer(true, whole / 16).plan(&data) else {
        return Err("a sixteenth should not be enough".into());
    };
    println!("1/16: {short}");
    assert!(short.needed_bytes > whole / 16);

    let largest = trainer(false, line).largest_batch(&data)?;
    let mixed = trainer(true, line).largest_batch(&data)?;
    println!(
        "the largest batch under {}: {largest} in micro-batches, {mixed} with batch norm",
        in_words(line)
    );
    assert!(trainer(false, line).batch(largest).plan(&data).is_ok());
    assert!(BATCH < largest && mixed < largest);
    Ok(())
}
