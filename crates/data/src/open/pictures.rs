//! Image files by name: how large they are, and what is done with them.

use super::{ImageOptions, OpenOptions, finish};
use crate::image::{announced, most_class};
use crate::pipeline::Head;
use crate::{Crop, DataError, Dataset, Decode, DecodeMasks, Pipeline, Record, budget::zeroed};

/// Headers that are looked at before the first batch.
const HEADERS: usize = 1000;
/// Pixels of an image at most, unless told otherwise.
const MOST_PIXELS: usize = 64 << 20;

/// Image files as inputs: resized where they have another size, cut to it, normalised.
pub(super) fn images(
    name: &str,
    train: impl Into<Pipeline>,
    test: impl Into<Pipeline>,
    options: &OpenOptions,
) -> Result<Dataset, DataError> {
    let (train, test) = (train.into(), test.into());
    let ([training, plain], _) = stages(&train, &test, options)?;
    finish(name, train.apply(training)?, test.apply(plain)?, options)
}

/// Pictures with masks: as [`images`], and both get the same window.
pub(super) fn masks(
    name: &str,
    train: Pipeline,
    test: Pipeline,
    options: &OpenOptions,
) -> Result<Dataset, DataError> {
    let ([training, plain], most) = stages(&train, &test, options)?;
    let classes = match options.classes {
        Some(classes) => classes,
        None => classes(&train, most)?.max(classes(&test, most)?),
    };
    let (train, test) =
        (train.apply(DecodeMasks::new(training, classes))?, test.apply(DecodeMasks::new(plain, classes))?);
    finish(name, train, test, options)
}

/// One more than the largest class of the masks, of which a thousand are looked at.
fn classes(pairs: &Pipeline, most_pixels: usize) -> Result<usize, DataError> {
    let Some(source) = pairs.source() else { return Ok(1) };
    let mut bytes = zeroed("a file", source.schema().room() as u64)?;
    let mut pixels = zeroed("a mask", (most_pixels as u64).saturating_mul(4))?;
    let (count, mut most) = (source.len().min(HEADERS), None);
    for i in 0..count {
        let index = (i as u128 * source.len() as u128 / count as u128) as usize;
        let mut record = Record::over(source.schema(), &mut bytes);
        if source.read(index, &mut record, &mut []).is_ok() {
            // What is wrong with a mask shows when it is used.
            most = most.max(most_class(record.bytes(1), &mut pixels).unwrap_or(None));
        }
    }
    Ok(most.map_or(1, |class| usize::from(class) + 1))
}

/// How pictures are decoded for training and for measuring, and how many pixels they have at most.
fn stages(
    train: &Pipeline,
    test: &Pipeline,
    options: &OpenOptions,
) -> Result<([Decode; 2], usize), DataError> {
    let ImageOptions { size, augment, skip_bad, most_pixels, .. } = options.images.clone();
    let bytes = size.iter().try_fold(4usize, |bytes, n| bytes.checked_mul(*n)).unwrap_or(usize::MAX);
    if bytes > options.max_bytes {
        let (what, limit) = (format!("one image of {size:?}"), options.max_bytes as u64);
        return Err(DataError::TooLarge { what, bytes: bytes as u64, limit });
    }
    let cap = most_pixels.unwrap_or(MOST_PIXELS);
    // Where the cap was given or bad images are passed over, one past it is bad when it is used.
    let strict = most_pixels.is_none() && skip_bad.is_none();
    let looks = [look(train, cap, strict)?, look(test, cap, strict)?];
    let every = looks.iter().all(|look| look.every);
    let largest = looks.iter().map(|look| look.pixels).max().unwrap_or(0);
    let most = if every { largest } else { largest.saturating_mul(2) };
    let most = most_pixels.unwrap_or(most.min(cap));
    let side = size[0].max(size[1]);
    let same = looks.iter().all(|look| look.sizes == Some([size[0], size[1]]));
    let plain = || {
        let decode = Decode::new(size, most).seed(options.seed);
        let decode = if options.images.bf16 { decode.bf16() } else { decode };
        // As published models look at pictures: the middle seven eighths.
        if same { decode } else { decode.resize(side.saturating_mul(8).div_ceil(7)) }
    };
    let pad = if same { side / 8 } else { 0 };
    let training = if augment { plain().crop(Crop::Random { pad }).flip() } else { plain() };
    Ok(([training, plain()], most))
}

/// What headers say of the images of a source.
struct Look {
    /// Pixels of the largest.
    pixels: usize,
    /// Height and width, if all have the same.
    sizes: Option<[usize; 2]>,
    /// Whether every image was looked at.
    every: bool,
}

/// Looks at headers, spread over the whole where there is random access. What cannot be read shows when it is used.
fn look(files: &Pipeline, cap: usize, strict: bool) -> Result<Look, DataError> {
    let mut look = Look { pixels: 0, sizes: None, every: true };
    let mut differs = false;
    let mut see = |file: &[u8], origin: &dyn Fn() -> String| {
        let Ok([height, width]) = announced(file) else { return Ok(()) };
        let pixels = height.saturating_mul(width);
        if pixels > cap && strict {
            let reason = format!("{height}×{width} pixels, more than {cap}; allow them with --max-pixels");
            return Err(DataError::Corrupt { reason }.of(origin));
        }
        look.pixels = look.pixels.max(if pixels > cap { 1 } else { pixels });
        differs |= *look.sizes.get_or_insert([height, width]) != [height, width];
        Ok(())
    };
    let mut bytes = zeroed("a file", files.schema().room() as u64)?;
    let (first, every) = match &files.head {
        Head::Indexed(source) => {
            let mut scratch = zeroed("a file", source.scratch_bytes() as u64)?;
            let count = source.len().min(HEADERS);
            for i in 0..count {
                let index = (i as u128 * source.len() as u128 / count as u128) as usize;
                let mut record = Record::over(source.schema(), &mut bytes);
                if source.read(index, &mut record, &mut scratch).is_ok() {
                    see(record.bytes(0), &|| source.origin(index, 0))?;
                }
            }
            (source.origin(0, 0), count == source.len())
        }
        Head::Streamed(stream, _) => {
            let mut scratch = zeroed("a file", stream.scratch_bytes() as u64)?;
            let mut files = stream.start(0)?;
            let (mut first, mut count) = (None, 0);
            loop {
                let mut record = Record::over(stream.schema(), &mut bytes);
                match files.next(&mut record, &mut scratch) {
                    Ok(false) => break,
                    Ok(true) if count == HEADERS => break,
                    Ok(true) => {
                        let place = record.place.origin;
                        first.get_or_insert(place);
                        see(record.bytes(0), &|| stream.origin(place))?;
                    }
                    Err(_) => {}
                }
                count += 1;
            }
            (stream.origin(first.unwrap_or(0)), count < HEADERS)
        }
    };
    look.every = every;
    if differs {
        look.sizes = None;
    }
    if look.pixels == 0 {
        let reason = DataError::Corrupt { reason: "none of the files is a JPEG or PNG image".into() };
        return Err(DataError::item(first, reason));
    }
    Ok(look)
}
