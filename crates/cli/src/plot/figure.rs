//! Panels with axes and the curves of runs.

use super::{Anchor, Shape, TEXT_HEIGHT, What};
use crate::runs::Run;
use plimsoll::plan::in_words;

/// Colours that people with any kind of sight tell apart (Okabe and Ito).
const COLORS: [[u8; 3]; 7] =
    [[0, 114, 178], [213, 94, 0], [0, 158, 115], [204, 121, 167], [230, 159, 0], [86, 180, 233], [0, 0, 0]];
const AXIS: [u8; 3] = [64, 64, 64];
const GRID: [u8; 3] = [225, 225, 225];

/// Space around a panel: for numbers to its left, its title above, numbers below, and the edge.
const LEFT: f64 = 92.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 40.0;
const RIGHT: f64 = 18.0;
/// The height of a line of the legend.
const LEGEND: f64 = 18.0;
/// Numbers on an axis, about.
const TICKS: f64 = 5.0;

/// A curve of a panel.
struct Series {
    points: Vec<(f64, f64)>,
    run: usize,
    dashed: bool,
    /// Whether it is the main curve of its run.
    main: bool,
}

/// The shapes of a figure; an error if the runs have no points.
pub(super) fn figure(
    runs: &[Run],
    what: What,
    (width, height): (u32, u32),
    log: bool,
) -> Result<Vec<Shape>, String> {
    let losses = series(runs, |run| {
        let validated = run.events.validation_losses.points();
        vec![(run.events.losses.points().to_vec(), false), (validated.to_vec(), true)]
    });
    let memory = series(runs, |run| {
        let measured = run.events.memory.points().to_vec();
        let ends = measured.first().zip(measured.last());
        let planned = ends.zip(run.events.planned_bytes).map_or(Vec::new(), |((first, last), bytes)| {
            vec![(first.0, bytes as f64), (last.0, bytes as f64)]
        });
        vec![(measured, false), (planned, true)]
    });
    let panels: Vec<(&str, Vec<Series>, Scale)> = match what {
        What::Loss => vec![("loss (dashed: validation)", losses, Scale::loss(log))],
        What::Memory => vec![("memory after a step (dashed: planned peak)", memory, Scale::Bytes)],
        What::Both => vec![
            ("loss (dashed: validation)", losses, Scale::loss(log)),
            ("memory after a step (dashed: planned peak)", memory, Scale::Bytes),
        ],
    };
    if panels.iter().all(|(_, series, _)| series.iter().all(|series| series.points.is_empty())) {
        return Err("these runs have no events of steps yet".into());
    }
    let (width, height) = (f64::from(width), f64::from(height));
    let legend = LEGEND * runs.len().min(8) as f64 + 8.0;
    let each = (height - legend) / panels.len() as f64;
    let mut shapes = Vec::new();
    for (i, (title, series, scale)) in panels.into_iter().enumerate() {
        let top = each * i as f64;
        let area = Area { left: LEFT, right: width - RIGHT, top: top + TOP, bottom: top + each - BOTTOM };
        panel(&mut shapes, title, &series, scale, area);
    }
    for (i, run) in runs.iter().enumerate().take(8) {
        let y = height - legend + LEGEND * (i as f64 + 0.7);
        let points = vec![(LEFT, y - TEXT_HEIGHT * 0.3), (LEFT + 28.0, y - TEXT_HEIGHT * 0.3)];
        shapes.push(curve(points, COLORS[i % COLORS.len()], 2.0, false));
        let more =
            if i == 7 && runs.len() > 8 { format!(" and {} more", runs.len() - 8) } else { String::new() };
        shapes.push(text((LEFT + 36.0, y), Anchor::Start, run.name() + &more, false));
    }
    Ok(shapes)
}

fn series(runs: &[Run], of: impl Fn(&Run) -> Vec<(Vec<(f64, f64)>, bool)>) -> Vec<Series> {
    let of = |(run, found): (usize, &Run)| {
        let series = of(found).into_iter();
        series.map(|(points, dashed)| Series { points, run, dashed, main: !dashed }).collect::<Vec<_>>()
    };
    runs.iter().enumerate().flat_map(of).collect()
}

fn curve(points: Vec<(f64, f64)>, color: [u8; 3], width: f64, dashed: bool) -> Shape {
    Shape::Curve { points, color, width, dashed, opacity: 1.0 }
}

fn text(at: (f64, f64), anchor: Anchor, text: String, bold: bool) -> Shape {
    Shape::Text { at, anchor, text, bold }
}

/// How values are spread and named.
#[derive(Clone, Copy, PartialEq)]
enum Scale {
    Steps,
    Linear,
    Logarithmic,
    Bytes,
}

impl Scale {
    fn loss(log: bool) -> Self {
        if log { Self::Logarithmic } else { Self::Linear }
    }

    fn position(self, value: f64) -> f64 {
        if self == Self::Logarithmic { value.max(f64::MIN_POSITIVE).log10() } else { value }
    }

    fn name(self, value: f64) -> String {
        match self {
            Self::Bytes => in_words(value.max(0.0) as usize),
            Self::Steps => format!("{value:.0}"),
            _ if value == 0.0 => "0".into(),
            _ if value.abs() >= 1e5 || value.abs() < 1e-3 => format!("{value:.1e}"),
            _ => format!("{value:.4}").trim_end_matches('0').trim_end_matches('.').to_string(),
        }
    }

    /// Round values between two ends.
    fn ticks(self, low: f64, high: f64) -> Vec<f64> {
        let base: f64 = if self == Self::Bytes { 1024.0 } else { 10.0 };
        if self == Self::Logarithmic {
            let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
            let all = (first..=last).flat_map(|e| [1.0, 2.0, 5.0].map(|m| m * 10_f64.powi(e)));
            let inside: Vec<f64> = all.filter(|value| (low..=high).contains(value)).collect();
            return if inside.len() >= 2 { inside } else { vec![low, high] };
        }
        let rough = (high - low) / TICKS;
        if !(rough > 0.0 && rough.is_finite()) {
            return vec![low];
        }
        let unit = base.powf(rough.log(base).floor());
        let steps: &[f64] = match self {
            Self::Bytes => &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0],
            _ => &[1.0, 2.0, 5.0, 10.0],
        };
        let step = steps.iter().map(|m| m * unit).find(|step| *step >= rough).unwrap_or(rough);
        let step = if self == Self::Steps { step.max(1.0) } else { step };
        let first = (low / step).ceil() as i64;
        let last = (high / step).floor() as i64;
        (first..=last).take(64).map(|i| i as f64 * step).collect()
    }
}

#[derive(Clone, Copy)]
struct Area {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

fn panel(shapes: &mut Vec<Shape>, title: &str, series: &[Series], scale: Scale, area: Area) {
    let ends = |of: fn(&(f64, f64)) -> f64, positive: bool| {
        let values = series.iter().flat_map(|series| &series.points).map(of);
        let values = values.filter(|value| value.is_finite() && (!positive || *value > 0.0));
        values.fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], v| [low.min(v), high.max(v)])
    };
    let title_at = (area.left, area.top - 10.0);
    shapes.push(text(title_at, Anchor::Start, title.to_string(), true));
    let [first, last] = ends(|point| point.0, false);
    let [low, high] = ends(|point| point.1, scale == Scale::Logarithmic);
    if !(first.is_finite() && low.is_finite()) {
        let middle = ((area.left + area.right) / 2.0, (area.top + area.bottom) / 2.0);
        shapes.push(text(middle, Anchor::Middle, "these runs did not record it".into(), false));
        return;
    }
    let last = last.max(first + 1.0);
    let (low, high) = match scale {
        Scale::Bytes => (0.0, high * 1.08),
        Scale::Logarithmic => (low / 1.1, high * 1.1),
        _ => {
            let margin = ((high - low) * 0.05).max(high.abs() * 1e-3).max(1e-12);
            (if low >= 0.0 { (low - margin).max(0.0) } else { low - margin }, high + margin)
        }
    };
    let x = |value: f64| area.left + (value - first) / (last - first) * (area.right - area.left);
    let (bottom, top) = (scale.position(low), scale.position(high));
    let y = |value: f64| {
        let share = (scale.position(value) - bottom) / (top - bottom);
        area.bottom - share.clamp(0.0, 1.0) * (area.bottom - area.top)
    };
    for value in scale.ticks(low, high) {
        shapes.push(curve(vec![(area.left, y(value)), (area.right, y(value))], GRID, 1.0, false));
        let at = (area.left - 6.0, y(value) + TEXT_HEIGHT * 0.35);
        shapes.push(text(at, Anchor::End, scale.name(value), false));
    }
    for value in Scale::Steps.ticks(first, last) {
        shapes.push(curve(vec![(x(value), area.bottom), (x(value), area.bottom + 4.0)], AXIS, 1.0, false));
        let at = (x(value), area.bottom + 4.0 + TEXT_HEIGHT);
        shapes.push(text(at, Anchor::Middle, Scale::Steps.name(value), false));
    }
    let frame = vec![(area.left, area.top), (area.left, area.bottom), (area.right, area.bottom)];
    shapes.push(curve(frame, AXIS, 1.0, false));
    let label = ((area.left + area.right) / 2.0, area.bottom + 8.0 + 2.0 * TEXT_HEIGHT);
    shapes.push(text(label, Anchor::Middle, "step".into(), false));
    for series in series {
        let points = series.points.iter().filter(|point| scale != Scale::Logarithmic || point.1 > 0.0);
        let points: Vec<(f64, f64)> = points.map(|point| (x(point.0), y(point.1))).collect();
        let color = COLORS[series.run % COLORS.len()];
        let width = if series.main { 1.6 } else { 1.8 };
        match points[..] {
            [] => {}
            // One point alone is a dash.
            [(x, y)] => shapes.push(curve(vec![(x - 4.0, y), (x + 4.0, y)], color, 2.0 * width, false)),
            _ => shapes.push(curve(points, color, width, series.dashed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(Scale::Linear.ticks(0.0, 1.0), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(Scale::Steps.ticks(1.0, 3.0), [1.0, 2.0, 3.0]);
        let mib = f64::from(1 << 20);
        assert_eq!(Scale::Bytes.ticks(0.0, 30.0 * mib), [0.0, 8.0 * mib, 16.0 * mib, 24.0 * mib]);
        assert_eq!(Scale::Logarithmic.ticks(0.05, 3.0), [0.05, 0.1, 0.2, 0.5, 1.0, 2.0]);
        for (low, high) in [(1.0, 1.0), (f64::NAN, 2.0), (0.0, f64::INFINITY), (-1e300, 1e300)] {
            assert!(Scale::Linear.ticks(low, high).len() <= 64);
        }
    }
}
