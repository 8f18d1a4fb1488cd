//! PNG pictures and masks.

use super::picture::Decoded;
use crate::DataError;
use png::{ColorType, Decoder, DecodingError, Limits, Transformations};
use std::io::Cursor;

fn corrupt(error: DecodingError) -> DataError {
    DataError::Corrupt { reason: error.to_string() }
}

/// Height and width that the header announces.
pub fn announced(file: &[u8]) -> Result<[usize; 2], DataError> {
    let mut decoder = Decoder::new_with_limits(Cursor::new(file), Limits { bytes: 1 << 20 });
    let info = decoder.read_header_info().map_err(corrupt)?;
    Ok([info.height as usize, info.width as usize])
}

/// Whether the header announces colours.
pub fn is_colour(file: &[u8]) -> Result<bool, DataError> {
    let mut decoder = Decoder::new_with_limits(Cursor::new(file), Limits { bytes: 1 << 20 });
    let info = decoder.read_header_info().map_err(corrupt)?;
    Ok(!matches!(info.color_type, ColorType::Grayscale | ColorType::GrayscaleAlpha))
}

/// Decodes the whole picture into one or three channels, without transparency.
pub fn decode<'p>(file: &[u8], channels: usize, pixels: &'p mut [u8]) -> Result<Decoded<'p>, DataError> {
    let limits = Limits { bytes: heap_bytes(pixels.len() / 4) };
    let mut decoder = Decoder::new_with_limits(Cursor::new(file), limits);
    decoder.set_transformations(Transformations::normalize_to_color8());
    let mut reader = decoder.read_info().map_err(corrupt)?;
    let frame = reader.next_frame(pixels).map_err(corrupt)?;
    let (height, width) = (frame.height as usize, frame.width as usize);
    let found = match frame.color_type {
        ColorType::Grayscale => 1,
        ColorType::GrayscaleAlpha => 2,
        ColorType::Rgb => 3,
        ColorType::Rgba => 4,
        ColorType::Indexed => return Err(DataError::Corrupt { reason: "a palette was not expanded".into() }),
    };
    convert(pixels, height * width, found, channels);
    Ok(Decoded { pixels: &mut pixels[..height * width * channels], size: [height, width] })
}

/// Decodes a mask: its grey values or palette indices, of up to 8 bits, are classes.
pub fn classes<'p>(file: &[u8], pixels: &'p mut [u8]) -> Result<Decoded<'p>, DataError> {
    let limits = Limits { bytes: heap_bytes(pixels.len() / 4) };
    let mut decoder = Decoder::new_with_limits(Cursor::new(file), limits);
    decoder.set_transformations(Transformations::IDENTITY);
    let mut reader = decoder.read_info().map_err(corrupt)?;
    let kind = reader.output_color_type();
    let bits = kind.1 as usize;
    if !matches!(kind.0, ColorType::Grayscale | ColorType::Indexed) || bits > 8 {
        let reason = format!("a mask of {kind:?} pixels; save it as 8-bit grey values or with a palette");
        return Err(DataError::Corrupt { reason });
    }
    let frame = reader.next_frame(pixels).map_err(corrupt)?;
    let size = [frame.height as usize, frame.width as usize];
    unpack(pixels, size, frame.line_size, bits);
    Ok(Decoded { pixels: &mut pixels[..size[0] * size[1]], size })
}

/// Unpacks numbers of fewer than 8 bits, packed line by line, to bytes, in place.
fn unpack(pixels: &mut [u8], [height, width]: [usize; 2], line: usize, bits: usize) {
    if bits >= 8 {
        return;
    }
    // From the end, so that no byte is overwritten before it is read.
    for (y, x) in (0..height).rev().flat_map(|y| (0..width).rev().map(move |x| (y, x))) {
        let packed = pixels[y * line + x * bits / 8];
        pixels[y * width + x] = packed >> (8 - bits - x * bits % 8) & ((1 << bits) - 1);
    }
}

/// Converts pixels of `from` channels to `to` channels, in place.
fn convert(pixels: &mut [u8], count: usize, from: usize, to: usize) {
    let one = |pixel: [u8; 4]| match (from, to) {
        (1 | 2, _) => [pixel[0]; 3],
        // Luma by ITU-R 601.
        (_, 1) => {
            let [r, g, b, _] = pixel.map(u32::from);
            [((r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16) as u8; 3]
        }
        _ => [pixel[0], pixel[1], pixel[2]],
    };
    let mut move_one = |i: usize| {
        let mut pixel = [0; 4];
        pixel[..from].copy_from_slice(&pixels[i * from..][..from]);
        pixels[i * to..][..to].copy_from_slice(&one(pixel)[..to]);
    };
    // Growing pixels are moved from the end, so that no byte is overwritten before it is read.
    if to > from {
        (0..count).rev().for_each(&mut move_one);
    } else if to < from {
        (0..count).for_each(&mut move_one);
    }
}

/// The decoder's heap at most: window and buffers of the decompressor, and lines of the picture.
pub fn heap_bytes(most_pixels: usize) -> usize {
    most_pixels.saturating_mul(4).saturating_add(512 << 10)
}
