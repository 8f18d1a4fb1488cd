//! A model, a line, a load sheet, a training run.
//!
//!     cargo run --release --example quickstart

#![allow(clippy::print_stdout, reason = "an example prints")]

use plimsoll::prelude::*;

fn main() -> plimsoll::Result<()> {
    let data = datasets::mnist()?; // train, validation, test
    let model = Sequential::classifier("digits", [28, 28, 1], 10)
        .layer("conv", Conv2d::new(16, 3))
        .layer("relu", Activation::Relu)
        .layer("pool", MaxPool2d::new(2))
        .layer("flatten", Flatten)
        .layer("head", Dense::new(10));
    let trainer = Trainer::new(model, AdamW::new(1e-3)).memory(MiB(128)).batch(64).epochs(2).progress();
    let plan = trainer.plan(&data)?; // refuses here, with the reason, if 128 MiB are not enough
    println!("{}", plan.load_sheet());
    let mut run = plan.start()?;
    run.fit()?;
    println!("{}", run.evaluate(&data.test)?);
    Ok(())
}
