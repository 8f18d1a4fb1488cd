//! `train --tui`: the run on the whole terminal. Losses, metrics, speed, the time left, and the memory of every space.
//!
//! Events of the run change a [`View`]; the thread that shows progress draws it a few times a second. What is printed meanwhile is
//! kept, shown, and printed when the terminal is its own again: at the end, after an error, and after a panic. Keys are not read:
//! Ctrl-C is a signal here as everywhere.

mod canvas;
mod screen;
#[cfg(unix)]
mod terminal;
#[cfg(not(unix))]
#[path = "tui/no_terminal.rs"]
mod terminal;
mod view;

pub use view::{SpaceView, View};

use super::step_progress::WAITING_BYTES;
use super::text::escaped;
use canvas::{MOST_HEIGHT, MOST_WIDTH};
use plimsoll::plan::Entry;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use terminal::Screen;

/// Entry of the load sheet.
pub const TUI: &str = "terminal";
/// Code that draws and is not resident otherwise.
const CODE_BYTES: usize = 64 << 10;
/// Time between two drawings.
const BETWEEN: Duration = Duration::from_millis(250);

struct Tui {
    screen: Screen,
    view: View,
    drawn: Option<Instant>,
    /// What was printed to standard output and standard error, in order.
    kept: Vec<(bool, String)>,
}

static STATE: Mutex<Option<Tui>> = Mutex::new(None);

fn state() -> MutexGuard<'static, Option<Tui>> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What it takes: the characters of the largest terminal that it fills, the curves and the messages.
pub fn entry() -> Entry {
    let bytes = canvas::BYTES + view::VIEW_BYTES + WAITING_BYTES + CODE_BYTES;
    Entry::new(TUI, bytes, format!("{MOST_WIDTH}×{MOST_HEIGHT} characters, curves, messages, code"))
}

/// The terminal while a run is shown on it; its own again when this is dropped.
pub struct Shown(());

/// Shows a run from now on.
pub fn start(view: View) -> io::Result<Shown> {
    let screen = Screen::open()?;
    *state() = Some(Tui { screen, view, drawn: None, kept: Vec::new() });
    Ok(Shown(()))
}

impl Drop for Shown {
    fn drop(&mut self) {
        end();
    }
}

/// Gives the terminal back, and prints what was kept.
fn end() {
    let Some(tui) = state().take() else { return };
    drop(tui.screen);
    for (to_output, text) in tui.kept {
        if to_output { super::put(&text) } else { super::aside(&text) }
    }
}

/// Gives the terminal back before a panic is reported.
pub fn end_for_panic() {
    // The thread that panics may hold the lock: the terminal is restored all the same.
    match STATE.try_lock() {
        Ok(mut state) => drop(state.take()),
        Err(_) => terminal::restore(),
    }
}

/// Whether a run is shown: what would be printed is kept.
pub fn keep(to_output: bool, text: &str) -> bool {
    let mut state = state();
    let Some(tui) = state.as_mut() else { return false };
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        tui.view.message(escaped(line));
    }
    if tui.kept.len() == view::MOST_MESSAGES {
        tui.kept.remove(0);
    }
    tui.kept.push((to_output, text.to_string()));
    true
}

/// Changes what is shown, if a run is.
pub fn update(change: impl FnOnce(&mut View)) {
    if let Some(tui) = state().as_mut() {
        change(&mut tui.view);
    }
}

/// Draws from time to time; whether a run is shown.
pub fn tick() -> bool {
    let mut state = state();
    let Some(tui) = state.as_mut() else { return false };
    if tui.drawn.is_none_or(|at| at.elapsed() >= BETWEEN) {
        tui.drawn = Some(Instant::now());
        tui.view.stopping = super::signals::received().is_some();
        // A terminal that cannot be written to is one that nobody looks at.
        let _ = tui.screen.draw(&tui.view);
    }
    true
}
