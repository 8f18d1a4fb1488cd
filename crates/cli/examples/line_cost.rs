//! The cost of a line: measured steps under lower and lower lines, against steps of the same run without a line.
//!
//!     cargo run --release --example line_cost
//!     cargo run --release --example line_cost -- --model resnet50 --fraction 0.33 --fraction floor --pairs 31
//!
//! A line allows for all states, a fraction of the activations of a framework that keeps everything, and the memory outside
//! the arena. Both plans train side by side in one process on the same batch, alternating steps, and every pair of steps
//! gives one ratio: a busy machine slows both. The table has the median step without a line, the median of the ratios, and its
//! 95 % confidence interval from order statistics; with fewer than six pairs this is their whole range, at a lower confidence.
//! Afterwards every state of both runs is compared, bit for bit.
//!
//! Predictions use the disk speed of some short trials, and a typical processor. Both change on a shared machine: *then* is
//! the prediction for the same plan with the speeds of the row itself, the disk's from a trial before each pair, the
//! processor's from the step without a line.
//!
//! A fraction so large that the line does not change the plan, like 9, measures the noise.

#![allow(clippy::print_stdout, reason = "a benchmark prints")]

use clap::Parser;
use plimsoll::cpu::CpuTarget;
use plimsoll::cpu::isa::Isa;
use plimsoll::data::{Batch, SyntheticSpec};
use plimsoll::memory;
use plimsoll::nn::zoo::{ZOO, ZooOptions};
use plimsoll::plan::{Link, PlanError, PlanSet, Tiers, Unsupported};
use plimsoll::prelude::*;
use plimsoll::runtime::transfer::{Rates, disk_rates};
use plimsoll::train::{BatchKind, tally};
use std::error::Error;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Instant;

/// The folder of the spill file, as in the program.
const SPILL_FOLDER: &str = ".";

/// Trials of the disk, whose speed varies.
const TRIALS: usize = 15;

/// The most pairs: the probabilities of more underflow.
const MOST_PAIRS: usize = 1000;

/// Measures the cost of steps under lines
#[derive(Parser)]
struct Flags {
    /// One model instead of those of the table; any of the zoo, in its default sizes if it is not in the table
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Pairs of steps, one of each plan
    #[arg(long, default_value_t = 15)]
    pairs: usize,
    /// Share of the activations that the line allows for, or `floor`: the smallest feasible line; may be repeated
    #[arg(long, value_name = "F", default_values = ["0.5", "0.33", "0.2", "floor"])]
    fraction: Vec<Share>,
    /// Never offload to a disk
    #[arg(long)]
    no_spill: bool,
    /// Threads [default: one per core]
    #[arg(long)]
    threads: Option<usize>,
    /// The zoo's small sizes: a first try, not a measurement
    #[arg(long)]
    small: bool,
}

/// How low a line is.
#[derive(Clone, Copy)]
enum Share {
    /// The line allows for this share of the activations.
    Of(f64),
    /// The smallest feasible line.
    Floor,
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            _ if text == "floor" => Ok(Self::Floor),
            Ok(share) if share >= 0.0 => Ok(Self::Of(share)),
            _ => Err("neither a number from 0 nor `floor`".into()),
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Of(share) => f.pad(&share.to_string()),
            Self::Floor => f.pad("floor"),
        }
    }
}

/// A model of the zoo as it is measured.
struct Case {
    model: &'static str,
    batch: usize,
    options: ZooOptions,
}

/// The models, in the table's order.
fn cases() -> [Case; 5] {
    let none = ZooOptions::default();
    let photo = ZooOptions { image: Some(224), ..none };
    let gpt = ZooOptions { layers: Some(12), width: Some(512), heads: Some(8), context: Some(512), ..none };
    [
        Case { model: "resnet50", batch: 16, options: photo },
        Case { model: "unet", batch: 4, options: ZooOptions { image: Some(256), ..none } },
        Case { model: "mobilenet_v2", batch: 16, options: photo },
        Case { model: "gpt", batch: 8, options: gpt },
        Case { model: "lstm", batch: 32, options: none },
    ]
}

fn main() -> Result<(), Box<dyn Error>> {
    let flags = Flags::parse();
    if !(1..=MOST_PAIRS).contains(&flags.pairs) {
        return Err(format!("--pairs must be from 1 to {MOST_PAIRS}").into());
    }
    let wanted = |case: &Case| flags.model.as_ref().is_none_or(|name| name == case.model);
    let mut chosen: Vec<Case> = cases().into_iter().filter(wanted).collect();
    if chosen.is_empty() {
        let entry = ZOO.iter().find(|entry| flags.model.as_deref() == Some(entry.name));
        let entry = entry.ok_or("--model is none of the zoo: `plimsoll zoo` lists them")?;
        chosen.push(Case { model: entry.name, batch: entry.batch, options: ZooOptions::default() });
    }
    println!(
        "{:<13}{:>6}{:>10}{:>10}{:>7}{:>8}{:>9}{:>10}{:>8}{:>10}{:>9}{:>18}{:>8}  states",
        "model",
        "f",
        "line MiB",
        "peak MiB",
        "micro",
        "remat",
        "offload",
        "predict %",
        "then %",
        "step ms",
        "cost %",
        "95 %",
        "plan s",
    );
    chosen.iter().try_for_each(|case| measure(case, &flags))
}

/// Measures one model under every line, and prints a row for each.
fn measure(case: &Case, flags: &Flags) -> Result<(), Box<dyn Error>> {
    let entry = ZOO.iter().find(|entry| entry.name == case.model).ok_or("not in the zoo")?;
    let sizes = if flags.small { &entry.small } else { &case.options };
    let model = (entry.make)(sizes);
    let synthetic = SyntheticSpec { inputs: model.inputs(), label: model.target() };
    let examples = case.batch * 10;
    let data =
        open("synthetic", &OpenOptions { synthetic: Some(synthetic), examples, ..OpenOptions::default() })?;
    let threads = flags.threads.unwrap_or(std::thread::available_parallelism()?.get());
    // For runs with this much memory; the disk's speed depends on it.
    let trainer = |memory_bytes: usize| -> Result<Trainer, Box<dyn Error>> {
        let executor = Cpu::new(threads)?;
        let executor = if flags.no_spill {
            executor
        } else {
            let rates = typical_rates(memory_bytes)?;
            let [read, write] = [rates.read_bytes_per_ns, rates.write_bytes_per_ns];
            let [asking, latency] = [rates.request_cpu_ns, rates.latency_ns].map(|ns| ns as f64 / 1e3);
            println!(
                "{:<13}  the disk reads {read:.1} and writes {write:.1} GB/s with a latency of {latency:.0} us, {asking:.0} of them busy",
                case.model
            );
            executor.spilling(SPILL_FOLDER).disk_rates(rates)
        };
        let trainer = Trainer::new((entry.make)(sizes), AdamW::new(1e-4))
            .executor(executor)
            .batch(case.batch)
            .kinds(&[BatchKind::Train, BatchKind::Evaluate]);
        Ok(trainer)
    };

    let any = trainer(usize::MAX)?;
    let mut forecast = any.forecast(&data);
    let unlimited = forecast.plan(usize::MAX)?;
    let activations = forecast.naive_activation_bytes()?;
    // What every line must allow for, unless states are offloaded.
    let fixed = unlimited.sheet.total_bytes - unlimited.arena_bytes + tally(&unlimited).state_bytes;
    let share_of = |line: usize| (line as f64 - fixed as f64) / activations as f64;

    let mut batches = data.train.batch(case.batch).start(Cursor::default())?;
    let batch = batches.next()?.ok_or("the data is empty")?;

    for &share in &flags.fraction {
        let line = match share {
            Share::Of(share) => fixed + (share * activations as f64) as usize,
            Share::Floor => forecast.floor()?,
        };
        let mut row = format!("{:<13}{share:>6}{:>10.1}", case.model, mebibytes(line));
        let trainer = trainer(line)?;
        let start = Instant::now();
        // A separate forecast, so that nothing is cached from other lines.
        let planned = trainer.forecast(&data).plan(line);
        let seconds = start.elapsed().as_secs_f64();
        let plans = match planned {
            Err(TrainError::Plan(PlanError::Infeasible(_))) => {
                let floor = forecast.floor()?;
                // The search may miss a plan that it finds under a lower line.
                let what = if floor <= line { "REFUSED ABOVE THE FLOOR" } else { "no plan" };
                let (share, floor) = (share_of(floor), mebibytes(floor));
                println!("{row}  {what}: the floor is f = {share:.3}, {floor:.1} MiB");
                continue;
            }
            other => other?,
        };
        let tally = tally(&plans);
        row += &format!(
            "{:>10.1}{:>7}{:>8}{:>9}{:>10.1}",
            mebibytes(plans.sheet.total_bytes),
            plans.plans[0].graph.micro_batches,
            tally.recomputed,
            tally.offloaded.file,
            plans.sheet.slowdown() * 100.0,
        );
        let offloads = plans.tier_bytes.file > 0;
        let (pairs, same) = side_by_side(batch, [&unlimited, &plans], flags.pairs, offloads)?;
        let (step, _) = middle(pairs.iter().map(|pair| pair.without * 1e3).collect());
        let percent = |ratio: f64| (ratio - 1.0) * 100.0;
        let target = CpuTarget::new(Isa::detect(), threads);
        let then = pairs.iter().map(|pair| pair.predicted([&unlimited, &plans], &target));
        let (then, _) = middle(then.collect::<Result<_, _>>()?);
        let (median, [low, high]) = middle(pairs.iter().map(|pair| pair.under / pair.without).collect());
        let [then, median, low, high] = [then, median, low, high].map(percent);
        let between = format!("[{low:.1}, {high:.1}]");
        let states = if same { "same" } else { "DIFFER" };
        let note = match share {
            Share::Of(_) => String::new(),
            Share::Floor => format!("  f = {:.3}", share_of(line)),
        };
        println!("{row}{then:>8.1}{step:>10.1}{median:>9.1}{between:>18}{seconds:>8.1}  {states}{note}");
    }
    Ok(())
}

/// The disk's rates, as the medians of some trials.
fn typical_rates(memory_bytes: usize) -> Result<Rates, Box<dyn Error>> {
    let mut trials = Vec::with_capacity(TRIALS);
    for _ in 0..TRIALS {
        trials.push(disk_rates(Path::new(SPILL_FOLDER), memory_bytes)?);
    }
    let median = |figure: fn(&Rates) -> f64| middle(trials.iter().map(figure).collect()).0;
    Ok(Rates {
        read_bytes_per_ns: median(|rates| rates.read_bytes_per_ns),
        write_bytes_per_ns: median(|rates| rates.write_bytes_per_ns),
        latency_ns: median(|rates| rates.latency_ns as f64) as u64,
        single_request_ns: median(|rates| rates.single_request_ns as f64) as u64,
        request_cpu_ns: median(|rates| rates.request_cpu_ns as f64) as u64,
    })
}

/// A step of each plan.
struct Pair {
    /// The disk's speed just before; zero where no plan offloads.
    disk: Link,
    /// Seconds of the step without the line.
    without: f64,
    /// Seconds of the step under it.
    under: f64,
}

impl Pair {
    /// The ratio of the steps, predicted with the speeds of this pair.
    fn predicted(&self, [unlimited, plans]: [&PlanSet; 2], target: &CpuTarget) -> Result<f64, Unsupported> {
        let usual = unlimited.plans[0].nanoseconds as f64;
        // Relative to a processor that is slower than predicted, the disk is faster.
        let slower = self.without * 1e9 / usual;
        let beside = |ns: u64| (ns as f64 / slower) as u64;
        let disk = Link {
            load_ns_per_mib: beside(self.disk.load_ns_per_mib),
            store_ns_per_mib: beside(self.disk.store_ns_per_mib),
            latency_ns: beside(self.disk.latency_ns),
            single_request_ns: beside(self.disk.single_request_ns),
            request_cpu_ns: beside(self.disk.request_cpu_ns),
        };
        Ok(plans.predict(0, target, &Tiers::disk(disk, 0))? as f64 / usual)
    }
}

/// Trains two plans of one run side by side; returns the pairs of steps, and whether all states are the same afterwards.
fn side_by_side(
    batch: &Batch,
    plans: [&TrainingPlan; 2],
    count: usize,
    offloads: bool,
) -> Result<(Vec<Pair>, bool), Box<dyn Error>> {
    let needed = plans.iter().map(|plans| plans.sheet.total_bytes).sum::<usize>();
    if memory::available().is_some_and(|available| available < needed) {
        return Err(format!("both runs need {:.0} MiB, more than is available", mebibytes(needed)).into());
    }
    let mut first = plans[0].clone().start()?;
    let mut second = plans[1].clone().start()?;
    let timed = |session: &mut Session| -> Result<f64, TrainError> {
        let start = Instant::now();
        session.train_step(batch)?;
        Ok(start.elapsed().as_secs_f64())
    };
    // The first step of each maps the arena's pages.
    timed(&mut first)?;
    timed(&mut second)?;
    let folder = Path::new(SPILL_FOLDER);
    let mut pairs = Vec::with_capacity(count);
    for pair in 0..count {
        let disk =
            if offloads { disk_rates(folder, plans[1].sheet.total_bytes)?.link() } else { Link::default() };
        // The order alternates, so that it favours neither.
        let (without, under) = if pair.is_multiple_of(2) {
            let without = timed(&mut first)?;
            (without, timed(&mut second)?)
        } else {
            let under = timed(&mut second)?;
            (timed(&mut first)?, under)
        };
        pairs.push(Pair { disk, without, under });
    }
    let mut same = true;
    for state in &plans[0].states {
        same &= first.state(&state.name)?.as_bytes() == second.state(&state.name)?.as_bytes();
    }
    Ok((pairs, same))
}

/// The median of a sample, and the narrowest symmetric pair of order statistics that contains the true median with a
/// probability of at least 95 %; the range of the sample where none does.
fn middle(mut numbers: Vec<f64>) -> (f64, [f64; 2]) {
    numbers.sort_by(f64::total_cmp);
    let count = numbers.len();
    let median = (numbers[(count - 1) / 2] + numbers[count / 2]) / 2.0;
    // Each number is below the true median with probability one half; `below` is the probability that at most `skip` are.
    let mut chance = 0.5_f64.powi(count as i32);
    let (mut below, mut skip) = (chance, 0);
    while skip + 1 < count.div_ceil(2) {
        chance *= (count - skip) as f64 / (skip + 1) as f64;
        below += chance;
        if below > 0.025 {
            break;
        }
        skip += 1;
    }
    (median, [numbers[skip], numbers[count - 1 - skip]])
}

fn mebibytes(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
