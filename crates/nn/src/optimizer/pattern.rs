//! Patterns of parameter and layer names.

use std::fmt;

/// A pattern of names: a parameter, a layer with everything inside it, or either with `*` as a wildcard.
///
/// ```
/// use plimsoll_nn::Pattern;
/// assert!(Pattern::new("block1").matches("block1/conv1/kernel"));
/// assert!(!Pattern::new("block1").matches("block10/conv1/kernel"));
/// assert!(Pattern::new("*/bias").matches("block1/conv1/bias"));
/// assert!(Pattern::new("block*/conv1").matches("block10/conv1/kernel"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// A pattern.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Whether it matches a name.
    pub fn matches(&self, name: &str) -> bool {
        let ends = name.match_indices('/').map(|(place, _)| place).chain([name.len()]);
        ends.into_iter().any(|end| glob(self.0.as_bytes(), &name.as_bytes()[..end]))
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether the pattern matches the whole text.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // The last star, and the position in the text where it began to match.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match (pattern.get(p), star) {
            (Some(b'*'), _) => {
                star = Some((p, t));
                p += 1;
            }
            (Some(letter), _) if *letter == text[t] => (p, t) = (p + 1, t + 1),
            // Backtrack: the star takes one more letter.
            (_, Some((at, from))) => {
                star = Some((at, from + 1));
                (p, t) = (at + 1, from + 1);
            }
            _ => return false,
        }
    }
    pattern[p..].iter().all(|&letter| letter == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_match_any_letters() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("*", "", true),
            ("*", "abc", true),
            ("a*c", "abc", true),
            ("a*c", "ac", true),
            ("a*c", "acb", false),
            ("*ab*ab", "abab", true),
            ("*ab*ab", "aab", false),
            ("a**b", "axb", true),
        ] {
            assert_eq!(glob(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }
}
