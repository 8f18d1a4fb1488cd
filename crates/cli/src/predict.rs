//! `plimsoll predict`: what a trained model says of pictures, rows and texts.

mod generate;
mod given;
mod masks;
mod output;

use super::args::TrainedOptions;
use super::trained::{Trained, describe, open, peaks};
use super::{Failure, hint, say};
use clap::Args;
use given::Given;
use output::{Answers, Form, Row, Sink, letters};
use plimsoll::memory::measured_peak;
use plimsoll::nn::step::Report;
use plimsoll::train::BatchKind;
use serde_json::{Value, json};
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct PredictOptions {
    #[command(flatten)]
    pub trained: TrainedOptions,
    /// What to predict: pictures and folders of pictures, or a CSV file, all of it; no labels are needed [default: the test
    /// part of the data]
    #[arg(value_name = "PATH", conflicts_with_all = ["data", "train_part", "prompt"])]
    pub paths: Vec<PathBuf>,
    /// How many of the likeliest classes to tell
    #[arg(long, help_heading = "Answers", value_name = "K", default_value_t = 1)]
    pub top: usize,
    /// File for the outputs: a table (.csv), objects (.json) or the scores as an array (.npy); for a class of each pixel a
    /// folder, for a mask of each picture (PNG) [default: standard output]
    #[arg(long, help_heading = "Answers", value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Text to go on with, for models of text
    #[arg(long, help_heading = "Answers", value_name = "TEXT", conflicts_with_all = ["data", "train_part", "top", "out"])]
    pub prompt: Option<String>,
    /// How many tokens to add to the prompt [default: 200]
    #[arg(long, help_heading = "Answers", value_name = "N", requires = "prompt", conflicts_with = "paths")]
    pub tokens: Option<usize>,
    /// How freely tokens are drawn: 0 takes the likeliest every time, 1 draws as likely as the model says [default: 0.8]
    #[arg(
        long,
        help_heading = "Answers",
        value_name = "T",
        requires = "prompt",
        conflicts_with = "paths",
        allow_negative_numbers = true
    )]
    pub temperature: Option<f64>,
    /// Seed of the draws: the same seed gives the same text [default: 0]
    #[arg(long, help_heading = "Answers", value_name = "N", requires = "prompt", conflicts_with = "paths")]
    pub seed: Option<u64>,
}

/// Predicts what the flags ask for: the text after a prompt, the files that were given, or the test part of data.
pub fn run(options: &PredictOptions) -> Result<(), Failure> {
    if options.top == 0 {
        return Err(Failure::usage("--top must be at least 1"));
    }
    if let Some(prompt) = &options.prompt {
        return generate::run(options, prompt);
    }
    if options.paths.is_empty() {
        let trained = open(&options.trained, BatchKind::Predict, Report::Classes)?;
        if options.out.is_none() && trained.is_text() {
            return Err(Failure::usage(
                "this is a model of text: --prompt TEXT goes on with a text; --out FILE takes the scores of every token of the \
                 test part",
            ));
        }
        return rows(options, &trained, Form::of(options, false)?, 0, |row| row.to_string());
    }
    let given = Given::open(options, describe(&options.trained.run)?)?;
    given.say_differences();
    match given.is_segmentation() {
        true => masks::run(options, given),
        false => {
            let (trained, names) = given.trained(options)?;
            let widest = (0..trained.part().len().unwrap_or(0)).map(|row| letters(&names.name(row))).max();
            rows(options, &trained, Form::of(options, true)?, widest.unwrap_or(0), |row| names.name(row))
        }
    }
}

/// Plans, loads, predicts batch after batch, and writes as it goes; `name` names a row, in `widest` letters at most.
fn rows(
    options: &PredictOptions,
    trained: &Trained,
    form: Form,
    widest: usize,
    name: impl Fn(usize) -> String,
) -> Result<(), Failure> {
    // Where standard output is the answer, nothing else is printed there.
    let quiet = options.out.is_none();
    let (mut session, planned) = trained.session(options.trained.json, options.trained.sheet && !quiet)?;
    let answers = Answers::new(trained, options, widest);
    let mut sink = Sink::create(options.out.as_deref(), form)?;
    let mut count = 0;
    session.predict_each(trained.part(), |outputs| {
        let output = &outputs[0];
        let shape = output.ty().shape.clone();
        let width = match trained.classes {
            Some(_) => shape.last().copied().unwrap_or(1),
            None => shape.iter().skip(1).product(),
        };
        for scores in output.as_f32().unwrap_or_default().chunks(width.max(1)) {
            sink.row(&answers, &Row { number: count, name: name(count), scores })?;
            count += 1;
        }
        Ok::<(), Failure>(())
    })?;
    let measured = measured_peak();
    let figures = json!({ "rows": count, "planned_peak_bytes": planned, "measured_peak_bytes": measured });
    sink.finish(count, &figures)?;
    finish(options, count, "rows", (planned, measured), &figures);
    Ok(())
}

/// Prints how much was predicted and what it took.
fn finish(
    options: &PredictOptions,
    count: usize,
    what: &str,
    (planned, measured): (usize, Option<usize>),
    figures: &Value,
) {
    let text = peaks(planned, measured);
    if options.out.is_none() {
        hint(&text);
        return;
    }
    say(&format!("\n{count} {what}\n{text}"));
    if options.trained.json {
        say(&figures.to_string());
    }
}
