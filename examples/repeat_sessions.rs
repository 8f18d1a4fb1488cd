//! A session for each frame: opened, run and closed a thousand times it leaves nothing behind; kept open it gives the same
//! answers, faster.
//!
//!     cargo run --release --example repeat_sessions

#![allow(clippy::print_stdout, reason = "an example prints")]

use plimsoll::memory;
use plimsoll::plan::in_words;
use plimsoll::prelude::*;
use std::path::Path;
use std::time::Instant;

const SIDE: usize = 32;
const FRAMES: usize = 1000;

fn model() -> Sequential {
    Sequential::classifier([SIDE, SIDE, 3], 10)
        .push(Conv2d::new(16, 3))
        .push(Relu)
        .push(MaxPool2d::new(2))
        .push(Flatten)
        .push(Dense::new(10))
}

/// A frame of a film: a gradient that moves.
fn frame(number: usize) -> Tensor {
    let pixel = |i: usize| ((i + 97 * number) % 1024) as f32 / 1024.0;
    let pixels: Vec<f32> = (0..SIDE * SIDE * 3).map(pixel).collect();
    Tensor::new([1, SIDE, SIDE, 3], pixels).unwrap_or_else(|_| unreachable!("as many pixels"))
}

/// A session: planned, allocated, its weights loaded.
fn open(weights: &Path) -> plimsoll::Result<Predictor> {
    Predictor::builder(model()).load(weights)
}

/// Answers for all frames, twice.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    memory::configure_heap();
    let weights = std::env::temp_dir().join(format!("plimsoll-repeat-{}.safetensors", std::process::id()));
    let schema = Schema::examples([Field::floats([SIDE, SIDE, 3])], Field::below(10, []));
    let none = Pipeline::generator(schema, 0, |_| |_| Ok(false)).counted(64);
    let data = Dataset::new("none", none.clone(), none);
    Trainer::new(model(), Sgd::new(0.1)).plan(&data)?.start()?.save(&weights)?; // as if trained

    let mut answers = Vec::new();
    let (mut tenth, begin) = (0, Instant::now());
    for number in 0..FRAMES {
        let mut session = open(&weights)?;
        answers.push(session.predict([frame(number)])?.row(0).to_vec());
        drop(session); // closed: threads are joined, the arena is unmapped
        if number == FRAMES / 10 {
            tenth = memory::resident().unwrap_or(0);
        }
    }
    let each = begin.elapsed() / FRAMES as u32;
    let last = memory::resident().unwrap_or(0);
    println!("{FRAMES} sessions opened and closed: {each:.2?} each");
    println!("    resident after a tenth {}, at the end {}", in_words(tenth), in_words(last));
    assert!(last <= tenth + (512 << 10), "{tenth} bytes, then {last}"); // the answers are kept, too

    let mut session = open(&weights)?;
    std::fs::remove_file(&weights)?;
    let (mut same, begin) = (true, Instant::now());
    for (number, answer) in answers.iter().enumerate() {
        same &= session.predict([frame(number)])?.row(0) == &answer[..];
    }
    let kept = begin.elapsed() / FRAMES as u32;
    println!("one session kept open: {kept:.2?} each, the same answers: {same}");
    assert!(same && kept * 2 < each);
    Ok(())
}
