//! From text to tokens and back: bytes, or those of a tokenizer file.

use crate::DataError;
#[cfg(feature = "tokenizers")]
use crate::core::guard::guarded;
use std::path::Path;

/// The longest text that is encoded as a whole, in bytes.
const MAX_TEXT_BYTES: usize = 1 << 20;

/// The tokens of a model of text.
///
/// ```
/// use plimsoll_data::Vocabulary;
/// let bytes = Vocabulary::open(None, 1 << 20)?;
/// assert_eq!((bytes.tokens(), bytes.encode("aé")?), (256, vec![97, 195, 169]));
/// let mut decoder = bytes.decoder();
/// // A character of two bytes comes when it is complete.
/// assert_eq!([97, 195, 169].map(|token| decoder.push(token).unwrap()), ["a", "", "é"]);
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
pub struct Vocabulary {
    tokens: usize,
    held_bytes: usize,
    #[cfg(feature = "tokenizers")]
    tokenizer: Option<tokenizers::Tokenizer>,
}

impl Vocabulary {
    /// Bytes, or the tokens of a Hugging Face tokenizer file, which may take so many bytes of memory.
    pub fn open(tokenizer: Option<&Path>, max_bytes: usize) -> Result<Self, DataError> {
        match tokenizer {
            None => Ok(Self {
                tokens: 256,
                held_bytes: 0,
                #[cfg(feature = "tokenizers")]
                tokenizer: None,
            }),
            #[cfg(feature = "tokenizers")]
            Some(path) => {
                let (tokenizer, tokens, held_bytes) =
                    crate::formats::text::tokens::read_tokenizer(path, max_bytes as u64)?;
                Ok(Self { tokens, held_bytes, tokenizer: Some(tokenizer) })
            }
            #[cfg(not(feature = "tokenizers"))]
            Some(path) => {
                let _ = max_bytes;
                let spec = path.display().to_string();
                Err(DataError::FeatureOff { spec, feature: "tokenizers" })
            }
        }
    }

    /// How many there are.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Heap bytes of the tokenizer.
    pub fn bytes(&self) -> usize {
        self.held_bytes
    }

    /// The tokens of a text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        if text.len() > MAX_TEXT_BYTES {
            let (found, cap) = (text.len() as u64, MAX_TEXT_BYTES as u64);
            return Err(DataError::OverCap { what: "bytes: a text", found, cap });
        }
        #[cfg(feature = "tokenizers")]
        if let Some(tokenizer) = &self.tokenizer {
            return guarded(|| {
                let encoded = tokenizer.encode_fast(text, false);
                let wrong =
                    |e: tokenizers::Error| DataError::Corrupt { reason: format!("cannot be encoded: {e}") };
                Ok(encoded.map_err(wrong)?.get_ids().to_vec())
            });
        }
        Ok(text.bytes().map(u32::from).collect())
    }

    /// Turns tokens into text, one after another.
    pub fn decoder(&self) -> TextDecoder<'_> {
        TextDecoder {
            vocabulary: self,
            bytes: Vec::new(),
            #[cfg(feature = "tokenizers")]
            tokens: Vec::new(),
            #[cfg(feature = "tokenizers")]
            told: 0,
        }
    }
}

/// Turns tokens into text as they come ([`Vocabulary::decoder`]). What is not UTF-8 becomes replacement characters.
pub struct TextDecoder<'v> {
    #[cfg_attr(not(feature = "tokenizers"), allow(dead_code, reason = "bytes need no table"))]
    vocabulary: &'v Vocabulary,
    /// Where tokens are bytes: those of an incomplete character.
    bytes: Vec<u8>,
    /// Elsewhere the last tokens: those whose text is told, as context, and those whose text is not.
    #[cfg(feature = "tokenizers")]
    tokens: Vec<u32>,
    #[cfg(feature = "tokenizers")]
    told: usize,
}

/// Tokens at most whose text is held back; a character takes four bytes.
#[cfg(feature = "tokenizers")]
const MOST_HELD: usize = 8;

impl TextDecoder<'_> {
    /// The text that a token completes: none while a character is incomplete.
    pub fn push(&mut self, token: u32) -> Result<String, DataError> {
        #[cfg(feature = "tokenizers")]
        if let Some(tokenizer) = &self.vocabulary.tokenizer {
            return self.push_to(tokenizer, token);
        }
        self.bytes.push(token as u8);
        Ok(complete(&mut self.bytes))
    }

    /// The rest of the text, with incomplete characters replaced.
    pub fn finish(self) -> Result<String, DataError> {
        #[cfg(feature = "tokenizers")]
        if let Some(tokenizer) = &self.vocabulary.tokenizer {
            return self.rest(tokenizer);
        }
        Ok(String::from_utf8_lossy(&self.bytes).into_owned())
    }

    #[cfg(feature = "tokenizers")]
    fn push_to(&mut self, tokenizer: &tokenizers::Tokenizer, token: u32) -> Result<String, DataError> {
        self.tokens.push(token);
        let text = self.rest(tokenizer)?;
        let held = self.tokens.len() - self.told;
        if text.ends_with(char::REPLACEMENT_CHARACTER) && held < MOST_HELD {
            return Ok(String::new());
        }
        self.tokens.drain(..self.told);
        self.told = self.tokens.len();
        Ok(text)
    }

    /// The text of the tokens that is not told yet. Tokens before them are decoded, too: some tokenizers write a word in
    /// another way at the start of a text.
    #[cfg(feature = "tokenizers")]
    fn rest(&self, tokenizer: &tokenizers::Tokenizer) -> Result<String, DataError> {
        let decode = |tokens: &[u32]| {
            let wrong =
                |e: tokenizers::Error| DataError::Corrupt { reason: format!("cannot be decoded: {e}") };
            guarded(|| tokenizer.decode(tokens, false).map_err(wrong))
        };
        let (before, all) = (decode(&self.tokens[..self.told])?, decode(&self.tokens)?);
        Ok(all.get(before.len()..).unwrap_or_default().to_string())
    }
}

/// Takes the complete characters from the front of bytes.
fn complete(bytes: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut from = 0;
    while from < bytes.len() {
        let error = match std::str::from_utf8(&bytes[from..]) {
            Ok(rest) => {
                text += rest;
                from = bytes.len();
                break;
            }
            Err(error) => error,
        };
        let valid = from + error.valid_up_to();
        text += &String::from_utf8_lossy(&bytes[from..valid]);
        from = valid;
        let Some(wrong) = error.error_len() else { break };
        text.push(char::REPLACEMENT_CHARACTER);
        from += wrong;
    }
    bytes.drain(..from);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_become_text_when_characters_are_complete() {
        let vocabulary = Vocabulary::open(None, 1 << 20).unwrap();
        let mut decoder = vocabulary.decoder();
        let bytes = [0xe7u32, 0x8c, 0xab, 0xff, 0x61, 0xc3, 0x28, 0xe7];
        let text: Vec<String> = bytes.iter().map(|&byte| decoder.push(byte).unwrap()).collect();
        assert_eq!(text, ["", "", "猫", "\u{fffd}", "a", "", "\u{fffd}(", ""]);
        assert_eq!(decoder.finish().unwrap(), "\u{fffd}");
    }
}
