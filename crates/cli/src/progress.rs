//! What the program is doing, so that it is never silent for more than a second: on a terminal a line that updates, elsewhere a line on
//! standard error whenever nothing was printed for that long. Standard output is never touched.

use super::headroom::Headroom;
use super::{signals, tui};
use indicatif::{ProgressBar, ProgressStyle};
use plimsoll::plan::{in_words, time_in_words};
use plimsoll::train::{Control, Progress, Trainer};
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

/// Time between two looks at what there is to show.
const TICK: Duration = Duration::from_millis(100);
/// Time between two looks at what is left of a memory group.
const LOOK: Duration = Duration::from_millis(4);
/// How long nothing is said before a line where there is no terminal: with the time between two looks, less than a second.
const SILENCE: Duration = Duration::from_millis(800);
/// How long an activity takes before a terminal shows it, where the line goes away by itself.
const FIRST_ON_TERMINAL: Duration = Duration::from_millis(300);

/// What is done, in words.
struct Frame {
    what: &'static str,
    detail: String,
    since: Instant,
    /// When its detail was last set.
    detailed: Option<Instant>,
    /// Whether it precedes a run, so that the program can end instead.
    prepares: bool,
}

struct State {
    /// The activities, the innermost last.
    frames: Vec<Frame>,
    /// The line on the terminal, and whether it is a run's own bar.
    bar: Option<ProgressBar>,
    own: bool,
    /// When anything was last printed, or the first activity began.
    said: Option<Instant>,
}

static STATE: Mutex<State> = Mutex::new(State { frames: Vec::new(), bar: None, own: false, said: None });

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

static SILENT: AtomicBool = AtomicBool::new(false);

/// Says nothing from now on, but for hints: another process of the run says it.
pub fn silence() {
    SILENT.store(true, Ordering::Relaxed);
}

/// Whether another process says what this one does.
pub fn is_silent() -> bool {
    SILENT.load(Ordering::Relaxed)
}

/// Something that is done until this is dropped.
#[must_use]
pub struct Activity(());

/// Shows what is done from now on.
pub fn activity(what: &'static str) -> Activity {
    begin(what, false)
}

/// As [`activity`], for what precedes a run: where a memory group has no room for it, the program ends with an answer.
pub fn preparation(what: &'static str) -> Activity {
    begin(what, true)
}

fn begin(what: &'static str, prepares: bool) -> Activity {
    if is_silent() {
        return Activity(());
    }
    static TICKER: Once = Once::new();
    TICKER.call_once(|| {
        // Without a thread there is no progress to see, and nothing else changes.
        let _ = std::thread::Builder::new().name("progress".into()).stack_size(128 << 10).spawn(tick);
    });
    let now = Instant::now();
    let mut state = state();
    state.said.get_or_insert(now);
    state.frames.push(Frame { what, detail: String::new(), since: now, detailed: None, prepares });
    Activity(())
}

impl Drop for Activity {
    fn drop(&mut self) {
        let mut state = state();
        state.frames.pop();
        if let Some(bar) = state.bar.take() {
            bar.finish_and_clear();
        }
        state.own = false;
    }
}

/// Says more of what is done. The text is only made if it may be seen.
pub fn detail(text: impl FnOnce() -> String) {
    let mut state = state();
    if let Some(frame) = state.frames.last_mut()
        && frame.detailed.is_none_or(|at| at.elapsed() >= TICK)
    {
        frame.detail = text();
        frame.detailed = Some(Instant::now());
    }
}

/// Lets a run show its own bar until the activity is over.
pub fn show_bar(bar: &ProgressBar) {
    let mut state = state();
    if let Some(spinner) = state.bar.replace(bar.clone()).filter(|_| !state.own) {
        spinner.finish_and_clear();
    }
    state.own = true;
}

/// Prints something while no line of progress is on the terminal.
pub fn suspend<T>(print: impl FnOnce() -> T) -> T {
    let bar = {
        let mut state = state();
        state.said = Some(Instant::now());
        state.bar.clone()
    };
    match bar {
        Some(bar) => bar.suspend(print),
        None => print(),
    }
}

/// Whether there is a terminal that can show a line that updates.
pub fn on_terminal() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Shows progress from time to time, until the program ends.
fn tick() {
    let terminal = on_terminal();
    let mut headroom = Headroom::new();
    let mut shown = Instant::now();
    loop {
        let prepares = headroom.is_limited() && state().frames.last().is_some_and(|frame| frame.prepares);
        if prepares {
            headroom.check();
            std::thread::sleep(LOOK);
            if shown.elapsed() < TICK {
                continue;
            }
        } else {
            std::thread::sleep(TICK);
        }
        shown = Instant::now();
        if tui::tick() {
            continue;
        }
        let line = state().next_line(Instant::now(), terminal);
        if let Some(line) = line {
            let _ = writeln!(std::io::stderr(), "plimsoll: {line}");
        }
    }
}

impl State {
    /// Updates the line on the terminal, or returns the line to print where there is none.
    fn next_line(&mut self, now: Instant, terminal: bool) -> Option<String> {
        let frame = self.frames.last()?;
        let detail = if frame.detail.is_empty() { String::new() } else { format!(": {}", frame.detail) };
        let since = self.said.map_or(frame.since, |said| said.max(frame.since));
        let text = format!("{}{detail}, {}", frame.what, elapsed(now.duration_since(frame.since)));
        if terminal {
            if self.own {
                self.bar.as_ref()?.tick();
            } else if now.duration_since(since) >= FIRST_ON_TERMINAL {
                self.bar.get_or_insert_with(spinner).set_message(text);
                self.bar.as_ref()?.tick();
            }
            return None;
        }
        // Short activities, one after the other, are no reason to be silent.
        if self.said.is_some_and(|said| now.duration_since(said) < SILENCE) {
            return None;
        }
        self.said = Some(now);
        Some(text)
    }
}

/// A time in whole seconds, or in larger units.
fn elapsed(time: Duration) -> String {
    match time.as_secs() {
        seconds @ ..120 => format!("{seconds} s"),
        seconds => time_in_words(seconds.saturating_mul(1_000_000_000)),
    }
}

fn spinner() -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
        bar.set_style(style);
    }
    bar
}

/// A trainer that shows how far planning, initialising and evaluating are, and whose evaluations a signal ends.
pub fn attach(trainer: Trainer) -> Trainer {
    trainer.on_progress(|progress| {
        detail(|| in_detail(progress));
        if signals::received().is_some() { Control::Leave } else { Control::Continue }
    })
}

/// Progress in words.
fn in_detail(progress: &Progress) -> String {
    let share = |done: u64, of: Option<u64>| match of {
        Some(of) => format!("{done} of {of} examples"),
        None => format!("{done} examples"),
    };
    match *progress {
        Progress::Planning(plan) => {
            let parts = match plan.micro_batches {
                1 => "the whole batch".to_string(),
                parts => format!("{parts} micro-batches"),
            };
            let line = match plan.line_bytes {
                usize::MAX => "without a line".to_string(),
                0 => "for the smallest line".to_string(),
                line => format!("under {}", in_words(line)),
            };
            format!("plan {} {line}, {parts}, {}", plan.tried, plan.technique)
        }
        Progress::Initializing { bytes, of } => {
            format!("first values, {} of {}", in_words(bytes as usize), in_words(of as usize))
        }
        Progress::Evaluating { examples, of } => format!("evaluated {}", share(examples, of)),
        Progress::Predicting { examples, of } => format!("predicted {}", share(examples, of)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_due_after_a_second_whatever_was_begun_in_it() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let frame =
            |what, ms| Frame { what, detail: String::new(), since: at(ms), detailed: None, prepares: false };
        let mut state = State { frames: vec![frame("reading", 0)], bar: None, own: false, said: Some(start) };
        assert_eq!(state.next_line(at(700), false), None);
        // Two activities that each take less than a second.
        state.frames = vec![frame("planning", 750)];
        assert_eq!(state.next_line(at(900), false).as_deref(), Some("planning, 0 s"));
        // Lines of a long activity do not grow apart.
        let times = (1000..20_000).step_by(100);
        let lines: Vec<u64> = times.filter(|ms| state.next_line(at(*ms), false).is_some()).collect();
        assert!(lines.windows(2).all(|pair| pair[1] - pair[0] <= 1000), "{lines:?}");
        assert!(lines[0] <= 1900 && lines.len() <= 25, "{lines:?}");
    }
}
