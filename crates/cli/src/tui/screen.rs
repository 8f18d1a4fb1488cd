//! How a run is drawn.

use super::canvas::{Area, Canvas, Color, Style};
use super::view::{SpaceView, View};
use plimsoll::plan::{in_words, time_in_words};
use std::time::Duration;

/// Columns from which curves and figures stand beside each other.
const WIDE: usize = 100;
/// Below this there is only text.
const SMALLEST: (usize, usize) = (40, 10);
/// Columns of a figure: its name and its value.
const FIGURE: usize = 30;

/// Draws a run on a screen of a size.
pub(super) fn draw(canvas: &mut Canvas, (width, height): (usize, usize), view: &View) {
    let area = canvas.start(width, height);
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        canvas.text(area, &format!("step {}/{}  loss {:.4}", view.step, view.steps, view.loss), Style::Plain);
        return;
    }
    let (head, rest) = area.split_top(1);
    draw_head(canvas, head, view);
    let (bar, rest) = rest.split_top(1);
    draw_steps(canvas, bar, view);
    let message_lines = if area.height >= 30 { 7 } else { 4 };
    let (middle, rest) = rest.split_top(rest.height.saturating_sub(message_lines + 1));
    let (messages, foot) = rest.split_top(message_lines);
    let memory_lines = 2 * view.spaces.len() + 2;
    if area.width >= WIDE {
        let (curves, side) = middle.split_left(middle.width * 58 / 100);
        let (memory, figures) = side.split_top(memory_lines);
        draw_losses(canvas, curves, view);
        draw_memory(canvas, memory, view);
        draw_figures(canvas, figures, view);
    } else {
        let figure_lines = figures(view).len().div_ceil((middle.width.saturating_sub(2) / FIGURE).max(1)) + 2;
        let below = (memory_lines + figure_lines).min(middle.height);
        let (curves, rest) = middle.split_top(middle.height - below);
        let (memory, figures) = rest.split_top(memory_lines);
        draw_losses(canvas, curves, view);
        draw_memory(canvas, memory, view);
        draw_figures(canvas, figures, view);
    }
    draw_messages(canvas, messages, view);
    match view.stopping {
        true => {
            let text = "stopping after this step; Ctrl-C once more stops at once";
            canvas.text(foot, text, Style::In(Color::Yellow));
        }
        false => {
            let text = "Ctrl-C stops after this step, and saves a checkpoint if --out names a folder";
            canvas.text(foot, text, Style::Dim);
        }
    }
}

fn draw_head(canvas: &mut Canvas, area: Area, view: &View) {
    let time = words(view.started.elapsed());
    let (left, right) = area.split_left(area.width.saturating_sub(time.chars().count() + 1));
    canvas.text(left, &format!("plimsoll  {}", view.title), Style::Bold);
    canvas.text(right, &format!(" {time}"), Style::Plain);
}

fn draw_steps(canvas: &mut Canvas, area: Area, view: &View) {
    let share = if view.steps == 0 { 0.0 } else { view.step as f64 / view.steps as f64 };
    let left = view.left().map_or(String::new(), |left| format!(", {} left", words(left)));
    let label = match view.steps {
        0 => " preparing ".to_string(),
        steps => format!(" step {} of {steps}, epoch {}{left} ", view.step, view.epoch + 1),
    };
    canvas.bar(area, share, &label, Color::Cyan);
}

fn draw_losses(canvas: &mut Canvas, area: Area, view: &View) {
    let inside = canvas.block(area, "loss");
    let (losses, validations) = (view.losses.points(), view.validations.points());
    if losses.is_empty() || inside.height < 3 {
        canvas.text(inside, "no step is done yet", Style::Dim);
        return;
    }
    let ends = |of: fn(&(f64, f64)) -> f64| {
        let values = losses.iter().chain(validations).map(of);
        values.fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], v| [low.min(v), high.max(v)])
    };
    let [first, last] = ends(|point| point.0);
    let [low, high] = ends(|point| point.1);
    let margin = ((high - low) * 0.05).max(high.abs() * 1e-3).max(1e-9);
    // Losses that are never below zero have an axis that is not either.
    let [low, high] = [if low >= 0.0 { (low - margin).max(0.0) } else { low - margin }, high + margin];
    // The numbers of the axes stand to the left and below.
    let labels = [high, (low + high) / 2.0, low].map(|value| format!("{value:.4}"));
    let width = labels.iter().map(String::len).max().unwrap_or(0) + 1;
    let (numbers, plane) = inside.split_left(width.min(inside.width));
    let (plane, below) = plane.split_top(plane.height - 1);
    for (label, at) in labels.iter().zip([0, (plane.height - 1) / 2, plane.height - 1]) {
        let line = Area { top: plane.top + at, height: 1, ..numbers };
        canvas.text(line, &format!("{label:>0$}", width - 1), Style::Dim);
    }
    let to = format!("{last:.0}");
    let (left, right) = below.split_left(below.width.saturating_sub(to.len()));
    canvas.text(left, &format!("{first:.0}"), Style::Dim);
    canvas.text(right, &to, Style::Dim);
    let across = [first, last.max(first + 1.0)];
    canvas.curve(plane, losses, across, [low, high], Color::Cyan);
    canvas.curve(plane, validations, across, [low, high], Color::Yellow);
    // Which is which, in the corner that falling curves leave free.
    let names = [("training", Color::Cyan), ("validation", Color::Yellow)];
    for (i, (name, color)) in names.into_iter().take(1 + usize::from(!validations.is_empty())).enumerate() {
        let (_, corner) = plane.split_left(plane.width.saturating_sub(name.len()));
        canvas.text(Area { top: plane.top + i, height: 1, ..corner }, name, Style::In(color));
    }
}

fn draw_memory(canvas: &mut Canvas, area: Area, view: &View) {
    let title = match view.swapped {
        0 => "memory".to_string(),
        bytes => format!("memory: {} are in swap, so the line is not proven", in_words(bytes)),
    };
    let mut rest = canvas.block(area, &title);
    for space in &view.spaces {
        let (line, below) = rest.split_top(1);
        let (bar, below) = below.split_top(1);
        rest = below;
        canvas.text(line, &space_line(space), Style::Plain);
        let scale = if space.line == usize::MAX { space.planned } else { space.line };
        let share = space.measured.unwrap_or(0) as f64 / scale.max(1) as f64;
        let color = match share {
            share if share > 1.0 => Color::Red,
            share if share > 0.97 => Color::Yellow,
            _ => Color::Green,
        };
        let label = space.measured.map_or(" not known ".into(), |bytes| format!(" {} now ", in_words(bytes)));
        canvas.bar(bar, share, &label, color);
    }
}

fn space_line(space: &SpaceView) -> String {
    let line = match space.line {
        usize::MAX => "no line".to_string(),
        line => format!("line {}", in_words(line)),
    };
    format!("{}: planned {}, {line}", space.name, in_words(space.planned))
}

/// The figures of the run, as names and numbers.
fn figures(view: &View) -> Vec<(&str, String)> {
    let mut rows =
        vec![("loss", format!("{:.4}", view.loss)), ("samples/s", format!("{:.0}", view.samples_per_second))];
    rows.extend(view.learning_rate.map(|rate| ("learning rate", format!("{rate:.3e}"))));
    rows.extend(view.figures.iter().map(|(name, value)| (name.as_str(), format!("{value:.4}"))));
    rows
}

fn draw_figures(canvas: &mut Canvas, area: Area, view: &View) {
    let inside = canvas.block(area, "figures");
    let columns = (inside.width / FIGURE).max(1);
    for (i, (name, value)) in figures(view).into_iter().enumerate() {
        let (row, column) = (i / columns, i % columns);
        if row >= inside.height {
            break;
        }
        let (_, place) = Area { top: inside.top + row, height: 1, ..inside }.split_left(column * FIGURE);
        let (name_at, rest) = place.split_left(17);
        canvas.text(name_at, name, Style::Dim);
        canvas.text(rest, &format!("{value:>11}"), Style::Plain);
    }
}

fn draw_messages(canvas: &mut Canvas, area: Area, view: &View) {
    let inside = canvas.block(area, "messages");
    let skip = view.messages.len().saturating_sub(inside.height);
    for (i, line) in view.messages.iter().skip(skip).enumerate() {
        canvas.text(Area { top: inside.top + i, height: 1, ..inside }, line, Style::Plain);
    }
}

fn words(time: Duration) -> String {
    time_in_words(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll::train::{Evaluation, TrainEvent};
    use std::time::Instant;

    fn view(steps: u64) -> View {
        let space = SpaceView { name: "host", line: 64 << 20, planned: 48 << 20, measured: Some(40 << 20) };
        let mut view = View::new("lenet on \x1b[2J".into(), Instant::now(), vec![space]);
        for step in 1..=steps {
            let (loss, time) = (2.0 / step as f64, Duration::from_millis(10));
            view.on(&TrainEvent::Step {
                step,
                steps: 2 * steps,
                epoch: 0,
                loss,
                examples: 64,
                time,
                data: Duration::ZERO,
                held: None,
                learning_rate: Some(1e-3),
                scale: None,
            });
        }
        view
    }

    #[test]
    fn every_size_of_a_terminal_can_be_drawn_on() {
        let mut canvas = Canvas::new();
        let mut full = view(300);
        full.on(&TrainEvent::Validation {
            step: 300,
            epoch: 0,
            part: "validation",
            train_loss: 0.1,
            evaluation: Evaluation { loss: 0.3, accuracy: Some(0.9), examples: 10, classes: true },
            figures: &[("f1\x07".to_string(), f64::NAN)],
            since_best: 0,
        });
        (0..20).for_each(|i| full.message(format!("message {i}")));
        for view in [view(0), view(1), full] {
            for (width, height) in
                [(0, 0), (1, 1), (39, 30), (40, 10), (60, 12), (80, 24), (99, 60), (100, 24), (500, 200)]
            {
                draw(&mut canvas, (width, height), &view);
                let mut out = String::new();
                canvas.write(&mut out);
                assert!(!out.contains('\x07') && !out.contains("\x1b[2J"), "{out:?}");
            }
        }
    }

    #[test]
    fn a_screen_says_what_the_run_does() {
        let mut canvas = Canvas::new();
        let view = view(50);
        for width in [80, 200] {
            draw(&mut canvas, (width, 24), &view);
            let text: String = (0..24).map(|y| canvas.line(y) + "\n").collect();
            for words in [
                "step 50 of 100",
                "planned 48.0 MiB",
                "line 64.0 MiB",
                "40.0 MiB now",
                "6400",
                "1.000e-3",
                "Ctrl-C",
            ] {
                assert!(text.contains(words), "{words} at {width} columns:\n{text}");
            }
        }
    }
}
