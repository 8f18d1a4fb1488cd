//! Predicted beside measured time of steps on the simulated accelerator, under lines of device and host memory.
//!
//! The kernels' time is the CPU's, whose prediction is off by a factor on any one machine. So the table compares ratios: a step
//! under the lines over a step without, measured and predicted with links that are slower by that factor.
//!
//!     cargo run --release -p plimsoll-conformance --example link_cost
//!     cargo run --release -p plimsoll-conformance --example link_cost -- gpt mlp
//!
//! Takes the models to measure; without, all four.
#![allow(clippy::print_stdout, reason = "it is what the example is for")]

use plimsoll_conformance::synthetic;
use plimsoll_data::{Batch, Cursor};
use plimsoll_nn::{AdamW, Model, zoo};
use plimsoll_plan::{Executor, Link, PlanSet, TierSpec, Tiers};
use plimsoll_simulated::Simulated;
use plimsoll_train::{Session, Trainer, tally};
use std::error::Error;
use std::time::Instant;

/// Steps of each run that are measured.
const STEPS: usize = 12;

/// Links of 4 and 1 GiB a second to host memory, and a disk of 0.5 GiB a second.
const LINKS: [(&str, u64); 2] = [("4 GiB/s", 244_140), ("1 GiB/s", 976_562)];
const DISK: Link = link(1_953_125);

const fn link(ns_per_mib: u64) -> Link {
    Link {
        load_ns_per_mib: ns_per_mib,
        store_ns_per_mib: ns_per_mib,
        latency_ns: 20_000,
        single_request_ns: 0,
        request_cpu_ns: 0,
    }
}

/// Device line between floor and unlimited peak, in percent, and the share of what is offloaded that host memory holds.
const LINES: [(usize, usize); 5] = [(80, 100), (60, 100), (40, 100), (40, 50), (10, 0)];

fn models() -> Vec<(&'static str, Box<dyn Model>, usize)> {
    let gpt = zoo::Gpt {
        layers: 4,
        width: 256,
        heads: 4,
        context: 128,
        vocabulary: 512,
        gpt2: false,
        key_heads: None,
        window: None,
    };
    vec![
        ("mlp", Box::new(zoo::mlp_of(&[1024], &[1024, 1024, 1024], 10)), 512),
        ("lenet", Box::new(zoo::lenet_of([28, 28, 1], 10)), 256),
        ("resnet20", Box::new(zoo::resnet20_of([32, 32, 3], 10)), 64),
        ("gpt", Box::new(gpt), 8),
    ]
}

fn main() -> Result<(), Box<dyn Error>> {
    println!(
        "{:<10}{:>9}{:>12}{:>10}{:>8}{:>7}{:>7}{:>11}{:>11}{:>9}",
        "model",
        "link",
        "device MiB",
        "host MiB",
        "remat",
        "host",
        "file",
        "measured",
        "predicted",
        "error %"
    );
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    if let Some(unknown) = wanted.iter().find(|name| models().iter().all(|(known, ..)| known != name)) {
        let known: Vec<_> = models().iter().map(|(name, ..)| *name).collect();
        return Err(format!("unknown model `{unknown}`: {}", known.join(", ")).into());
    }
    let mut errors = Vec::new();
    for (index, (name, ..)) in models().iter().enumerate() {
        if !wanted.is_empty() && !wanted.iter().any(|one| one == name) {
            continue;
        }
        for (name, ns_per_mib) in LINKS {
            let executor = || -> std::io::Result<_> {
                Ok(Simulated::with_link(1, link(ns_per_mib))?.spilling(".", DISK))
            };
            measure(index, name, &executor, &mut errors)?;
        }
    }
    errors.sort_by(f64::total_cmp);
    let (median, worst) = (errors[errors.len() / 2], errors[errors.len() - 1]);
    println!(
        "{} runs: error of the predicted ratio {:.1} % (median), {:.1} % (worst)",
        errors.len(),
        median,
        worst
    );
    Ok(())
}

fn measure(
    index: usize,
    link_name: &str,
    executor: &dyn Fn() -> std::io::Result<Simulated>,
    errors: &mut Vec<f64>,
) -> Result<(), Box<dyn Error>> {
    let trainer = || -> Result<Trainer, Box<dyn Error>> {
        let (_, model, batch) = models().swap_remove(index);
        Ok(Trainer::new(model, AdamW::new(1e-3)).executor(executor()?).line(usize::MAX).batch(batch).seed(1))
    };
    let (name, model, batch) = models().swap_remove(index);
    let data = synthetic(&model, batch, 3, 5);
    let mut batches = data.train.batch(batch).start(Cursor::default())?;
    let examples = batches.next()?.ok_or("the data is empty")?;
    let unlimited = trainer()?;
    let plans = unlimited.plan(&data)?;
    let mut forecast = unlimited.forecast(&data);
    let (floor, whole) = (forecast.floor()?, plans.sheet.total_bytes);
    let mut first = plans.clone().start()?;
    for (device_percent, host_percent) in LINES {
        let device = floor + (whole - floor) / 100 * device_percent;
        let host = forecast.plan(device)?.sheet.host.clone().unwrap_or_default();
        let others = host.total_bytes - host.arena_bytes;
        let host_line = others + host.arena_bytes / 100 * host_percent + (8 << 20);
        let run = trainer()?.device_line(device).line(host_line);
        let lined = run.plan(&data)?;
        let mut second = lined.clone().start()?;
        let mut ratios = Vec::new();
        let mut alone = Vec::new();
        step(&mut first, examples)?;
        step(&mut second, examples)?;
        for _ in 0..STEPS {
            let without = step(&mut first, examples)?;
            alone.push(without);
            ratios.push(step(&mut second, examples)? / without);
        }
        let (measured, alone) = (median(ratios), median(alone));
        let predicted = predicted_ratio([&plans, &lined], alone, &executor()?)?;
        let error = ((predicted / measured - 1.0) * 100.0).abs();
        errors.push(error);
        let tally = tally(&lined);
        let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
        println!(
            "{name:<10}{link_name:>9}{:>12.1}{:>10.1}{:>8}{:>7}{:>7}{measured:>11.2}{predicted:>11.2}{error:>9.1}",
            mib(lined.sheet.total_bytes),
            mib(lined.sheet.host.as_ref().map_or(0, |host| host.total_bytes)),
            tally.recomputed,
            tally.offloaded.host,
            tally.offloaded.file,
        );
    }
    Ok(())
}

/// The ratio of the steps, predicted for kernels that are as slow as measured.
fn predicted_ratio(
    [without, lined]: [&PlanSet; 2],
    seconds: f64,
    executor: &Simulated,
) -> Result<f64, Box<dyn Error>> {
    let tiers = executor.tiers();
    let usual = without.plans[0].nanoseconds as f64;
    let slower = seconds * 1e9 / usual;
    let beside = |ns: u64| (ns as f64 / slower) as u64;
    let scaled = |spec: TierSpec| TierSpec {
        link: Link {
            load_ns_per_mib: beside(spec.link.load_ns_per_mib),
            store_ns_per_mib: beside(spec.link.store_ns_per_mib),
            latency_ns: beside(spec.link.latency_ns),
            ..spec.link
        },
        ..spec
    };
    let tiers = Tiers { host: tiers.host.map(scaled), file: tiers.file.map(scaled) };
    let target = executor.target();
    Ok(lined.predict(0, target, &tiers)? as f64 / without.predict(0, target, &tiers)? as f64)
}

fn step(session: &mut Session, batch: &Batch) -> Result<f64, Box<dyn Error>> {
    let start = Instant::now();
    session.train_step(batch)?;
    Ok(start.elapsed().as_secs_f64())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
