//! A trained model on a new task: frozen parameters have no gradient and no optimizer state, and need less memory.
//!
//!     cargo run --release --example fine_tuning

#![allow(clippy::print_stdout, reason = "an example prints")]

use plimsoll::nn::Recipe;
use plimsoll::plan::{PlanSet, in_words};
use plimsoll::prelude::*;

/// Digits with other labels: nine is zero, eight is one.
fn relabelled(part: &Pipeline) -> Result<Pipeline, Box<dyn std::error::Error>> {
    let relabel = |digit: &Record<'_>, other: &mut Record<'_>| {
        other.put(0, digit.bytes(0))?;
        let label = digit.bytes(1).try_into().map_or(0, i32::from_ne_bytes);
        other.put_i32(1, 9 - label)
    };
    Ok(part.clone().map(part.schema().clone(), relabel)?)
}

fn sizes(plans: &PlanSet) -> (usize, usize, usize) {
    let moments = plans.states.iter().filter(|state| state.role == plimsoll::graph::Role::Moment);
    (moments.clone().count(), moments.map(|state| state.ty.bytes()).sum(), plans.plans[0].peak_bytes)
}

/// Trains, freezes the body, and trains the head for a new task.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let data = open("mnist", &OpenOptions::default())?;
    let weights =
        std::env::temp_dir().join(format!("plimsoll-fine-tuning-{}.safetensors", std::process::id()));
    let whole = Trainer::new(zoo::lenet(), AdamW::new(2e-3)).executor(Cpu::new(2)?).batch(64).steps(300);
    let mut session = whole.plan(&data)?.start()?;
    let report = session.fit()?;
    session.save(&weights)?;
    println!("original digits: test accuracy {:.1} %", 100.0 * report.evaluation.accuracy.unwrap_or(0.0));

    let other = Dataset::new("relabelled digits", relabelled(&data.train)?, relabelled(&data.test)?);
    let rule = Recipe::new(AdamW::new(2e-3)).freeze("conv*").freeze("dense1").freeze("dense2");
    let tuned = Trainer::new(zoo::lenet(), rule).executor(Cpu::new(2)?).batch(64).steps(150);
    let plans = tuned.plan(&other)?;
    println!("\n{:<14} {:>8} {:>16} {:>14}", "", "moments", "optimizer state", "step's peak");
    for (name, plans) in [("all trained", session.plans()), ("body frozen", &plans)] {
        let (moments, bytes, peak) = sizes(plans);
        println!("{name:<14} {moments:>8} {:>16} {:>14}", in_words(bytes), in_words(peak));
    }
    let smaller = sizes(&plans).1 < sizes(session.plans()).1 && sizes(&plans).2 < sizes(session.plans()).2;

    let mut session = plans.start()?;
    session.load(&weights)?;
    std::fs::remove_file(&weights)?;
    let (before, body) = (session.evaluate(&other.test)?, session.state("conv1/kernel")?);
    let after = session.fit()?.evaluation;
    let unchanged = session.state("conv1/kernel")? == body;
    let percent = |evaluation: &Evaluation| 100.0 * evaluation.accuracy.unwrap_or(0.0);
    println!("\nrelabelled digits: {:.1} % before, {:.1} % after", percent(&before), percent(&after));
    println!("the frozen kernel is unchanged, bit for bit: {unchanged}");
    let learned = percent(&after) > percent(&before) + 20.0;
    if smaller && unchanged && learned { Ok(()) } else { Err("the example's claims do not hold".into()) }
}
