//! How fast models predict on floats and on bytes.
//!
//!     cargo run --release -p plimsoll-cli --example int8_speed
//!     cargo run --release -p plimsoll-cli --example int8_speed -- --model resnet20 --batch 1 --steps 20
//!
//! Models of the zoo with their first weights on synthetic data: ranges are measured on a batch, then both predict it in turn, and every round
//! gives one ratio: a busy machine slows both. The table has medians of all rounds. With `--steps` the longest steps of each follow.

#![allow(clippy::print_stdout, reason = "a benchmark prints")]

use clap::Parser;
use plimsoll::compress::{Int8Grids, KeptLayers, calibration, places};
use plimsoll::cpu::CpuTarget;
use plimsoll::cpu::isa::Isa;
use plimsoll::data::{Batch, Cursor, OpenOptions, SyntheticSpec, ValidationSplit, open};
use plimsoll::nn::step;
use plimsoll::nn::zoo::{ZOO, ZooOptions};
use plimsoll::plan::{Action, KernelQuery, PlanSet, Target as _, Unsupported};
use plimsoll::prelude::*;
use plimsoll::runtime::StepTimes;
use plimsoll::train::BatchKind;
use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Measures predictions on floats and on bytes
#[derive(Parser)]
struct Flags {
    /// A model of the zoo; may be repeated
    #[arg(long, value_name = "NAME", default_values = ["lenet", "resnet20", "mobilenet_v2"])]
    model: Vec<String>,
    /// Examples of a batch
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// Extent of images
    #[arg(long)]
    image: Option<usize>,
    /// Rounds, each of which predicts for a fifth of a second on floats, then on bytes
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Threads [default: one per core]
    #[arg(long)]
    threads: Option<usize>,
    /// Instruction set [default: the best]
    #[arg(long)]
    isa: Option<String>,
    /// Print so many of the longest steps
    #[arg(long, default_value_t = 0)]
    steps: usize,
}

/// How long a model predicts in a round.
const ROUND: Duration = Duration::from_millis(200);

/// A model that predicts a batch.
struct Run {
    session: Session,
    times: Arc<StepTimes>,
}

impl Run {
    /// Seconds of a prediction, over as many as fill a round.
    fn time(&mut self, batch: &Batch) -> Result<f64, Box<dyn Error>> {
        let (start, mut count) = (Instant::now(), 0);
        while count == 0 || start.elapsed() < ROUND {
            self.session.predict(batch)?;
            count += 1;
        }
        Ok(start.elapsed().as_secs_f64() / f64::from(count))
    }

    /// Prints the longest steps, and how long they were predicted to take.
    fn print_steps(&self, most: usize, target: &CpuTarget) -> Result<(), Unsupported> {
        let plans: &PlanSet = self.session.plans();
        let marks = plans.plans[0].graph.batch_marks();
        let mut sums: BTreeMap<String, (u64, u64, usize)> = BTreeMap::new();
        for (step, nanoseconds) in plans.plans[0].steps.iter().zip(self.times.of(0)) {
            let Action::Run { node, .. } = step.action else { continue };
            let graph = &plans.plans[0].graph;
            let node = graph.node(node);
            let list =
                |types: &[&TensorType]| types.iter().take(2).map(|t| format!(" {t}")).collect::<String>();
            let types = (list(&graph.input_types(node)), list(&graph.output_types(node)));
            let predicted = target.kernel(&KernelQuery::new(graph, &marks, node))?.nanoseconds;
            let sum = sums.entry(format!("{}{} →{}", node.op.name(), types.0, types.1)).or_default();
            *sum = (sum.0 + nanoseconds, sum.1 + predicted, sum.2 + 1);
        }
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by_key(|(_, (nanoseconds, ..))| std::cmp::Reverse(*nanoseconds));
        for (name, (nanoseconds, predicted, count)) in sums.into_iter().take(most) {
            let [took, predicted] = [nanoseconds, predicted].map(|ns| ns as f64 / 1e3);
            println!("  {took:9.1} µs, predicted {predicted:9.1}, in {count:3}  {name}");
        }
        Ok(())
    }
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    let flags = Flags::parse();
    let threads =
        flags.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let isa = match &flags.isa {
        Some(name) => Isa::ALL.into_iter().find(|isa| isa.name() == name).ok_or("no such instruction set")?,
        None => Isa::detect(),
    };
    println!("{} on {threads} threads, batches of {}", isa.name(), flags.batch);
    println!("{:<14} {:>14} {:>14} {:>7}", "model", "f32 samples/s", "int8", "ratio");
    for name in &flags.model {
        measure(&flags, name, isa, threads)?;
    }
    Ok(())
}

fn measure(flags: &Flags, name: &str, isa: Isa, threads: usize) -> Result<(), Box<dyn Error>> {
    let entry = ZOO.iter().find(|entry| entry.name == name).ok_or("the zoo has no such model")?;
    let make = || (entry.make)(&ZooOptions { image: flags.image, ..ZooOptions::default() });
    let (inputs, label) = (make().inputs(), make().target());
    let data = open(
        "synthetic",
        &OpenOptions {
            synthetic: Some(SyntheticSpec { inputs, label }),
            // A tenth is for tests: plans are for whole batches of it.
            examples: 10 * flags.batch,
            validation: ValidationSplit::None,
            ..OpenOptions::default()
        },
    )?;
    let mut batches = data.train.batch(flags.batch).start(Cursor::default())?;
    let batch = batches.next()?.ok_or("there is no data")?;
    let start = |pass: &dyn Fn(Trainer) -> Trainer| -> Result<Run, Box<dyn Error>> {
        let times = Arc::new(StepTimes::default());
        let executor = Cpu::with_isa(threads, isa)?.timed(times.clone());
        let trainer =
            Trainer::new(make(), Sgd::new(0.1)).executor(executor).line(usize::MAX).batch(flags.batch);
        let session = pass(trainer.kinds(&[BatchKind::Predict])).plan(&data)?.start()?;
        Ok(Run { session, times })
    };
    let mut floats = start(&|trainer| trainer)?;
    let graph = step::prediction(make().as_ref(), 1)?;
    let mut calibrated =
        start(&|trainer| trainer.inference_pass(|graph| calibration(graph, &KeptLayers::default())))?;
    let outputs = calibrated.session.predict(batch)?;
    let measured = &outputs[outputs.len() - 2 * places(&graph, &KeptLayers::default()).len()..];
    let all = |tensor: &Tensor, f: fn(f32, f32) -> f32| {
        tensor.as_f32().unwrap_or_default().iter().copied().reduce(f)
    };
    let range =
        |pair: &[Tensor]| (all(&pair[1], f32::min).unwrap_or(0.0), all(&pair[0], f32::max).unwrap_or(1.0));
    let ranges: Vec<(f32, f32)> = measured.chunks_exact(2).map(range).collect();
    let grids = Int8Grids::of_ranges(&ranges);
    let states: BTreeMap<String, Tensor> =
        grids.states::<TrainError>(&graph, |name| floats.session.state(name))?.into_iter().collect();
    let mut bytes = start(&|trainer| {
        let grids = grids.clone();
        trainer.inference_pass(move |graph| grids.apply(graph))
    })?;
    let names: Vec<String> = bytes.session.plans().states.iter().map(|state| state.name.clone()).collect();
    for name in names {
        let state = states.get(&name).cloned().map_or_else(|| floats.session.state(&name), Ok)?;
        bytes.session.set_state(&name, &state)?;
    }
    let (mut on_floats, mut on_bytes, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..flags.rounds.max(1) {
        let (f, b) = (floats.time(batch)?, bytes.time(batch)?);
        on_floats.push(f);
        on_bytes.push(b);
        ratios.push(f / b);
    }
    let per_second = |seconds: Vec<f64>| flags.batch as f64 / median(seconds);
    println!(
        "{name:<14} {:>14.0} {:>14.0} {:>7.2}",
        per_second(on_floats),
        per_second(on_bytes),
        median(ratios)
    );
    if flags.steps > 0 {
        for (what, run) in [("f32", &floats), ("int8", &bytes)] {
            println!("  {what}");
            run.print_steps(flags.steps, &CpuTarget::new(isa, threads))?;
        }
    }
    Ok(())
}
