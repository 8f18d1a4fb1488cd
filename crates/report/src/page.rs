//! The page: a template with styles, code and data in it.

use crate::View;
use std::io::{self, Write};

const PAGE: &str = include_str!("../assets/page.html");
const STYLE: &str = include_str!("../assets/page.css");
const SCRIPT: &str = include_str!("../assets/page.js");

/// The page of a view, as text.
pub fn page(view: &View) -> String {
    let mut out = Vec::new();
    // Writing to memory does not fail, and what is written is text.
    let _ = write_page(view, &mut out);
    String::from_utf8(out).unwrap_or_default()
}

/// Writes the page of a view. The page asks nothing of any network; one of a run that goes on asks the server that it came from.
pub fn write_page(view: &View, out: &mut impl Write) -> io::Result<()> {
    let live = view.measured.as_ref().is_some_and(|measured| measured.live);
    // Text between marks, then a mark, and so on.
    for (i, part) in PAGE.split('@').enumerate() {
        match part {
            text if i.is_multiple_of(2) => out.write_all(text.as_bytes())?,
            "CONNECT" => out.write_all(if live { b"'self'" } else { b"'none'" })?,
            "TITLE" => out.write_all(in_html(&view.title).as_bytes())?,
            "STYLE" => out.write_all(STYLE.as_bytes())?,
            "SCRIPT" => out.write_all(SCRIPT.as_bytes())?,
            _ => serde_json::to_writer(&mut InScript(&mut *out), view)?,
        }
    }
    Ok(())
}

/// Text as HTML has it.
fn in_html(text: &str) -> String {
    let visible = text.chars().filter(|c| !c.is_control());
    visible.fold(String::with_capacity(text.len()), |mut html, c| {
        match c {
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '&' => html.push_str("&amp;"),
            '"' => html.push_str("&quot;"),
            c => html.push(c),
        }
        html
    })
}

/// Writes JSON so that it cannot end the element that it is in, nor mean anything in HTML. `<`, `>` and `&` are only in strings
/// of JSON, and so are the line separators U+2028 and U+2029.
struct InScript<W>(W);

impl<W: Write> Write for InScript<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut plain = 0;
        let mut at = 0;
        while at < bytes.len() {
            let (escape, length): (&[u8], usize) = match &bytes[at..] {
                [b'<', ..] => (b"\\u003c", 1),
                [b'>', ..] => (b"\\u003e", 1),
                [b'&', ..] => (b"\\u0026", 1),
                [0xe2, 0x80, 0xa8, ..] => (b"\\u2028", 3),
                [0xe2, 0x80, 0xa9, ..] => (b"\\u2029", 3),
                _ => {
                    at += 1;
                    continue;
                }
            };
            self.0.write_all(&bytes[plain..at])?;
            self.0.write_all(escape)?;
            at += length;
            plain = at;
        }
        self.0.write_all(&bytes[plain..])?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_has_every_mark_once() {
        let marks: Vec<&str> = PAGE.split('@').skip(1).step_by(2).collect();
        assert_eq!(marks, ["CONNECT", "TITLE", "STYLE", "DATA", "SCRIPT"]);
        assert!(!STYLE.contains("</style") && !SCRIPT.contains("</script"));
    }
}
