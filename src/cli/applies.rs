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
const FILES: &[&str] = &["images", "tar", "paths", "masks", "tfrecord", "csv", "parquet", "npz"];
const TOKENS: &[&str] = &["images", "tar", "paths", "masks", "tfrecord", "csv", "parquet", "npz", "text"];
const NAMED: &[&str] = &["paths", "tfrecord", "csv", "parquet", "npz"];
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
        flag("--columns", !input.columns.is_empty(), &["paths", "csv", "parquet"]),
        flag("--shuffle", input.shuffle.is_some(), &["tfrecord", "parquet"]),
    ];
    let kind = kind(name);
    match flags.iter().find(|flag| flag.given && !flag.kinds.contains(&kind)) {
        Some(Flag { name: flag, kinds, .. }) => {
            let kinds = kinds.join(", ");
            Err(Failure::usage(format!("{flag} does nothing with {kind}: it is for {kinds}; leave it out")))
        }
        None => Ok(()),
    }
}
