//! `plimsoll data`: inspects a data set without training.

use super::args::DataOptions;
use super::input::{images_of, table_options};
use super::{Failure, applies, say};
use plimsoll::data::{
    Batches, Cursor, Dataset, Kind, OpenOptions, Pipeline, Record, Schema, ValidationSplit, open,
};
use plimsoll::memory::{self, measured_peak};
use plimsoll::nn::Field;
use plimsoll::plan::in_words;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Opens the data, prints its schema and bytes, and reads for a while.
pub fn run(options: &DataOptions) -> Result<(), Failure> {
    if options.batch == 0 || options.image_size == Some(0) {
        return Err(Failure::usage("--batch and --image-size must be at least 1"));
    }
    applies::check(&options.spec, &options.input, options.augment)?;
    applies::check_sizes(&options.spec, options.image_size, options.channels, options.context)?;
    let size = options.image_size.unwrap_or(224);
    let image = Field::floats([size, size, options.channels.unwrap_or(3)]);
    let open_options = OpenOptions {
        context: options.context.unwrap_or(256),
        table: table_options(&options.input),
        shuffle: options.input.shuffle,
        tokenizer: options.input.tokenizer.clone(),
        seed: options.seed,
        images: images_of(&options.input, Some(&image), options.augment)?,
        max_bytes: memory::available().unwrap_or(usize::MAX),
        // As the files have it.
        validation: ValidationSplit::None,
        ..OpenOptions::default()
    };
    if !options.seconds.is_finite() {
        return Err(Failure::usage("--seconds must be a number"));
    }
    let data = open(&options.spec, &open_options)?;
    data.train.preparation().notes.iter().for_each(|note| super::hint(note));
    let is_row = data.train.schema().fields()?.0.first().is_some_and(|field| field.ty.shape.rank() == 1);
    if is_row && (options.image_size.is_some() || options.channels.is_some()) {
        let spec = &options.spec;
        let message = format!("`{spec}` holds numbers, not pictures: leave --image-size and --channels out");
        return Err(Failure::usage(message));
    }
    let train = data.train.clone();
    let train = if train.is_shuffled() { train } else { train.shuffle(1024, options.seed) };
    let pipeline = train.batch(options.batch);
    let (text, mut object) = described(&data, &pipeline);
    say(&text);
    let samples = samples(&data.train, options.samples)?;
    samples.iter().for_each(|sample| say(sample));
    let mut batches = pipeline.start(Cursor::default())?;
    let (examples, time) = read(&mut batches, Duration::from_secs_f64(options.seconds.clamp(0.0, 3600.0)))?;
    let rate = examples as f64 / time.as_secs_f64().max(1e-9);
    let (skipped, first_bad) = batches.skipped();
    let (workers, ahead, peak) = (batches.active_workers(), batches.batches_ahead(), measured_peak());
    say(&format!(
        "\n{examples} examples in {:.2} s, {rate:.1} samples/s, {workers} workers, {ahead} batches ahead",
        time.as_secs_f64()
    ));
    if let Some(first) = &first_bad {
        say(&format!("{skipped} bad records were skipped; the first: {first}"));
    }
    if let Some(peak) = peak {
        say(&format!("measured peak  {:>12}  (the whole process, {peak} bytes)", in_words(peak)));
    }
    if options.json {
        let figures = json!({
            "samples": samples, "examples_read": examples, "seconds": time.as_secs_f64(),
            "samples_per_second": rate, "workers": workers, "batches_ahead": ahead, "skipped": skipped, "measured_peak_bytes": peak,
        });
        if let (Some(object), Some(figures)) = (object.as_object_mut(), figures.as_object()) {
            object.extend(figures.clone());
        }
        say(&object.to_string());
    }
    Ok(())
}

/// Counts, columns, classes and bytes.
fn described(data: &Dataset, pipeline: &Pipeline) -> (String, Value) {
    let count = |part: &Pipeline| part.len().map_or("an unknown number of".to_string(), |n| n.to_string());
    let schema = pipeline.schema();
    let classes = schema.classes().map_or(String::new(), |classes| format!(", {classes} classes"));
    let mut text = format!(
        "{}: {} training and {} test examples\n{}{classes}\n\nmemory in batches of {}\n",
        data.name,
        count(&data.train),
        count(&data.test),
        schema.in_words(),
        pipeline.batch_size(),
    );
    let shares = pipeline.bytes();
    let total: usize = shares.iter().map(|share| share.bytes).sum();
    for share in &shares {
        text += &format!("  {:<18} {:>12}   {}\n", share.name, in_words(share.bytes), share.how);
    }
    text += &format!("  {:<18} {:>12}   planned, {total} bytes\n", "total", in_words(total));
    let stages: Vec<Value> =
        shares.iter().map(|s| json!({ "name": s.name, "bytes": s.bytes, "note": s.how })).collect();
    let object = json!({
        "data": data.name, "train_examples": data.train.len(), "test_examples": data.test.len(),
        "columns": schema.in_words(), "classes": schema.classes(), "planned_bytes": total, "stages": stages,
    });
    (text, object)
}

/// A few examples as text.
fn samples(part: &Pipeline, count: usize) -> Result<Vec<String>, Failure> {
    let Some(source) = part.source() else {
        let mut batches = part.clone().workers(0).batch(1).start_epoch(Cursor::default())?;
        let mut lines = Vec::new();
        while let Some(batch) = batches.next()?.filter(|_| lines.len() < count) {
            let line = in_numbers(part.schema(), batch.input(0).unwrap_or_default(), batch.labels());
            lines.push(format!("example {}: {line}", batch.first_example()));
        }
        return Ok(lines);
    };
    let mut bytes = vec![0; source.schema().capacity()];
    let mut scratch = vec![0; source.scratch_bytes()];
    let mut lines = Vec::new();
    for i in 0..count.min(source.len()) {
        // Spread over the whole data set.
        let index = i * (source.len() / count.max(1)).max(1);
        let mut record = Record::over(source.schema(), &mut bytes);
        let line = match source.read(index, &mut record, &mut scratch) {
            Ok(()) => in_numbers(source.schema(), record.bytes(0), record.bytes(record.columns() - 1)),
            Err(error) => format!("bad: {error}"),
        };
        lines.push(format!("{}: {line}", source.origin(index, 0)));
    }
    Ok(lines)
}

/// A record as text: the label and the first elements.
fn in_numbers(schema: &Schema, input: &[u8], label: &[u8]) -> String {
    let words = input.chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]);
    let label = match (<[u8; 4]>::try_from(label), schema.classes()) {
        (Ok(label), Some(_)) => format!("label {}", i32::from_ne_bytes(label)),
        (Ok(label), None) => format!("label {}", f32::from_ne_bytes(label)),
        _ => format!("{} bytes of labels", label.len()),
    };
    let is_float = matches!(&schema.columns()[0].kind, Kind::Tensor(field) if field.ty.dtype.is_float());
    if !is_float {
        let first: Vec<String> = words.take(12).map(|w| i32::from_ne_bytes(w).to_string()).collect();
        return format!("{label}, starts {}", first.join(" "));
    }
    let (count, sum) = words.clone().fold((0.0, 0.0), |(n, sum), w| (n + 1.0, sum + f32::from_ne_bytes(w)));
    let first: Vec<String> = words.take(4).map(|w| format!("{:.3}", f32::from_ne_bytes(w))).collect();
    format!("{label}, starts {}, mean {:.3}", first.join(" "), sum / f32::max(count, 1.0))
}

/// Reads batches for a time; the first is not counted.
fn read(batches: &mut Batches, time: Duration) -> Result<(usize, Duration), Failure> {
    batches.next()?;
    let (start, mut examples) = (Instant::now(), 0);
    while start.elapsed() < time {
        if let Some(batch) = batches.next()? {
            examples += batch.examples();
        }
    }
    Ok((examples, start.elapsed()))
}
