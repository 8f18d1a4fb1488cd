//! One, two and four input workers in `fit`, over data in memory: each adds its buffers, none copies the data, and none changes
//! a bit of the result.
//!
//!     cargo run --release --example fit_workers

#![allow(clippy::print_stdout, reason = "an example prints")]

use plimsoll::memory;
use plimsoll::plan::in_words;
use plimsoll::prelude::*;

const SIDE: usize = 64;
const IMAGES: usize = 1000;

/// So many images that are brighter at the top or at the bottom, and which.
fn images(count: usize) -> Result<Memory, Box<dyn std::error::Error>> {
    let labels: Vec<i32> = (0..count as i32).map(|i| i % 2).collect();
    let pixel = |label: i32, i: usize| {
        let shade = i as f32 / (SIDE * SIDE * 3) as f32;
        (if label == 0 { shade } else { 1.0 - shade }) + (i * 37 % 100) as f32 / 50.0
    };
    let pixels = labels.iter().flat_map(|&label| (0..SIDE * SIDE * 3).map(move |i| pixel(label, i)));
    let images = Tensor::new([count, SIDE, SIDE, 3], pixels.collect::<Vec<_>>())?;
    Ok(Memory::classes(images, labels, 2)?) // the vectors are not copied
}

fn model() -> Sequential {
    Sequential::classifier([SIDE, SIDE, 3], 2)
        .push(Conv2d::new(8, 3).stride(4))
        .push(Relu)
        .push(Flatten)
        .push(Dense::new(2))
}

/// Trains with each number of workers, and compares.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    memory::configure_heap();
    let read = |source| Pipeline::new(source).map_elements("input", |pixel: f32| (0.7 * pixel).tanh());
    let (train, test) = (read(images(IMAGES)?)?, read(images(32)?)?);
    let held_bytes = train.resident_bytes();
    println!("{IMAGES} images of {}: {}", in_words(SIDE * SIDE * 3 * 4), in_words(held_bytes));
    println!(
        "{:>8} {:>12} {:>16} {:>14} {:>10}",
        "workers", "data set", "planned in all", "resident", "images/s"
    );
    let mut found = Vec::new();
    for workers in [1, 2, 4] {
        let train = train.clone().shuffle(IMAGES, 1).workers(workers).prefetch(2);
        let data = Dataset::new("shades", train, test.clone());
        let trainer = Trainer::new(model(), Sgd::new(0.01)).threads(1).batch(32).epochs(2).memory(MiB(256));
        let plan = trainer.plan(&data)?;
        let (data_set, planned) = (plan.sheet.outside_bytes("data set"), plan.sheet.total_bytes);
        let mut session = plan.start()?;
        let mut resident = 0;
        let report = session.fit_with(&mut |event| {
            if let TrainEvent::Step { step: 50, .. } = event {
                resident = memory::resident().unwrap_or(0);
            }
            Control::Continue
        })?;
        let kernel = session.state("dense/kernel")?;
        let rate = report.samples_per_second;
        println!(
            "{workers:>8} {:>12} {:>16} {:>14} {rate:>10.0}",
            in_words(data_set),
            in_words(planned),
            in_words(resident)
        );
        found.push((data_set, planned, resident, kernel));
    }
    let same = found.iter().all(|run| run.3 == found[0].3);
    println!("the same parameters, bit for bit: {same}");
    let [one, .., four] = &found[..] else { return Err("three runs".into()) };
    let more = four.1.saturating_sub(one.1);
    let grown = four.2.saturating_sub(one.2);
    println!(
        "three more workers: {} planned, {} measured, no copy of the data",
        in_words(more),
        in_words(grown)
    );
    assert!(same && found.iter().all(|run| run.0 == held_bytes + test.resident_bytes()));
    assert!(more < held_bytes / 10 && grown < held_bytes / 10, "{more} and {grown} bytes");
    Ok(())
}
