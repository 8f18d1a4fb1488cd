//! Numbers and foreign text as text for a terminal.

use std::borrow::Cow;

/// A number with thousands separators.
pub fn count(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Text from outside (a file's, class's or tensor's name, or a message that quotes one) with its control characters escaped:
/// printed raw they could move the cursor, change colours or hide what follows.
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, |_| false)
}

/// As [`printable`], for text of many lines: line ends and tabs stay.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| matches!(c, '\n' | '\t'))
}

/// An object as one line of JSON without control characters, not even those that JSON allows.
pub fn json_line(value: &serde_json::Value) -> String {
    let text = value.to_string();
    let escape = |c: char| match c.is_control() || is_direction(c) {
        true => format!("\\u{:04x}", u32::from(c)),
        false => c.to_string(),
    };
    text.chars().map(escape).collect()
}

fn escaped(text: &str, stays: impl Fn(char) -> bool) -> Cow<'_, str> {
    let harmful = |c: char| (c.is_control() || is_direction(c)) && !stays(c);
    if !text.contains(harmful) {
        return Cow::Borrowed(text);
    }
    let escape = |c: char| match harmful(c) {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    Cow::Owned(text.chars().map(escape).collect())
}

/// Whether a character separates lines or changes the direction of writing: what is shown may then not be what is there.
fn is_direction(c: char) -> bool {
    matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_other_text_stays() {
        assert!(matches!(printable("Größe 猫.png"), Cow::Borrowed("Größe 猫.png")));
        assert_eq!(printable("a\x1b[2Jb\nc\u{9b}1m\u{202e}d\x7f"), r"a\u{1b}[2Jb\nc\u{9b}1m\u{202e}d\u{7f}");
        assert_eq!(printable_lines("a\x07\n\tb"), "a\\u{7}\n\tb");
    }
}
