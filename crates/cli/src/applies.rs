//! Which flags go with which data: one that would do nothing is an error.

use super::Failure;
use super::args::InputOptions;

/// What kinds of data a flag is for.
struct Flag {
    name: &'static str,
    given: bool,
    kinds: &'static [&'static str],
}

const IMAGES: &[&str] = &["images", "tar", "paths", "masks", "tfrecord"];
const FILES: &[&str] = &["images", "tar", "paths", "masks", "raster", "tfrecord", "csv", "parquet", "npz"];
const TOKENS: &[&str] =
    &["images", "tar", "paths", "masks", "raster", "tfrecord", "csv", "parquet", "npz", "text"];
/// Those that become as large as is asked for.
const SIZED: &[&str] = &["images", "tar", "paths", "masks", "raster", "tfrecord"];
const NAMED: &[&str] = &["paths", "raster", "tfrecord", "csv", "parquet", "npz"];
/// Those with columns of names.
const COLUMNS: &[&str] = &["paths", "csv", "parquet"];
/// Rows of numbers.
const TABLES: &[&str] = &["tfrecord", "csv", "parquet", "npz"];

/// The kind of data that a name opens.
fn kind(name: &str) -> &str {
    name.split_once(':').map_or(name, |(kind, _)| kind)
}

/// Whether data are rows of numbers, whose count and classes a model takes from them.
pub fn is_table(name: &str) -> bool {
    TABLES.contains(&kind(name))
}

/// What training was told of its data, for data of this name: the flags that apply to it and were not given anew. The classes
/// of a raster are those of the one that it was `trained_on`.
pub fn restore(name: &str, trained_on: Option<&str>, input: &mut InputOptions, trained: InputOptions) {
    let kind = kind(name);
    if NAMED.contains(&kind) && (kind != "raster" || trained_on == Some(name)) {
        input.label = input.label.take().or(trained.label);
    }
    if COLUMNS.contains(&kind) && input.columns.is_empty() {
        input.columns = trained.columns;
    }
    if kind == "text" {
        input.tokenizer = input.tokenizer.take().or(trained.tokenizer);
    }
}

/// Refuses flags that do not apply to data of this name.
pub fn check(name: &str, input: &InputOptions, augment: bool) -> Result<(), Failure> {
    let flag = |name, given, kinds| Flag { name, given, kinds };
    // The bytes of a text are read by who asks for them.
    let read = if input.tokenizer.is_some() { TOKENS } else { FILES };
    let flags = [
        flag("--augment", augment, IMAGES),
        flag("--max-pixels", input.max_pixels.is_some(), IMAGES),
        flag("--workers", input.workers.is_some(), read),
        flag("--prefetch", input.prefetch.is_some(), read),
        flag("--skip-bad", input.skip_bad.is_some(), FILES),
        flag("--tokenizer", input.tokenizer.is_some(), &["text"]),
        flag("--label", input.label.is_some(), NAMED),
        flag("--columns", !input.columns.is_empty(), COLUMNS),
        flag("--shuffle", input.shuffle.is_some(), &["tfrecord", "parquet"]),
    ];
    refuse(name, &flags)
}

/// Refuses sizes of examples that do not apply to data of this name.
pub fn check_sizes(
    name: &str,
    image_size: Option<usize>,
    channels: Option<usize>,
    context: Option<usize>,
) -> Result<(), Failure> {
    let flags = [
        Flag { name: "--image-size", given: image_size.is_some(), kinds: SIZED },
        Flag { name: "--channels", given: channels.is_some(), kinds: IMAGES },
        Flag { name: "--context", given: context.is_some(), kinds: &["text"] },
    ];
    refuse(name, &flags)
}

fn refuse(name: &str, flags: &[Flag]) -> Result<(), Failure> {
    let kind = kind(name);
    match flags.iter().find(|flag| flag.given && !flag.kinds.contains(&kind)) {
        Some(Flag { name: flag, kinds, .. }) => {
            let kinds = kinds.join(", ");
            Err(Failure::usage(format!("{flag} does nothing with {kind}: it is for {kinds}; leave it out")))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_training_was_told_goes_to_data_that_take_it() {
        let trained = || InputOptions {
            label: Some("kind".into()),
            columns: vec!["size".into()],
            tokenizer: Some("t.json".into()),
            ..InputOptions::default()
        };
        let restored = |name: &str| {
            let mut input = InputOptions::default();
            restore(name, Some("raster:r.tif"), &mut input, trained());
            check(name, &input, false).unwrap_or_else(|_| panic!("{name}"));
            (input.label.is_some(), input.columns.len(), input.tokenizer.is_some())
        };
        assert_eq!(restored("paths:list.csv"), (true, 1, false));
        assert_eq!(restored("csv:t.csv"), (true, 1, false));
        assert_eq!(restored("npz:t.npz"), (true, 0, false));
        assert_eq!(restored("text:t.txt"), (false, 0, true));
        assert_eq!(restored("images:t"), (false, 0, false));
        assert_eq!(restored("raster:r.tif"), (true, 0, false));
        assert_eq!(restored("raster:other.tif"), (false, 0, false));
        let mut given = InputOptions { label: Some("other".into()), ..InputOptions::default() };
        restore("csv:t.csv", None, &mut given, trained());
        assert_eq!(given.label.as_deref(), Some("other"));
    }
}
