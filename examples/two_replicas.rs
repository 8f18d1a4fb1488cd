//! Two replicas on logical devices: the step has the bits of one device with the global batch.
//!
//!     cargo run --release --example two_replicas

#![allow(clippy::print_stdout, reason = "an example prints")]

use plimsoll::prelude::*;

const GLOBAL_BATCH: usize = 64;
const STEPS: u64 = 20;

/// Trains, and returns the loss of every step with the parameters.
fn train(trainer: Trainer, data: &Dataset) -> Result<(Vec<f64>, Vec<Tensor>), TrainError> {
    let mut session = trainer.plan(data)?.start()?;
    let mut losses = Vec::new();
    session.fit_with(&mut |event| {
        if let TrainEvent::Step { loss, .. } = event {
            losses.push(*loss);
        }
        Control::Continue
    })?;
    let names: Vec<String> = session.parameters().map(|(name, _)| name.to_string()).collect();
    let parameters = names.iter().map(|name| session.state(name)).collect::<Result<_, _>>()?;
    Ok((losses, parameters))
}

/// Trains on one device and on two, and compares losses and parameters.
pub fn main() -> Result<(), TrainError> {
    let data = datasets::mnist()?;
    let trainer = || Trainer::new(zoo::lenet(), AdamW::new(1e-3)).batch(GLOBAL_BATCH).steps(STEPS);

    // The CPU as two devices of one thread each. The second one gets a line of its own.
    let devices = LogicalDevices::cpu(2, 1)?;
    devices.set_memory("cpu:1", MiB(16))?;
    let plan = trainer().replicas(&devices).plan(&data)?;
    for device in &plan.load_sheet().devices {
        println!(
            "{}: {} examples of every {GLOBAL_BATCH}, an arena of {} KiB, receives {} KiB in a step",
            device.name,
            GLOBAL_BATCH / 2,
            device.arena_bytes >> 10,
            device.received_bytes >> 10,
        );
    }

    // A line that comes too late is refused: the devices are in use.
    if let Err(refused) = devices.set_memory("cpu:0", MiB(16)) {
        println!("later: {refused}");
    }

    let (one_losses, one) = train(trainer().threads(2), &data)?;
    let (two_losses, two) = train(trainer().replicas(&devices), &data)?;
    println!("loss after {STEPS} steps: {} on one device, {} on two", one_losses[19], two_losses[19]);
    let same = |a: &Tensor, b: &Tensor| a.as_bytes() == b.as_bytes();
    let equal = one.iter().zip(&two).filter(|(a, b)| same(a, b)).count();
    println!("{equal} of {} parameters have the same bits", one.len());
    assert!(one_losses == two_losses && equal == one.len() && two.len() == one.len());
    println!("two replicas equal one device at the global batch, bit for bit");
    Ok(())
}
