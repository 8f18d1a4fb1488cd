//! How a run is drawn.

use super::super::text::escaped;
use super::view::{SpaceView, View};
use plimsoll::plan::{in_words, time_in_words};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Block, Chart, Dataset, Gauge, GraphType, Paragraph};
use std::time::Duration;

/// Columns from which curves and figures stand beside each other.
const WIDE: u16 = 100;
/// Below this there is only text.
const SMALLEST: (u16, u16) = (40, 10);

pub fn draw(frame: &mut Frame<'_>, view: &mut View) {
    view.measure();
    let area = frame.area();
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        let text = format!("step {}/{}  loss {:.4}", view.step, view.steps, view.loss);
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    let spaces = 2 * view.spaces.len() as u16 + 2;
    let [head, bar, middle, messages, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(6),
        Constraint::Length(if area.height >= 30 { 7 } else { 4 }),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(header(view, head.width), head);
    frame.render_widget(steps(view), bar);
    let [curves, figures, memory] = if area.width >= WIDE {
        let [curves, side] = Layout::horizontal([Constraint::Percentage(62), Constraint::Min(38)]).areas(middle);
        let [memory, figures] =
            Layout::vertical([Constraint::Length(spaces), Constraint::Min(3)]).areas(side);
        [curves, figures, memory]
    } else {
        let [curves, memory, figures] =
            Layout::vertical([Constraint::Min(6), Constraint::Length(spaces), Constraint::Length(4)]).areas(middle);
        [curves, figures, memory]
    };
    draw_losses(frame, view, curves);
    draw_memory(frame, view, memory);
    draw_figures(frame, view, figures);
    draw_messages(frame, view, messages);
    let how = if view.stopping {
        Line::from("stopping after this step; Ctrl-C once more stops at once").yellow()
    } else {
        Line::from("Ctrl-C stops after this step, and saves a checkpoint if --out names a folder").dim()
    };
    frame.render_widget(Paragraph::new(how), foot);
}

fn header(view: &View, width: u16) -> Paragraph<'static> {
    let left = format!("plimsoll  {}", escaped(&view.title));
    let right = words(view.started.elapsed());
    let gap = usize::from(width).saturating_sub(left.chars().count() + right.chars().count()).max(1);
    let line = Line::from(vec![
        Span::from(left).bold(),
        Span::from(" ".repeat(gap)),
        Span::from(right),
    ]);
    Paragraph::new(line)
}

fn steps(view: &View) -> Gauge<'static> {
    let share = if view.steps == 0 { 0.0 } else { view.step as f64 / view.steps as f64 };
    let left = view.left().map_or(String::new(), |left| format!(", {} left", words(left)));
    let label = match view.steps {
        0 => "preparing".to_string(),
        steps => format!("step {} of {steps}, epoch {}{left}", view.step, view.epoch + 1),
    };
    Gauge::default().gauge_style(bar_style(Color::Cyan)).ratio(share.clamp(0.0, 1.0)).label(label)
}

/// A bar whose text can be read on it and beside it.
fn bar_style(color: Color) -> Style {
    Style::new().fg(color).bg(Color::Black).add_modifier(Modifier::BOLD)
}

fn draw_losses(frame: &mut Frame<'_>, view: &View, area: Rect) {
    let (losses, validations) = (view.losses.points(), view.validations.points());
    let all = || losses.iter().chain(validations);
    let block = Block::bordered().title(" loss ");
    if losses.is_empty() {
        frame.render_widget(Paragraph::new("no step is done yet").block(block), area);
        return;
    }
    let ends = |values: &mut dyn Iterator<Item = f64>| {
        values.fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], v| [low.min(v), high.max(v)])
    };
    let [first, last] = ends(&mut all().map(|point| point.0));
    let [low, high] = ends(&mut all().map(|point| point.1));
    let margin = ((high - low) * 0.05).max(high.abs() * 1e-3).max(1e-9);
    let [low, high] = [low - margin, high + margin];
    let curve = |name, color, points| {
        let marker = Marker::Braille;
        Dataset::default().name(name).marker(marker).graph_type(GraphType::Line).fg(color).data(points)
    };
    let mut sets = vec![curve("training", Color::Cyan, losses)];
    if !validations.is_empty() {
        sets.push(curve("validation", Color::Yellow, validations));
    }
    let count = |x: f64| format!("{x:.0}");
    let value = |y: f64| format!("{y:.4}");
    let x = Axis::default().bounds([first, last.max(first + 1.0)]).labels([count(first), count(last)]).dim();
    let y = Axis::default().bounds([low, high]).labels([low, (low + high) / 2.0, high].map(value)).dim();
    frame.render_widget(Chart::new(sets).block(block).x_axis(x).y_axis(y), area);
}

fn draw_memory(frame: &mut Frame<'_>, view: &View, area: Rect) {
    let title = match view.swapped {
        0 => " memory ".to_string(),
        bytes => format!(" memory: {} are in swap, the line is not proven ", in_words(bytes)),
    };
    let block = Block::bordered().title(title);
    let inside = block.inner(area);
    frame.render_widget(block, area);
    let rows = Layout::vertical(vec![Constraint::Length(1); 2 * view.spaces.len()]).split(inside);
    for (space, rows) in view.spaces.iter().zip(rows.chunks(2)) {
        let &[name, bar] = rows else { continue };
        frame.render_widget(Paragraph::new(space_line(space)), name);
        let scale = if space.line == usize::MAX { space.planned } else { space.line };
        let share = space.measured.unwrap_or(0) as f64 / scale.max(1) as f64;
        let color = match share {
            share if share > 1.0 => Color::Red,
            share if share > 0.95 => Color::Yellow,
            _ => Color::Green,
        };
        let label = space.measured.map_or("not known".into(), |bytes| format!("{} now", in_words(bytes)));
        let gauge = Gauge::default().gauge_style(bar_style(color)).ratio(share.clamp(0.0, 1.0)).label(label);
        frame.render_widget(gauge, bar);
    }
}

fn space_line(space: &SpaceView) -> String {
    let line = match space.line {
        usize::MAX => "no line".to_string(),
        line => format!("line {}", in_words(line)),
    };
    format!("{}: planned {}, {line}", space.name, in_words(space.planned))
}

fn draw_figures(frame: &mut Frame<'_>, view: &View, area: Rect) {
    let mut rows = vec![
        ("loss".to_string(), format!("{:.4}", view.loss)),
        ("samples/s".to_string(), format!("{:.0}", view.samples_per_second)),
    ];
    rows.extend(view.learning_rate.map(|rate| ("learning rate".to_string(), format!("{rate:.3e}"))));
    rows.extend(view.figures.iter().map(|(name, value)| (escaped(name), format!("{value:.4}"))));
    let block = Block::bordered().title(" figures ");
    let inside = block.inner(area);
    frame.render_widget(block, area);
    // As many columns as there is space for.
    let column = 30;
    let columns = usize::from(inside.width / column).max(1);
    let texts = rows.into_iter().map(|(name, value)| format!("{name:<17} {value:>11}"));
    let texts: Vec<String> = texts.collect();
    let lines = texts.chunks(columns).map(|row| Line::from(row.join(" ")));
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), inside);
}

fn draw_messages(frame: &mut Frame<'_>, view: &View, area: Rect) {
    let block = Block::bordered().title(" messages ");
    let inside = block.inner(area);
    let skip = view.messages.len().saturating_sub(usize::from(inside.height));
    let lines: Vec<Line<'_>> = view.messages.iter().skip(skip).map(|line| Line::from(line.as_str())).collect();
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

fn words(time: Duration) -> String {
    time_in_words(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}
