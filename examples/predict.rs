//! A trained model answers: a picture file, and rows of a tensor, under a line of its own.
//!
//!     cargo run --release --example predict

#![allow(clippy::print_stdout, reason = "an example prints")]

use plimsoll::prelude::*;
use std::path::Path;

fn model() -> Sequential {
    Sequential::classifier([28, 28, 1], 10).push(Flatten).push(Dense::new(64)).push(Relu).push(Dense::new(10))
}

/// Writes a white stroke on black as a PNG file: a one.
fn draw_one(path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let file = std::io::BufWriter::new(std::fs::File::create(path)?);
    let mut encoder = png::Encoder::new(file, 28, 28);
    encoder.set_color(png::ColorType::Grayscale);
    let stroke = |i: usize| if (13..16).contains(&(i % 28)) && (4..24).contains(&(i / 28)) { 255 } else { 0 };
    let pixels: Vec<u8> = (0..28 * 28).map(stroke).collect();
    encoder.write_header()?.write_image_data(&pixels)?;
    Ok(())
}

/// Trains, saves, loads, and asks.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::temp_dir().join(format!("plimsoll-predict-{}", std::process::id()));
    let data = datasets::mnist()?;
    let mut run = Trainer::new(model(), AdamW::new(1e-3)).batch(64).steps(200).plan(&data)?.start()?;
    run.fit()?;
    Predictor::from(run).save(&folder)?; // weights, class names, and what pictures went through

    // In another program, or on another day:
    let picture = folder.join("one.png");
    draw_one(&picture)?;
    let mut digits = Predictor::builder(model()).memory(MiB(64)).load(&folder)?;
    let answers = digits.pictures([&picture])?;
    println!("{answers}");
    let [best, second] = &answers.likeliest(0, 2)[..] else { return Err("two of ten classes".into()) };
    println!("{} at {:.1} %, then {}", best.name, 100.0 * best.probability, second.name);

    let blank = vec![[[[0.0f32; 1]; 28]; 28]; 5]; // five rows, as the model takes them
    println!("scores of blank pictures: {}", digits.predict([blank])?.output().ty());
    std::fs::remove_dir_all(folder)?;
    if best.name == "1" { Ok(()) } else { Err("the stroke is a one".into()) }
}
