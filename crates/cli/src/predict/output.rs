//! Rows of predictions: lines for a terminal, a table, objects, or an array.

use super::super::text::{escaped, json_line};
use super::super::trained::Trained;
use super::super::{Failure, out_file};
use super::PredictOptions;
use plimsoll::data::Preparation;
use plimsoll::train::likeliest;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A line for each row, to read.
    Lines,
    /// Comma-separated values: what the row is, its classes with their probabilities, its scores.
    Table,
    /// A JSON array of objects; on standard output inside an object with the run's figures.
    Objects,
    /// A NumPy array of f32, `[rows, width]`.
    Array,
}

impl Form {
    /// The form that the flags ask for; of files that were given, standard output is to be read.
    pub fn of(options: &PredictOptions, given: bool) -> Result<Self, Failure> {
        let Some(path) = &options.out else {
            return Ok(match (options.trained.json, given) {
                (true, _) => Self::Objects,
                (false, true) => Self::Lines,
                (false, false) => Self::Table,
            });
        };
        out_file::check("--out", path, None)?;
        match path.extension().and_then(|e| e.to_str()) {
            Some("csv") => Ok(Self::Table),
            Some("json") => Ok(Self::Objects),
            Some("npy") => Ok(Self::Array),
            _ => {
                let path = path.display().to_string();
                Err(Failure::usage(format!("--out {}: end it in .csv, .json or .npy", escaped(&path))))
            }
        }
    }
}

/// A row's scores, or values.
pub struct Row<'r> {
    pub number: usize,
    /// The file, or the number of the row.
    pub name: String,
    pub scores: &'r [f32],
}

/// How rows become answers: classes by name and probability, or values.
pub struct Answers<'t> {
    preparation: &'t Preparation,
    classes: bool,
    /// How many classes of a row are told.
    top: usize,
    /// What a row is: `file` or `row`.
    what: &'static str,
    /// Letters of the longest name of a row and of a class, by which lines are aligned.
    widths: [usize; 2],
}

/// A longer name shifts the rest of its line.
const WIDEST: usize = 100;

impl<'t> Answers<'t> {
    /// For rows whose names have this many letters at most.
    pub fn new(trained: &'t Trained, options: &PredictOptions, widest_name: usize) -> Self {
        let pictures = matches!(trained.preparation.input, plimsoll::data::InputPreparation::Picture(_));
        let what = if pictures && !options.paths.is_empty() { "file" } else { "row" };
        let (preparation, classes) = (&trained.preparation, trained.classes.is_some());
        let names = preparation.classes.iter().map(|class| letters(class));
        let number = trained.classes.map_or(0, |classes| letters(&classes.saturating_sub(1).to_string()));
        let widths = [widest_name, names.fold(number, usize::max)].map(|width| width.min(WIDEST));
        Self { preparation, classes, top: options.top, what, widths }
    }

    /// The likeliest classes of a row with their probabilities.
    fn ranked(&self, scores: &[f32]) -> Vec<(usize, f64)> {
        if self.classes { likeliest(scores, self.top) } else { Vec::new() }
    }

    fn line(&self, row: &Row<'_>) -> String {
        let ([width, class_width], name) = (self.widths, escaped(&row.name));
        if !self.classes {
            let values: Vec<String> = row.scores.iter().take(8).map(|value| format!("{value:.4}")).collect();
            let more = if row.scores.len() > 8 {
                format!(", ... ({} values)", row.scores.len())
            } else {
                String::new()
            };
            return format!("{name:<width$}  {}{more}", values.join(", "));
        }
        let told = self.ranked(row.scores).into_iter().map(|(class, probability)| {
            let class = self.preparation.class(class);
            format!("{:<class_width$} {:>6.2} %", escaped(&class), probability * 100.0)
        });
        format!("{name:<width$}  {}", told.collect::<Vec<_>>().join("   "))
    }

    fn header(&self, width: usize) -> String {
        let mut text = self.what.to_string();
        for rank in 1..=if self.classes { self.top.min(width) } else { 0 } {
            let rank = if rank == 1 { String::new() } else { rank.to_string() };
            text += &format!(",class{rank},probability{rank}");
        }
        (0..width).for_each(|i| text += &format!(",output{i}"));
        text
    }

    fn record(&self, row: &Row<'_>) -> String {
        let mut text = quoted(&row.name);
        for (class, probability) in self.ranked(row.scores) {
            text += &format!(",{},{probability:.6}", quoted(&self.preparation.class(class)));
        }
        row.scores.iter().for_each(|value| text += &format!(",{value}"));
        text
    }

    fn object(&self, row: &Row<'_>) -> Value {
        let name = if self.what == "file" { json!(row.name) } else { json!(row.number) };
        if !self.classes {
            return json!({ self.what: name, "values": row.scores });
        }
        let ranked = self.ranked(row.scores);
        let told = |&(class, probability): &(usize, f64)| json!({ "class": self.preparation.class(class), "index": class, "probability": probability });
        let mut object = ranked.first().map_or(json!({}), told);
        object[self.what] = name;
        if self.top > 1 {
            object["top"] = ranked.iter().map(told).collect();
        }
        object
    }
}

/// Letters of a name as it is shown.
pub fn letters(name: &str) -> usize {
    escaped(name).chars().count()
}

/// A field of a table, quoted where it must be.
fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_string(),
    }
}

/// A file that gets its name when it is complete.
struct Partial {
    beside: PathBuf,
    path: PathBuf,
}

impl Partial {
    fn finish(mut self) -> std::io::Result<()> {
        let beside = std::mem::take(&mut self.beside);
        std::fs::rename(beside, &self.path)
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.beside.as_os_str().is_empty() {
            let _ = std::fs::remove_file(&self.beside);
        }
    }
}

/// Where rows go.
pub struct Sink {
    to: To,
    form: Form,
    /// Numbers of a row of an array, whose header is written last, when the number of rows is known.
    width: usize,
}

enum To {
    Terminal(std::io::StdoutLock<'static>),
    File(BufWriter<File>, Partial),
}

/// Bytes of an array's header: enough for any shape.
const HEADER_BYTES: usize = 128;

impl Sink {
    /// A file, or standard output.
    pub fn create(path: Option<&Path>, form: Form) -> Result<Self, Failure> {
        let Some(path) = path else {
            return Ok(Self { to: To::Terminal(std::io::stdout().lock()), form, width: 0 });
        };
        let mut beside = path.as_os_str().to_owned();
        beside.push(".partial");
        let beside = PathBuf::from(beside);
        let shown = path.display().to_string();
        let failed = |e| Failure::usage(escaped(format!("--out {shown}: {e}")));
        let mut file = BufWriter::new(File::create(&beside).map_err(failed)?);
        if form == Form::Array {
            file.write_all(&[b' '; HEADER_BYTES]).map_err(failed)?;
        }
        let partial = Partial { beside, path: path.to_path_buf() };
        Ok(Self { to: To::File(file, partial), form, width: 0 })
    }

    /// Writes a row.
    pub fn row(&mut self, answers: &Answers<'_>, row: &Row<'_>) -> Result<(), Failure> {
        self.width = row.scores.len();
        let first = row.number == 0;
        match self.form {
            Form::Lines => self.line(&answers.line(row)),
            Form::Table if first => {
                let text = format!("{}\n{}\n", answers.header(self.width), answers.record(row));
                self.write(&text)
            }
            Form::Table => self.write(&format!("{}\n", answers.record(row))),
            Form::Objects => self.object(first, &answers.object(row)),
            Form::Array => {
                let bytes: Vec<u8> = row.scores.iter().flat_map(|value| value.to_le_bytes()).collect();
                self.write_bytes(&bytes)
            }
        }
    }

    /// Writes a line.
    pub fn line(&mut self, text: &str) -> Result<(), Failure> {
        self.write(&format!("{text}\n"))
    }

    /// Writes an object.
    pub fn object(&mut self, first: bool, object: &Value) -> Result<(), Failure> {
        let text = format!("{}{}", self.separator(first), json_line(object));
        self.write(&text)
    }

    /// What goes before an object.
    fn separator(&self, first: bool) -> &'static str {
        match (&self.to, first) {
            (To::Terminal(_), true) => "{\"predictions\":[",
            (To::File(..), true) => "[\n",
            (To::Terminal(_), false) => ",",
            (To::File(..), false) => ",\n",
        }
    }

    /// Ends the output; `figures` end the object on standard output.
    pub fn finish(mut self, rows: usize, figures: &Value) -> Result<(), Failure> {
        if self.form == Form::Objects {
            let start = if rows == 0 { self.separator(true) } else { "" };
            let figures = figures.to_string();
            let end = match &self.to {
                To::Terminal(_) => format!("{start}],{}\n", figures.trim_start_matches('{')),
                To::File(..) => format!("{start}\n]\n"),
            };
            self.write(&end)?;
        }
        let width = self.width;
        match self.to {
            To::Terminal(mut out) => out.flush().map_err(terminal),
            To::File(mut file, partial) => {
                let path = partial.path.clone();
                let header = || -> std::io::Result<()> {
                    if self.form == Form::Array {
                        file.seek(SeekFrom::Start(0))?;
                        file.write_all(&array_header(rows, width))?;
                    }
                    file.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()?;
                    partial.finish()
                };
                header().map_err(|e| in_file(&path, &e))
            }
        }
    }

    /// Writes text. What a terminal shows has no control characters.
    fn write(&mut self, text: &str) -> Result<(), Failure> {
        match &self.to {
            To::Terminal(_) => {
                let text = super::super::text::escaped_lines(text);
                self.write_bytes(text.as_bytes())
            }
            To::File(..) => self.write_bytes(text.as_bytes()),
        }
    }

    fn write_bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        match &mut self.to {
            To::Terminal(out) => out.write_all(bytes).map_err(terminal),
            To::File(file, partial) => file.write_all(bytes).map_err(|e| in_file(&partial.path, &e)),
        }
    }
}

/// A failure of standard output; a closed pipe ends the program quietly, as for any filter.
fn terminal(error: std::io::Error) -> Failure {
    if error.kind() == std::io::ErrorKind::BrokenPipe {
        std::process::exit(141);
    }
    Failure::run(format!("cannot write the output: {error}"))
}

fn in_file(path: &Path, error: &std::io::Error) -> Failure {
    Failure::run(escaped(format!("{}: {error}", path.display())))
}

/// The header of a NumPy array of f32.
fn array_header(rows: usize, width: usize) -> Vec<u8> {
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    header.extend(((HEADER_BYTES - 10) as u16).to_le_bytes());
    let shape = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {width}), }}");
    header.extend(shape.bytes());
    header.resize(HEADER_BYTES - 1, b' ');
    header.push(b'\n');
    header
}
