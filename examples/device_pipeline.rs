//! A step pinned to a device: the GPU if there is one, else the processor, and the program says which. A pipeline feeds it; what
//! is copied to the device in a step is the batch and nothing else.
//!
//!     cargo run --release --example device_pipeline

#![allow(clippy::print_stdout, reason = "an example prints")]

use plimsoll::cuda::{Cuda, Gpu};
use plimsoll::plan::{Action, Executor, in_words};
use plimsoll::prelude::*;

const BATCH: usize = 64;

/// The first GPU, or the processor.
fn device() -> Result<(String, Box<dyn Executor>), Box<dyn std::error::Error>> {
    match Gpu::describe(0) {
        Ok(gpu) => Ok((format!("cuda:0, {}", gpu.name), Box::new(Cuda::open(0, None)?))),
        Err(why) => {
            println!("there is no GPU ({why}): the step runs on the cpu");
            Ok(("cpu".into(), Box::new(Cpu::new(2)?)))
        }
    }
}

/// Plans on the device, shows where steps run and what is copied, and trains.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (name, executor) = device()?;
    let data = datasets::mnist()?;
    let trainer = Trainer::new(zoo::lenet(), AdamW::new(1e-3)).executor(executor).batch(BATCH).steps(20);
    let plan = trainer.plan(&data)?;

    // Every step of the plan computes on the device; transfers would be steps of their own.
    let step = &plan.plans[0];
    let computing = step.steps.iter().filter(|step| matches!(step.action, Action::Run { .. })).count();
    println!("placement: {computing} of {} steps of the plan compute on {name}", step.steps.len());

    // The inputs of the step are the batch: images, labels and a weight for each row, and a few numbers of the optimizer.
    let batch = BATCH * (28 * 28 * 4 + 4 + 4);
    let inputs = &step.graph.inputs;
    let [batched, single] = [true, false].map(|batched| {
        let of_kind = inputs.iter().filter(|input| input.batched == batched);
        of_kind.map(|input| step.graph.ty(input.value).bytes()).sum::<usize>()
    });
    println!(
        "copied to the device in a step: {} of the batch, {single} bytes of settings",
        in_words(batched)
    );
    assert_eq!(batched, batch, "images, labels and weights of {BATCH} examples");

    let report = plan.start()?.fit()?;
    println!(
        "{} steps, {:.2} ms each; final loss {:.4}",
        report.steps,
        report.step_median.as_secs_f64() * 1e3,
        report.final_loss
    );
    Ok(())
}
