//! A training step as a compiled function: when images, predictions and gradients are used last is known before it runs, an
//! explicit drop changes nothing, and a hundred steps take the memory of one.
//!
//!     cargo run --release --example compiled_step

#![allow(clippy::print_stdout, reason = "an example prints")]

use plimsoll::eager::{self, Compiled, Eager, Tape, compile, layer};
use plimsoll::memory;
use plimsoll::plan::in_words;
use plimsoll::prelude::*;

const BATCH: usize = 256;

/// The loss, and the parameters after a step. With `drops`, values are dropped as soon as they are not needed.
fn step(inputs: &[eager::Tensor], drops: bool) -> eager::Result<Vec<eager::Tensor>> {
    let [images, labels, weights, parameters @ ..] = inputs else { unreachable!("a batch, and parameters") };
    let [w1, b1, w2, b2] = parameters else { unreachable!("four parameters") };
    let tape = Tape::new();
    parameters.iter().for_each(|parameter| tape.watch(parameter));
    let hidden = layer("hidden", || (images.matmul(w1) + b1).relu()).get()?;
    let predictions = layer("predictions", || hidden.matmul(w2) + b2).get()?;
    if drops {
        drop(hidden);
    }
    let loss = layer("loss", || predictions.cross_entropy(labels, weights)).get()?;
    if drops {
        drop(predictions);
    }
    let gradients = tape.gradient(&loss, &[w1, b1, w2, b2])?;
    let mut results = vec![loss];
    for (parameter, gradient) in parameters.iter().zip(gradients) {
        results.push(layer("update", || parameter - gradient * 0.1).get()?);
    }
    Ok(results)
}

/// A batch of digits, and parameters.
fn inputs(eager: &Eager) -> Result<Vec<eager::Tensor>, Box<dyn std::error::Error>> {
    let data = datasets::mnist()?;
    let mut batches = data.train.batch(BATCH).start(Cursor::default())?;
    let batch = batches.next()?.ok_or("there are digits")?;
    let images = eager.tensor(batch.input_tensor())?.reshape([BATCH, 784]).get()?;
    let labels = eager.tensor(batch.label_tensor())?;
    let weights = eager.full(&TensorType::new(DType::F32, [BATCH]), 1.0 / BATCH as f64).get()?;
    let random = |stream: &str, shape: Shape| {
        (eager.key(1, 0)?.draw(Distribution::Normal(DType::F32), stream, shape) * 0.05).get()
    };
    let parameters = [
        random("w1", [784, 128].into())?,
        random("b1", [128].into())?,
        random("w2", [128, 10].into())?,
        random("b2", [10].into())?,
    ];
    Ok([vec![images, labels, weights], parameters.to_vec()].concat())
}

/// Runs so many steps; returns the last loss and parameters.
fn train(
    compiled: &mut Compiled,
    inputs: &[eager::Tensor],
    steps: usize,
) -> eager::Result<Vec<eager::Tensor>> {
    let mut all = inputs.to_vec();
    let mut results = Vec::new();
    for _ in 0..steps {
        results = compiled.run(&all.iter().collect::<Vec<_>>())?;
        all.splice(3.., results[1..].iter().cloned());
    }
    Ok(results)
}

fn bits(tensors: &[eager::Tensor]) -> eager::Result<Vec<Tensor>> {
    tensors.iter().map(eager::Tensor::to_host).collect()
}

/// Compiles the step with and without drops, and runs it.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let eager = Eager::builder().build()?;
    let inputs = inputs(&eager)?;
    let examples: Vec<&eager::Tensor> = inputs.iter().collect();
    let mut compiled = compile(|inputs| step(inputs, false), &examples, MiB(64))?;
    let dropping = compile(|inputs| step(inputs, true), &examples, MiB(64))?;
    println!("{}", compiled.trace_log().join("\n"));
    println!(
        "the arena has {}; its values, from the step that makes them to their last use:",
        in_words(compiled.arena_bytes())
    );
    let lifetimes = compiled.lifetimes();
    for value in lifetimes.iter().filter(|value| value.bytes > 4096) {
        println!("    {value}");
    }
    let last = lifetimes.iter().map(|value| value.last_use).max().unwrap_or(0);
    let find = |what: &str, layer: &str| {
        let found = lifetimes.iter().find(|value| value.layer == layer && value.what.contains(what));
        found.map(|value| value.last_use + 1).ok_or("no such value")
    };
    let (images, predictions) = (find("input", "input0")?, find("f32[256,10]", "predictions")?);
    let gradient = find("f32[784,128]", "hidden")?; // of the first layer's weights
    println!(
        "last use, of {} steps: predictions {predictions}, images {images}, gradient of w1 {gradient}",
        last + 1
    );
    assert!(predictions < images, "the first layer's gradient is computed from the images");
    assert!(images < gradient && gradient <= last + 1);
    assert!(compiled.arena_bytes() < lifetimes.iter().map(|value| value.bytes).sum(), "memory is used twice");

    let same = (lifetimes == dropping.lifetimes(), compiled.arena_bytes() == dropping.arena_bytes());
    println!("with explicit drops: the same lifetimes {}, the same arena {}", same.0, same.1);
    assert!(same.0 && same.1);

    let once = train(&mut compiled, &inputs, 1)?;
    let by_hand = step(&inputs, true)?;
    let equal = bits(&once)? == bits(&by_hand)?;
    println!("the compiled step has the bits of the eager one: {equal}");
    assert!(equal);

    train(&mut compiled, &inputs, 9)?;
    let (before, mapped) = (memory::resident(), eager.pool().mapped);
    let results = train(&mut compiled, &inputs, 100)?;
    let grown = memory::resident().zip(before).map_or(0, |(now, before)| now.saturating_sub(before));
    println!(
        "a hundred steps: loss {:.3} to {:.3}, {} more memory",
        once[0].item()?,
        results[0].item()?,
        in_words(grown)
    );
    assert!(results[0].item()? < 0.5 * once[0].item()?);
    assert!(grown < 1 << 20 && eager.pool().mapped <= mapped);
    Ok(())
}
