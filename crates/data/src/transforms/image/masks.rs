//! Pictures with a class for each pixel.

use super::{Decode, Header, Need, Written, png};
use crate::{DataError, Field, Kind, Record, Schema, Stage};

/// The grey value of pixels without a class.
const NO_CLASS: u8 = 255;

/// Decodes a picture and its mask, with the same window and flip: floats `[height, width, channels]` and i32 `[height, width]`.
/// A mask is a PNG file of the picture's size whose grey values or palette indices of up to 8 bits are classes; 255, and
/// pixels outside the picture, are no class (-1). Masks are resized by nearest neighbour.
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
    /// Masks of `classes` classes, with pictures decoded by `decode`.
    pub fn new(decode: Decode, classes: usize) -> Self {
        Self { decode, classes }
    }

    /// Writes the classes of the window.
    fn write(&self, written: &Written, mask: &[u8], into: &mut [u8]) -> Result<(), DataError> {
        let ([height, width], [rows, columns]) = (self.decode.size, written.size);
        let (scale, resized) =
            (written.window.scale, self.decode.shorter_side.is_some() && written.window.scale != 1.0);
        let source = |axis: usize, i: usize| -> Option<usize> {
            let extent = [rows, columns][axis];
            if !resized {
                let at = written.window.corner[axis] as isize + i as isize;
                return usize::try_from(at).ok().filter(|at| *at < extent);
            }
            // The window stays inside, as in the picture's resizing.
            let corner = written.window.corner[axis]
                .min(extent as f64 - [height, width][axis] as f64 * scale)
                .max(0.0);
            Some(((corner + (i as f64 + 0.5) * scale) as usize).min(extent - 1))
        };
        for (y, line) in into.chunks_exact_mut(4 * width).take(height).enumerate() {
            let row = source(0, y).map(|row| &mask[row * columns..][..columns]);
            for (x, word) in line.chunks_exact_mut(4).enumerate() {
                let x = if written.mirrored { width - 1 - x } else { x };
                let class = row.zip(source(1, x)).map_or(NO_CLASS, |(row, column)| row[column]);
                let class = if class == NO_CLASS { -1 } else { i32::from(class) };
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
                // `Decode` checks the rest.
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
        let (picture, mask) = (Header::parse(input.bytes(0))?, Header::parse(input.bytes(1))?);
        let (Header::Png(of_mask), [h, w], [height, width]) = (mask, mask.size(), picture.size()) else {
            return Err(not_a_mask());
        };
        if [h, w] != [height, width] {
            let reason = format!("the mask has {h}×{w} pixels, the picture {height}×{width}");
            return Err(DataError::Corrupt { reason });
        }
        let (place, lengths) = (input.place, [0, 1].map(|column| input.bytes(column).len()));
        let need = self.decode.checked_need(&picture)?.max(mask_need(&mask));
        self.decode.in_memory(need, scratch, |mut workspace| {
            let file = &mut input.buffer_mut(0)[..lengths[0]];
            let written = self.decode.picture(file, &picture, place, &mut workspace, output.buffer_mut(0))?;
            let file = &mut input.buffer_mut(1)[..lengths[1]];
            let mask = png::classes(file, &of_mask, workspace.pixels)?;
            self.write(&written, mask.pixels, output.buffer_mut(1))
        })
    }

    fn scratch_bytes(&self, input: &Schema) -> usize {
        self.decode.scratch_bytes(input)
    }

    fn decoder_bytes(&self, readers: usize) -> usize {
        self.decode.decoder_bytes(readers)
    }
}

fn not_a_mask() -> DataError {
    DataError::Corrupt { reason: "the mask is no PNG file, or too large".into() }
}

/// What decoding a mask with this header takes: a byte for each pixel.
pub(crate) fn mask_need(header: &Header) -> Need {
    let [height, width] = header.size();
    let Header::Png(header) = header else { return Need::default() };
    Need { pixels: height.saturating_mul(width), ..header.need(1) }
}

/// The largest class of a mask whose decoded pixels fit into `pixels`.
pub(crate) fn most_class(file: &mut [u8], pixels: &mut [u8]) -> Result<Option<u8>, DataError> {
    let header = Header::parse(file)?;
    let (Header::Png(of_mask), Need { pixels: bytes, .. }) = (header, mask_need(&header)) else {
        return Err(not_a_mask());
    };
    if bytes > pixels.len() {
        return Err(not_a_mask());
    }
    let mask = png::classes(file, &of_mask, pixels)?;
    Ok(mask.pixels.iter().copied().filter(|class| *class != NO_CLASS).max())
}
