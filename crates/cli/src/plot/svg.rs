//! Shapes as SVG.

use super::{Anchor, Shape, TEXT_HEIGHT};
use std::fmt::Write;

/// The whole file.
pub(super) fn svg(shapes: &[Shape], (width, height): (u32, u32)) -> String {
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"Helvetica, Arial, sans-serif\" font-size=\"{TEXT_HEIGHT}\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for shape in shapes {
        // Writing to a string does not fail.
        let _ = match shape {
            Shape::Curve { points, color: [r, g, b], width, dashed, opacity } => {
                let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.2},{y:.2}")).collect();
                let dashes = if *dashed { " stroke-dasharray=\"6 4\"" } else { "" };
                writeln!(
                    text,
                    "<polyline points=\"{}\" fill=\"none\" stroke=\"rgb({r},{g},{b})\" stroke-width=\"{width}\" \
                     stroke-opacity=\"{opacity}\" stroke-linejoin=\"round\"{dashes}/>",
                    points.join(" ")
                )
            }
            Shape::Text { at: (x, y), anchor, text: words, bold } => {
                let anchor = match anchor {
                    Anchor::Start => "start",
                    Anchor::Middle => "middle",
                    Anchor::End => "end",
                };
                let weight = if *bold { " font-weight=\"bold\"" } else { "" };
                writeln!(
                    text,
                    "<text x=\"{x:.2}\" y=\"{y:.2}\" text-anchor=\"{anchor}\"{weight}>{}</text>",
                    escaped(words)
                )
            }
        };
    }
    text + "</svg>\n"
}

/// Text as a part of XML: what would be markup is escaped, and what XML cannot hold is replaced.
fn escaped(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => shown.push_str("&amp;"),
            '<' => shown.push_str("&lt;"),
            '>' => shown.push_str("&gt;"),
            '"' => shown.push_str("&quot;"),
            '\'' => shown.push_str("&#39;"),
            '\t' | '\n' | '\r' => shown.push(' '),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => shown.push('\u{fffd}'),
            c => shown.push(c),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        let at = (1.0, 2.0);
        let hostile = "</text><script>alert(\"1\")</script>&\u{1b}[2J";
        let shape = Shape::Text { at, anchor: Anchor::Start, text: hostile.into(), bold: false };
        let file = svg(&[shape], (10, 20));
        assert!(!file.contains("<script") && !file.contains('\u{1b}'), "{file}");
        assert!(file.contains("&lt;/text&gt;&lt;script&gt;alert(&quot;1&quot;)"), "{file}");
    }
}
