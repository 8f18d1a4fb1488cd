//! Who owns the memory of eager results: dropping one returns its bytes, and when results are kept until they do not fit under
//! the line, the answer is an error that lists who holds what. The argument is the side of the matrices.
//!
//!     cargo run --release --example eager_lifetime [-- 10000]

#![allow(clippy::print_stdout, reason = "an example prints")]

use plimsoll::eager::{Eager, Error};
use plimsoll::memory;
use plimsoll::plan::in_words;
use plimsoll::prelude::*;

/// Multiplies matrices of this side under a line for three of them, and a half.
pub fn observe(side: usize) -> Result<(), Box<dyn std::error::Error>> {
    let bytes = side * side * 4;
    let line = bytes * 348 / 100; // 1.3 GiB for matrices of 381.5 MiB
    let eager = Eager::builder().line(Size::Bytes(line)).build()?;
    println!("matrices of {side} × {side}, {} each, under a line of {}", in_words(bytes), in_words(line));

    let x = (eager.key(1, 0)?.draw(Distribution::Normal(DType::F32), "x", [side, side]) * 0.01).get()?;
    println!("x:                       {}", eager.pool());
    let y = x.matmul(&x).get()?;
    println!("y = x · x:               {}", eager.pool());
    assert_eq!(eager.pool().held, 2 * bytes);
    eager.trim(); // gives back what is kept for the next result
    let resident = memory::resident();
    drop(y);
    eager.trim();
    println!("y dropped:               {}", eager.pool());
    assert_eq!(eager.pool().held, bytes);
    let returned = resident.zip(memory::resident()).map(|(before, now)| before.saturating_sub(now));
    println!("returned to the system:  {}", returned.map_or("unknown".into(), in_words));
    assert!(returned.is_none_or(|returned| returned > bytes / 100 * 98));

    // A tensor that is moved into an op is written over: the loop needs no second buffer.
    let mut y = x.matmul(&x).get()?;
    for _ in 0..3 {
        y = (y * 0.5).tanh().get()?;
    }
    drop(y);
    println!("the most so far:         {}", in_words(eager.pool().peak));
    assert!(eager.pool().peak < 3 * bytes);

    // Results that are kept.
    let mut kept = Vec::new();
    let short = loop {
        match x.matmul(&x).get() {
            Ok(result) => kept.push(result),
            Err(Error::OutOfMemory(short)) => break short,
            Err(other) => return Err(other.into()),
        }
        println!("kept {}:                  {}", kept.len(), eager.pool());
    };
    println!("the third: {short}");
    assert_eq!((kept.len(), short.op, short.holders.len()), (2, "matmul", 3));
    assert!(
        short
            .holders
            .iter()
            .all(|holder| holder.bytes == bytes && holder.site.file().ends_with("eager_lifetime.rs"))
    );

    // The context goes on.
    kept.pop();
    kept.push(x.matmul(&x).get()?);
    let same = kept[0].to_host()?.as_bytes() == kept[1].to_host()?.as_bytes();
    println!("after dropping one the next fits; equal to the other bit for bit: {same}");
    assert!(same);
    Ok(())
}

/// Takes the side from the command line.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let side = std::env::args().nth(1).map_or(Ok(10_000), |side| side.parse())?;
    observe(side)
}
