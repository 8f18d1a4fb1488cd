//! A class for every pixel: discs and squares, found by a small U-Net trained on cross-entropy and measured by IoU.
//!
//!     cargo run --release --example segmentation

#![allow(clippy::print_stdout, reason = "an example talks")]

use plimsoll::nn::zoo::Unet;
use plimsoll::train::metrics;
use plimsoll::{memory, prelude::*};

const SIDE: usize = 32;

/// Pictures of a disc and a square on a noisy ground, and what each pixel is: 0 ground, 1 disc, 2 square.
fn pictures(seed: u64, count: usize) -> Result<Memory, Box<dyn std::error::Error>> {
    let random = plimsoll::tensor::random::Stream::new(seed, 0, "pictures");
    let (mut pixels, mut classes) = (Vec::new(), Vec::new());
    for picture in 0..count as u64 {
        let place = |i: u64| 6.0 + f64::from(random.uniform(picture, i)) * (SIDE as f64 - 12.0);
        let (disc, square) = ([place(0), place(1)], [place(2), place(3)]);
        for pixel in 0..SIDE * SIDE {
            let at = [(pixel / SIDE) as f64, (pixel % SIDE) as f64];
            let far = |from: [f64; 2]| [at[0] - from[0], at[1] - from[1]];
            let ([a, b], [c, d]) = (far(disc), far(square));
            let class = if a * a + b * b < 25.0 {
                1.0
            } else if c.abs().max(d.abs()) < 5.0 {
                2.0
            } else {
                0.0
            };
            let noise =
                |channel: u64| f64::from(random.normal(picture, 100 + 3 * pixel as u64 + channel)) * 0.4;
            pixels.extend([class - 1.0 + noise(0), (class - 1.0).abs() + noise(1), noise(2)]);
            classes.push(class);
        }
    }
    let images = HostTensor::from_f64(TensorType::new(DType::F32, [count, SIDE, SIDE, 3]), &pixels)?;
    let labels = HostTensor::from_f64(TensorType::new(DType::I32, [count, SIDE, SIDE]), &classes)?;
    Ok(Memory::new(vec![images], labels, Some(3))?)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let data = Dataset::new("discs and squares", pictures(1, 256)?, pictures(2, 32)?);
    let model = Unet { image: [SIDE, SIDE, 3], classes: 3, width: 8, norm: true };
    let trainer = Trainer::new(model, AdamW::new(3e-3), Cpu::new(2)?).batch(16).epochs(3).line(256 << 20);
    let trainer = memory::declare(trainer.report(step::Report::Output), 2, &data);
    let plans = trainer.plan(&data)?;
    println!("planned peak: {} bytes", plans.sheet.total_bytes);
    let mut session = trainer.prepare(plans, &data)?;
    session.fit(&data, &mut |event| {
        if let TrainEvent::Validation { epoch, train_loss, evaluation, .. } = event {
            println!("epoch {}: training loss {train_loss:.4}, test loss {:.4}", epoch + 1, evaluation.loss);
        }
        Control::Continue
    })?;
    let mut measures = [metrics::from_name("iou", 3)?, metrics::from_name("dice", 3)?];
    session.evaluate_with(&data.test, &mut measures)?;
    for metric in &measures {
        for (name, value) in metrics::figures(metric.as_ref()) {
            println!("{name}: {value:.4}");
        }
    }
    Ok(())
}
