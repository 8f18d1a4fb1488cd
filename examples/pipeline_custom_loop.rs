//! A training loop by hand: every batch, every step, a custom stopping rule.
//!
//!     cargo run --release --example custom_loop

#![allow(clippy::print_stdout, reason = "an example prints")]

use plimsoll::prelude::*;

/// Trains until the smoothed loss is low enough.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let data = open("mnist", &OpenOptions::default())?;
    let trainer = Trainer::new(zoo::lenet(), Sgd::new(0.02).momentum(0.9)).executor(Cpu::new(2)?).batch(100);
    let mut session = trainer.plan(&data)?.start()?;

    let pipeline = data.train.clone().shuffle(10_000, 1).batch(100);
    let mut batches = pipeline.start(Cursor::default())?; // two buffers, reused for every batch
    let mut smoothed = 2.3;
    while smoothed > 0.15 {
        let Some(batch) = batches.next()? else {
            let test = session.evaluate(&data.test)?;
            println!("epoch {} done, test loss {:.4}", batches.cursor().epoch, test.loss);
            continue;
        };
        let loss = session.train_step(batch)?;
        smoothed += 0.02 * (loss - smoothed);
    }
    let test = session.evaluate(&data.test)?;
    println!("{} steps, test accuracy {:.2} %", session.steps_done(), 100.0 * test.accuracy.unwrap_or(0.0));

    if let Some(batch) = data.test.batch(100).start(Cursor::default())?.next()? {
        let logits = session.predict(batch)?;
        println!("logits of the first test digit: {:?}", &logits[0].as_f32().unwrap_or(&[])[..10]);
    }
    Ok(())
}
