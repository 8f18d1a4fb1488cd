//! What several formats share: files, tables, image decoding, and the last steps of opening a dataset.

pub(super) mod csv_rows;
pub(super) mod decoding;
pub(crate) mod files;
pub(crate) mod image_files;
pub(super) mod sparse_index;
pub(super) mod table_encoder;

use crate::{DataError, Dataset, ImageOptions, InputPreparation, Normalise, OpenOptions, Pipeline};
use image_files::TEST_EVERY;

/// Training and test part: as given, or with every tenth record as the test part.
pub(super) fn split(
    spec: &str,
    train: Pipeline,
    test: Option<Pipeline>,
) -> Result<(Pipeline, Pipeline), DataError> {
    let (train, test) = match test {
        Some(test) => (train, test),
        None => train.split(TEST_EVERY),
    };
    if test.is_empty() {
        let what = format!("`{spec}`: every {TEST_EVERY}th record is for testing, and the test part");
        return Err(DataError::Empty { what });
    }
    Ok((train, test))
}

/// Rows of numbers, normalised by the statistics of the training part.
pub(super) fn normalised(
    spec: &str,
    train: Pipeline,
    test: Option<Pipeline>,
    options: &OpenOptions,
) -> Result<Dataset, DataError> {
    let (train, test) = split(spec, train, test)?;
    // Records that may be skipped later may be skipped here.
    let prepared = options.table.prepared.as_ref().map(|preparation| &preparation.input);
    let normalise = match (prepared, options.images.skip_bad) {
        (Some(InputPreparation::Row(row)), _) => Normalise::restored(row),
        (_, Some(records)) => Normalise::measure(&train.clone().skip_bad(records))?,
        (_, None) => Normalise::measure(&train)?,
    };
    let mut preparation = train.preparation().clone();
    if let InputPreparation::Row(row) = &mut preparation.input {
        (row.mean, row.factor) = normalise.constants();
    }
    finish(spec, train.apply(normalise.clone())?.prepared(preparation), test.apply(normalise)?, options)
}

/// Sets workers and prefetch of both parts, and shuffles a stream if asked to.
pub(super) fn finish(
    spec: &str,
    train: Pipeline,
    test: Pipeline,
    options: &OpenOptions,
) -> Result<Dataset, DataError> {
    let ImageOptions { workers, prefetch, skip_bad, .. } = options.images;
    let run = |part: Pipeline| {
        let part = part.workers(workers).prefetch(prefetch);
        if let Some(records) = skip_bad { part.skip_bad(records) } else { part }
    };
    let train = match (options.shuffle, train.source()) {
        (Some(0), _) => {
            return Err(DataError::Option { option: "shuffle", reason: "must be at least 1".into() });
        }
        (Some(_), Some(_)) => {
            let reason =
                "its records have random access, so that all of them are shuffled, and no buffer is needed";
            return Err(DataError::Option {
                option: "shuffle",
                reason: format!("`{spec}`: {reason}; leave it out"),
            });
        }
        (Some(records), None) => train.shuffle(records, options.seed),
        (None, _) => train,
    };
    Ok(Dataset::new(spec, run(train), run(test)))
}
