//! Semantic segmentation: discs and squares in PNG files with masks, a small U-Net trained with cross-entropy and evaluated
//! by IoU.
//!
//!     cargo run --release --example segmentation

#![allow(clippy::print_stdout, reason = "an example prints")]

use plimsoll::data::ImageOptions;
use plimsoll::nn::zoo::Unet;
use plimsoll::prelude::*;
use plimsoll::train::metrics;
use std::path::Path;

const SIDE: usize = 32;

/// Writes images of a disc and a square on a noisy background as PNG files, and masks beside them: 0 background, 1 disc,
/// 2 square.
fn write_pictures(folder: &Path, seed: u64, count: usize) -> Result<(), Box<dyn std::error::Error>> {
    let random = plimsoll::tensor::random::Stream::new(seed, 0, "pictures");
    for picture in 0..count as u64 {
        let place = |i: u64| 6.0 + f64::from(random.uniform(picture, i)) * (SIDE as f64 - 12.0);
        let (disc, square) = ([place(0), place(1)], [place(2), place(3)]);
        let (mut pixels, mut classes) = (Vec::new(), Vec::new());
        for pixel in 0..SIDE * SIDE {
            let at = [(pixel / SIDE) as f64, (pixel % SIDE) as f64];
            let far = |from: [f64; 2]| [at[0] - from[0], at[1] - from[1]];
            let ([a, b], [c, d]) = (far(disc), far(square));
            let class = if a * a + b * b < 25.0 {
                1
            } else if c.abs().max(d.abs()) < 5.0 {
                2
            } else {
                0
            };
            let noise =
                |channel: u64| f64::from(random.normal(picture, 100 + 3 * pixel as u64 + channel)) * 20.0;
            let shades = [60.0 * f64::from(class), 60.0 * f64::from((class - 1i32).abs()), 0.0];
            pixels.extend((0..3).map(|i| (60.0 + shades[i] + noise(i as u64)).clamp(0.0, 255.0) as u8));
            classes.push(class as u8);
        }
        write_png(&folder.join(format!("images/{picture:04}.png")), &pixels, png::ColorType::Rgb)?;
        write_png(&folder.join(format!("masks/{picture:04}.png")), &classes, png::ColorType::Grayscale)?;
    }
    Ok(())
}

fn write_png(path: &Path, pixels: &[u8], colour: png::ColorType) -> Result<(), Box<dyn std::error::Error>> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let file = std::io::BufWriter::new(std::fs::File::create(path)?);
    let mut encoder = png::Encoder::new(file, SIDE as u32, SIDE as u32);
    encoder.set_color(colour);
    encoder.write_header()?.write_image_data(pixels)?;
    Ok(())
}

/// Writes pictures, trains, and scores.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::temp_dir().join(format!("plimsoll-segmentation-{}", std::process::id()));
    write_pictures(&folder.join("train"), 1, 256)?;
    write_pictures(&folder.join("test"), 2, 32)?;
    // Images and masks are read on demand, and mirrored together.
    let images = ImageOptions { size: [SIDE, SIDE, 3], augment: true, ..ImageOptions::default() };
    let data =
        open(&format!("masks:{}", folder.display()), &OpenOptions { images, ..OpenOptions::default() })?;
    let model = Unet { image: [SIDE, SIDE, 3], classes: 3, width: 8, norm: true };
    let trainer = Trainer::new(model, AdamW::new(3e-3)).batch(16).epochs(3).memory(MiB(256));
    let plans = trainer.report(step::Report::Output).progress().plan(&data)?;
    println!("planned peak: {} bytes", plans.sheet.total_bytes);
    let mut session = plans.start()?;
    session.fit()?;
    let mut measures = [metrics::from_name("iou", 3)?, metrics::from_name("dice", 3)?];
    session.evaluate_with(&data.test, &mut measures)?;
    for metric in &measures {
        for (name, value) in metrics::figures(metric.as_ref()) {
            println!("{name}: {value:.4}");
        }
    }
    std::fs::remove_dir_all(folder)?;
    Ok(())
}
