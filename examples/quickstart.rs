//! A model, a line, a load sheet, a training run.
//!
//!     cargo run --release --example quickstart

#![allow(clippy::print_stdout, reason = "an example prints")]

use plimsoll::{memory, prelude::*};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = Sequential::classifier([28, 28, 1], 10)
        .push(Conv2d::new(16, 3))
        .push(Relu)
        .push(MaxPool2d::new(2))
        .push(Flatten)
        .push(Dense::new(64))
        .push(Relu)
        .push(Dense::new(10));
    let data = open("mnist", &OpenOptions::default())?;
    let trainer = Trainer::new(model, AdamW::new(1e-3), Cpu::new(2)?).batch(64).epochs(2).line(128 << 20);
    let trainer = memory::declare(trainer, 2, &data); // the line covers program, threads, heap and data, too
    let plans = trainer.plan(&data)?; // refuses here, with the reason, if 128 MiB are not enough
    println!("{}\n", plans.sheet);
    let mut session = trainer.prepare(plans, &data)?;
    let report = session.fit(&data, &mut |event| {
        if let TrainEvent::Validation { epoch, train_loss, evaluation, .. } = event {
            println!("epoch {}: loss {train_loss:.3}, test accuracy {:?}", epoch + 1, evaluation.accuracy);
        }
        Control::Continue
    })?;
    println!("{:.0} samples/s", report.samples_per_second);
    Ok(())
}
