//! `text:FILE` with a tokenizer: a text as the tokens of a Hugging Face tokenizer file.

use crate::core::guard::guarded;
use crate::formats::shared::files::{Files, failed, length};
use crate::formats::shared::finish;
use crate::formats::shared::sparse_index::SparseIndex;
use crate::source::check_read;
use crate::{DataError, Dataset, Field, OpenOptions, Record, Schema, Source};
use std::path::Path;
use std::sync::Arc;
use tokenizers::{ModelWrapper, NormalizedString, Normalizer, Tokenizer};

/// Goes before a chunk where the tokenizer prepends something to every text, but not after a line end. Its tokens are dropped.
const LEAD: u8 = b'\n';
/// The longest tokenizer file.
const MAX_TOKENIZER_BYTES: u64 = 256 << 20;
/// Bits of a window's start for its first token in a chunk; the others are the chunk's offset in the file.
const TOKEN_BITS: u32 = 22;
/// The most heap bytes of encoding for each byte of a chunk: copies of the text with the offset of every byte, and tokens.
const ENCODING: usize = 256;
/// How many times as long normalising may make a text, which [`ENCODING`] covers; and the bytes that are normalised at a time to
/// see whether it does.
const MOST_GROWTH: usize = 4;
const PIECE: usize = 256;
/// Heap bytes of the tokenizer's compiled regular expressions and their caches.
const EXPRESSIONS: usize = 1 << 20;

pub(in crate::formats) fn open(_: &str, file: &str, options: &OpenOptions) -> Result<Dataset, DataError> {
    // The registry chooses this row where a tokenizer is given.
    let tokenizer = options.tokenizer.as_deref().unwrap_or(Path::new(""));
    let max_bytes = options.max_bytes as u64;
    let Dataset { name, train, test, .. } =
        Tokens::open_within(file.as_ref(), tokenizer, options.context, max_bytes)?;
    finish(&name, train, test, options)
}

/// Windows of a text in the tokens of a tokenizer: inputs and labels i32 `[context]`, the labels one token ahead; classes are
/// the vocabulary. Window `i` starts at token `i * context`, the last tenth of the windows is the test part.
///
/// The text is encoded in chunks that end at line ends, so that memory does not depend on its length; the tokens are those
/// of the whole text, even where a tokenizer prepends a space to a text. Special tokens are not added. A first pass counts
/// the tokens and keeps the starts of windows, at most eight MiB; workers encode a window again when they read it.
///
/// ```no_run
/// use plimsoll_data::Tokens;
/// let text = Tokens::open("shakespeare.txt", "tokenizer.json", 256)?;
/// println!("{:?} windows of {:?} kinds of tokens", text.train.len(), text.train.schema().classes());
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
pub struct Tokens {
    text: Arc<Encoded>,
    first: usize,
    windows: usize,
    context: usize,
    schema: Schema,
}

/// A text and how it is encoded.
struct Encoded {
    files: Files,
    end: u64,
    tokenizer: Tokenizer,
    tokenizer_bytes: usize,
    vocabulary: usize,
    /// The tokens of [`LEAD`], where it goes before chunks.
    lead: Option<Vec<u32>>,
    /// Bytes of a chunk, without its last line.
    chunk: usize,
    /// Where windows start.
    starts: SparseIndex,
}

impl Tokens {
    /// Reads a tokenizer file, and the text once.
    pub fn open(
        path: impl AsRef<Path>,
        tokenizer: impl AsRef<Path>,
        context: usize,
    ) -> Result<Dataset, DataError> {
        Self::open_within(path.as_ref(), tokenizer.as_ref(), context, crate::DEFAULT_MAX_BYTES as u64)
    }

    /// As [`Tokens::open`], with a tokenizer of so many bytes at most.
    fn open_within(
        path: &Path,
        tokenizer: &Path,
        context: usize,
        max_bytes: u64,
    ) -> Result<Dataset, DataError> {
        if !(1..=1 << 20).contains(&context) {
            return Err(DataError::Option { option: "context", reason: "must be in 1..=2^20".into() });
        }
        let end = length(path)?;
        let (tokenizer, vocabulary, tokenizer_bytes) = read_tokenizer(tokenizer, max_bytes)?;
        let files = Files::new(vec![path.to_path_buf()]);
        let (chunk, starts) =
            (context.saturating_mul(8).clamp(2 << 10, 1 << 20), SparseIndex::up_to(1 << 20));
        let lead = guarded(|| Ok(lead(&tokenizer)))?;
        let mut text = Encoded { files, end, tokenizer, tokenizer_bytes, vocabulary, lead, chunk, starts };
        let tokens = text.count(context)?;
        let windows = (tokens.saturating_sub(1) / context as u64) as usize;
        if windows < 2 {
            let (file, needed) = (path.display().to_string(), 2 * context as u64 + 1);
            return Err(DataError::TooFewTokens { file, tokens, needed, context });
        }
        let test = (windows / 10).max(1);
        let text = Arc::new(text);
        let field = Field::below(vocabulary, [context]);
        let part = |first, windows| {
            let schema = Schema::examples([field.clone()], field.clone());
            Self { text: text.clone(), first, windows, context, schema }
        };
        Ok(Dataset::new(
            format!("text:{}", path.display()),
            part(0, windows - test),
            part(windows - test, test),
        ))
    }
}

/// A tokenizer, its vocabulary size, and an estimate of its heap bytes.
pub(crate) fn read_tokenizer(path: &Path, max_bytes: u64) -> Result<(Tokenizer, usize, usize), DataError> {
    let bytes = length(path)?;
    if bytes > MAX_TOKENIZER_BYTES {
        let over =
            DataError::OverCap { what: "bytes: a tokenizer file", found: bytes, cap: MAX_TOKENIZER_BYTES };
        return Err(over.of(|| format!("`{}`", path.display())));
    }
    let file = std::fs::read(path).map_err(|e| failed(path, e))?;
    let wrong = |reason: String| {
        let reason = format!("`{}` is no tokenizer file: {reason}", path.display());
        DataError::Option { option: "tokenizer", reason }
    };
    // Not `from_bytes`: that is generic, so the whole deserializer would be compiled into this crate.
    let text = String::from_utf8(file).map_err(|e| wrong(e.to_string()))?;
    let added_bytes = super::tokenizer_bounds::check(&text, max_bytes)?;
    let read = guarded(|| text.parse::<Tokenizer>().map_err(|e| wrong(e.to_string())));
    let mut tokenizer = read.map_err(|error| match error {
        DataError::Panic { message } => wrong(message),
        error => error,
    })?;
    drop(text);
    // Windows are cut here, not by the tokenizer.
    tokenizer.with_padding(None);
    tokenizer.with_truncation(None).map_err(|e| wrong(e.to_string()))?;
    // No cache of words: its memory would depend on the text.
    let mut model = tokenizer.get_model().clone();
    model.resize_cache(0);
    // No random merges: windows must encode to the same tokens every time.
    if let ModelWrapper::BPE(model) = &mut model {
        model.dropout = None;
    }
    tokenizer.with_model(model);
    let (mut words, mut bytes, mut largest) = (0, 0, 0);
    for (word, token) in tokenizer.get_vocab(true) {
        (words, bytes, largest) = (words + 1, bytes + word.len(), largest.max(token as usize));
    }
    if words == 0 || largest >= i32::MAX as usize {
        return Err(wrong("it has no tokens, or more than can be counted".into()));
    }
    // Maps from words to tokens and back, from pairs of tokens to their merge, and the words twice.
    Ok((tokenizer, largest + 1, words * 224 + 3 * bytes + added_bytes + EXPRESSIONS))
}

/// The tokens of [`LEAD`], if the tokenizer prepends something to a text that it does not insert after a line end.
fn lead(tokenizer: &Tokenizer) -> Option<Vec<u32>> {
    let tokens = |text: &str| Some(tokenizer.encode_fast(text, false).ok()?.get_ids().to_vec());
    let [lead, alone, led] = ["\n", "a", "\na"].map(tokens);
    let lead = lead?;
    let differs = led?.strip_prefix(&*lead).is_some_and(|rest| alone.as_deref() != Some(rest));
    differs.then_some(lead)
}

impl Encoded {
    fn corrupt(&self, at: u64, reason: String) -> DataError {
        DataError::Corrupt { reason }.of(|| format!("`{}` at byte {at}", self.files.path(0).display()))
    }

    /// Bytes of the buffer for two chunks and [`LEAD`].
    fn buffer_bytes(&self) -> usize {
        2 * self.chunk + 1
    }

    /// Encodes the chunk at an offset and passes its tokens to a closure; returns the offset of the next chunk.
    fn encode_chunk(
        &self,
        at: u64,
        buffer: &mut [u8],
        mut each: impl FnMut(&[u32]),
    ) -> Result<u64, DataError> {
        buffer[0] = LEAD;
        let bytes = (self.end - at).min(buffer.len() as u64 - 1) as usize;
        self.files.read_at(0, &mut buffer[1..=bytes], at)?;
        let bytes = if at + bytes as u64 == self.end { bytes } else { cut(&buffer[1..=bytes], self.chunk) };
        let text = std::str::from_utf8(&buffer[..=bytes]).map_err(|e| {
            let offset = at + e.valid_up_to().saturating_sub(1) as u64;
            self.corrupt(offset, "the text is not UTF-8 there".into())
        })?;
        self.check_growth(text, at)?;
        let encode = |text: &str| {
            let encoded = self.tokenizer.encode_fast(text, false);
            encoded.map_err(|e| self.corrupt(at, format!("cannot be encoded: {e}")))
        };
        let next = at + bytes as u64;
        if let Some(lead) = self.lead.as_ref().filter(|_| at > 0) {
            let encoded = encode(text)?;
            if let Some(ids) = encoded.get_ids().strip_prefix(&lead[..]) {
                each(ids);
                return Ok(next);
            }
        }
        each(encode(&text[1..])?.get_ids());
        Ok(next)
    }

    /// Refuses a text that its normalizer would make much longer. It is normalised in small pieces, so that this takes little.
    fn check_growth(&self, text: &str, at: u64) -> Result<(), DataError> {
        let Some(normalizer) = self.tokenizer.get_normalizer() else { return Ok(()) };
        let (mut rest, mut bytes) = (text, 0);
        while !rest.is_empty() {
            let end = (PIECE..rest.len()).find(|end| rest.is_char_boundary(*end)).unwrap_or(rest.len());
            let (piece, more) = rest.split_at(end);
            let mut piece = NormalizedString::from(piece);
            let normalised = normalizer.normalize(&mut piece);
            normalised.map_err(|e| self.corrupt(at, format!("cannot be normalised: {e}")))?;
            (rest, bytes) = (more, bytes + piece.get().len());
            if bytes > MOST_GROWTH * text.len() + PIECE {
                let reason = format!(
                    "the tokenizer's normalizer makes {} bytes more than {MOST_GROWTH} times as long",
                    text.len()
                );
                return Err(self.corrupt(at, reason));
            }
        }
        Ok(())
    }

    /// Counts the tokens, and records where windows start.
    fn count(&mut self, context: usize) -> Result<u64, DataError> {
        let mut buffer = vec![0; self.buffer_bytes()];
        let (mut at, mut tokens) = (0, 0u64);
        let mut starts = std::mem::replace(&mut self.starts, SparseIndex::new());
        while at < self.end {
            let (mut count, mut unknown) = (0, None);
            let next = guarded(|| {
                self.encode_chunk(at, &mut buffer, |ids| {
                    count = ids.len() as u64;
                    unknown = ids.iter().copied().find(|id| *id as usize >= self.vocabulary);
                })
            })?;
            if let Some(id) = unknown {
                return Err(self.corrupt(at, format!("token {id} of a vocabulary of {}", self.vocabulary)));
            }
            if count > 2 * (next - at) || count >= 1 << TOKEN_BITS {
                return Err(self.corrupt(at, format!("{count} tokens in {} bytes", next - at)));
            }
            while tokens + count > starts.len() as u64 * context as u64 {
                let inside = starts.len() as u64 * context as u64 - tokens;
                starts.push(at << TOKEN_BITS | inside);
            }
            (at, tokens) = (next, tokens + count);
        }
        self.starts = starts.finish();
        Ok(tokens)
    }
}

/// Where a chunk ends: after a line end without white space around it, so that a tokenizer sees the same words on both sides;
/// else before a space; else between two characters.
fn cut(bytes: &[u8], from: usize) -> usize {
    let blank = |byte: u8| byte.is_ascii_whitespace();
    let line = |&at: &usize| bytes[at - 1] == b'\n' && !blank(bytes[at]) && (at < 2 || !blank(bytes[at - 2]));
    let word = |&at: &usize| bytes[at] == b' ' && !blank(bytes[at - 1]);
    let start = |&at: &usize| bytes[at] & 0xc0 != 0x80;
    let from = from.clamp(1, bytes.len());
    let mut places = from..bytes.len();
    let found = places.find(line).or_else(|| (from..bytes.len()).rfind(word));
    found.or_else(|| (from..bytes.len()).rfind(start)).unwrap_or(bytes.len())
}

impl Source for Tokens {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn len(&self) -> usize {
        self.windows
    }

    fn read(&self, index: usize, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<(), DataError> {
        check_read(self, index, record)?;
        let text = &*self.text;
        let (start, windows) = text.starts.find(self.first + index);
        let mut at = start >> TOKEN_BITS;
        let mut skip = (start & ((1 << TOKEN_BITS) - 1)) as usize + windows * self.context;
        let (mut written, mut unknown) = (0, None);
        while written <= self.context {
            if at >= text.end {
                return Err(
                    text.corrupt(at, "fewer tokens than in the first pass; the file has changed".into())
                );
            }
            at = text.encode_chunk(at, &mut scratch[..text.buffer_bytes()], |ids| {
                let passed = skip.min(ids.len());
                skip -= passed;
                let ids = &ids[passed..];
                for id in ids.iter().take(self.context + 1 - written) {
                    unknown = unknown.or((*id as usize >= text.vocabulary).then_some(*id));
                    let word = (*id as i32).to_ne_bytes();
                    // A token is the input at its position, and the label of the position before.
                    if written < self.context {
                        record.buffer_mut(0)[4 * written..4 * written + 4].copy_from_slice(&word);
                    }
                    if written > 0 {
                        record.buffer_mut(1)[4 * (written - 1)..4 * written].copy_from_slice(&word);
                    }
                    written += 1;
                }
            })?;
        }
        match unknown {
            Some(id) => Err(text.corrupt(at, format!("token {id} of a vocabulary of {}", text.vocabulary))),
            None => Ok(()),
        }
    }

    fn resident_bytes(&self) -> usize {
        let text = &*self.text;
        let shared = text.files.bytes() + text.starts.bytes() + text.tokenizer_bytes;
        // Counted with the training part.
        if self.first == 0 { shared } else { 0 }
    }

    fn scratch_bytes(&self) -> usize {
        self.text.buffer_bytes()
    }

    fn decoder_bytes(&self, readers: usize) -> usize {
        readers.saturating_mul(self.text.buffer_bytes() * ENCODING)
    }

    fn origin(&self, index: usize, _: u64) -> String {
        format!("`{}`: window {}", self.text.files.path(0).display(), self.first + index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fixture's tokenizer with other normalizers and pre-tokenizers.
    fn tokenizer(normalizer: &str, pre_tokenizer: &str) -> String {
        let json =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tokenizer.json"));
        let json = json.unwrap();
        let (before, rest) = json.split_once("\"normalizer\": null").unwrap();
        let (_, after) = rest.split_once("\"post_processor\"").unwrap();
        format!(
            "{before}\"normalizer\": {normalizer}, \"pre_tokenizer\": {pre_tokenizer}, \"post_processor\"{after}"
        )
    }

    #[test]
    fn chunks_encode_to_the_tokens_of_the_whole_text_where_a_tokenizer_prepends_a_space() {
        let text: String =
            (0..1000).map(|i| format!("{}word{}\n", if i % 5 == 0 { "two " } else { "" }, i % 7)).collect();
        // Without line ends chunks end at spaces.
        let words = text.replace('\n', " and ");
        let path = std::env::temp_dir().join(format!("plimsoll-lead-{}.txt", std::process::id()));
        let file = path.with_extension("json");
        let prepend = r#"{"type": "Prepend", "prepend": "Ġ"}"#;
        let replace = r#"{"type": "Replace", "pattern": {"String": " "}, "content": "Ġ"}"#;
        let lines = r#"{"type": "Replace", "pattern": {"String": "\n"}, "content": "Ċ"}"#;
        let all = format!(r#"{{"type": "Sequence", "normalizers": [{prepend}, {replace}, {lines}]}}"#);
        let bytes = |prefix: bool| {
            format!(
                r#"{{"type": "ByteLevel", "add_prefix_space": {prefix}, "trim_offsets": true, "use_regex": true}}"#
            )
        };
        let metaspace =
            r#"{"type": "Metaspace", "replacement": "Ġ", "prepend_scheme": "first", "split": true}"#;
        let cases = [
            ("null", bytes(true), true),
            ("null", bytes(false), false),
            (&all, "null".into(), true),
            (lines, metaspace.into(), true),
        ];
        for (text, (normalizer, pre_tokenizer, prefixes)) in
            [&text, &words].iter().flat_map(|t| cases.iter().map(move |c| (t, c)))
        {
            std::fs::write(&path, text).unwrap();
            std::fs::write(&file, tokenizer(normalizer, pre_tokenizer)).unwrap();
            let (tokenizer, ..) = read_tokenizer(&file, 1 << 30).unwrap();
            assert_eq!(lead(&tokenizer).is_some(), *prefixes, "{normalizer} {pre_tokenizer}");
            let whole = tokenizer.encode_fast(text.as_str(), false).unwrap().get_ids().to_vec();
            let data = Tokens::open(&path, &file, 64).unwrap();
            let mut found = Vec::new();
            for part in [&data.train, &data.test] {
                let source = part.source().unwrap();
                let (mut bytes, mut scratch) =
                    (vec![0; source.schema().capacity()], vec![0; source.scratch_bytes()]);
                for index in 0..source.len() {
                    let mut record = Record::over(source.schema(), &mut bytes);
                    source.read(index, &mut record, &mut scratch).unwrap();
                    found.extend(
                        record.bytes(0).chunks_exact(4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]])),
                    );
                }
            }
            assert!(found.len() > 1000 && whole.starts_with(&found), "{normalizer} {pre_tokenizer}");
        }
        std::fs::remove_file(path).unwrap();
        std::fs::remove_file(file).unwrap();
    }
}
