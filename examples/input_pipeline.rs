//! What the input side holds in memory: map, shuffle, batch and prefetch by index and over a stream, one worker and four, a
//! thousand records and a thousand million.
//!
//!     cargo run --release --example input_pipeline

#![allow(clippy::print_stdout, reason = "an example talks")]

use plimsoll::data::Place;
use plimsoll::plan::in_words;
use plimsoll::prelude::*;
use plimsoll::tensor::random::Stream;

const SIDE: usize = 64;

fn files() -> Schema {
    Schema::new().bytes("file", 4096).tensor("label", Field::below(10, []))
}

/// What stands for an encoded picture: bytes made from a number.
fn encoded(number: usize, record: &mut Record<'_>) -> Result<(), plimsoll::data::DataError> {
    let length = 2048 + number % 2048;
    record.room(0)[..length].fill(number as u8);
    record.set_length(0, length)?;
    record.put_i32(1, (number % 10) as i32)
}

/// Records with random access.
struct Files(usize, Schema);

impl Source for Files {
    fn schema(&self) -> &Schema {
        &self.1
    }
    fn len(&self) -> usize {
        self.0
    }
    fn read(
        &self,
        index: usize,
        record: &mut Record<'_>,
        _: &mut [u8],
    ) -> Result<(), plimsoll::data::DataError> {
        encoded(index, record)
    }
    fn resident_bytes(&self) -> usize {
        0
    }
}

/// The same, one after another.
fn generated(count: usize) -> Pipeline {
    Pipeline::generator(files(), 0, move |_epoch| {
        let mut numbers = 0..count;
        move |record| numbers.next().map_or(Ok(false), |number| encoded(number, record).map(|()| true))
    })
}

/// "Decodes" into 64×64 pixels, with noise that follows from seed, epoch and place.
fn decoded(pipeline: Pipeline) -> Result<Pipeline, plimsoll::data::DataError> {
    let pixels = Schema::examples([Field::floats([SIDE, SIDE, 3])], Field::below(10, []));
    pipeline.map(pixels, |file, picture| {
        let Place { epoch, number, .. } = file.place;
        let noise = Stream::new(7, epoch, "noise").uniform(number, 0);
        let value = f32::from(file.bytes(0)[0]) / 255.0 + 0.1 * noise;
        picture.room(0).chunks_exact_mut(4).for_each(|place| place.copy_from_slice(&value.to_ne_bytes()));
        picture.put(1, file.bytes(1))
    })
}

/// Prints what the pipeline states, and runs ten batches of it.
fn show(what: &str, pipeline: &Pipeline) -> Result<(), plimsoll::data::DataError> {
    let shares = pipeline.bytes();
    let total: usize = shares.iter().map(|share| share.bytes).sum();
    println!("{what}: {}", in_words(total));
    for share in shares {
        println!("    {:<16} {:>12}   {}", share.name, in_words(share.bytes), share.how);
    }
    let mut batches = pipeline.start(Cursor::default())?;
    let mut examples = 0;
    for _ in 0..10 {
        examples += batches.next()?.map_or(0, |batch| batch.examples());
    }
    println!("    {examples} examples came");
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let by_index = |count| Pipeline::new(Files(count, files())).shuffle(10_000, 1);
    let run = |pipeline: Pipeline, workers: usize| {
        Ok::<_, Box<dyn std::error::Error>>(decoded(pipeline)?.batch(32).prefetch(2).workers(workers))
    };
    println!("Shuffled by index nothing is held for it; a stream passes through its buffer:\n");
    show("by index", &run(by_index(100_000), 2)?)?;
    show("as a stream", &run(generated(100_000).shuffle(10_000, 1), 2)?)?;
    println!("\nFour workers hold three more records than one, and no copy of the data:\n");
    show("one worker", &run(by_index(100_000), 1)?)?;
    show("four workers", &run(by_index(100_000), 4)?)?;
    println!("\nA thousand records and a thousand million take the same:\n");
    show("a thousand", &run(by_index(1000), 2)?)?;
    show("a thousand million", &run(by_index(1_000_000_000), 2)?)?;
    Ok(())
}
