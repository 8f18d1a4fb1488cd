//! More memory never makes a plan slower, no line above the floor is infeasible, and every line below it is.

use crate::support;

use plimsoll_nn::zoo::{CharLstm, Gpt};
use plimsoll_nn::{AdamW, Model};
use plimsoll_plan::{
    ExecuteError, Executor, Kernel, KernelQuery, NullExecutor, NullTarget, PlanError, PlanSet, Prepared,
    Target, Unsupported,
};
use plimsoll_tensor::random::Lcg;
use plimsoll_train::{TrainError, Trainer};
use std::sync::Arc;
use support::{data, deep};

const GPT: Gpt = Gpt {
    layers: 2,
    width: 32,
    heads: 2,
    context: 32,
    vocabulary: 64,
    gpt2: false,
    key_heads: None,
    window: None,
};

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
    let lstm = CharLstm { layers: 2, width: 64, context: 16, vocabulary: 64 };
    // Batches so large that planning takes little beside the arena: a search that might pass the line is not begun.
    let left = extra_time_three_quarters_up(GPT, 128, Some(2), 12);
    assert!(left < 0.5, "gpt: {left}");
    let left = extra_time_three_quarters_up(lstm, 1024, Some(2), 8);
    assert!(left < 0.5, "lstm: {left}");
    extra_time_three_quarters_up(GPT, 16, None, 4);
    extra_time_three_quarters_up(deep(8), 64, None, 8);
}

/// The smallest line that is reported is the smallest that is planned: by the forecast itself, and by a run that knows only
/// its own line.
fn floor_is_the_smallest_line<M: Model + 'static>(model: impl Fn() -> M, batch: usize, split: Option<usize>) {
    let what = format!("{}, {batch}, {split:?}", model().name());
    let data = data(&model());
    let trainer = || {
        let trainer =
            Trainer::new(model(), AdamW::new(1e-3)).executor(NullExecutor::default()).line(usize::MAX);
        split.into_iter().fold(trainer.batch(batch).heap(1 << 16), Trainer::micro_batches)
    };
    let floor = trainer().forecast(&data).floor().unwrap();
    let plans = trainer().line(floor).plan(&data).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(plans.sheet.total_bytes <= floor, "{what}");
    let needed = match trainer().line(floor - 1).plan(&data) {
        Err(TrainError::Plan(PlanError::Infeasible(short))) => short.needed_bytes,
        other => panic!("{what}: a byte below {floor}: {:?}", other.map(|p| p.sheet.total_bytes)),
    };
    // More than the floor where the line leaves no room for the search that finds it; that much does, too.
    assert!(needed >= floor && trainer().line(needed).plan(&data).is_ok(), "{what}: {needed}, {floor}");
}

#[test]
fn a_line_below_the_floor_is_refused() {
    let lstm = || CharLstm { layers: 1, width: 32, context: 12, vocabulary: 32 };
    for split in [None, Some(1), Some(2)] {
        floor_is_the_smallest_line(lstm, 256, split);
        floor_is_the_smallest_line(|| deep(6), 512, split);
        floor_is_the_smallest_line(|| GPT, 64, split);
    }
    floor_is_the_smallest_line(|| deep(12), 2048, Some(1));
}

/// Under random lines, planned from the lowest up.
fn random_lines_are_never_slower(model: impl Model + 'static, batch: usize, split: usize, seed: u64) {
    let what = format!("{}, {batch}, {split}", model.name());
    let data = data(&model);
    let trainer = Trainer::new(model, AdamW::new(1e-3))
        .executor(NullExecutor::default())
        .line(usize::MAX)
        .batch(batch)
        .heap(1 << 16)
        .micro_batches(split);
    let mut forecast = trainer.forecast(&data);
    let whole = forecast.plan(usize::MAX).unwrap().sheet.total_bytes;
    let floor = forecast.floor().unwrap();
    let mut random = Lcg::new(seed);
    let mut lines: Vec<usize> = (0..24).map(|_| floor + random.below(whole - floor)).collect();
    lines.sort_unstable();
    let mut last = u64::MAX;
    for line in lines {
        let plans = forecast.plan(line).unwrap();
        assert!(plans.sheet.total_bytes <= line && plans.sheet.line_bytes == line, "{what}");
        let time = plans.plans[0].nanoseconds;
        assert!(time <= last, "{what}: {time} ns under {line} bytes, {last} under the line below");
        last = time;
    }
}

#[test]
fn random_lines_are_never_slower_than_lower_ones() {
    let lstm = CharLstm { layers: 2, width: 64, context: 16, vocabulary: 64 };
    for (split, seed) in [(1, 5), (2, 6)] {
        random_lines_are_never_slower(lstm, 1024, split, seed);
        random_lines_are_never_slower(GPT, 128, split, seed);
        random_lines_are_never_slower(deep(10), 1024, split, seed);
    }
}

/// Kernels on operands that a cache holds take half the time of others.
struct Cached(NullTarget);

impl Target for Cached {
    fn name(&self) -> String {
        "cached".to_string()
    }

    fn alignment(&self) -> usize {
        self.0.alignment()
    }

    fn kernel(&self, query: &KernelQuery<'_>) -> Result<Kernel, Unsupported> {
        let kernel = self.0.kernel(query)?;
        let bytes = query.op.bytes(&query.inputs, &query.outputs);
        let nanoseconds = if bytes > 1 << 19 { 2 * kernel.nanoseconds } else { kernel.nanoseconds };
        Ok(Kernel { nanoseconds, ..kernel })
    }
}

impl Executor for Cached {
    fn target(&self) -> &dyn Target {
        self
    }

    fn prepare(&self, plans: Arc<PlanSet>) -> Result<Box<dyn Prepared>, ExecuteError> {
        NullExecutor::default().prepare(plans)
    }
}

#[test]
fn a_batch_that_fits_is_split_where_that_is_faster() {
    let data = data(&GPT);
    // Each line is planned by itself: none knows the plans of another.
    let plan = |line: usize| {
        let trainer = Trainer::new(GPT, AdamW::new(1e-3)).executor(Cached(NullTarget::default()));
        trainer.line(line).batch(128).heap(1 << 16).plan(&data).unwrap()
    };
    let whole = plan(usize::MAX);
    let split = whole.plans[0].graph.micro_batches;
    assert!(split > 1 && whole.sheet.slowdown() == 0.0, "{split}, {}", whole.sheet.slowdown());
    let mut last = u64::MAX;
    let (lowest, highest) = (whole.sheet.total_bytes * 4 / 5, whole.sheet.total_bytes * 8);
    for part in 0..=8 {
        let line = lowest + (highest - lowest) * part / 8;
        let time = plan(line).plans[0].nanoseconds;
        assert!(time <= last, "{time} ns under {line} bytes, {last} under the line below");
        last = time;
    }
}
