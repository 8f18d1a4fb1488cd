//! README and the pages in `docs/`: links lead somewhere, flags exist, and commands run.
//!
//! A block fenced as `sh` is run line by line, one as `console` is a transcript that is run and compared; `text` is neither, for
//! what takes long. Rust is compiled by the doc tests of the library, which must include every page.

use crate::support::{NO_CACHE, Scratch};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// README and the pages of `docs/`, with their texts.
fn pages() -> Vec<(PathBuf, String)> {
    let root = Path::new(ROOT);
    let docs = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = std::iter::once(root.join("README.md")).chain(docs).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), fs::read_to_string(&path).unwrap())).collect()
}

/// A fenced block: its language, and its lines without the fence's indent.
fn blocks(text: &str) -> Vec<(&str, Vec<&str>)> {
    let mut found: Vec<(&str, Vec<&str>)> = Vec::new();
    let mut indent = None;
    for line in text.lines() {
        match (line.trim_start().strip_prefix("```"), indent) {
            (Some(language), None) => {
                indent = Some(line.len() - line.trim_start().len());
                found.push((language, Vec::new()));
            }
            (Some(_), Some(_)) => indent = None,
            (None, Some(indent)) => found.last_mut().unwrap().1.push(line.get(indent..).unwrap_or("")),
            (None, None) => {}
        }
    }
    found
}

/// The heading's anchor, as it is in links.
fn anchor(heading: &str) -> String {
    let kept = heading.trim_start_matches('#').trim().to_lowercase();
    kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect::<String>().replace(' ', "-")
}

#[test]
fn links_between_documents_lead_somewhere() {
    let others = ["ARCHITECTURE.md", "CONTRIBUTING.md"].map(|name| Path::new(ROOT).join(name));
    let others = others.map(|path| (path.clone(), fs::read_to_string(path).unwrap()));
    for (page, text) in pages().into_iter().chain(others) {
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") {
                continue;
            }
            let (file, place) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            let found = fs::read_to_string(&target);
            let found = found.unwrap_or_else(|e| panic!("{} in {}: {e}", link, page.display()));
            let leads = place.is_empty() || found.lines().any(|l| l.starts_with('#') && anchor(l) == place);
            assert!(leads, "{}: no heading for {link}", page.display());
        }
    }
}

#[test]
fn the_librarys_doc_tests_include_every_page() {
    let library = fs::read_to_string(Path::new(ROOT).join("src/lib.rs")).unwrap();
    for (page, _) in pages() {
        let name = page.file_name().unwrap().to_string_lossy();
        assert!(library.contains(&format!("{name}\")")), "src/lib.rs does not include {name}");
    }
}

#[test]
fn readmes_program_is_the_first_example() {
    let readme = fs::read_to_string(Path::new(ROOT).join("README.md")).unwrap();
    let example = fs::read_to_string(Path::new(ROOT).join("examples/quickstart.rs")).unwrap();
    let blocks = blocks(&readme);
    let (_, program) = blocks.iter().find(|(language, _)| *language == "rust").unwrap();
    let example = example.replace("/// Plans, trains, evaluates.\npub fn main", "fn main");
    assert!(example.contains(&program.join("\n")), "{example}");
}

/// `plimsoll` on the path, in a folder, without the user's plan cache.
fn shell(folder: &Path, line: &str) -> Output {
    let program = Path::new(env!("CARGO_BIN_EXE_plimsoll"));
    let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("sh");
    shell.args(["-c", line]).current_dir(folder).env("PATH", path).env(NO_CACHE.0, NO_CACHE.1);
    shell.output().unwrap()
}

/// The commands of a block, and the lines that a transcript shows for each.
fn commands<'t>(lines: &[&'t str]) -> Vec<(&'t str, Vec<&'t str>)> {
    let mut found: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in lines {
        let command = line.strip_prefix("$ ").unwrap_or(line);
        match (command.starts_with("plimsoll ") && !command.contains("(as train"), found.last_mut()) {
            (true, _) => found.push((command.split(" #").next().unwrap().trim(), Vec::new())),
            (false, Some((_, shown))) => shown.push(line),
            (false, None) => {}
        }
    }
    found
}

#[test]
fn flags_in_the_documents_exist() {
    let root = Path::new(ROOT);
    let help = |command: &str| {
        let output = shell(root, &format!("plimsoll {command} --help"));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let names = [
        "train",
        "plan",
        "evaluate",
        "predict",
        "export",
        "report",
        "data",
        "graph",
        "zoo",
        "devices",
        "doctor",
        "compare",
        "plot",
        "completions",
        "man",
        "prune",
        "quantize",
    ];
    let helps: Vec<(&str, String)> = names.iter().map(|name| (*name, help(name))).collect();
    let flag = |word: &str| {
        let word = word.trim_start_matches(['[', '`', '(']);
        let name = word.strip_prefix("--")?;
        let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '-').unwrap_or(name.len());
        (end > 0).then(|| format!("--{}", &name[..end]))
    };
    // Whole words, so that `--out` is not found in `--outside`.
    let lists = |text: &str, flag: &str| {
        text.split(flag)
            .skip(1)
            .any(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '-'))
    };
    let mut count = 0;
    for (page, text) in pages() {
        let page = page.display();
        for (_, lines) in
            blocks(&text).iter().filter(|(language, _)| ["sh", "console", "text"].contains(language))
        {
            for (command, _) in commands(lines) {
                for part in command.split("&& ") {
                    let name = part.split(' ').nth(1).unwrap();
                    let (_, help) = helps.iter().find(|(known, _)| *known == name).unwrap_or_else(|| {
                        panic!("{page}: `{part}`: there is no command `{name}`");
                    });
                    for flag in part.split(' ').filter_map(flag) {
                        assert!(lists(help, &flag), "{page}: `{name}` has no {flag}");
                        count += 1;
                    }
                }
            }
        }
        // In the text: flags of any command, but not those of cargo and scripts.
        for code in text.split('`').skip(1).step_by(2).filter(|code| code.starts_with("--")) {
            let found = |flag: &str| helps.iter().any(|(_, help)| lists(help, flag));
            for flag in code.split([' ', '|']).filter_map(flag) {
                assert!(found(&flag), "{page}: no command has {flag}");
                count += 1;
            }
        }
    }
    assert!(count > 50, "{count} flags");
}

/// What the pages' commands read.
fn files(folder: &Scratch) {
    let kind = |i: usize| ["oak", "elm", "ash"][i % 3];
    let rows = |rows: std::ops::Range<usize>, label: bool| {
        let row = |i: usize| {
            let numbers = format!("{},{}", i % 3, (i * 7 % 11) as f32 / 10.0);
            if label { format!("{numbers},{}\n", kind(i)) } else { format!("{numbers}\n") }
        };
        let header = if label { "height,width,kind\n" } else { "height,width\n" };
        std::iter::once(header.to_string()).chain(rows.map(row)).collect::<String>()
    };
    folder.write("plants.csv", rows(0..90, true).as_bytes());
    folder.write("new-plants.csv", rows(90..96, false).as_bytes());
    folder.write("shakespeare.txt", "To be, or not to be, that is the question. ".repeat(40).as_bytes());
    let tokenizer = Path::new(ROOT).join("crates/data/tests/fixtures/tokenizer.json");
    folder.write("tokenizer.json", &fs::read(tokenizer).unwrap());
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, 28, 28);
    encoder.set_color(png::ColorType::Grayscale);
    encoder.write_header().unwrap().write_image_data(&[0; 28 * 28]).unwrap();
    folder.write("seven.png", &bytes);
}

/// A line without its figures: numbers with their units become `#`.
fn form(line: &str) -> String {
    let figure = |word: &str| word.starts_with(|c: char| c.is_ascii_digit());
    let units = ["bytes", "KiB", "MiB", "GiB", "us", "ms", "s", "MFLOP", "GFLOP", "TFLOP"];
    let words: Vec<&str> = line.split_whitespace().filter(|word| !units.contains(word)).collect();
    words.iter().map(|word| if figure(word) { "#" } else { word }).collect::<Vec<_>>().join(" ")
}

#[test]
fn commands_in_the_documents_run() {
    let (mut count, folder) = (0, Scratch::new("documents"));
    files(&folder);
    for (page, text) in pages() {
        for (language, lines) in blocks(&text) {
            if !["sh", "console"].contains(&language) {
                continue;
            }
            for (command, shown) in commands(&lines) {
                if command.contains("--tokenizer") && !cfg!(feature = "tokenizers") {
                    continue;
                }
                // Not every machine has a GPU.
                if command.contains("--device cuda") {
                    continue;
                }
                let output = shell(&folder.0, command);
                let (out, errors) =
                    (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
                let place = format!("{}: `{command}`", page.display());
                assert!(output.status.success(), "{place}: {:?}\n{out}\n{errors}", output.status.code());
                count += 1;
                if language == "console" {
                    let forms: Vec<String> = out.lines().map(form).collect();
                    for line in shown.iter().filter(|line| line.trim() != "...") {
                        assert!(forms.contains(&form(line)), "{place} does not print `{line}`\n{out}");
                    }
                }
            }
        }
    }
    assert!(count > 12, "{count} commands");
}
