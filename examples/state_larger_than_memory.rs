//! A model whose parameters and optimizer state are twice the line: they wait in a file, and come and go while kernels compute.
//! The result has the bits of a run without a line.
//!
//!     cargo run --release --example state_larger_than_memory

#![allow(clippy::print_stdout, reason = "an example prints")]

use plimsoll::memory;
use plimsoll::plan::in_words;
use plimsoll::prelude::*;
use plimsoll::train::tally;

const LINE: usize = 76 << 20;

/// Ten layers of a thousand by a thousand, and a bit.
fn model() -> Sequential {
    let layers = Sequential::classifier([28, 28, 1], 10).push(Flatten).push(Dense::new(1200)).push(Relu);
    let layers = (0..9).fold(layers, |layers, _| layers.push(Dense::new(1200)).push(Relu));
    layers.push(Dense::new(10))
}

fn trainer() -> Trainer {
    Trainer::new(model(), AdamW::new(1e-4)).batch(32).steps(6).seed(1)
}

/// The parameters, as bytes.
fn parameters(session: &Session) -> Result<Vec<Tensor>, TrainError> {
    let names: Vec<String> = session.parameters().map(|(name, _)| name.to_string()).collect();
    names.iter().map(|name| session.state(name)).collect()
}

/// Trains under the line, then without.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    memory::configure_heap();
    let data = datasets::mnist()?;
    let data = Dataset::new("digits", data.train, data.test.take(320));
    let plan = trainer().memory(Size::Bytes(LINE)).spill(std::env::temp_dir()).plan(&data)?;
    println!("{}", plan.load_sheet());
    let (state, planned) = (tally(&plan).state_bytes, plan.load_sheet().total_bytes);
    println!(
        "parameters and optimizer state: {}, {:.1} times the line",
        in_words(state),
        state as f64 / LINE as f64
    );
    let mut session = plan.start()?;
    let report = session.fit()?;
    let measured = memory::measured_peak();
    println!("{} steps of {:.0?}, {}", report.steps, report.step_median, report.evaluation);
    println!("planned peak {}, measured {}", in_words(planned), measured.map_or("unknown".into(), in_words));
    assert!(state >= 2 * LINE && planned <= LINE && measured.is_none_or(|measured| measured <= planned));

    let found = parameters(&session)?;
    drop(session);
    let mut free = trainer().plan(&data)?.start()?;
    let report = free.fit()?;
    let same = parameters(&free)? == found;
    println!("without a line: steps of {:.0?}, the same parameters bit for bit: {same}", report.step_median);
    assert!(same);
    Ok(())
}
