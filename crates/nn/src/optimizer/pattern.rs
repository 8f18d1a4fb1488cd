//! Patterns of parameter and layer names.

use std::fmt;

/// A pattern of names: a parameter, a layer with everything inside it, or either with `*` for any letters and `[0-5]` or `[ab]` for one.
///
/// ```
/// use plimsoll_nn::Pattern;
/// assert!(Pattern::new("block1").matches("block1/conv1/kernel"));
/// assert!(!Pattern::new("block1").matches("block10/conv1/kernel"));
/// assert!(Pattern::new("*/bias").matches("block1/conv1/bias"));
/// assert!(Pattern::new("block*/conv1").matches("block10/conv1/kernel"));
/// assert!(Pattern::new("block[0-5]").matches("block3/conv1/kernel"));
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
        match (pattern.get(p), matched(&pattern[p..], text[t]), star) {
            (Some(b'*'), _, _) => {
                star = Some((p, t));
                p += 1;
            }
            (_, Some(length), _) => (p, t) = (p + length, t + 1),
            // Backtrack: the star takes one more letter.
            (_, _, Some((at, from))) => {
                star = Some((at, from + 1));
                (p, t) = (at + 1, from + 1);
            }
            _ => return false,
        }
    }
    pattern[p..].iter().all(|&letter| letter == b'*')
}

/// How much of the pattern's start stands for a letter, if it does: a letter itself, or a class like `[0-5]`.
fn matched(pattern: &[u8], letter: u8) -> Option<usize> {
    let class =
        pattern.strip_prefix(b"[").and_then(|rest| Some(&rest[..rest.iter().position(|&b| b == b']')?]));
    let Some(class) = class.filter(|class| !class.is_empty()) else {
        return pattern.first().filter(|first| **first == letter).map(|_| 1);
    };
    let (mut at, mut found) = (0, false);
    while at < class.len() {
        match class[at..] {
            [from, b'-', to, ..] => {
                found |= (from..=to).contains(&letter);
                at += 3;
            }
            [one, ..] => {
                found |= one == letter;
                at += 1;
            }
            [] => {}
        }
    }
    found.then_some(class.len() + 2)
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
            ("a[0-2]", "a1", true),
            ("a[0-2]", "a3", false),
            ("a[0-2x-z]*", "ay/b", true),
            ("a[bd]", "ad", true),
            ("*[0-1]", "a10", true),
            ("*[0-1]b", "a2b", false),
            ("[]", "[]", true),
            ("a[", "a[", true),
            ("[-]", "-", true),
        ] {
            assert_eq!(glob(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }
}
