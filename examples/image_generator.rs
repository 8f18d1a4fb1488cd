//! Trains on image files that are larger than the line: a generator reads them one after another, a stage decodes and resizes
//! them, and what that takes is in the plan.
//!
//!     cargo run --release --example image_generator

#![allow(clippy::print_stdout, reason = "an example prints")]

use plimsoll::data::{Permutation, Workers};
use plimsoll::memory;
use plimsoll::plan::in_words;
use plimsoll::prelude::*;
use std::fs::File;
use std::io::{BufWriter, Read};
use std::path::{Path, PathBuf};

const FILES: usize = 640;
const SIDE: usize = 224;
/// The largest file.
const MOST_BYTES: usize = 200 << 10;

/// Writes pictures of noise, uncompressed: even ones dark, odd ones bright. Returns their bytes.
fn write_pictures(folder: &Path) -> Result<u64, Box<dyn std::error::Error>> {
    std::fs::create_dir_all(folder)?;
    let (mut bytes, mut noise) = (0, 1u32);
    for number in 0..FILES {
        let path = path(folder, number);
        let mut encoder = png::Encoder::new(BufWriter::new(File::create(&path)?), SIDE as u32, SIDE as u32);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_compression(png::Compression::NoCompression);
        let mut pixel = || {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (noise >> 25) as u8 + if number % 2 == 1 { 64 } else { 0 }
        };
        let pixels: Vec<u8> = (0..SIDE * SIDE * 3).map(|_| pixel()).collect();
        encoder.write_header()?.write_image_data(&pixels)?;
        bytes += std::fs::metadata(&path)?.len();
    }
    Ok(bytes)
}

fn path(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("{number:04}.png"))
}

/// Files of a folder, one after another, in another order in each epoch.
fn generator(folder: &Path, files: std::ops::Range<usize>) -> Pipeline {
    let schema = Schema::new().bytes("image", MOST_BYTES).tensor("label", Field::below(2, []));
    let (folder, count) = (folder.to_path_buf(), files.len());
    let epoch = move |epoch: u64| {
        let (folder, order) = (folder.clone(), Permutation::new(count as u64, 7, epoch));
        let mut next = 0;
        move |record: &mut Record<'_>| {
            if next == count as u64 {
                return Ok(false); // the epoch is over
            }
            let number = files.start + order.at(next) as usize;
            next += 1;
            let file = path(&folder, number);
            let length = read(&file, record.buffer_mut(0))
                .map_err(|source| DataError::Read { file: file.display().to_string(), source })?;
            record.set_length(0, length)?;
            record.put_i32(1, (number % 2) as i32)?;
            Ok(true)
        }
    };
    Pipeline::generator(schema, 1 << 10, epoch).counted(count)
}

/// Reads a file straight into a record.
fn read(file: &Path, buffer: &mut [u8]) -> std::io::Result<usize> {
    let (mut file, mut length) = (File::open(file)?, 0);
    loop {
        match file.read(&mut buffer[length..])? {
            0 => return Ok(length),
            more => length += more,
        }
    }
}

/// Writes the files, plans, trains, and compares peaks.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    memory::configure_heap();
    let folder = std::env::temp_dir().join(format!("plimsoll-image-generator-{}", std::process::id()));
    let bytes = write_pictures(&folder)? as usize;
    let decoded = |files| generator(&folder, files).apply(Decode::new([64, 64, 3], SIDE * SIDE).resize(64));
    let train = decoded(0..FILES - 64)?.shuffle(64, 1).workers(Workers::UpTo(2)).prefetch(2);
    let data = Dataset::new("noise", train, decoded(FILES - 64..FILES)?);
    let model = Sequential::classifier([64, 64, 3], 2)
        .push(Conv2d::new(8, 3).stride(2))
        .push(Relu)
        .push(GlobalAveragePool)
        .push(Dense::new(2));
    let line = 64 << 20;
    println!("{FILES} files, {}, under a line of {}", in_words(bytes), in_words(line));
    let plan =
        Trainer::new(model, AdamW::new(0.02)).batch(32).epochs(2).memory(Size::Bytes(line)).plan(&data)?;
    println!("{}", plan.load_sheet());
    let planned = plan.load_sheet().total_bytes;
    let report = plan.start()?.fit()?;
    std::fs::remove_dir_all(&folder)?;
    let measured = memory::measured_peak();
    println!("{}", report.evaluation);
    println!("planned peak {}, measured {}", in_words(planned), measured.map_or("unknown".into(), in_words));
    assert!(bytes > line && planned <= line && measured.is_none_or(|measured| measured <= planned));
    assert!(report.evaluation.accuracy > Some(0.9));
    Ok(())
}
