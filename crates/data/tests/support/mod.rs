//! Image files, folders and the list of formats for tests.

use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
use plimsoll_data::catalogue;
pub use plimsoll_testing::Scratch;
use std::collections::BTreeSet;

/// Fails if a list of formats, with those that are tested elsewhere, is not the registry's.
#[allow(dead_code, reason = "not every test file asks")]
pub fn assert_covers_registry(tested: &[&str], elsewhere: &[&str]) {
    let tested: BTreeSet<&str> = tested.iter().chain(elsewhere).copied().collect();
    let known: BTreeSet<&str> = catalogue().iter().map(|format| format.prefix()).collect();
    assert_eq!(tested, known, "formats of this test (left) and of the registry (right)");
}

/// Pixels of a smooth picture with a texture; `salt` varies it.
pub fn picture(width: usize, height: usize, salt: usize) -> Vec<u8> {
    let mut pixels = Vec::with_capacity(width * height * 3);
    for y in 0..height {
        for x in 0..width {
            let wave = ((x * (3 + salt % 5) + y * 2 + salt * 31) % 64) as i32 - 32;
            let channel = |base: usize| (base as i32 + wave / 4).clamp(0, 255) as u8;
            pixels.extend([channel(40 + 150 * x / width), channel(60 + 120 * y / height), channel(128)]);
        }
    }
    pixels
}

/// The picture as a JPEG file.
pub fn jpeg(
    width: usize,
    height: usize,
    salt: usize,
    progressive: bool,
    sampling: SamplingFactor,
) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = Encoder::new(&mut file, 90);
    encoder.set_progressive(progressive);
    encoder.set_sampling_factor(sampling);
    let pixels = picture(width, height, salt);
    encoder.encode(&pixels, width as u16, height as u16, ColorType::Rgb).unwrap();
    file
}

/// A plain JPEG file, as cameras write it.
#[allow(dead_code, reason = "not every test file asks")]
pub fn photo(width: usize, height: usize, salt: usize) -> Vec<u8> {
    jpeg(width, height, salt, false, SamplingFactor::R_4_2_0)
}

/// Pixels as a PNG file of eight bits.
#[allow(dead_code, reason = "not every test file asks")]
pub fn png(width: usize, height: usize, pixels: &[u8], colour: png::ColorType) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width as u32, height as u32);
    encoder.set_color(colour);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.write_header().unwrap().write_image_data(pixels).unwrap();
    file
}
