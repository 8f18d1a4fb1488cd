//! More memory never makes a plan slower, and no line above the floor is infeasible.

use crate::support;

use plimsoll_nn::zoo::{CharLstm, Gpt};
use plimsoll_nn::{AdamW, Model};
use plimsoll_plan::NullExecutor;
use plimsoll_train::Trainer;
use support::{data, deep};

/// Plans on a grid of lines from the floor up: each fits, and none takes more time than one below it. Returns the fraction of
/// the floor's extra time that is left three quarters up.
fn extra_time_three_quarters_up(
    model: impl Model + 'static,
    batch: usize,
    split: Option<usize>,
    lines: usize,
) -> f64 {
    let what = format!("{}, {split:?}", model.name());
    let data = data(&model);
    let trainer = Trainer::new(model, AdamW::new(1e-3))
        .executor(NullExecutor::default())
        .line(usize::MAX)
        .batch(batch)
        .heap(1 << 16);
    let trainer = split.into_iter().fold(trainer, Trainer::micro_batches);
    let mut forecast = trainer.forecast(&data);
    let whole = forecast.plan(usize::MAX).unwrap().sheet.total_bytes;
    let floor = forecast.floor().unwrap();
    let mut times: Vec<u64> = Vec::new();
    for part in 0..=lines {
        let line = floor + (whole - floor) * part / lines;
        let plans = forecast.plan(line).unwrap_or_else(|error| panic!("{what}: {error}, and {floor} does"));
        let (time, total) = (plans.plans[0].nanoseconds, plans.sheet.total_bytes);
        let last = times.last().copied().unwrap_or(u64::MAX);
        assert!(time <= last, "{what}: {time} ns under {line} bytes, {last} under the line below");
        assert!(total <= line && total >= floor - floor / 100, "{what}: {total} under {line}, floor {floor}");
        times.push(time);
    }
    let over = |at: usize| (times[at] - times[lines]) as f64;
    over(lines / 4 * 3) / over(0)
}

#[test]
fn more_memory_is_never_slower_nor_infeasible() {
    let gpt = Gpt { layers: 2, width: 32, heads: 2, context: 32, vocabulary: 64, ..Gpt::default() };
    let lstm = CharLstm { layers: 2, width: 64, context: 16, vocabulary: 64 };
    // Batches so large that planning takes little beside the arena: a search that might pass the line is not begun.
    let left = extra_time_three_quarters_up(gpt, 128, Some(2), 12);
    assert!(left < 0.5, "gpt: {left}");
    let left = extra_time_three_quarters_up(lstm, 1024, Some(2), 8);
    assert!(left < 0.5, "lstm: {left}");
    extra_time_three_quarters_up(gpt, 16, None, 4);
    extra_time_three_quarters_up(deep(8), 64, None, 8);
}
