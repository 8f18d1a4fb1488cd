//! What a tokenizer file may ask for, checked before the tokenizer is built: its library takes memory as it likes.

use crate::DataError;
use serde::Deserialize;

/// Heap bytes at most for each byte of an added token: the library builds automata of them, for plain and normalised text.
const ADDED_BYTES: u64 = 256;
/// How much longer normalising may make a text.
const MOST_GROWTH: usize = 16;

/// The parts of a tokenizer file that can take much more memory than the file.
#[derive(Deserialize)]
struct Parts {
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    normalizer: Option<Normalizer>,
}

#[derive(Deserialize)]
struct Added {
    #[serde(default)]
    content: String,
}

/// A normalizer, and those that it is a sequence of.
#[derive(Deserialize)]
struct Normalizer {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    content: String,
    #[serde(default)]
    normalizers: Vec<Normalizer>,
}

impl Normalizer {
    /// How many times as long a text may become.
    fn growth(&self) -> usize {
        let own = if self.kind == "Replace" { self.content.len().max(1) } else { 1 };
        self.normalizers.iter().fold(own, |product, part| product.saturating_mul(part.growth()))
    }
}

/// Refuses a tokenizer whose added tokens take more than `max_bytes`, or whose normalizer expands texts. Text that is no
/// tokenizer at all is refused where it is built.
pub(super) fn check(text: &str, max_bytes: u64) -> Result<(), DataError> {
    let Ok(parts) = serde_json::from_str::<Parts>(text) else { return Ok(()) };
    let added: u64 = parts.added_tokens.iter().map(|token| token.content.len() as u64).sum();
    let bytes = added.saturating_mul(ADDED_BYTES);
    if bytes > max_bytes {
        let what = format!("the tokenizer with {} added tokens", parts.added_tokens.len());
        return Err(DataError::TooLarge { what, bytes, limit: max_bytes });
    }
    let growth = parts.normalizer.map_or(1, |normalizer| normalizer.growth());
    if growth > MOST_GROWTH {
        let reason = format!(
            "its normalizer may make a text {growth} times as long, at most {MOST_GROWTH} are allowed"
        );
        return Err(DataError::Option { option: "tokenizer", reason });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokenizers_that_expand_are_refused() {
        let added = |count: usize, length: usize| {
            let token = format!(r#"{{"id":1,"content":"{}"}}"#, "x".repeat(length));
            format!(r#"{{"added_tokens":[{}],"model":{{}}}}"#, vec![token; count].join(","))
        };
        assert!(check(&added(20_000, 200), 512 << 20).is_err());
        assert!(check(&added(1_000, 24), 64 << 20).is_ok());
        let replace = |content: &str| {
            format!(r#"{{"type":"Replace","pattern":{{"String":"a"}},"content":"{content}"}}"#)
        };
        let one = |content: &str| format!(r#"{{"normalizer":{}}}"#, replace(content));
        assert!(check(&one("▁"), 1 << 20).is_ok());
        assert!(check(&one(&"a".repeat(100)), 1 << 20).is_err());
        let many = vec![replace("aa"); 20].join(",");
        let many = format!(r#"{{"normalizer":{{"type":"Sequence","normalizers":[{many}]}}}}"#);
        assert!(check(&many, 1 << 20).is_err());
        assert!(check("no tokenizer", 0).is_ok());
    }
}
