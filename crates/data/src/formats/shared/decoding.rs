//! Decoding stages for image files: their headers decide on resizing and on the decoders' memory.

use super::finish;
use crate::core::budget::zeroed;
use crate::pipeline::Head;
use crate::transforms::image::{DEVIATION, Header, MEAN, Need, Needs, mask_need, most_class};
use crate::{
    Crop, DataError, Dataset, Decode, DecodeMasks, ImageOptions, InputPreparation, Kind, OpenOptions,
    PicturePreparation, Pipeline, Preparation, Record,
};
use std::sync::Arc;

/// Headers read before the first batch.
const HEADERS: usize = 1000;
/// The default limit of an image's pixels.
const MAX_PIXELS: usize = 64 << 20;

/// Image files as inputs: resized where their size differs, cropped, normalised.
pub(in crate::formats) fn images(
    name: &str,
    train: impl Into<Pipeline>,
    test: impl Into<Pipeline>,
    options: &OpenOptions,
) -> Result<Dataset, DataError> {
    let (train, test) = (train.into(), test.into());
    let Stages { training, plain, preparation, .. } = stages(&train, &test, options)?;
    finish(name, train.apply(training)?.prepared(preparation), test.apply(plain)?, options)
}

/// Pictures with masks: as [`images`], with the same window for both.
pub(in crate::formats) fn masks(
    name: &str,
    train: Pipeline,
    test: Pipeline,
    options: &OpenOptions,
) -> Result<Dataset, DataError> {
    let Stages { training, plain, preparation, most } = stages(&train, &test, options)?;
    let classes = match options.classes {
        Some(classes) => classes,
        None => classes(&train, most)?.max(classes(&test, most)?),
    };
    let (train, test) =
        (train.apply(DecodeMasks::new(training, classes))?, test.apply(DecodeMasks::new(plain, classes))?);
    finish(name, train.prepared(preparation), test, options)
}

/// One more than the largest class of the masks, from a sample of a thousand.
fn classes(pairs: &Pipeline, most_pixels: usize) -> Result<usize, DataError> {
    let Some(source) = pairs.source() else { return Ok(1) };
    let mut bytes = zeroed("a file", source.schema().capacity() as u64)?;
    let mut pixels = zeroed("a mask", most_pixels as u64)?;
    let (count, mut most) = (source.len().min(HEADERS), None);
    for i in 0..count {
        let index = (i as u128 * source.len() as u128 / count as u128) as usize;
        let mut record = Record::over(source.schema(), &mut bytes);
        if source.read(index, &mut record, &mut []).is_ok() {
            // A bad mask is an error when it is used.
            let length = record.bytes(1).len();
            let file = &mut record.buffer_mut(1)[..length];
            most = most.max(most_class(file, &mut pixels).unwrap_or(None));
        }
    }
    Ok(most.map_or(1, |class| usize::from(class) + 1))
}

/// How pictures are decoded for training and for testing.
struct Stages {
    training: Decode,
    plain: Decode,
    /// That of the training part, with what pictures go through.
    preparation: Preparation,
    /// The most pixels of a picture.
    most: usize,
}

/// Decides how pictures are decoded.
fn stages(train: &Pipeline, test: &Pipeline, options: &OpenOptions) -> Result<Stages, DataError> {
    let ImageOptions { size, augment, skip_bad, most_pixels, .. } = options.images.clone();
    let bytes = size.iter().try_fold(4usize, |bytes, n| bytes.checked_mul(*n)).unwrap_or(usize::MAX);
    if bytes > options.max_bytes {
        let (what, limit) = (format!("one image of {size:?}"), options.max_bytes as u64);
        return Err(DataError::TooLarge { what, bytes: bytes as u64, limit });
    }
    let cap = most_pixels.unwrap_or(MAX_PIXELS);
    // With an explicit limit, or if bad images are skipped, an image over the limit is bad only when it is used.
    let strict = most_pixels.is_none() && skip_bad.is_none();
    let surveys = [survey(train, cap, strict)?, survey(test, cap, strict)?];
    let every = surveys.iter().all(|survey| survey.every);
    let largest = surveys.iter().map(|survey| survey.pixels).max().unwrap_or(0);
    let most = if every { largest } else { largest.saturating_mul(2) };
    let most = most_pixels.unwrap_or(most.min(cap));
    let side = size[0].max(size[1]);
    let same = surveys.iter().all(|survey| survey.sizes == Some([size[0], size[1]]));
    // As published models are evaluated: the central seven eighths.
    let shorter_side = (!same).then(|| side.saturating_mul(8).div_ceil(7));
    let decode = || {
        let decode = Decode::new(size, most).seed(options.seed);
        let decode = if options.images.bf16 { decode.bf16() } else { decode };
        if let Some(side) = shorter_side { decode.resize(side) } else { decode }
    };
    let unseen = if every { Need::default() } else { decode().unseen_need() };
    let seen = surveys.iter().flat_map(|survey| &survey.headers);
    let need = |[picture, mask]: &[Option<Header>; 2]| {
        let needs = [picture.map(|header| decode().need(&header)), mask.map(|header| mask_need(&header))];
        needs.into_iter().flatten().fold(Need::default(), Need::max)
    };
    let needs = Needs::of(seen.map(need).collect(), unseen);
    // The two parts are never read at the same time.
    let shared = Arc::default();
    let plain = || decode().needing(needs, &shared);
    let pad = if same { side / 8 } else { 0 };
    let training = if augment { plain().crop(Crop::Random { pad }).flip() } else { plain() };
    let picture = PicturePreparation { size, shorter_side, mean: MEAN, deviation: DEVIATION };
    let input = InputPreparation::Picture(picture);
    let preparation = Preparation { input, ..train.preparation().clone() };
    Ok(Stages { training, plain: plain(), preparation, most })
}

/// What the headers of a source's images announce.
struct Survey {
    /// Pixels of the largest.
    pixels: usize,
    /// Those of each picture and of its mask.
    headers: Vec<[Option<Header>; 2]>,
    /// Height and width, if all images have the same.
    sizes: Option<[usize; 2]>,
    /// Whether every header was read.
    every: bool,
}

/// Reads headers, spread over the whole where there is random access. Unreadable files are errors when they are used.
fn survey(files: &Pipeline, cap: usize, strict: bool) -> Result<Survey, DataError> {
    let mut survey = Survey { pixels: 0, headers: Vec::new(), sizes: None, every: true };
    let has_masks =
        files.schema().columns().iter().filter(|c| matches!(c.kind, Kind::Bytes { .. })).count() > 1;
    let mut differs = false;
    let mut header = |record: &Record<'_>, origin: &dyn Fn() -> String| {
        let Ok(picture) = Header::parse(record.bytes(0)) else { return Ok(()) };
        let [height, width] = picture.size();
        let pixels = height.saturating_mul(width);
        if pixels > cap && strict {
            let reason = format!("{height}×{width} pixels, more than {cap}; allow them with --max-pixels");
            return Err(DataError::Corrupt { reason }.of(origin));
        }
        survey.pixels = survey.pixels.max(if pixels > cap { 1 } else { pixels });
        if pixels <= cap {
            let mask = has_masks.then(|| Header::parse(record.bytes(1)).ok()).flatten();
            survey.headers.push([Some(picture), mask]);
        }
        differs |= *survey.sizes.get_or_insert([height, width]) != [height, width];
        Ok(())
    };
    let mut bytes = zeroed("a file", files.schema().capacity() as u64)?;
    let (first, every) = match &files.head {
        Head::Indexed(source) => {
            let mut scratch = zeroed("a file", source.scratch_bytes() as u64)?;
            let count = source.len().min(HEADERS);
            for i in 0..count {
                let index = (i as u128 * source.len() as u128 / count as u128) as usize;
                let mut record = Record::over(source.schema(), &mut bytes);
                if source.read(index, &mut record, &mut scratch).is_ok() {
                    header(&record, &|| source.origin(index, 0))?;
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
                        let origin = record.place.origin;
                        first.get_or_insert(origin);
                        header(&record, &|| stream.origin(origin))?;
                    }
                    Err(_) => {}
                }
                count += 1;
            }
            (stream.origin(first.unwrap_or(0)), count < HEADERS)
        }
    };
    survey.every = every;
    if differs {
        survey.sizes = None;
    }
    if survey.pixels == 0 {
        let reason = DataError::Corrupt { reason: "none of the files is a JPEG or PNG image".into() };
        return Err(DataError::item(first, reason));
    }
    Ok(survey)
}
