//! `plimsoll evaluate`: loss and metrics of a trained model.

use super::args::EvaluateOptions;
use super::text::escaped;
use super::trained::{open, peaks};
use super::{Failure, say, setup};
use plimsoll::data::Preparation;
use plimsoll::memory::measured_peak;
use plimsoll::nn::step::Report;
use plimsoll::plan::{Entry, in_words};
use plimsoll::train::BatchKind;
use plimsoll::train::metrics::{Metric, MetricSpec};
use serde_json::{Map, Value, json};

/// Plans, loads, evaluates and prints.
pub fn run(options: &EvaluateOptions) -> Result<(), Failure> {
    let mut trained = open(&options.trained, BatchKind::Evaluate, Report::Output)?;
    let classes = trained.classes;
    let default = if classes.is_some() { "accuracy" } else { "mse" };
    let names = if options.metrics.is_empty() { vec![default.to_string()] } else { options.metrics.clone() };
    let mut specs: Vec<MetricSpec> = Vec::new();
    for name in &names {
        let spec: MetricSpec = name.parse().map_err(Failure::usage)?;
        if specs.contains(&spec) {
            return Err(Failure::usage(format!("--metrics: {name} is there twice")));
        }
        specs.push(spec);
    }
    let sizes = specs.iter().map(|spec| spec.bytes(classes.unwrap_or(1)));
    let bytes = sizes.fold(0, usize::saturating_add);
    let (_, line) = setup::line(&options.trained.machine);
    if bytes > line {
        let message = format!("the metrics need {}, the line is {}", in_words(bytes), in_words(line));
        return Err(Failure::memory(message));
    }
    let made = specs.iter().map(|spec| spec.make(classes.unwrap_or(1)));
    let mut measures: Vec<Box<dyn Metric>> = made.collect::<Result<_, _>>().map_err(Failure::usage)?;
    trained.trainer = trained.trainer.outside(Entry::new("metrics", bytes, names.join(", ")));
    let (mut session, planned) = trained.session(options.trained.json, options.trained.sheet)?;
    let evaluation = session.evaluate_with(trained.part(), &mut measures)?;
    let mut figures = Map::new();
    say(&format!("\n{} examples of {}", evaluation.examples, escaped(&trained.data.name)));
    say(&format!("{:<24} {:.6}", "loss", evaluation.loss));
    for metric in &measures {
        metric.figures(&mut |name, value| {
            let name = named(&name.to_string(), &trained.preparation);
            say(&format!("{:<24} {value:.6}", escaped(&name)));
            if options.trained.json {
                // JSON has null for what is not finite.
                figures.insert(name, json!(value));
            }
        });
    }
    super::train::say_skipped(&session);
    let measured = measured_peak();
    say(&peaks(planned, measured));
    if options.trained.json {
        let object = json!({
            "examples": evaluation.examples, "loss": evaluation.loss, "metrics": Value::Object(figures),
            "planned_peak_bytes": planned, "measured_peak_bytes": measured,
        });
        say(&object.to_string());
    }
    Ok(())
}

/// A figure's name with the names of classes in place of their numbers: `confusion/cat/dog` for `confusion/0/1`.
fn named(figure: &str, preparation: &Preparation) -> String {
    let mut parts = figure.split('/');
    let metric = parts.next().unwrap_or_default().to_string();
    parts.fold(metric, |name, part| {
        let class = part.parse().ok().and_then(|class: usize| preparation.classes.get(class));
        format!("{name}/{}", class.map_or(part, String::as_str))
    })
}
