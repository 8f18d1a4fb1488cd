//! PNG pictures and masks.

use super::memory::Need;
use super::picture::Decoded;
use crate::DataError;
use png::{ColorType, Decoder, DecodingError, Limits, Transformations};
use std::io::Cursor;

fn corrupt(error: DecodingError) -> DataError {
    DataError::Corrupt { reason: error.to_string() }
}

/// Bytes before the first chunk.
const SIGNATURE: usize = 8;
/// The decoder's heap apart from rows: tables of the decompressor, the palette.
const DECODER_BYTES: usize = 64 << 10;
/// The most chunks that decoding needs, before the pixels: header, palette, transparency.
const MAX_CHUNKS: usize = 3;

/// What the chunks before the pixels say.
#[derive(Clone, Copy)]
pub struct Header {
    pub height: usize,
    pub width: usize,
    /// Bits of a sample.
    bits: usize,
    /// Samples of a pixel in the file, and of a decoded one.
    samples: [usize; 2],
    pub is_colour: bool,
}

/// Visits the whole chunks before the pixels by name, offset and length; returns the offset of what follows them.
fn chunks(
    file: &[u8],
    mut visit: impl FnMut(&[u8], usize, usize) -> Result<(), DataError>,
) -> Result<usize, DataError> {
    let mut at = SIGNATURE;
    while let (Some(length), Some(name)) = (file.get(at..at + 4), file.get(at + 4..at + 8)) {
        let length = length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)) + 12;
        if name == b"IDAT" || file.len() - at < length {
            break;
        }
        visit(name, at, length)?;
        at += length;
    }
    Ok(at)
}

impl Header {
    /// Parses the chunks before the pixels.
    pub fn parse(file: &[u8]) -> Result<Self, DataError> {
        let damaged = || DataError::Corrupt { reason: "the PNG header is damaged".into() };
        let first = file.get(SIGNATURE..SIGNATURE + 8) == Some(b"\0\0\0\x0dIHDR");
        let (Some(header), true) = (file.get(SIGNATURE + 8..SIGNATURE + 8 + 13), first) else {
            return Err(damaged());
        };
        let mut transparent = false;
        chunks(file, |name, _, _| {
            transparent |= name == b"tRNS";
            Ok(())
        })?;
        let number = |at: usize| header[at..at + 4].iter().fold(0, |n, byte| n << 8 | usize::from(*byte));
        let alpha = usize::from(transparent);
        let (samples, is_colour) = match header[9] {
            0 => ([1, 1 + alpha], false),
            2 => ([3, 3 + alpha], true),
            3 => ([1, 3 + alpha], true),
            4 => ([2, 2], false),
            6 => ([4, 4], true),
            _ => return Err(damaged()),
        };
        Ok(Self { height: number(4), width: number(0), bits: usize::from(header[8]), samples, is_colour })
    }

    /// Bytes of a row in the file, with its filter.
    fn row_bytes(&self) -> usize {
        self.width.saturating_mul(self.samples[0] * self.bits).div_ceil(8).saturating_add(1)
    }

    /// Bytes of a decoded row.
    fn line_bytes(&self) -> usize {
        self.width.saturating_mul(self.samples[1])
    }

    /// What decoding into this many channels takes: the decompressor's window with some rows, and its pixels.
    pub fn need(&self, channels: usize) -> Need {
        let row = self.row_bytes();
        let window = row.saturating_mul(4).max(128 << 10).saturating_add(row.saturating_mul(2) + (48 << 10));
        // Rows of the passes of an interlaced picture have filters, too.
        let all = row.saturating_add(8).saturating_mul(self.height).saturating_mul(2).saturating_add(8 << 10);
        // The buffer is doubled, beside the one before.
        let buffer = window.min(all).saturating_mul(3);
        let heap = buffer.saturating_add(self.line_bytes()).saturating_add(row).saturating_add(DECODER_BYTES);
        let pixels = self.width.saturating_mul(self.height).saturating_mul(self.samples[1].max(channels));
        Need { pixels, heap }
    }

    /// A decoder of the file without chunks that decoding does not need.
    fn decoder<'f>(&self, file: &'f mut [u8]) -> Result<Decoder<Cursor<&'f [u8]>>, DataError> {
        let start = drop_metadata(file)?;
        let limits = Limits { bytes: self.line_bytes().saturating_add(8 << 10) };
        Ok(Decoder::new_with_limits(Cursor::new(&file[start..]), limits))
    }
}

/// Moves the signature and the chunks that decoding needs to the front of the pixels, so that the decoder copies nothing else;
/// returns where they start.
fn drop_metadata(file: &mut [u8]) -> Result<usize, DataError> {
    let (mut kept, mut count) = ([(0, 0); MAX_CHUNKS], 0);
    let mut start = chunks(file, |name, at, length| {
        if [b"IHDR", b"PLTE", b"tRNS"].iter().any(|needed| name == *needed) {
            let place = kept.get_mut(count).ok_or_else(|| DataError::Corrupt {
                reason: "a PNG chunk that may be there once is there twice".into(),
            })?;
            (*place, count) = ((at, length), count + 1);
        }
        Ok(())
    })?;
    // From the end, so that no chunk is overwritten before it is moved.
    for (at, length) in kept[..count].iter().rev().copied().chain([(0, SIGNATURE)]) {
        start -= length;
        file.copy_within(at..at + length, start);
    }
    Ok(start)
}

/// Decodes the whole picture into one or three channels, without transparency.
pub fn decode<'p>(
    file: &mut [u8],
    header: &Header,
    channels: usize,
    pixels: &'p mut [u8],
) -> Result<Decoded<'p>, DataError> {
    let mut decoder = header.decoder(file)?;
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
pub fn classes<'p>(file: &mut [u8], header: &Header, pixels: &'p mut [u8]) -> Result<Decoded<'p>, DataError> {
    let mut decoder = header.decoder(file)?;
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

/// The decoder's heap at most for a common picture: window and buffers of the decompressor, and lines of the picture.
pub fn heap_bytes(most_pixels: usize) -> usize {
    most_pixels.saturating_mul(4).saturating_add(768 << 10)
}
