//! Nanoseconds per op of candle, for the table of crates/eager/examples/op_overhead.rs.
//!
//!     cd benches/candle_ops && RUSTFLAGS="-C target-cpu=native" cargo run --release

use candle_core::{DType, Device, Result, Tensor};
use std::hint::black_box;
use std::time::Instant;

/// The least time of an op over several rounds.
fn least(op: impl Fn() -> Result<Tensor>) -> Result<f64> {
    let start = Instant::now();
    op()?;
    let count = (20_000_000 / start.elapsed().as_nanos().max(200)).clamp(5, 20_000);
    let mut best = f64::INFINITY;
    for _ in 0..15 {
        let start = Instant::now();
        for _ in 0..count {
            black_box(op()?);
        }
        best = best.min(start.elapsed().as_nanos() as f64 / count as f64);
    }
    Ok(best)
}

fn main() -> Result<()> {
    let cpu = Device::Cpu;
    for count in [1, 64, 4096, 1 << 20] {
        let (a, b) = (Tensor::ones(count, DType::F32, &cpu)?, Tensor::full(2.0_f32, count, &cpu)?);
        println!("add {count}: {:.0} ns", least(|| &a + &b)?);
    }
    for n in [8, 64, 512] {
        let m = Tensor::ones((n, n), DType::F32, &cpu)?;
        println!("matmul {n}: {:.0} ns", least(|| m.matmul(&m))?);
    }
    Ok(())
}
