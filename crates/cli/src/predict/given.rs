//! The files that are to be predicted, as the model takes them: with what training did to its own.

use super::super::args::InputOptions;
use super::super::input::{fitted, image_options};
use super::super::setup::line;
use super::super::text::escaped;
use super::super::trained::{Described, Trained, only_test};
use super::super::{Failure, hint};
use super::PredictOptions;
use plimsoll::data::{
    Csv, Field, InputPreparation, PictureFile, PictureOptions, Pictures, Pipeline, Preparation,
};
use plimsoll::memory::{Tag, tagged};
use plimsoll::nn::Model;
use plimsoll::nn::step::Report;
use plimsoll::tensor::{DType, TensorType};
use plimsoll::train::BatchKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The files, and the model that takes them.
pub struct Given {
    described: Described,
    model: Box<dyn Model>,
    files: Files,
}

/// What was given.
#[derive(Clone)]
pub enum Files {
    Pictures(Arc<Pictures>),
    Rows(Box<Pipeline>),
}

impl Files {
    /// The name of a row: its file, or its number, counted from one.
    pub fn name(&self, row: usize) -> String {
        match self {
            Self::Pictures(pictures) => pictures.file(row).path.display().to_string(),
            Self::Rows(_) => (row + 1).to_string(),
        }
    }
}

impl Given {
    /// Opens the files as the run's data were opened.
    pub fn open(options: &PredictOptions, described: Described) -> Result<Self, Failure> {
        check_flags(&options.trained.input)?;
        let Some(preparation) = described.preparation.clone() else {
            return Err(Failure::usage(
                "the run has no data.json, which tells what its pictures or rows went through: train it anew, or use --data",
            ));
        };
        let model = described.model()?;
        let files = tagged(Tag::Data, || match &preparation.input {
            InputPreparation::Picture(_) => pictures(options, &described, &preparation, model.as_ref()),
            InputPreparation::Row(_) => rows(&options.paths, &preparation, model.as_ref()),
            InputPreparation::None => {
                let data = described.data.as_deref().unwrap_or("unknown data");
                let other = if data.starts_with("text:") { "--prompt TEXT" } else { "--data" };
                let message =
                    format!("the run was trained on {data}, to which no file can be compared: use {other}");
                Err(Failure::usage(escaped(&message)))
            }
        })?;
        Ok(Self { described, model, files })
    }

    /// Whether the model has a class for each pixel of pictures.
    pub fn is_segmentation(&self) -> bool {
        let target = self.model.target();
        let pictures = matches!(self.files, Files::Pictures(_));
        pictures && target.bound.is_some() && target.ty.shape.rank() == 2
    }

    /// The pictures, where pictures were given.
    pub fn pictures(&self) -> Option<Arc<Pictures>> {
        match &self.files {
            Files::Pictures(pictures) => Some(pictures.clone()),
            Files::Rows(_) => None,
        }
    }

    /// The trained model with the files as its data, and their names.
    pub fn trained(self, options: &PredictOptions) -> Result<(Trained, Files), Failure> {
        let Self { described, model, files } = self;
        let images = image_options(&options.trained.input, model.as_ref(), described.precision(), false)?;
        let (name, all) = match &files {
            Files::Pictures(pictures) => ("pictures", Pipeline::new(pictures.clone())),
            Files::Rows(rows) => ("csv:rows", rows.as_ref().clone()),
        };
        let all = all.workers(images.workers).prefetch(images.prefetch);
        let data = fitted(only_test(name, all), model.as_ref(), described.seed())?;
        let trained =
            described.with_data(&options.trained, model, data, BatchKind::Predict, Report::Classes)?;
        Ok((trained, files))
    }

    /// Tells where pictures are not what the model takes, so that they are changed as in training.
    pub fn say_differences(&self) {
        let Files::Pictures(pictures) = &self.files else { return };
        let inputs = self.model.inputs();
        let Some([height, width, channels]) = inputs.first().map(|field| &field.ty.shape[..]) else { return };
        let changes = [
            (format!("resized to {height}×{width}"), self.differ(|file| file.size != [*height, *width])),
            ("turned from colours to grey".into(), self.differ(|file| file.colour && *channels == 1)),
            ("turned from grey to colours".into(), self.differ(|file| !file.colour && *channels == 3)),
        ];
        let all = pictures.files().len();
        for (change, files) in changes.iter().filter(|(_, files)| !files.is_empty()) {
            let PictureFile { path, size: [rows, columns], .. } = files[0];
            let first = escaped(path.display());
            let colours = if files[0].colour { "colour" } else { "grey" };
            let (count, are) = (files.len(), if files.len() == 1 { "is" } else { "are" });
            hint(&format!(
                "{count} of {all} pictures {are} {change}, as in training; {first} has {rows}×{columns} {colours} pixels"
            ));
        }
    }

    fn differ(&self, differs: impl Fn(&PictureFile) -> bool) -> Vec<&PictureFile> {
        match &self.files {
            Files::Pictures(pictures) => pictures.files().iter().filter(|file| differs(file)).collect(),
            Files::Rows(_) => Vec::new(),
        }
    }
}

/// Refuses flags that do nothing with files that are given by their paths.
fn check_flags(input: &InputOptions) -> Result<(), Failure> {
    let flags = [
        ("--label", input.label.is_some()),
        ("--columns", !input.columns.is_empty()),
        ("--tokenizer", input.tokenizer.is_some()),
        ("--shuffle", input.shuffle.is_some()),
        ("--skip-bad", input.skip_bad.is_some()),
    ];
    match flags.iter().find(|(_, given)| *given) {
        Some((flag, _)) => Err(Failure::usage(format!(
            "{flag} does nothing with files to predict, which are taken as in training; leave it out"
        ))),
        None => Ok(()),
    }
}

/// The type of labels, which no file needs: an autoencoder's are its inputs.
fn label(model: &dyn Model) -> Field {
    let target = model.target();
    if target.bound.is_some() { target } else { Field::below(1, []) }
}

fn pictures(
    options: &PredictOptions,
    described: &Described,
    preparation: &Preparation,
    model: &dyn Model,
) -> Result<Files, Failure> {
    let InputPreparation::Picture(picture) = &preparation.input else {
        return Err(Failure::usage("the model was not trained on pictures"));
    };
    let inputs = model.inputs();
    let Some(field) = inputs.first() else { return Err(Failure::usage("the model has no input")) };
    let images = image_options(&options.trained.input, model, described.precision(), false)?;
    let dtype = if images.bf16 { DType::BF16 } else { DType::F32 };
    let input = Field { ty: TensorType::new(dtype, field.ty.shape.clone()), bound: field.bound };
    let picture_options = PictureOptions {
        tiled: model.target().ty.shape.rank() == 2,
        most_pixels: options.trained.input.max_pixels,
        max_bytes: line(&options.trained.machine).1,
        ..PictureOptions::new(input, label(model))
    };
    let pictures = Pictures::open(&options.paths, picture, &picture_options);
    Ok(Files::Pictures(Arc::new(pictures?)))
}

fn rows(paths: &[PathBuf], preparation: &Preparation, model: &dyn Model) -> Result<Files, Failure> {
    let [path] = paths else {
        return Err(Failure::usage(format!("{} tables: give one at a time", paths.len())));
    };
    if !is_table(path) {
        let shown = path.display().to_string();
        return Err(Failure::usage(format!(
            "{}: the model was trained on rows of a table: give a .csv or .tsv file with a header",
            escaped(&shown)
        )));
    }
    Ok(Files::Rows(Box::new(Csv::prepared(path, preparation, &label(model))?)))
}

fn is_table(path: &Path) -> bool {
    let ends = |wanted: &str| path.extension().is_some_and(|e| e.eq_ignore_ascii_case(wanted));
    ends("csv") || ends("tsv")
}
