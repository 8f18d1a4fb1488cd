//! Numbers and foreign text as text for a terminal.

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

/// An object as one line of JSON without control characters, not even those that JSON allows.
pub fn json_line(value: &serde_json::Value) -> String {
    let text = value.to_string();
    let escape = |c: char| match c.is_control() || is_direction(c) {
        true => format!("\\u{:04x}", u32::from(c)),
        false => c.to_string(),
    };
    text.chars().map(escape).collect()
}

/// Text from a file, a name or a path as messages show it: control characters are escaped, so that no terminal obeys them.
pub fn escaped(text: impl std::fmt::Display) -> String {
    let text = text.to_string();
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' => shown.push_str("\\n"),
            '\t' => shown.push_str("\\t"),
            // Marks that change the direction of writing hide what a name says.
            _ if is_direction(character) => {
                shown.push_str(&format!("\\u{{{:x}}}", u32::from(character)));
            }
            _ if character.is_control() => shown.push_str(&format!("\\x{:02x}", u32::from(character))),
            _ => shown.push(character),
        }
    }
    shown
}

/// As [`escaped`], for a message of several lines.
pub fn escaped_lines(text: impl std::fmt::Display) -> String {
    text.to_string().split('\n').map(escaped).collect::<Vec<_>>().join("\n")
}

/// Whether a character separates lines or changes the direction of writing: what is shown may then not be what is there.
fn is_direction(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(escaped("a\x1b[2Jb\r\n\tc\u{9b}d"), "a\\x1b[2Jb\\x0d\\n\\tc\\x9bd");
        assert_eq!(escaped("Füße 📷 é"), "Füße 📷 é");
        assert_eq!(escaped("ab\u{202e}gnp.exe"), "ab\\u{202e}gnp.exe");
    }
}
