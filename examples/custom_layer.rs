//! A custom layer and a custom loss, trained on tensors in memory.
//!
//!     cargo run --release --example custom_layer

#![allow(clippy::print_stdout, reason = "an example prints")]

use plimsoll::prelude::*;

/// `x · cos(frequency · x)` with a learned frequency for every column.
struct Wave;

impl Layer for Wave {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let width = net.shape(x).last().copied().unwrap_or(1);
        let frequency = net.parameter("frequency", [width], Init::Ones);
        net.math([x, frequency], |[x, f]| x * (x * f).cos())
    }
}

/// The mean fourth power of an example's errors.
fn quartic(net: &mut Net, outputs: &[ValueId], target: ValueId) -> Result<ValueId, GraphError> {
    net.math([outputs[0], target], |[y, t]| (y - t).power(4.0).mean(&[1], false))
}

/// Points and their targets.
fn points(from: usize, count: usize) -> Result<Memory, DataError> {
    let x = |i: usize| (((from + i) * 37 % 200) as f32 - 100.0) / 50.0;
    let x: Vec<[f32; 2]> = (0..count).map(|i| [x(2 * i), x(2 * i + 1)]).collect();
    let y: Vec<[f32; 2]> = x.iter().map(|pair| pair.map(|x| x * (2.0 * x).cos())).collect();
    Memory::values(x, y) // the vectors are not copied
}

/// Trains the model of the layer and the loss above.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let data = Dataset::new("waves", points(0, 2000)?, points(7, 200)?);
    let model = Sequential::regression([2], [2]).push(Dense::new(64)).push(Wave).push(Dense::new(2));
    let model = WithLoss::new(model, quartic);
    let trainer = Trainer::new(model, AdamW::new(1e-2)).batch(100).epochs(60).memory(MiB(64));
    let plans = trainer.schedule(Schedule::Cosine).plan(&data)?;
    println!("{}", plans.load_sheet());
    let report = plans.start()?.fit()?;
    println!("mean fourth power of the error: {:.6}", report.evaluation.loss);
    Ok(())
}
