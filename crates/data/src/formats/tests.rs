//! The registry against the folder, `docs/data.md` and Cargo features.

use super::*;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/data.md");
const BEGIN: &str = "<!-- formats: begin -->\n";
const END: &str = "<!-- formats: end -->\n";
/// Files of the folder that are not formats.
const NOT_FORMATS: [&str; 4] = ["options", "registry", "shared", "tests"];

#[test]
fn every_file_of_the_folder_is_a_format_with_a_row() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/formats");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let stems = files.map(|path| path.file_stem().unwrap().to_str().unwrap().to_string());
    let files: BTreeSet<String> = stems.filter(|stem| !NOT_FORMATS.contains(&stem.as_str())).collect();
    let rows: BTreeSet<String> = FORMATS.iter().map(|format| format.prefix().to_string()).collect();
    assert_eq!(files, rows, "files of src/formats (left) and rows of FORMATS (right)");
}

#[test]
fn rows_of_one_name_follow_each_other_and_differ_in_what_they_require() {
    for (i, format) in FORMATS.iter().enumerate() {
        let same: Vec<usize> = (0..FORMATS.len()).filter(|&j| FORMATS[j].name == format.name).collect();
        assert_eq!(same, (same[0]..same[0] + same.len()).collect::<Vec<_>>(), "{}", format.name);
        assert!(same[0] == i || format.requires.is_some(), "{}: a second row needs an option", format.name);
        if let Some((option, _)) = format.requires {
            assert!(format.takes(option), "{}: what is required must apply", format.name);
        }
    }
}

#[test]
fn a_format_whose_feature_is_off_names_the_feature() {
    let on = |feature| match feature {
        "parquet" => cfg!(feature = "parquet"),
        "tiff" => cfg!(feature = "tiff"),
        "tokenizers" => cfg!(feature = "tokenizers"),
        other => panic!("the feature `{other}` is missing in this test"),
    };
    for format in FORMATS {
        let Some(feature) = format.feature() else {
            assert!(format.is_built(), "{}", format.name);
            continue;
        };
        assert_eq!(format.is_built(), on(feature), "{}", format.name);
        let options = OpenOptions { tokenizer: Some("missing.json".into()), ..OpenOptions::default() };
        let error = open(&format.name.replace("FILE", "missing"), &options).unwrap_err();
        match error {
            DataError::FeatureOff { feature: named, .. } => assert!(!on(feature) && named == feature),
            error => assert!(on(feature), "{error}"),
        }
    }
}

fn with_commas(n: usize) -> String {
    if n < 1000 { n.to_string() } else { format!("{},{:03}", with_commas(n / 1000), n % 1000) }
}

/// The page's table: one line for each row.
fn table() -> String {
    let mut table = String::from("| data | what it is |\n|---|---|\n");
    for format in FORMATS {
        let mut name = format.name.to_string();
        if let Some((option, value)) = format.requires {
            let _ = write!(name, " --{} {value}", option.name());
        }
        let mut description = format.description.to_string();
        if let (Some(train), Some(test)) = (format.train, format.test) {
            let (train, test) = (with_commas(train), with_commas(test));
            let _ = write!(description, ": {train} training and {test} test examples");
        }
        if let Some(feature) = format.feature() {
            let _ = write!(description, " (Cargo feature `{feature}`)");
        }
        let _ = writeln!(table, "| `{name}` | {description} |");
    }
    table
}

/// `PLIMSOLL_WRITE_DOCS=1` writes the table.
#[test]
fn the_table_in_the_documents_is_the_registrys() {
    let page = std::fs::read_to_string(PAGE).expect("docs/data.md");
    let (start, rest) = page.split_once(BEGIN).expect("the first mark");
    let (found, end) = rest.split_once(END).expect("the last mark");
    let table = table();
    if std::env::var_os("PLIMSOLL_WRITE_DOCS").is_some() {
        std::fs::write(PAGE, [start, BEGIN, &table, END, end].concat()).expect("docs/data.md");
        return;
    }
    assert_eq!(found, table, "run with PLIMSOLL_WRITE_DOCS=1 to update docs/data.md");
}
