//! Gradient accumulation: four batches have the bits of one large one, and the classic bug does not.
//!
//!     cargo run --release --example gradient_accumulation

#![allow(clippy::print_stdout, reason = "an example prints")]

use plimsoll::graph::{Builder, Role};
use plimsoll::nn::Parameter;
use plimsoll::prelude::*;

const BATCH: usize = 32;
const BATCHES: usize = 4;
const STEPS: u64 = 12;
const RATE: f64 = 0.02;

/// SGD that accumulates the gradients of several batches by hand, as loops in other frameworks do.
struct ByHand {
    /// The bug: the accumulator is zeroed before every batch, not before every fourth.
    zero_every_batch: bool,
}

impl Optimizer for ByHand {
    fn setting_names(&self) -> Vec<String> {
        vec!["kept".into(), "rate".into()]
    }

    fn settings(&self, step: u64, scale: f64, values: &mut [f64]) {
        let place = step % BATCHES as u64;
        let kept = if place == 0 || self.zero_every_batch { 0.0 } else { 1.0 };
        let rate = if place + 1 == BATCHES as u64 { RATE * scale } else { 0.0 };
        // The mean over four batches is a quarter of their sum; with the bug the sum has only one.
        let share = if self.zero_every_batch { 1.0 } else { 1.0 / BATCHES as f64 };
        values.copy_from_slice(&[kept, rate * share]);
    }

    fn update(
        &self,
        b: &mut Builder,
        parameter: &Parameter,
        gradient: ValueId,
        settings: &[ValueId],
    ) -> Result<(), GraphError> {
        let ty = b.ty(parameter.value).clone();
        let old = b.named_state(format!("{}/sum", parameter.name), ty, Role::Moment, Init::Zeros);
        let kept = b.mul(old, settings[0])?;
        let sum = b.add(kept, gradient)?;
        b.set_state(old, sum);
        let change = b.mul(sum, settings[1])?;
        let next = b.sub(parameter.value, change)?;
        b.set_state(parameter.value, next);
        Ok(())
    }
}

/// Trains on every `nth` of so many batches; returns the parameters and the bytes of the arena.
fn train(trainer: &Trainer, data: &Dataset, batches: u64, nth: u64) -> Result<(Vec<f32>, usize), TrainError> {
    let mut session = trainer.plan(data)?.start()?;
    let mut examples = trainer.training_batches(data).start(Cursor::default())?;
    for number in 1..=batches {
        let Some(batch) = examples.next()? else { break };
        if number.is_multiple_of(nth) {
            session.train_step(batch)?;
        }
    }
    let mut parameters = Vec::new();
    for state in session.plans().states.iter().filter(|state| state.role == Role::Parameter) {
        parameters.extend_from_slice(session.state(&state.name)?.as_f32().unwrap_or_default());
    }
    Ok((parameters, session.plans().arena_bytes))
}

fn same(one: &[f32], other: &[f32]) -> bool {
    one.iter().map(|x| x.to_bits()).eq(other.iter().map(|x| x.to_bits()))
}

fn largest_difference(one: &[f32], other: &[f32]) -> f32 {
    one.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Trains in five ways and compares the parameters.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let data = open("mnist", &OpenOptions::default())?;
    let plain = |batch| -> Result<Trainer, Box<dyn std::error::Error>> {
        Ok(Trainer::new(zoo::lenet(), Sgd::new(RATE)).executor(Cpu::new(2)?).batch(batch))
    };
    let by_hand = |zero_every_batch| -> Result<Trainer, Box<dyn std::error::Error>> {
        Ok(Trainer::new(zoo::lenet(), ByHand { zero_every_batch }).executor(Cpu::new(2)?).batch(BATCH))
    };
    let all = STEPS * BATCHES as u64;
    let (large, large_bytes) = train(&plain(BATCH * BATCHES)?, &data, STEPS, 1)?;
    let (accumulated, small_bytes) = train(&plain(BATCH)?.accumulate(BATCHES), &data, STEPS, 1)?;
    println!("{STEPS} steps of {BATCHES} batches of {BATCH}, and of one batch of {}:", BATCH * BATCHES);
    println!("  the same parameters, bit for bit: {}", same(&large, &accumulated));
    println!("  arena: {large_bytes} bytes for the large batch, {small_bytes} in four parts");

    let (right, _) = train(&by_hand(false)?, &data, all, 1)?;
    println!("by hand, with an accumulator that is zeroed before every fourth batch:");
    println!(
        "  largest difference of a parameter: {:.1e}, which is rounding",
        largest_difference(&large, &right)
    );

    let (wrong, _) = train(&by_hand(true)?, &data, all, 1)?;
    let (fourth, _) = train(&plain(BATCH)?, &data, all, BATCHES as u64)?;
    println!("the classic bug, an accumulator that is zeroed before every batch:");
    println!("  largest difference of a parameter: {:.1e}", largest_difference(&large, &wrong));
    println!("  training on every fourth batch alone gives the same bits: {}", same(&wrong, &fourth));
    assert!(same(&large, &accumulated) && small_bytes < large_bytes);
    assert!(same(&wrong, &fourth) && largest_difference(&large, &wrong) > 1e-4);
    assert!(largest_difference(&large, &right) < 1e-6);
    Ok(())
}
