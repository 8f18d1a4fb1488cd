//! A model, a line, a load sheet, a training run.
//!
//!     cargo run --release --example quickstart

#![allow(clippy::print_stdout, reason = "an example prints")]

use plimsoll::prelude::*;

/// Plans, trains, evaluates.
pub fn main() -> plimsoll::Result<()> {
    let data = datasets::mnist()?; // train, validation, test
    let model = Sequential::classifier([28, 28, 1], 10)
        .push(Conv2d::new(16, 3))
        .push(Relu)
        .push(MaxPool2d::new(2))
        .push(Flatten)
        .push(Dense::new(10));
    let trainer = Trainer::new(model, AdamW::new(1e-3)).memory(MiB(128)).batch(64).epochs(2).progress();
    let plan = trainer.plan(&data)?; // refuses here, with the reason, if 128 MiB are not enough
    println!("{}", plan.load_sheet());
    let mut run = plan.start()?;
    run.fit()?;
    println!("{}", run.evaluate(&data.test)?);
    Ok(())
}
