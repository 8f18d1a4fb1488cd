//! The terminal: another screen, no cursor and no echo until it is given back.

use super::screen::draw;
use super::view::{MOST_HEIGHT, MOST_WIDTH, View};
use crossterm::cursor::{Hide, Show};
use crossterm::execute;
use crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, size};
use ratatui::backend::CrosstermBackend;
use ratatui::layout::Rect;
use ratatui::{Terminal, TerminalOptions, Viewport};
use std::io::{self, Stderr, stderr};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

/// What the terminal was before; it is restored from signal handlers, too.
#[cfg(unix)]
static BEFORE: OnceLock<libc::termios> = OnceLock::new();
/// Whether there is anything to restore.
static OPEN: AtomicBool = AtomicBool::new(false);

pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<Stderr>>,
    area: Rect,
    stopping: bool,
}

impl Screen {
    pub fn open() -> io::Result<Self> {
        restore_on_second_signal()?;
        let area = area()?;
        echo(false);
        OPEN.store(true, SeqCst);
        let opened = execute!(stderr(), EnterAlternateScreen, Hide).and_then(|()| {
            let options = TerminalOptions { viewport: Viewport::Fixed(area) };
            Terminal::with_options(CrosstermBackend::new(stderr()), options)
        });
        match opened {
            Ok(terminal) => Ok(Self { terminal, area, stopping: false }),
            Err(error) => {
                restore();
                Err(error)
            }
        }
    }

    pub fn draw(&mut self, view: &mut View) -> io::Result<()> {
        let now = area()?;
        if now != self.area {
            self.area = now;
            self.terminal.resize(now)?;
        }
        // The handler of the signal has written to the screen.
        if view.stopping && !self.stopping {
            self.stopping = true;
            self.terminal.clear()?;
        }
        self.terminal.draw(|frame| draw(frame, view))?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// The part of the terminal that is drawn on: what the load sheet has memory for.
fn area() -> io::Result<Rect> {
    let (width, height) = size()?;
    Ok(Rect::new(0, 0, width.min(MOST_WIDTH), height.min(MOST_HEIGHT)))
}

/// Gives the terminal back.
pub(super) fn restore() {
    if OPEN.swap(false, SeqCst) {
        let _ = execute!(stderr(), Show, LeaveAlternateScreen);
        echo(true);
    }
}

/// Whether keys appear where they are typed. What the terminal was is kept; signals of keys stay as they are.
#[cfg(unix)]
fn echo(on: bool) {
    // SAFETY: reads and writes plain data of a file descriptor; without a terminal there the calls fail and nothing happens.
    unsafe {
        let mut now: libc::termios = std::mem::zeroed();
        if !on && libc::tcgetattr(libc::STDERR_FILENO, &raw mut now) == 0 {
            let before = BEFORE.get_or_init(|| now);
            let mut quiet = *before;
            quiet.c_lflag &= !(libc::ECHO | libc::ICANON);
            libc::tcsetattr(libc::STDERR_FILENO, libc::TCSANOW, &raw const quiet);
        } else if on && let Some(before) = BEFORE.get() {
            libc::tcsetattr(libc::STDERR_FILENO, libc::TCSAFLUSH, before);
        }
    }
}

#[cfg(not(unix))]
fn echo(_: bool) {}

/// A second signal ends the program at once: it gets its terminal back first. Registered before the handlers that end it.
#[cfg(unix)]
fn restore_on_second_signal() -> io::Result<()> {
    static SIGNALS: AtomicU32 = AtomicU32::new(0);
    let restore_at_second = || {
        if SIGNALS.fetch_add(1, SeqCst) > 0 && OPEN.swap(false, SeqCst) {
            let text = b"\x1b[?25h\x1b[?1049l";
            // SAFETY: `write` and `tcsetattr` may be called in a signal handler; the bytes are constant, the settings plain data.
            unsafe {
                libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len());
                if let Some(before) = BEFORE.get() {
                    libc::tcsetattr(libc::STDERR_FILENO, libc::TCSANOW, before);
                }
            }
        }
    };
    for signal in super::super::signals::STOPS {
        // SAFETY: the handler does what may be done in one, as said there.
        unsafe { signal_hook::low_level::register(signal, restore_at_second) }?;
    }
    Ok(())
}

#[cfg(not(unix))]
fn restore_on_second_signal() -> io::Result<()> {
    Ok(())
}
