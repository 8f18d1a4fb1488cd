//! Memory of input pipelines: map, shuffle, batch and prefetch with random access and over a stream; one, two and four workers
//! over data in memory, stated beside measured bytes; a thousand records and a billion.
//!
//!     cargo run --release --example input_pipeline

#![allow(clippy::print_stdout, reason = "an example prints")]

use plimsoll::data::{DATA_SET, Place, Prefetch};
use plimsoll::plan::in_words;
use plimsoll::prelude::*;
use plimsoll::tensor::random::Stream;

const SIDE: usize = 64;

fn files() -> Schema {
    Schema::new().bytes("file", 4096).tensor("label", Field::below(10, []))
}

/// Bytes made from a number, in place of an encoded image.
fn encoded(number: usize, record: &mut Record<'_>) -> Result<(), DataError> {
    let length = 2048 + number % 2048;
    record.buffer_mut(0)[..length].fill(number as u8);
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
    fn read(&self, index: usize, record: &mut Record<'_>, _: &mut [u8]) -> Result<(), DataError> {
        encoded(index, record)
    }
    fn resident_bytes(&self) -> usize {
        0
    }
}

/// The same records as a stream.
fn generated(count: usize) -> Pipeline {
    Pipeline::generator(files(), 0, move |_epoch| {
        let mut numbers = 0..count;
        move |record| numbers.next().map_or(Ok(false), |number| encoded(number, record).map(|()| true))
    })
}

/// "Decodes" into 64×64 pixels, with noise that depends on seed, epoch and position.
fn decoded(pipeline: Pipeline) -> Result<Pipeline, DataError> {
    let pixels = Schema::examples([Field::floats([SIDE, SIDE, 3])], Field::below(10, []));
    pipeline.map(pixels, |file, picture| {
        let Place { epoch, number, .. } = file.place;
        let noise = Stream::new(7, epoch, "noise").uniform(number, 0);
        let value = f32::from(file.bytes(0)[0]) / 255.0 + 0.1 * noise;
        picture
            .buffer_mut(0)
            .chunks_exact_mut(4)
            .for_each(|place| place.copy_from_slice(&value.to_ne_bytes()));
        picture.put(1, file.bytes(1))
    })
}

/// Prints the bytes that a pipeline states, and reads ten batches.
fn show(what: &str, pipeline: &Pipeline) -> Result<(), DataError> {
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
    println!("    {examples} examples read");
    Ok(())
}

/// Resident bytes of the process, where the system reports them.
fn resident() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().trim_end_matches("kB").trim().parse::<usize>().ok()? << 10)
}

/// Runs workers over data in memory: each adds buffers, none copies the data.
fn workers() -> Result<(), Box<dyn std::error::Error>> {
    let images = Tensor::zeros(TensorType::new(DType::F32, [2000, SIDE, SIDE, 3]));
    let held = Pipeline::new(Memory::classes(images, vec![0; 2000], 10)?);
    let held = held.map_elements("input", |pixel: f32| pixel * 1.1)?; // brighter
    println!("    {:<10} {:>12} {:>12} {:>12}", "workers", "data set", "the rest", "measured");
    let mut rest = Vec::new();
    for workers in [1, 2, 4] {
        let pipeline = held.clone().shuffle(2000, 1).batch(32).prefetch(2).workers(workers);
        let share = |name| {
            let shares = pipeline.bytes().into_iter().filter(|share| (share.name == DATA_SET) == name);
            shares.map(|share| share.bytes).sum::<usize>()
        };
        let before = resident();
        let mut batches = pipeline.start(Cursor::default())?;
        for _ in 0..20 {
            batches.next()?;
        }
        let measured = resident().zip(before).map(|(now, before)| in_words(now.saturating_sub(before)));
        let measured = measured.unwrap_or("unknown".into());
        println!(
            "    {workers:<10} {:>12} {:>12} {measured:>12}",
            in_words(share(true)),
            in_words(share(false))
        );
        rest.push(share(false));
    }
    let image = SIDE * SIDE * 3 * 4;
    // A record in flight, and the thread's own memory.
    let each = [(rest[1] - rest[0]), (rest[2] - rest[1]) / 2];
    if each.iter().any(|bytes| !(image..2 * image).contains(bytes)) {
        return Err(format!("another worker took {each:?} bytes, an image has {image}").into());
    }
    Ok(())
}

/// Runs pipelines and prints their stated and measured bytes.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let by_index = |count| Pipeline::new(Files(count, files())).shuffle(10_000, 1);
    let run = |pipeline: Pipeline, workers: usize| {
        // The pipeline prefetches as many batches as it needs, and states four.
        let ahead = Prefetch::UpTo(4);
        Ok::<_, Box<dyn std::error::Error>>(decoded(pipeline)?.batch(32).prefetch(ahead).workers(workers))
    };
    println!("Shuffling by index needs no buffer; a stream is shuffled through one:\n");
    show("by index", &run(by_index(100_000), 2)?)?;
    show("as a stream", &run(generated(100_000).shuffle(10_000, 1), 2)?)?;
    println!("\nEach worker holds a record, none a copy of the data:\n");
    workers()?;
    println!("\nA thousand records and a billion take the same memory:\n");
    show("a thousand", &run(by_index(1000), 2)?)?;
    show("a billion", &run(by_index(1_000_000_000), 2)?)?;
    Ok(())
}
