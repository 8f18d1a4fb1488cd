//! How long small ops take: nanoseconds per op, and what a million of them leave behind.
//!
//!     cargo run --release -p plimsoll-eager --example op_overhead
//!
//! `benches/eager_ops.py` prints the same for PyTorch, `benches/candle_ops` for candle. Products in a row and training
//! steps are also run compiled: that is the graph executor.
#![allow(clippy::print_stdout, reason = "a benchmark")]

use plimsoll_eager::{Eager, Network, Optimizer, Result, Tape, Tensor, compile, compile_step};
use plimsoll_nn::{AdamW, zoo};
use plimsoll_plan::MiB;
use plimsoll_tensor::{DType, TensorType};
use std::time::Instant;

/// Products in a row.
const PRODUCTS: usize = 16;

/// The least time of an op over several rounds, in nanoseconds.
fn time(mut op: impl FnMut() -> Result<Tensor>) -> Result<f64> {
    let mut least = f64::INFINITY;
    let start = Instant::now();
    op()?;
    let count = (20_000_000 / start.elapsed().as_nanos().max(200)).clamp(5, 20_000);
    for _ in 0..15 {
        let start = Instant::now();
        for _ in 0..count {
            op()?;
        }
        least = least.min(start.elapsed().as_nanos() as f64 / count as f64);
    }
    Ok(least)
}

/// A training step of a network: the loss.
fn train((net, optimizer): &mut (Network, Optimizer), batch: &[Tensor]) -> Result<Vec<Tensor>> {
    let tape = Tape::new();
    let loss = net.loss(&batch[0], &batch[1])?;
    let gradients = tape.gradient(&loss, &net.variables())?;
    optimizer.apply(net, &gradients)?;
    Ok(vec![loss])
}

fn resident_kib() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4
}

fn main() -> Result<()> {
    let eager = Eager::builder().build()?;
    for count in [1, 64, 4096, 1 << 20] {
        let (a, b) = (eager.tensor(vec![1.0f32; count])?, eager.tensor(vec![2.0f32; count])?);
        println!("add {count}: {:.0} ns", time(|| (&a + &b).get())?);
    }
    for n in [8, 64, 512] {
        let a = eager.tensor(vec![1.0f32; n * n])?.reshape([n, n]).get()?;
        println!("matmul {n}: {:.0} ns", time(|| a.matmul(&a).get())?);
    }
    for n in [64, 512] {
        let a = eager.tensor(vec![1.0f32 / n as f32; n * n])?.reshape([n, n]).get()?;
        let row = |a: &Tensor| (0..PRODUCTS).try_fold(a.clone(), |x, _| x.matmul(a).get());
        let mut compiled = compile(move |inputs| Ok(vec![row(&inputs[0])?]), &[&a], MiB(64))?;
        let (each, all) = (time(|| row(&a))?, time(|| Ok(compiled.run(&[&a])?.remove(0)))?);
        println!("{PRODUCTS} products of {n} in a row: {each:.0} ns eager, {all:.0} ns compiled");
    }
    for examples in [1, 32] {
        let start =
            || Ok::<_, plimsoll_eager::Error>((eager.model(zoo::lenet())?, Optimizer::new(AdamW::new(1e-3))));
        let images = eager.full(&TensorType::new(DType::F32, [examples, 28, 28, 1]), 0.5).get()?;
        let batch = [images, eager.tensor(vec![3i32; examples])?];
        let (mut parts, mut compiled) =
            (start()?, compile_step(start()?, train, &[&batch[0], &batch[1]], MiB(64))?);
        let (each, all) = (
            time(|| Ok(train(&mut parts, &batch)?.remove(0)))?,
            time(|| Ok(compiled.run(&[&batch[0], &batch[1]])?.remove(0)))?,
        );
        let (each, all) = (each / 1e6, all / 1e6);
        println!("a step of lenet on {examples} images: {each:.2} ms with a tape, {all:.2} ms compiled");
    }
    let (mut x, step) = (eager.tensor(vec![0.0f32; 64])?, eager.tensor(vec![1.0f32; 64])?);
    for _ in 0..1000 {
        x = (x + &step).get()?;
    }
    let (before, start) = (resident_kib(), Instant::now());
    for _ in 0..1_000_000 {
        x = (x + &step).get()?;
    }
    let each = start.elapsed().as_nanos() / 1_000_000;
    println!(
        "a million ops in place: {each} ns each, resident set {before} KiB before, {} after",
        resident_kib()
    );
    Ok(())
}
