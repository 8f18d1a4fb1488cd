//! A screen of characters, and how it is written to a terminal.

use std::fmt::Write;

/// The largest terminal that is filled: a larger one stays empty beyond it, so that memory is known before.
pub const MOST_WIDTH: usize = 240;
pub const MOST_HEIGHT: usize = 80;
/// Memory of the characters, and of what is written: a character takes up to four bytes, and a change of style a dozen.
pub(super) const BYTES: usize = MOST_WIDTH * MOST_HEIGHT * (size_of::<Cell>() + 6);

/// How a character looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Style {
    #[default]
    Plain,
    Bold,
    Dim,
    /// In a colour.
    In(Color),
    /// On a colour: a part of a bar.
    On(Color),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Color {
    Red,
    Green,
    Yellow,
    Cyan,
}

impl Style {
    /// The parameters of the sequence that switches to it. Colours are the terminal's own.
    fn parameters(self) -> (u8, u8) {
        let number = |color: Color| match color {
            Color::Red => 1,
            Color::Green => 2,
            Color::Yellow => 3,
            Color::Cyan => 6,
        };
        match self {
            Self::Plain => (0, 0),
            Self::Bold => (0, 1),
            Self::Dim => (0, 2),
            Self::In(color) => (0, 30 + number(color)),
            // Black on the colour, whatever the terminal's own are.
            Self::On(color) => (30, 40 + number(color)),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    character: char,
    style: Style,
}

const BLANK: Cell = Cell { character: ' ', style: Style::Plain };

/// A part of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Area {
    pub left: usize,
    pub top: usize,
    pub width: usize,
    pub height: usize,
}

impl Area {
    /// So many lines of it, and the rest.
    pub fn split_top(self, height: usize) -> (Self, Self) {
        let height = height.min(self.height);
        let rest = Self { top: self.top + height, height: self.height - height, ..self };
        (Self { height, ..self }, rest)
    }

    /// So many columns of it, and the rest.
    pub fn split_left(self, width: usize) -> (Self, Self) {
        let width = width.min(self.width);
        let rest = Self { left: self.left + width, width: self.width - width, ..self };
        (Self { width, ..self }, rest)
    }

    /// Without its border.
    fn inside(self) -> Self {
        let (width, height) = (self.width.saturating_sub(2), self.height.saturating_sub(2));
        Self { left: self.left + 1, top: self.top + 1, width, height }
    }
}

/// The characters of a screen.
#[derive(Debug)]
pub(super) struct Canvas {
    width: usize,
    height: usize,
    cells: Vec<Cell>,
}

impl Canvas {
    /// Blank, with memory for the largest.
    pub fn new() -> Self {
        Self { width: 0, height: 0, cells: Vec::with_capacity(MOST_WIDTH * MOST_HEIGHT) }
    }

    /// Blank again, of a terminal's size.
    pub fn start(&mut self, width: usize, height: usize) -> Area {
        (self.width, self.height) = (width.min(MOST_WIDTH), height.min(MOST_HEIGHT));
        self.cells.clear();
        self.cells.resize(self.width * self.height, BLANK);
        Area { left: 0, top: 0, width: self.width, height: self.height }
    }

    fn set(&mut self, x: usize, y: usize, character: char, style: Style) {
        if x < self.width && y < self.height {
            self.cells[y * self.width + x] = Cell { character, style };
        }
    }

    /// Text in the first line of an area, cut off at its end.
    pub fn text(&mut self, area: Area, text: &str, style: Style) {
        if area.height == 0 {
            return;
        }
        for (x, character) in text.chars().take(area.width).enumerate() {
            self.set(area.left + x, area.top, one_column(character), style);
        }
    }

    /// A border with a title; what is inside.
    pub fn block(&mut self, area: Area, title: &str) -> Area {
        let Area { left, top, width, height } = area;
        if width < 2 || height < 2 {
            return Area { width: 0, height: 0, ..area };
        }
        let (right, bottom) = (left + width - 1, top + height - 1);
        for x in left + 1..right {
            self.set(x, top, '─', Style::Dim);
            self.set(x, bottom, '─', Style::Dim);
        }
        for y in top + 1..bottom {
            self.set(left, y, '│', Style::Dim);
            self.set(right, y, '│', Style::Dim);
        }
        let corners = [(left, top, '┌'), (right, top, '┐'), (left, bottom, '└'), (right, bottom, '┘')];
        corners.into_iter().for_each(|(x, y, corner)| self.set(x, y, corner, Style::Dim));
        let space = Area { left: left + 2, width: width.saturating_sub(4), top, height: 1 };
        self.text(space, &format!(" {title} "), Style::Bold);
        area.inside()
    }

    /// A bar that is filled to a share, with a label in its middle.
    pub fn bar(&mut self, area: Area, share: f64, label: &str, color: Color) {
        if area.height == 0 {
            return;
        }
        let filled = (share.clamp(0.0, 1.0) * area.width as f64).round() as usize;
        let label: Vec<char> = label.chars().take(area.width).map(one_column).collect();
        let start = (area.width - label.len()) / 2;
        for x in 0..area.width {
            let character = x.checked_sub(start).and_then(|at| label.get(at)).copied();
            let (character, style) = match (character, x < filled) {
                (character, true) => (character.unwrap_or(' '), Style::On(color)),
                (Some(character), false) => (character, Style::Plain),
                (None, false) => ('·', Style::Dim),
            };
            self.set(area.left + x, area.top, character, style);
        }
    }

    /// A curve in an area of braille dots, between two corners of the plane.
    pub fn curve(
        &mut self,
        area: Area,
        points: &[(f64, f64)],
        [first, last]: [f64; 2],
        [low, high]: [f64; 2],
        color: Color,
    ) {
        let (columns, rows) = (2 * area.width, 4 * area.height);
        if columns == 0 || rows == 0 {
            return;
        }
        let place = |point: &(f64, f64)| {
            let x = (point.0 - first) / (last - first) * (columns - 1) as f64;
            let y = (high - point.1) / (high - low) * (rows - 1) as f64;
            (x, y)
        };
        for pair in points.windows(2).map(|pair| [place(&pair[0]), place(&pair[1])]) {
            let [from, to] = pair;
            let dots = (to.0 - from.0).abs().max((to.1 - from.1).abs()).ceil().clamp(1.0, 4096.0) as usize;
            for dot in 0..=dots {
                let share = dot as f64 / dots as f64;
                self.dot(area, from.0 + (to.0 - from.0) * share, from.1 + (to.1 - from.1) * share, color);
            }
        }
        if let [only] = points {
            let (x, y) = place(only);
            self.dot(area, x, y, color);
        }
    }

    fn dot(&mut self, area: Area, x: f64, y: f64, color: Color) {
        if !(x >= 0.0 && y >= 0.0) {
            return;
        }
        let (x, y) = (x.round() as usize, y.round() as usize);
        let (column, row) = (area.left + x / 2, area.top + y / 4);
        if x / 2 >= area.width || y / 4 >= area.height || column >= self.width || row >= self.height {
            return;
        }
        // The dots of a braille character, from above: the left column, then the right one.
        const DOTS: [[u32; 4]; 2] = [[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]];
        let cell = &mut self.cells[row * self.width + column];
        let before = u32::from(cell.character).checked_sub(BRAILLE).filter(|dots| *dots < 256).unwrap_or(0);
        let character = char::from_u32(BRAILLE + (before | DOTS[x % 2][y % 4])).unwrap_or(' ');
        *cell = Cell { character, style: Style::In(color) };
    }

    /// Writes the screen from its upper left corner on.
    pub fn write(&self, out: &mut String) {
        out.push_str("\x1b[H\x1b[0m");
        let mut style = Style::Plain;
        for (y, row) in self.cells.chunks(self.width.max(1)).enumerate() {
            if y > 0 {
                out.push_str("\r\n");
            }
            let end = row.iter().rposition(|cell| *cell != BLANK).map_or(0, |last| last + 1);
            for cell in &row[..end] {
                if cell.style != style {
                    style = cell.style;
                    let (first, second) = style.parameters();
                    // Writing to a string does not fail.
                    let _ = write!(out, "\x1b[0;{first};{second}m");
                }
                out.push(cell.character);
            }
            if end < row.len() {
                style = Style::Plain;
                out.push_str("\x1b[0m\x1b[K");
            }
        }
        out.push_str("\x1b[0m\x1b[J");
    }

    /// The characters of a line, for tests.
    #[cfg(test)]
    pub fn line(&self, y: usize) -> String {
        self.cells[y * self.width..(y + 1) * self.width].iter().map(|cell| cell.character).collect()
    }
}

/// The first braille character.
const BRAILLE: u32 = 0x2800;

/// A character that takes one column of every terminal, or a mark in its place: others would move all that follows, and control
/// characters would be obeyed.
fn one_column(character: char) -> char {
    match character {
        ' '..='~'
        | '\u{a1}'..='\u{ac}'
        | '\u{ae}'..='\u{2ff}'
        | '\u{370}'..='\u{482}'
        | '\u{48a}'..='\u{58f}' => character,
        '–' | '—' | '‘' | '’' | '“' | '”' | '…' | '─'..='╿' | '⠀'..='⣿' => character,
        '\t' => ' ',
        _ => '?',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_is_written_whole_and_obeys_nothing() {
        let mut canvas = Canvas::new();
        let area = canvas.start(12, 3);
        let inside = canvas.block(area, "\x1b[2J漢");
        canvas.text(inside, "\u{9b}31m äöü more than fits", Style::Plain);
        assert_eq!(canvas.line(0), "┌─ ?[2J? ──┐");
        assert_eq!(canvas.line(1), "│?31m äöü m│");
        let mut out = String::new();
        canvas.write(&mut out);
        assert!(!out.contains('\u{9b}') && out.matches("\x1b[2J").count() == 0, "{out:?}");
        assert_eq!(out.matches("\r\n").count(), 2);
    }

    #[test]
    fn curves_and_bars_fill_what_they_should() {
        let mut canvas = Canvas::new();
        let area = canvas.start(4, 2);
        canvas.curve(area, &[(0.0, 0.0), (1.0, 1.0)], [0.0, 1.0], [0.0, 1.0], Color::Cyan);
        let dots = |x: usize, y: usize| u32::from(canvas.cells[y * 4 + x].character).checked_sub(BRAILLE);
        // From the lowest dot on the left to the highest on the right.
        assert_eq!(dots(0, 1).map(|dots| dots & 0x40), Some(0x40));
        assert_eq!(dots(3, 0).map(|dots| dots & 0x08), Some(0x08));
        assert_eq!((dots(0, 0), dots(3, 1)), (None, None));
        let area = canvas.start(10, 1);
        canvas.bar(area, 0.5, "half", Color::Green);
        assert_eq!(canvas.line(0), "   half···");
        assert_eq!(canvas.cells.iter().filter(|cell| cell.style == Style::On(Color::Green)).count(), 5);
    }

    #[test]
    fn the_largest_screen_takes_no_more_than_it_says() {
        let mut canvas = Canvas::new();
        let area = canvas.start(usize::MAX, usize::MAX);
        canvas.block(area, "title");
        assert_eq!(canvas.cells.capacity(), MOST_WIDTH * MOST_HEIGHT);
        let mut out = String::with_capacity(BYTES);
        canvas.write(&mut out);
        assert!(out.len() + canvas.cells.capacity() * size_of::<Cell>() <= BYTES, "{}", out.len());
    }
}
