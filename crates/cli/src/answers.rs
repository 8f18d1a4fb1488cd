//! `plimsoll plan --curve`, `--max-batch` and `--batches`.

use super::args::RunOptions;
use super::setup::{Setup, setup};
use super::text::count;
use super::{Failure, applies};
use plimsoll::data::Family;
use plimsoll::plan::{LoadSheet, in_words};
use plimsoll::train::{Forecast, largest_that};
use serde_json::{Value, json};

/// Prints a line of a table; does nothing where the answer is JSON.
pub type Say = fn(&str);

/// Lines of a curve.
pub const LINES: usize = 10;
/// The largest batch asked about.
const LARGEST: usize = 1 << 24;

/// Line against predicted slowdown, from no line down to the floor.
pub fn curve(forecast: &mut Forecast, say: Say) -> Result<Value, Failure> {
    let plans = forecast.curve(LINES)?;
    say(&format!(
        "{:>12} {:>14} {:>14} {:>10} {:>12} {:>14} {:>10}",
        "line", "bytes", "planned peak", "slower by", "step", "micro-batches", "recomputed"
    ));
    let mut rows = Vec::new();
    for sheet in plans.iter().map(|p| &p.sheet) {
        let unlimited = sheet.line_bytes == usize::MAX;
        // Without a line, a line at the peak gives the same plan.
        let line_bytes = if unlimited { sheet.total_bytes } else { sheet.line_bytes };
        let (micro_batches, recomputed) =
            sheet.plans.first().map_or((1, 0), |p| (p.micro_batches, p.recomputed));
        say(&format!(
            "{:>12} {:>14} {:>14} {:>8.1} % {:>9.1} ms {:>14} {:>10}",
            if unlimited { "none".to_string() } else { in_words(line_bytes) },
            line_bytes,
            in_words(sheet.total_bytes),
            sheet.slowdown() * 100.0,
            sheet.predicted_ms(),
            micro_batches,
            recomputed,
        ));
        rows.push(json!({
            "line_bytes": line_bytes,
            "planned_peak_bytes": sheet.total_bytes,
            "overhead": sheet.slowdown(),
            "predicted_ms": sheet.predicted_ms(),
            "micro_batches": micro_batches,
            "recomputed": recomputed,
        }));
    }
    Ok(Value::Array(rows))
}

/// The largest batch that trains under the line, whole and in micro-batches.
pub fn max_batch(options: &RunOptions, setup: &Setup, say: Say) -> Result<Value, Failure> {
    // Every device takes whole blocks.
    let devices = options.devices.replicas.unwrap_or(1);
    let (most, block) = (most_examples(setup), devices * setup.trainer.block());
    let with = |batch: usize, micro_batches: Option<usize>| {
        sheet_of(&RunOptions { batch: Some(batch), micro_batches, ..options.clone() })
    };
    let fits = |batch: usize, parts: Option<usize>| with(batch, parts).map(|(fits, _)| fits);
    let unit = if devices == 1 { 1 } else { block };
    let whole = unit * largest_that(most / unit, |units| fits(units * unit, Some(1)))?;
    let splits = {
        let two_blocks = RunOptions { batch: Some(2 * block), ..options.clone() };
        2 * block <= most && super::setup::setup(&two_blocks)?.trainer.can_split()?
    };
    // The most micro-batches need the least memory: one block of examples each. Several devices have to agree on them.
    let parts = |blocks: usize| (devices == 1).then_some(blocks);
    let blocks = match splits {
        true => largest_that(most / block, |blocks| fits(blocks * block, parts(blocks)))?,
        false => 0,
    };
    let rows = [("whole", whole, Some(1)), ("in micro-batches", whole.max(blocks * block), None)];
    say(&format!(
        "{:<18} {:>10} {:>14} {:>12} {:>14}",
        "", "max batch", "planned peak", "step", "micro-batches"
    ));
    let mut found = serde_json::Map::new();
    for (name, batch, micro_batches) in rows {
        let key = if micro_batches.is_some() { "without_micro_batches" } else { "with_micro_batches" };
        if batch == 0 || (micro_batches.is_none() && !splits) {
            let reason = if splits || micro_batches.is_some() {
                "not one example fits"
            } else {
                "batch norm mixes examples: no splits"
            };
            say(&format!("{name:<18} {:>10}   {reason}", "none"));
            found.insert(key.into(), Value::Null);
            continue;
        }
        let (_, sheet) = with(batch, micro_batches)?;
        let parts = sheet.plans.first().map_or(1, |p| p.micro_batches);
        say(&format!(
            "{name:<18} {:>10} {:>14} {:>9.1} ms {parts:>14}",
            count(batch),
            in_words(sheet.total_bytes),
            sheet.predicted_ms()
        ));
        found.insert(
            key.into(),
            json!({
                "batch": batch,
                "planned_peak_bytes": sheet.total_bytes,
                "predicted_ms": sheet.predicted_ms(),
                "micro_batches": parts,
            }),
        );
    }
    match whole.max(blocks) {
        0 => Err(Failure::memory("not one example fits under the line: `plimsoll plan --batch 1` says why")),
        _ => Ok(Value::Object(found)),
    }
}

/// Batch against planned peak and predicted samples per second.
pub fn batches(options: &RunOptions, setup: &Setup, say: Say) -> Result<Value, Failure> {
    let most = most_examples(setup).min(setup.batch.saturating_mul(4)).max(setup.batch);
    let least = match options.devices.replicas.unwrap_or(1) {
        1 => 1,
        devices => devices * setup.trainer.block(),
    };
    let sizes = (0..24).map(|i| 1 << i).filter(|&n| least <= n && n <= most);
    let mut sizes: Vec<usize> = sizes.chain([setup.batch]).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let mut rows = Vec::new();
    for batch in sizes {
        let (fits, sheet) = sheet_of(&RunOptions { batch: Some(batch), ..options.clone() })?;
        rows.push((batch, fits, batch as f64 / sheet.predicted_ms().max(1e-9) * 1e3, sheet));
    }
    let fitting = rows.iter().filter(|row| row.1);
    let best = fitting.fold(None, |best: Option<(usize, f64)>, row| match best {
        Some((_, rate)) if rate >= row.2 => best,
        _ => Some((row.0, row.2)),
    });
    let best = best.map(|(batch, _)| batch);
    say(&format!(
        "{:>8} {:>14} {:>12} {:>12} {:>14} {:>10}",
        "batch", "planned peak", "samples/s", "step", "micro-batches", "recomputed"
    ));
    let mut found = Vec::new();
    for (batch, fits, rate, sheet) in &rows {
        let (parts, recomputed) = sheet.plans.first().map_or((1, 0), |p| (p.micro_batches, p.recomputed));
        say(&format!(
            "{:>8} {:>14} {rate:>12.1} {:>9.1} ms {parts:>14} {recomputed:>10}   {}",
            count(*batch),
            in_words(sheet.total_bytes),
            sheet.predicted_ms(),
            match (*fits, Some(*batch) == best) {
                (false, _) => "over the line",
                (true, true) => "best",
                (true, false) => "",
            }
        ));
        found.push(json!({
            "batch": batch,
            "fits": fits,
            "planned_peak_bytes": sheet.total_bytes,
            "predicted_ms": sheet.predicted_ms(),
            "samples_per_second": rate,
            "micro_batches": parts,
            "recomputed": recomputed,
            "best": Some(*batch) == best,
        }));
    }
    match best {
        None => Err(Failure::memory("none of these batches fits under the line")),
        Some(_) => Ok(Value::Array(found)),
    }
}

/// The largest batch that the data allows.
fn most_examples(setup: &Setup) -> usize {
    if applies::is(&setup.data.name, Family::Synthetic) {
        LARGEST
    } else {
        setup.data.train.len().unwrap_or(0)
    }
}

/// Whether a run fits its line, and its load sheet.
fn sheet_of(options: &RunOptions) -> Result<(bool, LoadSheet), Failure> {
    let setup = setup(options)?;
    Ok(setup.trainer.fits(&setup.data)?)
}
