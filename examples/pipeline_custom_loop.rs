//! A pipeline with tf.data's verbs and a training loop with a tape: map → shuffle 10,000 → batch 32 → prefetch, as many batches
//! as help. What the pipeline takes is known before it runs.
//!
//!     cargo run --release --example pipeline_custom_loop

#![allow(clippy::print_stdout, reason = "an example prints")]

use plimsoll::data::{Prefetch, SHUFFLE_BUFFER};
use plimsoll::eager::{Eager, Optimizer, Tape};
use plimsoll::memory;
use plimsoll::plan::in_words;
use plimsoll::prelude::*;

/// Brighter digits, shuffled, in batches of 32.
fn pipeline(digits: Pipeline) -> Result<Pipeline, DataError> {
    let brighter = digits.map_elements("input", |pixel: f32| (1.2 * pixel).min(1.0))?;
    Ok(brighter.shuffle(10_000, 7).batch(32).prefetch(Prefetch::UpTo(4)))
}

/// The bytes that a pipeline states.
fn stated(pipeline: &Pipeline) -> usize {
    pipeline.bytes().iter().map(|share| share.bytes).sum()
}

/// Shows the pipeline's bytes, then trains.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let data = datasets::mnist()?;
    let train = pipeline(data.train.clone())?;
    println!("the pipeline takes {}, known before it runs:", in_words(stated(&train)));
    for share in train.bytes() {
        println!("    {:<14} {:>12}   {}", share.name, in_words(share.bytes), share.how);
    }
    // The same records as a stream have no random access: they are shuffled through a buffer.
    let stream = pipeline(Pipeline::generator(data.train.schema().clone(), 0, |_| |_| Ok(false)))?;
    let buffer = stream.bytes().into_iter().find(|share| share.name == SHUFFLE_BUFFER);
    let buffer = buffer.map_or(0, |share| share.bytes);
    println!("    as a stream it would take a shuffle buffer of {} besides", in_words(buffer));
    let billion = pipeline(data.train.clone().repeat(70_000))?;
    let records = billion.len().unwrap_or(0);
    println!("    {records} records take as much: {}", in_words(stated(&billion)));
    let record = data.train.schema().capacity();
    assert!((10_000 * record..10_100 * (record + 100)).contains(&buffer));
    assert!(records > 1_000_000_000 && stated(&billion) == stated(&train));

    let before = memory::resident();
    let mut batches = train.start(Cursor::default())?;
    batches.next()?;
    let taken = memory::resident().zip(before).map(|(now, before)| now.saturating_sub(before));
    println!("    measured when the first batch is there: {}", taken.map_or("unknown".into(), in_words));
    let held = data.train.resident_bytes(); // decoded before the pipeline began
    assert!(taken.is_none_or(|taken| taken <= stated(&train) - held + (1 << 20)));

    let eager = Eager::builder().line(MiB(32)).build()?;
    let model = Sequential::classifier([28, 28, 1], 10);
    let model = model.push(Flatten).push(Dense::new(64)).push(Relu).push(Dense::new(10));
    let (mut net, mut optimizer) = (eager.model(model)?, Optimizer::new(AdamW::new(1e-3)));
    let (mut smoothed, mut first) = (0.0, 0);
    while let Some(batch) = batches.next()? {
        let (images, labels) = (eager.tensor(batch.input_tensor())?, eager.tensor(batch.label_tensor())?);
        let tape = Tape::new();
        let loss = net.loss(&images, &labels)?;
        let gradients = tape.gradient(&loss, &net.variables())?;
        optimizer.apply(&mut net, &gradients)?;
        let loss = loss.item()?;
        smoothed = if optimizer.steps() == 1 { loss } else { smoothed + 0.02 * (loss - smoothed) };
        if optimizer.steps() == 10 {
            first = eager.pool().mapped;
        }
        if optimizer.steps().is_multiple_of(100) {
            println!("step {}: loss {smoothed:.3}, {}", optimizer.steps(), eager.pool());
        }
    }
    let last = eager.pool().mapped;
    println!("mapped after ten steps {}, after the epoch {}", in_words(first), in_words(last));
    assert!(last <= first, "values outlive their step");

    let (mut right, mut count) = (0.0, 0);
    let mut batches = data.test.batch(100).start_epoch(Cursor::default())?;
    while let Some(batch) = batches.next()? {
        let (images, labels) = (eager.tensor(batch.input_tensor())?, eager.tensor(batch.label_tensor())?);
        right +=
            net.predict(&images)?.argmax(1).equal(labels.batch()).cast(DType::F32).sum(&[0], false).item()?;
        count += batch.examples();
    }
    let accuracy = right / count as f64;
    println!("test accuracy {:.1} %", 100.0 * accuracy);
    assert!(accuracy > 0.8);
    Ok(())
}
