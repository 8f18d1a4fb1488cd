//! JPEG: decodes only the rows that are needed.

use super::memory::Need;
use super::picture::Decoded;
use crate::DataError;
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

/// The most components of a pixel.
const MAX_COMPONENTS: usize = 4;
/// The decoder's heap apart from pixels and coefficients: its list of components.
const DECODER_BYTES: usize = 8 << 10;

/// The frame header.
#[derive(Clone, Copy)]
pub struct Header {
    pub height: usize,
    pub width: usize,
    /// Components of a pixel: one for grey.
    pub components: usize,
    /// Sampling factors of each component, across and down.
    factors: [[usize; 2]; MAX_COMPONENTS],
    /// Offset of the height field, if the rows are coded in order: all components in one scan.
    height_at: Option<usize>,
}

impl Header {
    /// Parses the segments up to the first scan.
    pub fn parse(file: &[u8]) -> Result<Self, DataError> {
        let cut = || DataError::Corrupt { reason: "the JPEG header is cut short".into() };
        let word = |at: usize| Some(usize::from(*file.get(at)?) << 8 | usize::from(*file.get(at + 1)?));
        let mut header: Option<Self> = None;
        let mut at = 2;
        loop {
            // Any number of fill bytes may precede a marker.
            while file.get(at) == Some(&0xff) && file.get(at + 1) == Some(&0xff) {
                at += 1;
            }
            if file.get(at) != Some(&0xff) {
                return Err(DataError::Corrupt { reason: format!("no JPEG marker at byte {at}") });
            }
            let marker = *file.get(at + 1).ok_or_else(cut)?;
            let length = word(at + 2).ok_or_else(cut)?;
            match marker {
                0xd9 => return Err(cut()),
                0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf => {
                    let (height, width) = word(at + 5).zip(word(at + 7)).ok_or_else(cut)?;
                    let components = usize::from(*file.get(at + 9).ok_or_else(cut)?);
                    if header.is_some() || components > MAX_COMPONENTS {
                        let reason = "two JPEG frames, or one of more than four components";
                        return Err(DataError::Corrupt { reason: reason.into() });
                    }
                    let mut factors = [[1; 2]; MAX_COMPONENTS];
                    for (i, factors) in factors.iter_mut().take(components).enumerate() {
                        let both = usize::from(*file.get(at + 11 + 3 * i).ok_or_else(cut)?);
                        *factors = [both >> 4, both & 15].map(|factor| factor.max(1));
                    }
                    // Baseline and extended sequential only: a progressive picture is spread over the whole file.
                    let height_at = (marker <= 0xc1).then_some(at + 5);
                    header = Some(Self { height, width, components, factors, height_at });
                }
                0xda => {
                    let header = header.ok_or_else(cut)?;
                    let scanned = usize::from(*file.get(at + 4).ok_or_else(cut)?);
                    let height_at = header.height_at.filter(|_| scanned == header.components);
                    return Ok(Self { height_at, ..header });
                }
                _ => {}
            }
            at += 2 + length;
        }
    }

    /// The largest sampling factors, across and down.
    fn most_factors(&self) -> [usize; 2] {
        [0, 1].map(|axis| self.factors.iter().map(|factors| factors[axis]).max().unwrap_or(1))
    }

    /// What decoding into this many channels takes: of each component a row of blocks, before and after its pixels are
    /// repeated, and, where the rows are not coded in order, the coefficients of the whole picture.
    pub fn need(&self, channels: usize) -> Need {
        let most = self.most_factors();
        let [across, down] = [self.width.div_ceil(8 * most[0]), self.height.div_ceil(8 * most[1])];
        let repeats = most != [1, 1];
        let mut heap = DECODER_BYTES + if repeats { across * 8 * most[0] * 16 } else { 0 };
        for [h, v] in self.factors.into_iter().take(self.components) {
            let (stride, times) = (across * 8 * h, [most[0] / h, most[1] / v]);
            let pixels = times[0] * times[1];
            heap += 16 * stride * v;
            if repeats {
                let doubled = if [h, v] == [1, 1] { pixels } else { 2 * pixels };
                // The decoder enlarges the buffer of those that are repeated across alone.
                let repeated = if times == [2, 1] { doubled + 2 * v } else { doubled };
                heap += stride * (4 * v + 2 * v * pixels + 16 * repeated);
            }
            if self.height_at.is_none() {
                // Of colours to grey, rows may be padded.
                let padding = if channels == 1 { most[1].div_ceil(most[0]) } else { 1 };
                heap += 128 * across * down * h * v * padding;
            }
        }
        Need { pixels: self.width * self.height * channels, heap }
    }
}

/// Turns metadata segments (Exif, colour profiles) into comments, so that the decoder does not copy them.
fn hide_metadata(file: &mut [u8]) {
    let mut at = 2;
    // The header was parsed: markers and lengths are valid up to the scan.
    while let Some([0xff, marker, high, low]) = file.get_mut(at..at + 4) {
        match *marker {
            0xff => at += 1,
            0xda => return,
            0xe1 | 0xe2 | 0xed => {
                *marker = 0xfe;
                at += 2 + (usize::from(*high) << 8 | usize::from(*low));
            }
            _ => at += 2 + (usize::from(*high) << 8 | usize::from(*low)),
        }
    }
}

/// Decodes at least the first `rows` rows. Changes the height in the file's header, so that the decoder stops there.
pub fn decode<'p>(
    file: &mut [u8],
    header: &Header,
    rows: usize,
    channels: usize,
    pixels: &'p mut [u8],
) -> Result<Decoded<'p>, DataError> {
    hide_metadata(file);
    let mut height = header.height;
    if let Some(at) = header.height_at {
        // One unit more, because the colours of the last row depend on the one below.
        let unit = 8 * header.most_factors()[1];
        height = rows.next_multiple_of(unit).saturating_add(unit).min(height);
        file[at..at + 2].copy_from_slice(&(height as u16).to_be_bytes());
    }
    let corrupt = |reason: zune_jpeg::errors::DecodeErrors| DataError::Corrupt { reason: reason.to_string() };
    let colours = if channels == 1 { ColorSpace::Luma } else { ColorSpace::RGB };
    let options = DecoderOptions::default()
        .jpeg_set_out_colorspace(colours)
        .set_strict_mode(true)
        .set_max_width(header.width)
        .set_max_height(height);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(&*file), options);
    decoder.decode_headers().map_err(corrupt)?;
    let (bytes, found) = (header.width * height * channels, decoder.output_buffer_size());
    if found != Some(bytes) || bytes > pixels.len() {
        return Err(DataError::Corrupt { reason: "the JPEG headers contradict each other".into() });
    }
    let pixels = &mut pixels[..bytes];
    decoder.decode_into(pixels).map_err(corrupt)?;
    Ok(Decoded { pixels, size: [height, header.width] })
}

/// The decoder's heap at most for a common picture of this many pixels: coefficients of four components, and a row of blocks of
/// each.
pub fn heap_bytes(most_pixels: usize) -> usize {
    most_pixels.saturating_mul(8).saturating_add(256 << 10)
}
