//! Trains on data far larger than the line: 20 GiB of generated examples under 64 MiB.
//!
//!     cargo run --release --example out_of_core

#![allow(clippy::print_stdout, reason = "an example prints")]

use plimsoll::data::DataError;
use plimsoll::plan::in_words;
use plimsoll::{memory, prelude::*};

/// Examples of 4 KiB: a thousand numbers that rise or fall.
const WIDTH: usize = 1024;
const EXAMPLES: usize = (20 << 30) / (WIDTH * 4);

struct Slopes {
    len: usize,
    schema: Schema,
}

impl Slopes {
    fn new(len: usize) -> Self {
        Self { len, schema: Schema::examples([Field::floats([WIDTH])], Field::below(2, [])) }
    }
}

impl Source for Slopes {
    fn schema(&self) -> &Schema {
        &self.schema
    }
    fn len(&self) -> usize {
        self.len
    }
    fn read(&self, index: usize, record: &mut Record<'_>, _: &mut [u8]) -> Result<(), DataError> {
        let random = plimsoll::tensor::random::Stream::new(1, 0, "slopes");
        let rises = random.below(index as u64, 0, 2);
        let slope = if rises == 1 { 1.0 } else { -1.0 };
        for (i, place) in record.buffer_mut(0).chunks_exact_mut(4).enumerate() {
            let noise = random.uniform(index as u64, 4 + i as u64) - 0.5;
            let value = slope * (i as f32 / WIDTH as f32 - 0.5) + 4.0 * noise;
            place.copy_from_slice(&value.to_ne_bytes());
        }
        record.put_i32(1, rises as i32)
    }
    fn resident_bytes(&self) -> usize {
        0
    }
}

/// Plans, trains, and compares peaks.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    memory::configure_heap();
    let train = Pipeline::new(Slopes::new(EXAMPLES)).workers(1);
    println!("data: {} in {EXAMPLES} examples", in_words(EXAMPLES * train.schema().capacity()));
    let data = Dataset::new("slopes", train, Pipeline::new(Slopes::new(1000)));
    let model = Sequential::classifier([WIDTH], 2).push(Dense::new(2));
    let trainer = Trainer::new(model, AdamW::new(1e-3)).threads(1).batch(64).steps(1000).memory(MiB(64));
    let plans = trainer.plan(&data)?;
    println!("{}", plans.load_sheet());
    let planned = plans.sheet.total_bytes;
    let report = plans.start()?.fit()?;
    println!("test accuracy {:.1} %", 100.0 * report.evaluation.accuracy.unwrap_or(0.0));
    let measured = memory::measured_peak().map_or("unknown".into(), in_words);
    println!("planned peak {}, measured {measured}", in_words(planned));
    Ok(())
}
