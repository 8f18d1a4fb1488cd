//! What a run says of itself when it is over.

use super::text::escaped;
use plimsoll::plan::{LoadSheet, in_words};
use plimsoll::train::{Ending, Evaluation, Report};
use std::path::Path;
use std::time::Duration;

fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

/// Loss and accuracy on a part of the data, as text; for a model of text the perplexity where there is no accuracy.
pub fn accuracy(evaluation: &Evaluation, part: &str, text: bool) -> String {
    let loss = evaluation.loss;
    match evaluation.accuracy {
        Some(share) => format!("{part} accuracy {}, loss {loss:.4}", percent(share)),
        None if evaluation.classes && text => format!("{part} loss {loss:.4}, perplexity {:.1}", loss.exp()),
        None => format!("{part} loss {loss:.4}"),
    }
}

/// Why a run ended before its last step, as text.
pub fn ending(report: &Report, folder: Option<&Path>) -> Option<String> {
    let step = report.steps;
    let resume = folder
        .map_or(String::new(), |folder| format!("; continue with --resume {}", escaped(folder.display())));
    match report.ending {
        Ending::Done => None,
        Ending::TimeLimit => Some(format!("\nThe time limit was reached after step {step}{resume}")),
        Ending::Stopped => Some(format!("\nStopped after step {step}: validations got no better")),
        Ending::Restored(best) => Some(format!(
            "\nStopped after step {step}: validations got no better; restored the best, after step {best}"
        )),
    }
}

/// Steps, speed, the evaluation, and the planned beside the measured peak, as text.
pub fn figures(report: &Report, evaluation: &str, peaks: &[Peak], first: Option<Duration>) -> String {
    let mut text = format!(
        "\n{} step{}, {:.1} samples/s, {:.2} ms per step (median), first step after {:.2} s\n{}\n",
        report.steps,
        if report.steps == 1 { "" } else { "s" },
        report.samples_per_second,
        report.step_median.as_secs_f64() * 1e3,
        first.unwrap_or_default().as_secs_f64(),
        evaluation,
    );
    text += &peaks.iter().map(Peak::in_words).collect::<Vec<_>>().join("\n");
    text
}

/// A peak of memory: what was planned, and what was measured.
pub struct Peak {
    /// Of which memory, where there are several: like `device `.
    pub space: &'static str,
    pub planned: usize,
    pub measured: Option<usize>,
}

impl Peak {
    fn in_words(&self) -> String {
        let Self { space, planned, measured } = self;
        let width = if space.is_empty() { 15 } else { 22 };
        let line = |what: &str, bytes: usize| {
            format!("{:<width$}{:>12}  ({bytes} bytes", format!("{what} {space}peak"), in_words(bytes))
        };
        let planned_line = line("planned", *planned);
        match measured {
            Some(measured) => {
                let share = percent(*measured as f64 / (*planned).max(1) as f64);
                format!("{planned_line})\n{}, {share} of planned)", line("measured", *measured))
            }
            None => format!("{planned_line})\nmeasured {space}peak  not known on this system"),
        }
    }
}

/// The predicted cost of the line, if there is any.
pub fn price(sheet: &LoadSheet) -> Option<String> {
    let slowdown = sheet.slowdown();
    (slowdown > 0.0).then(|| {
        let step = sheet.predicted_ms();
        format!("under the line  {:+.1} % time predicted, {step:.2} ms a step", slowdown * 100.0)
    })
}

/// The measured cost of the line. No step runs without the line, so the cost of micro-batches cannot be measured.
pub fn measured_price(report: &Report) -> String {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let mut text = format!("measured {:.2} ms a step", ms(report.step_median));
    let parts = [("waiting for the disk", report.extra.waiting), ("recomputing", report.extra.again)];
    for (what, time) in parts.into_iter().filter(|(_, time)| !time.is_zero()) {
        text += &format!(", {:.2} ms {what}", ms(time));
    }
    let beside = if report.micro_batches > 1 { ", besides the cost of micro-batches" } else { "" };
    text + &format!(": {:+.1} %{beside}", report.slowdown * 100.0)
}
