//! Images decoded, resized, cropped and mirrored on the fly, against images prepared in advance: the memory of each, and what a
//! second epoch shows.
//!
//!     cargo run --release --example resize_on_the_fly

#![allow(clippy::print_stdout, reason = "an example prints")]

use plimsoll::data::{Cache, Crop, Decode, Folder};
use plimsoll::plan::in_words;
use plimsoll::prelude::*;
use std::path::Path;

const PICTURES: usize = 48;
const SIDE: usize = 256;

/// Writes PNG files of two classes.
fn write_pictures(folder: &Path) -> Result<(), Box<dyn std::error::Error>> {
    for picture in 0..PICTURES {
        let class = folder.join(["plain", "striped"][picture % 2]);
        std::fs::create_dir_all(&class)?;
        let file = std::fs::File::create(class.join(format!("{picture:03}.png")))?;
        let mut encoder = png::Encoder::new(std::io::BufWriter::new(file), SIDE as u32, SIDE as u32);
        encoder.set_color(png::ColorType::Rgb);
        let pixel = |i: usize| match picture % 2 {
            0 => [picture as u8 * 5, (i / SIDE) as u8, 90],
            _ => [picture as u8 * 5, ((i % SIDE / 16 % 2) * 255) as u8, 90],
        };
        let pixels: Vec<u8> = (0..SIDE * SIDE).flat_map(pixel).collect();
        encoder.write_header()?.write_image_data(&pixels)?;
    }
    Ok(())
}

/// Prints the bytes that a pipeline states, and whether two epochs have the same pixels.
fn show(what: &str, pipeline: &Pipeline) -> Result<(usize, bool), Box<dyn std::error::Error>> {
    let shares = pipeline.bytes();
    let total: usize = shares.iter().map(|share| share.bytes).sum();
    println!("{what}: {}", in_words(total));
    for share in shares {
        println!("    {:<16} {:>12}   {}", share.name, in_words(share.bytes), share.how);
    }
    let mut batches = pipeline.start(Cursor::default())?;
    let mut epochs = [0.0f64; 2];
    for sum in &mut epochs {
        while let Some(batch) = batches.next()? {
            // The first pixel of each image: its green.
            let first = batch.input(0).unwrap_or(&[]).chunks(224 * 224 * 3 * 4).map(|picture| &picture[4..8]);
            *sum += first.map(|b| f64::from(f32::from_ne_bytes([b[0], b[1], b[2], b[3]]))).sum::<f64>();
        }
    }
    let same = (epochs[0] - epochs[1]).abs() < 1e-9;
    println!("    the second epoch has {} crops\n", if same { "the same" } else { "other" });
    Ok((total, same))
}

/// Compares both pipelines.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::temp_dir().join(format!("plimsoll-resize-on-the-fly-{}", std::process::id()));
    write_pictures(&folder)?;
    let decode = || Decode::new([224, 224, 3], SIDE * SIDE).resize(240);
    let files = || Ok::<_, DataError>(Pipeline::new(Folder::open(&folder, 1 << 20)?.0));
    let count = files()?.len().unwrap_or(0);

    let fly = files()?.apply(decode().crop(Crop::Random { pad: 0 }).flip().seed(7))?.batch(8).workers(1);
    let (on_the_fly, repeats) = show("resized and augmented on the fly", &fly)?;
    let prepared = files()?.apply(decode())?.cache(Cache::Memory { most_bytes: 1 << 30 })?;
    let (precomputed, repeats_prepared) = show("prepared once and cached", &prepared.batch(8).workers(1))?;
    let each = (precomputed - on_the_fly) as f64 / count as f64 / f64::from(1 << 20);
    println!("{count} images: {each:.2} MiB saved for each, and every epoch has other crops");
    assert!(!repeats && repeats_prepared && each * f64::from(1 << 20) > (224 * 224 * 3 * 4) as f64);

    let four = fly.clone().workers(4);
    let bytes = |pipeline: &Pipeline| pipeline.bytes().iter().map(|share| share.bytes).sum::<usize>();
    let more = bytes(&four) - bytes(&fly);
    println!("four workers instead of one: {} more, none of it data", in_words(more));
    let data_set = |pipeline: &Pipeline| pipeline.resident_bytes();
    assert_eq!(data_set(&four), data_set(&fly));
    std::fs::remove_dir_all(folder)?;
    Ok(())
}
