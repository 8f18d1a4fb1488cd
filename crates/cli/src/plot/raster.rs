//! Shapes as pixels in a PNG file.

use super::{Anchor, Shape};
use embedded_graphics::Drawable;
use embedded_graphics::Pixel;
use embedded_graphics::draw_target::DrawTarget;
use embedded_graphics::geometry::{OriginDimensions, Point, Size};
use embedded_graphics::mono_font::iso_8859_1::{FONT_9X18, FONT_9X18_BOLD};
use embedded_graphics::mono_font::{MonoFont, MonoTextStyle};
use embedded_graphics::pixelcolor::BinaryColor;
use embedded_graphics::text::{Alignment, Baseline, Text, TextStyleBuilder};
use std::convert::Infallible;

/// Pixels for each unit of a shape's numbers: the font is then as high as text should be.
const SCALE: f64 = 1.25;

/// The units of a picture of so many pixels.
pub(super) fn units(pixels: (u32, u32)) -> (u32, u32) {
    let units = |pixels: u32| (f64::from(pixels) / SCALE).round() as u32;
    (units(pixels.0), units(pixels.1))
}

/// Dots per metre of a picture with 120 to the inch.
const DOTS_PER_METRE: u32 = 4724;
/// Dash and gap.
const DASHES: [f64; 2] = [6.0, 4.0];
const TEXT: [u8; 3] = [20, 20, 20];

/// The whole file, of so many pixels.
pub(super) fn png(shapes: &[Shape], (width, height): (u32, u32)) -> Result<Vec<u8>, png::EncodingError> {
    let mut canvas = Canvas::new(width as usize, height as usize);
    for shape in shapes {
        match shape {
            Shape::Curve { points, color, width, dashed, opacity } => {
                let points: Vec<(f64, f64)> = points.iter().map(|(x, y)| (x * SCALE, y * SCALE)).collect();
                let pieces = if *dashed { dashes(&points, DASHES.map(|d| d * SCALE)) } else { vec![points] };
                pieces.iter().for_each(|piece| canvas.polyline(piece, *color, width * SCALE, *opacity));
            }
            Shape::Text { at, anchor, text, bold } => canvas.text(*at, *anchor, text, *bold),
        }
    }
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, canvas.width as u32, canvas.height as u32);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let (xppu, yppu) = (DOTS_PER_METRE, DOTS_PER_METRE);
    encoder.set_pixel_dims(Some(png::PixelDimensions { xppu, yppu, unit: png::Unit::Meter }));
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&canvas.pixels)?;
    writer.finish()?;
    Ok(file)
}

/// Cuts a line into dashes.
fn dashes(points: &[(f64, f64)], [dash, gap]: [f64; 2]) -> Vec<Vec<(f64, f64)>> {
    let mut pieces = Vec::new();
    let (mut piece, mut drawn, mut left) = (Vec::new(), true, dash);
    for pair in points.windows(2) {
        let (from, to) = (pair[0], pair[1]);
        let length = (to.0 - from.0).hypot(to.1 - from.1);
        let at = |done: f64| {
            let share = if length > 0.0 { done / length } else { 0.0 };
            (from.0 + (to.0 - from.0) * share, from.1 + (to.1 - from.1) * share)
        };
        if drawn && piece.is_empty() {
            piece.push(from);
        }
        let mut done = 0.0;
        while done + left < length {
            done += left;
            if drawn {
                piece.push(at(done));
                pieces.push(std::mem::take(&mut piece));
            } else {
                piece.push(at(done));
            }
            (drawn, left) = (!drawn, if drawn { gap } else { dash });
        }
        left -= length - done;
        if drawn {
            piece.push(to);
        }
    }
    if piece.len() > 1 {
        pieces.push(piece);
    }
    pieces
}

struct Canvas {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
    /// How much of each pixel the current line covers.
    covered: Vec<u8>,
}

impl Canvas {
    fn new(width: usize, height: usize) -> Self {
        Self { width, height, pixels: vec![255; 3 * width * height], covered: vec![0; width * height] }
    }

    fn blend(&mut self, pixel: usize, color: [u8; 3], share: f64) {
        for (of, color) in self.pixels[3 * pixel..3 * pixel + 3].iter_mut().zip(color) {
            *of = (f64::from(*of) * (1.0 - share) + f64::from(color) * share).round() as u8;
        }
    }

    /// A line through points, with round ends and joints, and no pixel blended twice.
    fn polyline(&mut self, points: &[(f64, f64)], color: [u8; 3], width: f64, opacity: f64) {
        let reach = width / 2.0 + 1.0;
        let range = |a: f64, b: f64, most: usize| {
            let low = (a.min(b) - reach).floor().clamp(0.0, most as f64) as usize;
            let high = (a.max(b) + reach).ceil().clamp(0.0, most as f64) as usize;
            low..high
        };
        let (mut top, mut bottom) = (self.height, 0);
        for pair in points.windows(2) {
            let (from, to) = (pair[0], pair[1]);
            let (dx, dy) = (to.0 - from.0, to.1 - from.1);
            let squared = (dx * dx + dy * dy).max(1e-12);
            for y in range(from.1, to.1, self.height) {
                (top, bottom) = (top.min(y), bottom.max(y + 1));
                for x in range(from.0, to.0, self.width) {
                    let (px, py) = (x as f64 + 0.5 - from.0, y as f64 + 0.5 - from.1);
                    let along = ((px * dx + py * dy) / squared).clamp(0.0, 1.0);
                    let distance = (px - along * dx).hypot(py - along * dy);
                    let share = (width / 2.0 + 0.5 - distance).clamp(0.0, 1.0);
                    let covered = &mut self.covered[y * self.width + x];
                    *covered = (*covered).max((share * 255.0) as u8);
                }
            }
        }
        for pixel in top.min(bottom) * self.width..bottom * self.width {
            let share = std::mem::take(&mut self.covered[pixel]);
            if share > 0 {
                self.blend(pixel, color, f64::from(share) / 255.0 * opacity);
            }
        }
    }

    fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, text: &str, bold: bool) {
        let font: &MonoFont<'_> = if bold { &FONT_9X18_BOLD } else { &FONT_9X18 };
        let style = MonoTextStyle::new(font, BinaryColor::On);
        let alignment = match anchor {
            Anchor::Start => Alignment::Left,
            Anchor::Middle => Alignment::Center,
            Anchor::End => Alignment::Right,
        };
        let about = TextStyleBuilder::new().alignment(alignment).baseline(Baseline::Alphabetic).build();
        let at = Point::new((x * SCALE) as i32, (y * SCALE) as i32);
        let _ = Text::with_text_style(text, at, style, about).draw(self);
    }
}

impl OriginDimensions for Canvas {
    fn size(&self) -> Size {
        Size::new(self.width as u32, self.height as u32)
    }
}

impl DrawTarget for Canvas {
    type Color = BinaryColor;
    type Error = Infallible;

    fn draw_iter<I: IntoIterator<Item = Pixel<BinaryColor>>>(&mut self, pixels: I) -> Result<(), Infallible> {
        for Pixel(at, color) in pixels {
            let place = usize::try_from(at.x).ok().zip(usize::try_from(at.y).ok());
            if let Some((x, y)) = place.filter(|(x, y)| *x < self.width && *y < self.height && color.is_on())
            {
                self.blend(y * self.width + x, TEXT, 1.0);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_covers_what_is_near_it() {
        let mut canvas = Canvas::new(20, 10);
        canvas.polyline(&[(2.0, 5.0), (18.0, 5.0)], [0, 0, 0], 2.0, 1.0);
        let dark = |x: usize, y: usize| canvas.pixels[3 * (20 * y + x)] < 64;
        assert!(dark(10, 4) && dark(10, 5) && !dark(10, 2) && !dark(10, 7));
        assert!(canvas.covered.iter().all(|share| *share == 0));
    }

    #[test]
    fn dashes_leave_gaps() {
        let pieces = dashes(&[(0.0, 0.0), (5.0, 0.0), (25.0, 0.0)], [6.0, 4.0]);
        let ends: Vec<(f64, f64)> =
            pieces.iter().map(|piece| (piece[0].0, piece[piece.len() - 1].0)).collect();
        assert_eq!(ends, [(0.0, 6.0), (10.0, 16.0), (20.0, 25.0)]);
    }

    #[test]
    fn a_picture_is_a_png_of_its_size() {
        let points = vec![(-5.0, -5.0), (500.0, 300.0)];
        let curve = Shape::Curve { points, color: [255, 0, 0], width: 2.0, dashed: true, opacity: 1.0 };
        let text = Shape::Text {
            at: (60.0, 40.0),
            anchor: Anchor::Middle,
            text: "größe \u{1b} 漢".into(),
            bold: true,
        };
        let file = png(&[curve, text], (125, 63)).unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(&file)).read_info().unwrap();
        assert_eq!((reader.info().width, reader.info().height), (125, 63));
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut pixels).unwrap();
        assert!(pixels.chunks(3).any(|pixel| pixel == [255, 0, 0]));
        assert!(pixels.chunks(3).any(|pixel| pixel == TEXT));
    }
}
