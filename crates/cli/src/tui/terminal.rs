//! The terminal: another screen, no cursor and no echo until it is given back.

use super::canvas::{BYTES, Canvas};
use super::screen::draw;
use super::view::View;
use std::io::{self, Write, stderr};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

/// Another screen without a cursor, and back: DEC private modes 1049 and 25.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// What the terminal was before; it is restored from signal handlers, too.
static BEFORE: OnceLock<libc::termios> = OnceLock::new();
/// Whether there is anything to restore.
static OPEN: AtomicBool = AtomicBool::new(false);

pub(super) struct Screen {
    canvas: Canvas,
    out: String,
    size: (usize, usize),
    stopping: bool,
}

impl Screen {
    pub fn open() -> io::Result<Self> {
        restore_on_second_signal()?;
        let size = size()?;
        set_echo(false);
        OPEN.store(true, SeqCst);
        let screen =
            Self { canvas: Canvas::new(), out: String::with_capacity(BYTES / 2), size, stopping: false };
        // An error drops the screen, which restores the terminal.
        stderr().write_all(ENTER.as_bytes())?;
        Ok(screen)
    }

    pub fn draw(&mut self, view: &View) -> io::Result<()> {
        let now = size()?;
        self.out.clear();
        // After another size, and after the handler of a signal has written there, nothing on the screen is what it was.
        if now != self.size || view.stopping && !self.stopping {
            (self.size, self.stopping) = (now, view.stopping);
            self.out.push_str("\x1b[2J");
        }
        draw(&mut self.canvas, now, view);
        self.canvas.write(&mut self.out);
        let mut terminal = stderr().lock();
        terminal.write_all(self.out.as_bytes()).and_then(|()| terminal.flush())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Columns and lines of the terminal.
fn size() -> io::Result<(usize, usize)> {
    // SAFETY: the call fills plain data that lives here.
    let size = unsafe {
        let mut size: libc::winsize = std::mem::zeroed();
        match libc::ioctl(libc::STDERR_FILENO, libc::TIOCGWINSZ, &raw mut size) {
            0 => size,
            _ => return Err(io::Error::last_os_error()),
        }
    };
    Ok((size.ws_col.into(), size.ws_row.into()))
}

/// Gives the terminal back.
pub(super) fn restore() {
    if OPEN.swap(false, SeqCst) {
        let _ = stderr().write_all(LEAVE.as_bytes());
        set_echo(true);
    }
}

/// Whether keys appear where they are typed. What the terminal was is kept; the keys of signals stay as they are.
fn set_echo(on: bool) {
    // SAFETY: reads and writes plain data of a file descriptor; where that is no terminal the calls fail and nothing happens.
    unsafe {
        let mut now: libc::termios = std::mem::zeroed();
        if !on && libc::tcgetattr(libc::STDERR_FILENO, &raw mut now) == 0 {
            let mut quiet = *BEFORE.get_or_init(|| now);
            quiet.c_lflag &= !(libc::ECHO | libc::ICANON);
            libc::tcsetattr(libc::STDERR_FILENO, libc::TCSANOW, &raw const quiet);
        } else if on && let Some(before) = BEFORE.get() {
            // What was typed meanwhile was for nobody.
            libc::tcsetattr(libc::STDERR_FILENO, libc::TCSAFLUSH, before);
        }
    }
}

/// A second signal ends the program at once: the terminal is given back first. To be called before [`crate::signals::listen`],
/// since handlers run in the order of their registration.
fn restore_on_second_signal() -> io::Result<()> {
    static SIGNALS: AtomicU32 = AtomicU32::new(0);
    let restore_at_second = || {
        if SIGNALS.fetch_add(1, SeqCst) > 0 && OPEN.swap(false, SeqCst) {
            // SAFETY: `write` and `tcsetattr` may be called in a signal handler; the bytes are constant, the settings plain data.
            unsafe {
                libc::write(libc::STDERR_FILENO, LEAVE.as_ptr().cast(), LEAVE.len());
                if let Some(before) = BEFORE.get() {
                    libc::tcsetattr(libc::STDERR_FILENO, libc::TCSANOW, before);
                }
            }
        }
    };
    for signal in crate::signals::STOPS {
        // SAFETY: the handler does only what may be done in one.
        unsafe { signal_hook::low_level::register(signal, restore_at_second) }?;
    }
    Ok(())
}
