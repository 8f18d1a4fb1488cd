//! `plimsoll predict`: a trained model's outputs as a table or an array.

use super::args::PredictOptions;
use super::trained::{open, peaks};
use super::{Failure, hint, say};
use plimsoll::memory::measured_peak;
use plimsoll::nn::step::Report;
use plimsoll::train::BatchKind;
use serde_json::json;
use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Plans, loads, predicts batch after batch, and writes as it goes.
pub fn run(options: &PredictOptions) -> Result<(), Failure> {
    let trained = open(&options.trained, BatchKind::Predict, Report::Classes)?;
    let quiet = options.out.is_none();
    if quiet && options.trained.json {
        return Err(Failure::usage("--json needs --out: without it the table is the output"));
    }
    let array = options.out.as_deref().map(is_array).transpose()?;
    let (mut session, planned) = trained.session(options.trained.json, !quiet)?;
    let mut sink = match (&options.out, array) {
        (Some(path), Some(array)) => Sink::create(path, array)?,
        _ => Sink::Table { file: Box::new(std::io::stdout().lock()), partial: None },
    };
    let named = |e: std::io::Error| match &options.out {
        Some(path) => Failure::run(format!("{}: {e}", path.display())),
        None if e.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(141),
        None => Failure::run(format!("cannot write the output: {e}")),
    };
    let mut rows = 0;
    session.predict_each(trained.part(), |outputs| {
        let output = &outputs[0];
        let shape = output.ty().shape.clone();
        let width = if trained.classes.is_some() {
            shape.last().copied().unwrap_or(1)
        } else {
            shape.iter().skip(1).product()
        };
        for row in output.as_f32().unwrap_or_default().chunks(width.max(1)) {
            sink.row(rows, row, trained.classes.is_some()).map_err(named)?;
            rows += 1;
        }
        Ok::<(), Failure>(())
    })?;
    sink.finish(rows).map_err(named)?;
    let measured = measured_peak();
    let text = peaks(planned, measured);
    if quiet {
        hint(&text)
    } else {
        say(&format!("\n{rows} rows\n{text}"))
    }
    if options.trained.json {
        let object = json!({ "rows": rows, "planned_peak_bytes": planned, "measured_peak_bytes": measured });
        say(&object.to_string());
    }
    Ok(())
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

/// The output.
enum Sink {
    /// Comma-separated values: the row's number, the predicted class, the scores.
    Table { file: Box<dyn Write>, partial: Option<Partial> },
    /// A NumPy array of f32, `[rows, width]`; its header is written last, when the number of rows is known.
    Array { file: BufWriter<File>, width: usize, partial: Partial },
}

/// Bytes of an array's header: enough for any shape.
const HEADER_BYTES: usize = 128;

/// Whether a file is an array rather than a table.
fn is_array(path: &Path) -> Result<bool, Failure> {
    match path.extension().and_then(|e| e.to_str()) {
        Some("csv") => Ok(false),
        Some("npy") => Ok(true),
        _ => Err(Failure::usage(format!("--out {}: end it in .csv or .npy", path.display()))),
    }
}

impl Sink {
    fn create(path: &Path, array: bool) -> Result<Self, Failure> {
        let mut beside = path.as_os_str().to_owned();
        beside.push(".partial");
        let beside = PathBuf::from(beside);
        let failed = |e| Failure::usage(format!("--out {}: {e}", path.display()));
        let mut file = BufWriter::new(File::create(&beside).map_err(failed)?);
        let partial = Partial { beside, path: path.to_path_buf() };
        if !array {
            return Ok(Self::Table { file: Box::new(file), partial: Some(partial) });
        }
        file.write_all(&[b' '; HEADER_BYTES]).map_err(failed)?;
        Ok(Self::Array { file, width: 0, partial })
    }

    fn row(&mut self, number: usize, row: &[f32], classes: bool) -> std::io::Result<()> {
        match self {
            Self::Table { file, .. } => {
                if number == 0 {
                    write!(file, "row{}", if classes { ",class" } else { "" })?;
                    (0..row.len()).try_for_each(|i| write!(file, ",output{i}"))?;
                    writeln!(file)?;
                }
                write!(file, "{number}")?;
                if classes {
                    // The first of the largest, as for the accuracy.
                    let beats = |a: f32, b: f32| a > b || (a.is_nan() && !b.is_nan());
                    let best =
                        (0..row.len()).fold(0, |best, i| if beats(row[i], row[best]) { i } else { best });
                    write!(file, ",{best}")?;
                }
                row.iter().try_for_each(|value| write!(file, ",{value}"))?;
                writeln!(file)
            }
            Self::Array { file, width, .. } => {
                *width = row.len();
                row.iter().try_for_each(|value| file.write_all(&value.to_le_bytes()))
            }
        }
    }

    fn finish(self, rows: usize) -> std::io::Result<()> {
        match self {
            Self::Table { mut file, partial } => {
                file.flush()?;
                partial.map_or(Ok(()), Partial::finish)
            }
            Self::Array { mut file, width, partial } => {
                let mut header = b"\x93NUMPY\x01\x00".to_vec();
                header.extend(((HEADER_BYTES - 10) as u16).to_le_bytes());
                header.extend(
                    format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {width}), }}")
                        .bytes(),
                );
                header.resize(HEADER_BYTES - 1, b' ');
                header.push(b'\n');
                file.seek(SeekFrom::Start(0))?;
                file.write_all(&header)?;
                file.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()?;
                partial.finish()
            }
        }
    }
}
