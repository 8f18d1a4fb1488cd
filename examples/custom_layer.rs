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
        let phase = net.mul(x, frequency)?;
        let wave = net.unary(plimsoll::graph::op::Unary::Cos, phase)?;
        net.mul(x, wave)
    }
}

/// The mean fourth power of an example's errors.
fn quartic(net: &mut Net, outputs: &[ValueId], target: ValueId) -> Result<ValueId, GraphError> {
    let error = net.sub(outputs[0], target)?;
    let power = net.power(error, 4.0)?;
    net.mean(power, &[1], false)
}

/// Points and their targets.
fn points(from: usize, count: usize) -> Result<Memory, Box<dyn std::error::Error>> {
    let x: Vec<f64> = (0..2 * count).map(|i| (((from + i) * 37 % 200) as f64 - 100.0) / 50.0).collect();
    let y: Vec<f64> = x.iter().map(|x| x * (2.0 * x).cos()).collect();
    let ty = TensorType::new(DType::F32, [count, 2]);
    let (x, y) = (HostTensor::from_f64(ty.clone(), &x)?, HostTensor::from_f64(ty, &y)?);
    Ok(Memory::new(vec![x], y, None)?)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let data = Dataset::new("waves", points(0, 2000)?, points(7, 200)?);
    let model = Sequential::regression("waves", [2], [2])
        .layer("spread", Dense::new(64))
        .layer("wave", Wave)
        .layer("head", Dense::new(2));
    let model = WithLoss::new(model, quartic);
    let trainer = Trainer::new(model, AdamW::new(1e-2)).batch(100).epochs(60).memory(MiB(64));
    let plans = trainer.schedule(Schedule::Cosine).plan(&data)?;
    println!("{}", plans.load_sheet());
    let report = plans.start()?.fit()?;
    println!("mean fourth power of the error: {:.6}", report.evaluation.loss);
    Ok(())
}
