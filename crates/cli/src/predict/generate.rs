//! Text that a model adds to a prompt, token by token.

use super::super::input::is_masked;
use super::super::setup::line;
use super::super::text::{escaped_lines, json_line};
use super::super::trained::{Described, describe, only_test, peaks};
use super::super::{Failure, applies, hint, say};
use super::PredictOptions;
use plimsoll::data::{Cursor, DataError, Family, Pipeline, Record, Schema, Source, Vocabulary};
use plimsoll::memory::measured_peak;
use plimsoll::memory::{Tag, tagged};
use plimsoll::nn::Model;
use plimsoll::nn::step::Report;
use plimsoll::tensor::random::Stream;
use plimsoll::train::{BatchKind, TrainError};
use serde_json::json;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

/// Tokens where no number is given.
const TOKENS: usize = 200;
/// The most tokens.
const MOST_TOKENS: usize = 1 << 20;
/// The temperature where none is given.
const TEMPERATURE: f64 = 0.8;

/// Plans a step of one window, loads the weights, and adds token after token.
pub fn run(options: &PredictOptions, prompt: &str) -> Result<(), Failure> {
    let described = describe(&options.trained.run)?;
    let model = described.model()?;
    let context = context(model.as_ref(), &described)?;
    let count = options.tokens.unwrap_or(TOKENS);
    let temperature = options.temperature.unwrap_or(TEMPERATURE);
    if !(1..=MOST_TOKENS).contains(&count) {
        return Err(Failure::usage(format!("--tokens must be between 1 and {MOST_TOKENS}")));
    }
    if !(temperature >= 0.0 && temperature.is_finite()) {
        return Err(Failure::usage("--temperature must be a number, at least 0"));
    }
    let tokenizer = options.trained.input.tokenizer.clone().or(described.input.tokenizer.clone());
    let (_, line_bytes) = line(&options.trained.machine);
    let vocabulary = tagged(Tag::Data, || Vocabulary::open(tokenizer.as_deref(), line_bytes))?;
    let tokens = vocabulary.encode(prompt)?;
    let bound = model.target().bound.unwrap_or(0);
    if vocabulary.tokens() > bound {
        let tokens = vocabulary.tokens();
        return Err(Failure::usage(format!(
            "the tokenizer has {tokens} tokens, the model {bound}: give the one that it was trained with"
        )));
    }
    if tokens.is_empty() {
        return Err(Failure::usage("--prompt is empty: give at least one character"));
    }
    let window = Arc::new(Window::new(&tokens, context, bound, (count, vocabulary.bytes())));
    let data = only_test("prompt", Pipeline::new(window.clone()));
    let mut trained_options = options.trained.clone();
    trained_options.batch = Some(1);
    let trained = described.with_data(&trained_options, model, data, BatchKind::Predict, Report::Classes)?;
    let (mut session, planned) = trained.session(options.trained.json, false)?;
    let stream = Stream::new(options.seed.unwrap_or(0), 0, "tokens");
    let mut decoder = vocabulary.decoder();
    let mut printer = Printer { text: String::new(), quiet: options.trained.json };
    printer.print(prompt)?;
    let mut batches = trained.part().batch(1).start_epoch(Cursor::default())?;
    for number in 0..count {
        let Some(batch) = batches.next()? else { break };
        let outputs = session.predict(batch).map_err(Failure::from)?;
        let scores = outputs[0].as_f32().unwrap_or_default();
        let width = scores.len() / context;
        let last = &scores[(window.filled() - 1) * width..][..vocabulary.tokens().min(width)];
        if last.iter().any(|score| !score.is_finite()) {
            return Err(TrainError::Setting("the model's scores are not finite".into()).into());
        }
        let token = draw(last, temperature, stream.uniform(number as u64, 0));
        window.push(token);
        let text = decoder.push(token)?;
        printer.print(&text)?;
    }
    printer.print(&decoder.finish()?)?;
    let measured = measured_peak();
    if !printer.quiet {
        printer.print("\n")?;
    } else {
        let object = json!({
            "prompt": prompt, "text": printer.text, "tokens": count,
            "planned_peak_bytes": planned, "measured_peak_bytes": measured,
        });
        say(&json_line(&object));
    }
    hint(&peaks(planned, measured));
    Ok(())
}

/// The positions of a model that continues texts.
fn context(model: &dyn Model, described: &Described) -> Result<usize, Failure> {
    let name = model.name();
    let inputs = model.inputs();
    let continues = inputs.len() == 1
        && inputs[0] == model.target()
        && inputs[0].bound.is_some()
        && inputs[0].ty.shape.rank() == 1
        && !is_masked(name);
    let on_text = described.data.as_deref().is_some_and(|data| applies::is(data, Family::Text));
    match inputs.first().and_then(|field| field.ty.shape.first()) {
        Some(&context) if continues && on_text && context > 0 => Ok(context),
        _ if continues => Err(Failure::usage(format!(
            "--prompt needs a run on text: this {name} was trained on other data"
        ))),
        _ => Err(Failure::usage(format!(
            "--prompt is for models that continue text, gpt and lstm, not {name}"
        ))),
    }
}

/// The likeliest token at temperature zero; else one that `draw`, in `0..1`, chooses by its probability.
fn draw(scores: &[f32], temperature: f64, draw: f32) -> u32 {
    let best = (0..scores.len()).fold(0, |best, i| if scores[i] > scores[best] { i } else { best });
    if temperature == 0.0 {
        return best as u32;
    }
    let weight = |score: f32| (f64::from(score - scores[best]) / temperature).exp();
    let total: f64 = scores.iter().map(|&score| weight(score)).sum();
    let mut left = f64::from(draw) * total;
    for (token, &score) in scores.iter().enumerate() {
        left -= weight(score);
        if left < 0.0 {
            return token as u32;
        }
    }
    best as u32
}

/// Prints text as it comes.
struct Printer {
    /// What was printed, for JSON.
    text: String,
    quiet: bool,
}

impl Printer {
    fn print(&mut self, text: &str) -> Result<(), Failure> {
        if self.quiet {
            self.text += text;
            return Ok(());
        }
        let mut out = std::io::stdout().lock();
        match out.write_all(escaped_lines(text).as_bytes()).and_then(|()| out.flush()) {
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(141),
            done => done.map_err(|e| Failure::run(format!("cannot write the output: {e}"))),
        }
    }
}

/// The last tokens of a text as the model's input. Positions after the text are filled up: no earlier position of a causal model
/// depends on them.
struct Window {
    tokens: Mutex<Vec<i32>>,
    context: usize,
    schema: Schema,
    steps: usize,
    held_bytes: usize,
}

impl Window {
    fn new(tokens: &[u32], context: usize, bound: usize, (steps, held_bytes): (usize, usize)) -> Self {
        let field = plimsoll::data::Field::below(bound, [context]);
        let schema = Schema::examples([field.clone()], field);
        let kept = &tokens[tokens.len().saturating_sub(context)..];
        let tokens = Mutex::new(kept.iter().map(|token| *token as i32).collect());
        Self { tokens, context, schema, steps, held_bytes }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<i32>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Positions that hold text.
    fn filled(&self) -> usize {
        self.lock().len()
    }

    /// Adds a token; the first one leaves a full window.
    fn push(&self, token: u32) {
        let mut tokens = self.lock();
        if tokens.len() == self.context {
            tokens.remove(0);
        }
        tokens.push(token as i32);
    }
}

impl Source for Window {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn len(&self) -> usize {
        self.steps
    }

    fn read(&self, _: usize, record: &mut Record<'_>, _: &mut [u8]) -> Result<(), DataError> {
        let tokens = self.lock();
        let buffer = record.buffer_mut(0);
        buffer.fill(0);
        for (place, token) in buffer.chunks_exact_mut(4).zip(&*tokens) {
            place.copy_from_slice(&token.to_ne_bytes());
        }
        record.buffer_mut(1).fill(0);
        Ok(())
    }

    fn resident_bytes(&self) -> usize {
        self.held_bytes + 4 * self.context
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_drawn_by_their_probability() {
        let scores = [1.0, 3.0, 2.0];
        assert_eq!(draw(&scores, 0.0, 0.99), 1);
        let count = |temperature: f64, token: u32| {
            let draws = (0..1000).map(|i| draw(&scores, temperature, i as f32 / 1000.0));
            draws.filter(|drawn| *drawn == token).count() as f64 / 1000.0
        };
        // softmax of 1, 3, 2
        for (token, probability) in [0.0900, 0.6652, 0.2447].into_iter().enumerate() {
            assert!((count(1.0, token as u32) - probability).abs() < 0.002, "token {token}");
        }
        // Only the draw of exactly zero is the first token's.
        assert!(count(0.1, 1) >= 0.999 && count(100.0, 0) > 0.3);
    }
}
