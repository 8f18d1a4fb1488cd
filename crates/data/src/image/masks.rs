//! Pictures with a class for each pixel.

use super::{Decode, Seen, announced, picture::MOST_CHANNELS, png};
use crate::{DataError, Field, Kind, Record, Schema, Stage};

/// The grey value of pixels that have no class.
const NONE: u8 = 255;

/// Decodes a picture and its mask, which get the same window and are mirrored together: floats `[height, width, channels]` and
/// i32 `[height, width]`. A mask is a PNG file of as many pixels as the picture, with classes as grey values or places in a
/// palette of up to 8 bits; 255, and what lies beyond the picture, is no class (-1). Pixels of a mask are never mixed: where a picture is
/// resized, its mask has the nearest.
///
/// ```
/// use plimsoll_data::{Decode, DecodeMasks, Schema, Stage};
/// let pair = Schema::new().bytes("image", 1 << 20).bytes("mask", 1 << 16);
/// let stage = DecodeMasks::new(Decode::new([64, 64, 3], 4_000_000), 5);
/// assert_eq!(stage.schema(&pair)?.in_words(), "image f32[64,64,3], mask i32[64,64]");
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
pub struct DecodeMasks {
    decode: Decode,
    classes: usize,
}

impl DecodeMasks {
    /// Masks of so many classes beside pictures that are decoded like this.
    pub fn new(decode: Decode, classes: usize) -> Self {
        Self { decode, classes }
    }

    /// Writes the classes of the window.
    fn write(&self, seen: &Seen, mask: &[u8], into: &mut [u8]) -> Result<(), DataError> {
        let ([height, width], [rows, columns]) = (self.decode.size, seen.size);
        let (scale, resized) =
            (seen.window.scale, self.decode.shorter_side.is_some() && seen.window.scale != 1.0);
        let place = |axis: usize, i: usize| -> Option<usize> {
            let extent = [rows, columns][axis];
            if !resized {
                let at = seen.window.corner[axis] as isize + i as isize;
                return usize::try_from(at).ok().filter(|at| *at < extent);
            }
            // As the picture was resized: the window stays inside.
            let corner =
                seen.window.corner[axis].min(extent as f64 - [height, width][axis] as f64 * scale).max(0.0);
            Some(((corner + (i as f64 + 0.5) * scale) as usize).min(extent - 1))
        };
        for (y, line) in into.chunks_exact_mut(4 * width).take(height).enumerate() {
            let row = place(0, y).map(|row| &mask[row * columns..][..columns]);
            for (x, word) in line.chunks_exact_mut(4).enumerate() {
                let x = if seen.mirrored { width - 1 - x } else { x };
                let class = row.zip(place(1, x)).map_or(NONE, |(row, column)| row[column]);
                let class = if class == NONE { -1 } else { i32::from(class) };
                if class >= self.classes as i32 {
                    let reason = format!("a pixel of the mask has class {class} of {}", self.classes);
                    return Err(DataError::Corrupt { reason });
                }
                word.copy_from_slice(&class.to_ne_bytes());
            }
        }
        Ok(())
    }
}

impl Stage for DecodeMasks {
    fn schema(&self, input: &Schema) -> Result<Schema, DataError> {
        match input.columns() {
            [image, mask] if [image, mask].iter().all(|column| matches!(column.kind, Kind::Bytes { .. })) => {
                let [height, width] = self.decode.size;
                // What is refused of the picture is refused here.
                let label = Field::below(self.classes.max(1), [height, width]);
                let files = Schema::new().column(&image.name, image.kind.clone()).tensor(&mask.name, label);
                self.decode.schema(&files)
            }
            _ => {
                let reason =
                    format!("takes the bytes of a picture and of its mask, not {}", input.in_words());
                Err(DataError::Option { option: "masks", reason })
            }
        }
    }

    fn apply(
        &self,
        input: &mut Record<'_>,
        output: &mut Record<'_>,
        scratch: &mut [u8],
    ) -> Result<(), DataError> {
        let (place, length) = (input.place, input.bytes(0).len());
        let file = &mut input.room(0)[..length];
        let seen = self.decode.picture(file, place, scratch, output.room(0))?;
        let size = announced(input.bytes(1))?;
        if size != seen.size {
            let ([h, w], [height, width]) = (size, seen.size);
            let reason = format!("the mask has {h}×{w} pixels, the picture {height}×{width}");
            return Err(DataError::Corrupt { reason });
        }
        let pixels = &mut scratch[..self.decode.most_pixels.saturating_mul(MOST_CHANNELS)];
        let mask = png::classes(input.bytes(1), pixels)?;
        self.write(&seen, mask.pixels, output.room(1))
    }

    fn scratch_bytes(&self, input: &Schema) -> usize {
        self.decode.scratch_bytes(input)
    }

    fn decoder_bytes(&self) -> usize {
        self.decode.decoder_bytes()
    }
}

/// The largest class of a mask of at most so many pixels.
pub(crate) fn most_class(file: &[u8], pixels: &mut [u8]) -> Result<Option<u8>, DataError> {
    let [height, width] = announced(file)?;
    if height.saturating_mul(width).saturating_mul(MOST_CHANNELS) > pixels.len()
        || file.first() == Some(&0xff)
    {
        return Err(DataError::Corrupt { reason: "the mask is no PNG file, or too large".into() });
    }
    let mask = png::classes(file, pixels)?;
    Ok(mask.pixels.iter().copied().filter(|class| *class != NONE).max())
}
