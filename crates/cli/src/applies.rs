//! Which flags apply to which data, as the registry of formats says: a flag that would do nothing is an error.

use super::Failure;
use super::args::InputOptions;
use super::text::escaped;
use plimsoll::data::{Family, Format, FormatOption, catalogue};
use std::path::Path;

/// Whether the data with this name is of this family.
pub fn is(name: &str, family: Family) -> bool {
    Format::find(name, &[]).is_some_and(|format| format.family == family)
}

/// Help of `--data`: the names of all formats.
pub fn data_help() -> String {
    let mut names: Vec<&str> = catalogue().iter().map(|format| format.name).collect();
    names.dedup();
    let names = names.join(", ");
    format!(
        "Data: one of {names}; `plimsoll zoo` describes them [default: mnist for models of digits, else synthetic]"
    )
}

/// Help of a flag: what it does, the formats it is for, and its default.
pub fn help(option: FormatOption, what: &str, default: &str) -> String {
    let default = if default.is_empty() { String::new() } else { format!(" [default: {default}]") };
    format!("{what} (for {}){default}", prefixes(option).join(", "))
}

/// Prefixes of the formats to which an option applies.
fn prefixes(option: FormatOption) -> Vec<&'static str> {
    let formats = catalogue().iter().filter(|format| format.takes(option));
    let mut prefixes: Vec<&str> = formats.map(Format::prefix).collect();
    prefixes.dedup();
    prefixes
}

/// The name of data that was probably meant by a bare path: its format in front.
pub fn meant(spec: &str) -> Option<String> {
    let path = Path::new(spec);
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let format = match extension.to_ascii_lowercase().as_str() {
        _ if path.is_dir() => "images",
        "txt" | "md" | "text" => "text",
        "csv" | "tsv" => "csv",
        "npz" | "npy" => "npz",
        "parquet" | "arrow" | "feather" => "parquet",
        "tif" | "tiff" => "raster",
        "tar" => "tar",
        "tfrecord" | "tfrecords" => "tfrecord",
        _ if path.is_file() => "text",
        _ => return None,
    };
    Some(format!("{format}:{}", escaped(spec)))
}

/// Adds the options of a training run to those of other data, where they apply and were not given. A label that is a second
/// file belongs to the data that the model was `trained_on`.
pub fn restore(name: &str, trained_on: Option<&str>, input: &mut InputOptions, trained: InputOptions) {
    let takes = |option| Format::find(name, &[option]).filter(|format| format.takes(option));
    if let Some(format) = takes(FormatOption::Label)
        && (format.requires.is_none() || trained_on == Some(name))
    {
        input.label = input.label.take().or(trained.label);
    }
    if takes(FormatOption::Columns).is_some() && input.columns.is_empty() {
        input.columns = trained.columns;
    }
    if takes(FormatOption::Tokenizer).is_some() {
        input.tokenizer = input.tokenizer.take().or(trained.tokenizer);
    }
}

/// Refuses flags that do not apply to the data with this name.
pub fn check(name: &str, input: &InputOptions, augment: bool) -> Result<(), Failure> {
    let flags = [
        (FormatOption::Augment, augment),
        (FormatOption::MaxPixels, input.max_pixels.is_some()),
        (FormatOption::Workers, input.workers.is_some()),
        (FormatOption::Prefetch, input.prefetch.is_some()),
        (FormatOption::SkipBad, input.skip_bad.is_some()),
        (FormatOption::Tokenizer, input.tokenizer.is_some()),
        (FormatOption::Label, input.label.is_some()),
        (FormatOption::Columns, !input.columns.is_empty()),
        (FormatOption::Shuffle, input.shuffle.is_some()),
    ];
    refuse(name, &flags)
}

/// Refuses sizes of examples that do not apply to the data with this name.
pub fn check_sizes(
    name: &str,
    image_size: Option<usize>,
    channels: Option<usize>,
    context: Option<usize>,
) -> Result<(), Failure> {
    let flags = [
        (FormatOption::ImageSize, image_size.is_some()),
        (FormatOption::Channels, channels.is_some()),
        (FormatOption::Context, context.is_some()),
    ];
    refuse(name, &flags)
}

fn refuse(name: &str, flags: &[(FormatOption, bool)]) -> Result<(), Failure> {
    let given: Vec<FormatOption> = flags.iter().filter(|flag| flag.1).map(|flag| flag.0).collect();
    // An unknown name is an error when it is opened.
    let Some(format) = Format::find(name, &given) else { return Ok(()) };
    match given.into_iter().find(|option| !format.takes(*option)) {
        Some(option) => {
            let (flag, own) = (option.name(), format.prefix());
            let others: Vec<&str> = prefixes(option).into_iter().filter(|prefix| *prefix != own).collect();
            let others = others.join(", ");
            let message = format!("--{flag} does nothing with {own}: it is for {others}; leave it out");
            Err(Failure::usage(message))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_training_are_restored_for_data_that_takes_them() {
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

    #[test]
    fn the_help_of_data_names_every_format() {
        let help = data_help();
        assert!(catalogue().iter().all(|format| help.contains(format.name)), "{help}");
    }

    #[test]
    fn flags_are_for_the_formats_that_take_their_option() {
        let flags = InputOptions { shuffle: Some(9), workers: Some(1), ..InputOptions::default() };
        for format in catalogue() {
            let given = [FormatOption::Shuffle, FormatOption::Workers];
            let applies = given.iter().all(|option| format.takes(*option));
            let spec = format.name.replace("FILE", "x").replace("GLOB", "x").replace("DIR", "x");
            assert_eq!(check(&spec, &flags, false).is_ok(), applies, "{spec}");
        }
    }
}
