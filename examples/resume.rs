//! A run that is interrupted, loses its newest checkpoint, and resumes with other threads under another line ends in the same
//! bits.
//!
//!     cargo run --release --example resume

#![allow(clippy::print_stdout, reason = "an example prints")]

use plimsoll::prelude::*;
use plimsoll::train::checkpoints;
use std::path::Path;

fn trainer(threads: usize, folder: &Path) -> std::io::Result<Trainer> {
    let trainer =
        Trainer::new(zoo::lenet(), AdamW::new(1e-3)).executor(Cpu::new(threads)?).batch(64).steps(40).seed(7);
    Ok(trainer.schedule(Schedule::Cosine).checkpoints(folder, Some(5)).keep(3))
}

fn parameters(session: &Session) -> Result<Vec<u8>, TrainError> {
    let names: Vec<String> = session.plans().states.iter().map(|state| state.name.clone()).collect();
    let mut bytes = Vec::new();
    for name in names {
        bytes.extend_from_slice(session.state(&name)?.as_bytes());
    }
    Ok(bytes)
}

/// Trains once without and once with an interruption, and compares.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let data = open("mnist", &OpenOptions::default())?;
    let folder = std::env::temp_dir().join(format!("plimsoll-resume-{}", std::process::id()));
    let (one, two) = (folder.join("one"), folder.join("two"));
    std::fs::create_dir_all(&one)?;
    std::fs::create_dir_all(&two)?;

    let whole = trainer(2, &one)?;
    let mut session = whole.plan(&data)?.start()?;
    session.fit()?;
    let expected = parameters(&session)?;
    let total = session.plans().sheet.total_bytes;
    println!("uninterrupted: 40 steps on two threads, {total} bytes in the arena");

    let first = trainer(2, &two)?;
    let mut session = first.plan(&data)?.start()?;
    let stopped = session.fit_with(&mut |event| match event {
        TrainEvent::Step { step: 23, .. } => Control::Leave,
        _ => Control::Continue,
    });
    println!("interrupted: {}", stopped.err().ok_or("it was not stopped")?);

    // As a broken disk would.
    let newest = checkpoints(&two)?.pop().ok_or("there is no checkpoint")?;
    let mut bytes = std::fs::read(&newest)?;
    bytes[100_000] ^= 4;
    std::fs::write(&newest, bytes)?;

    let second = trainer(1, &two)?.line(total - (400 << 10));
    let plans = second.plan(&data)?;
    let (parts, total) = (plans.plans[0].graph.micro_batches, plans.sheet.total_bytes);
    let mut session = plans.start()?;
    let resumed = session.resume(&two)?;
    resumed.refused.iter().for_each(|reason| println!("  refused {reason}"));
    println!(
        "  resuming after step {} on one thread, in {parts} micro-batches, {total} bytes",
        resumed.state.steps_done
    );
    session.fit()?;
    let same = parameters(&session)? == expected;
    println!("the same parameters and optimizer state, bit for bit: {same}");
    std::fs::remove_dir_all(&folder)?;
    let as_claimed = resumed.state.steps_done == 20 && resumed.refused.len() == 1;
    if same && as_claimed { Ok(()) } else { Err("the example's claims do not hold".into()) }
}
