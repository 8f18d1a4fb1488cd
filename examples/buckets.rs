//! Sequences of many lengths, padded to the longest or in length buckets: planned memory, share of padding, and speed, for a
//! model that learns which token is the most frequent.
//!
//!     cargo run --release --example buckets

#![allow(clippy::print_stdout, reason = "an example prints")]

use plimsoll::data::DataError;
use plimsoll::plan::in_words;
use plimsoll::prelude::*;
use plimsoll::tensor::random::Stream;
use std::time::Instant;

/// Tokens and classes; the next token is padding.
const TOKENS: usize = 8;
const BATCH: usize = 32;
const LONGEST: usize = 128;

/// Sequences of 4 to 128 tokens, the short ones more often. Half of the tokens are the label.
struct Sequences {
    count: usize,
    part: u64,
    schema: Schema,
}

impl Source for Sequences {
    fn schema(&self) -> &Schema {
        &self.schema
    }
    fn len(&self) -> usize {
        self.count
    }
    fn read(&self, index: usize, record: &mut Record<'_>, _: &mut [u8]) -> Result<(), DataError> {
        let (random, i) = (Stream::new(7, self.part, "sequences"), index as u64);
        let length = 4.0 * (LONGEST as f32 / 4.0).powf(random.uniform(i, 0));
        let label = random.below(i, 1, TOKENS as u32);
        let token = |place: u64| match random.below(i, 2 * place, 2) {
            0 => label,
            _ => random.below(i, 2 * place + 1, TOKENS as u32),
        };
        let tokens: Vec<u8> = (1..=length as u64).flat_map(|place| token(place).to_ne_bytes()).collect();
        record.put(0, &tokens)?;
        record.put_i32(1, label as i32)
    }
    fn resident_bytes(&self) -> usize {
        0
    }
}

/// Training and test sequences in buckets of these lengths.
pub fn data(count: usize, lengths: &[usize]) -> Result<Dataset, DataError> {
    let part = |part, count| {
        let schema = Schema::new().bytes("tokens", LONGEST * 4);
        let schema = schema.tensor("label", Field::below(TOKENS, []));
        let buckets = Buckets::new(lengths.iter().copied());
        let buckets = buckets.column("tokens", Field::below(TOKENS + 1, []), TOKENS as u32).with_length();
        Pipeline::new(Sequences { count, part, schema }).bucket(buckets)
    };
    Ok(Dataset::new("sequences", part(0, count)?, part(1, count / 8)?))
}

/// A small transformer for sequences of one length; its parameters are the same for every length.
pub struct Majority(pub usize);

impl Model for Majority {
    fn name(&self) -> &str {
        "majority"
    }
    fn inputs(&self) -> Vec<Field> {
        vec![Field::below(TOKENS + 1, [self.0]), Field::below(self.0 + 1, [])]
    }
    fn target(&self) -> Field {
        Field::below(TOKENS, [])
    }
    fn forward(&self, net: &mut Net, inputs: &[ValueId]) -> Result<Head, GraphError> {
        let examples = net.shape(inputs[0])[0];
        // Positions below the length are not padding.
        let positions = net.range(self.0)?;
        let lengths = net.reshape(inputs[1], [examples, 1])?;
        let real = net.less(positions, lengths)?;
        let x = net.scope("embed", |net| Embedding::new(TOKENS + 1, 32).forward(net, inputs[0]))?;
        let mask = net.reshape(real, [examples, 1, 1, self.0])?;
        let block = TransformerBlock::new(MultiHeadAttention::new(2)).expansion(2);
        let x = net.scope("block", |net| block.masked(net, x, Some(mask)))?;
        let real = net.cast(real, DType::F32)?;
        let real = net.reshape(real, [examples, self.0, 1])?;
        let x = net.mul(x, real)?;
        let sum = net.sum(x, &[1], false)?;
        let lengths = net.cast(lengths, DType::F32)?;
        let mean = net.div(sum, lengths)?;
        let scores = net.scope("head", |net| Dense::new(TOKENS).forward(net, mean))?;
        Ok(Head::Outputs(vec![scores]))
    }
}

/// A trainer with a model for each length.
pub fn trainer(lengths: &[usize], threads: usize) -> Result<Trainer, Box<dyn std::error::Error>> {
    let models = lengths.iter().map(|&length| Majority(length));
    let first =
        Trainer::new(Majority(LONGEST), AdamW::new(3e-3)).executor(Cpu::new(threads)?).batch(BATCH).seed(7);
    Ok(models.filter(|model| model.0 != LONGEST).fold(first, Trainer::variant))
}

/// Tokens and padding of an epoch.
fn padding(data: &Dataset) -> Result<(usize, usize), DataError> {
    let mut batches = data.train.batch(BATCH).start_epoch(Cursor::default())?;
    let (mut tokens, mut all) = (0, 0);
    while let Some(batch) = batches.next()? {
        let inputs = batch.input_tensors();
        all += inputs[0].ty().shape.elements();
        tokens += inputs[1].as_i32().unwrap_or(&[]).iter().sum::<i32>() as usize;
    }
    Ok((tokens, all - tokens))
}

/// Trains on padded and on bucketed batches, and compares.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut found = Vec::new();
    for lengths in [&[LONGEST][..], &[16, 32, 64, LONGEST]] {
        let data = data(2048, lengths)?;
        let trainer = trainer(lengths, 2)?.epochs(2);
        let plans = trainer.plan(&data)?;
        println!("padded to {lengths:?}:");
        for plan in plans.plans.iter().filter(|plan| plan.name.starts_with("train")) {
            println!("    {:<32} {:>12} peak", plan.name, in_words(plan.peak_bytes));
        }
        let arena = plans.arena_bytes;
        let (tokens, padding) = padding(&data)?;
        let mut session = plans.start()?;
        let begin = Instant::now();
        let report = session.fit()?;
        let rate = session.steps_done() as f64 / begin.elapsed().as_secs_f64();
        let accuracy = report.evaluation.accuracy.unwrap_or(0.0);
        println!(
            "    one arena of {}; an epoch has {tokens} tokens and {padding} padding tokens",
            in_words(arena)
        );
        println!(
            "    {} steps, {rate:.0} a second; test loss {:.3}, accuracy {:.1} %\n",
            session.steps_done(),
            report.evaluation.loss,
            100.0 * accuracy
        );
        found.push((tokens, padding, accuracy));
    }
    let [(tokens, padded, one), (same, bucketed, two)] = found[..] else { return Err("two runs".into()) };
    println!("Buckets remove {:.0} % of the padding.", 100.0 * (1.0 - bucketed as f64 / padded as f64));
    let as_claimed = tokens == same && bucketed * 3 < padded && one.min(two) > 0.9;
    if as_claimed { Ok(()) } else { Err("the example's claims do not hold".into()) }
}
