//! `plimsoll plot`: losses and memory of runs as a picture for a paper.
//!
//! `figure.rs` lays out panels, axes and curves as [`Shape`]s; `svg.rs` and `raster.rs` draw them.

mod figure;
mod raster;
mod svg;

use super::runs::Run;
use super::text::escaped;
use super::{Failure, out_file, say};
use clap::{Args, ValueEnum};
use plimsoll::train::write_atomically;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct PlotOptions {
    /// Folders of `train --out`, also of runs that go on
    #[arg(required = true, value_name = "RUN")]
    pub runs: Vec<PathBuf>,
    /// The picture: a name that ends in .svg or .png
    #[arg(long, value_name = "FILE")]
    pub to: PathBuf,
    /// Which curves
    #[arg(long, value_enum, default_value = "both")]
    pub what: What,
    /// Width of the picture
    #[arg(long, value_name = "PIXELS", default_value_t = 800, value_parser = clap::value_parser!(u32).range(200..=8000))]
    pub width: u32,
    /// Height of the picture
    #[arg(long, value_name = "PIXELS", default_value_t = 600, value_parser = clap::value_parser!(u32).range(150..=8000))]
    pub height: u32,
    /// Losses on a logarithmic axis
    #[arg(long)]
    pub log: bool,
    /// Replace the picture if it is there
    #[arg(long)]
    pub force: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum What {
    /// Training and validation loss
    Loss,
    /// The resident set after each step, and what was planned
    Memory,
    /// One above the other
    Both,
}

/// Where a text stands at its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Anchor {
    Start,
    Middle,
    End,
}

/// What a figure is made of; y grows downwards.
#[derive(Clone, Debug, PartialEq)]
enum Shape {
    Curve {
        points: Vec<(f64, f64)>,
        color: [u8; 3],
        width: f64,
        dashed: bool,
        opacity: f64,
    },
    /// Its baseline starts, ends or is centred at the point.
    Text {
        at: (f64, f64),
        anchor: Anchor,
        text: String,
        bold: bool,
    },
}

/// Height of text.
const TEXT_HEIGHT: f64 = 14.0;

/// Reads the runs and writes the picture.
pub fn run(options: &PlotOptions) -> Result<(), Failure> {
    let file = escaped(options.to.display());
    let extension = options.to.extension().map(|e| e.to_string_lossy().to_ascii_lowercase());
    let is_svg = match extension.as_deref() {
        Some("svg") => true,
        Some("png") => false,
        _ => return Err(Failure::usage(format!("--to {file}: end it in .svg or .png"))),
    };
    if options.to.exists() && !options.force {
        return Err(Failure::usage(format!("--to {file}: this file exists; name another, or add --force")));
    }
    out_file::check("--to", &options.to, None)?;
    let runs = options.runs.iter().map(|folder| Run::read(folder)).collect::<Result<Vec<_>, _>>()?;
    let size = (options.width, options.height);
    let units = if is_svg { size } else { raster::units(size) };
    let shapes = figure::figure(&runs, options.what, units, options.log).map_err(Failure::usage)?;
    let bytes = match is_svg {
        true => svg::svg(&shapes, size).into_bytes(),
        false => raster::png(&shapes, size).map_err(|e| Failure::run(format!("--to {file}: {e}")))?,
    };
    write_atomically(&options.to, &bytes)?;
    say(&format!("wrote {file}"));
    Ok(())
}
