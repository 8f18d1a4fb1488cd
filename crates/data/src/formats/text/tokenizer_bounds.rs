//! What a tokenizer file may ask for, checked before the tokenizer is built: its library takes memory as it likes.

use crate::DataError;
use serde::Deserialize;

/// Heap bytes at most for each byte of an added token while the library builds automata of them, for plain and normalised
/// text; and of what it keeps.
const BUILDING_ADDED: u64 = 256;
const ADDED: usize = 32;
/// How much longer replacements may make a text; what they do to the text at hand is checked as it is read.
const MOST_GROWTH: usize = 16;
/// The most bytes that a normalizer may put before a text.
const MOST_PREPENDED: usize = 256;
/// The most bytes that a map of characters may put in place of one. In published maps one sign becomes 33.
const MOST_MAPPED: usize = 64;

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
    pattern: Pattern,
    #[serde(default)]
    prepend: String,
    #[serde(default)]
    precompiled_charsmap: Option<String>,
    #[serde(default)]
    normalizers: Vec<Normalizer>,
}

/// What a `Replace` replaces: an expression, where there is no text.
#[derive(Default, Deserialize)]
struct Pattern {
    #[serde(rename = "String")]
    text: Option<String>,
}

impl Normalizer {
    /// How many times as long a text may become by replacements; an error that names a normalizer for which no bound is known.
    fn growth(&self) -> Result<usize, DataError> {
        let refused = |reason: String| {
            let reason = format!("its normalizer `{}` {reason}", self.kind);
            Err(DataError::Option { option: "tokenizer", reason })
        };
        let own = match (self.kind.as_str(), &self.pattern.text) {
            ("Replace", Some(text)) if !text.is_empty() => self.content.len().div_ceil(text.len()).max(1),
            ("Replace", _) => self.content.len().max(1),
            ("Prepend", _) if self.prepend.len() > MOST_PREPENDED => {
                let bytes = self.prepend.len();
                return refused(format!("puts {bytes} bytes before a text, at most {MOST_PREPENDED} may be"));
            }
            ("Precompiled", _) => {
                let bytes = self.precompiled_charsmap.as_deref().map_or(0, longest_mapped);
                if bytes > MOST_MAPPED {
                    return refused(format!("maps a sign to {bytes} bytes, at most {MOST_MAPPED} may be"));
                }
                1
            }
            // Of these, Unicode bounds what one sign becomes.
            (
                "Bert" | "BertNormalizer" | "ByteLevel" | "Lowercase" | "NFC" | "NFD" | "NFKC" | "NFKD"
                | "Nmt",
                _,
            ) => 1,
            ("Prepend" | "Sequence" | "Strip" | "StripAccents", _) => 1,
            _ => return refused("is not known, and may take any memory".into()),
        };
        let mut growth = own;
        for part in &self.normalizers {
            growth = growth.saturating_mul(part.growth()?);
        }
        if growth > MOST_GROWTH {
            return refused(format!(
                "may make a text {growth} times as long, at most {MOST_GROWTH} are allowed"
            ));
        }
        Ok(growth)
    }
}

/// Bytes of the longest text in a map of characters: base64 of the length of an index, the index, and texts that end with 0.
fn longest_mapped(map: &str) -> usize {
    let six = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let (mut bits, mut count, mut at) = (0u32, 0, 0u64);
    let (mut index, mut length, mut longest) = (0u64, 0, 0);
    for value in map.bytes().filter_map(six) {
        (bits, count) = (bits << 6 | u32::from(value), count + 6);
        if count < 8 {
            continue;
        }
        count -= 8;
        let byte = (bits >> count) as u8;
        if at < 4 {
            index |= u64::from(byte) << (8 * at);
        } else if at >= 4 + index {
            length = if byte == 0 { 0 } else { length + 1 };
            longest = longest.max(length);
        }
        at += 1;
    }
    longest
}

/// Refuses a tokenizer whose added tokens take more than `max_bytes`, or whose normalizer expands texts without a bound. Text
/// that is no tokenizer at all is refused where it is built. Returns the heap bytes of the added tokens.
pub(super) fn check(text: &str, max_bytes: u64) -> Result<usize, DataError> {
    let Ok(parts) = serde_json::from_str::<Parts>(text) else { return Ok(0) };
    let added: usize = parts.added_tokens.iter().map(|token| token.content.len()).sum();
    let bytes = (added as u64).saturating_mul(BUILDING_ADDED);
    if bytes > max_bytes {
        let what = format!("the tokenizer with {} added tokens", parts.added_tokens.len());
        return Err(DataError::TooLarge { what, bytes, limit: max_bytes });
    }
    if let Some(normalizer) = parts.normalizer {
        normalizer.growth()?;
    }
    Ok(added.saturating_mul(ADDED))
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
        let of = |json: &str| {
            check(&format!(r#"{{"normalizer":{json}}}"#), 1 << 20).map_err(|error| error.to_string())
        };
        let error = of(&format!(r#"{{"type":"Prepend","prepend":"{}"}}"#, "x".repeat(300))).unwrap_err();
        assert!(error.contains("`Prepend` puts 300 bytes before a text"), "{error}");
        assert!(of(r#"{"type":"Prepend","prepend":"▁"}"#).is_ok());
        assert!(of(r#"{"type":"Grow"}"#).unwrap_err().contains("`Grow` is not known"));
        assert!(of(r#"{"type":"Sequence","normalizers":[{"type":"NFKC"},{"type":"Lowercase"}]}"#).is_ok());
    }

    #[test]
    fn the_longest_text_of_a_map_is_found() {
        // An index of two bytes, then "ab", "cdef" and "".
        assert_eq!(longest_mapped("AgAAAAEBYWIAY2RlZgAA"), 4);
        assert_eq!(longest_mapped(""), 0);
    }
}
