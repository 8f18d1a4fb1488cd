//! Ctrl-C and SIGTERM: the first lets a run finish its step and save, the second kills.

#[cfg(unix)]
use std::sync::atomic::AtomicBool;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// The signal that came, or zero.
static CAME: AtomicI32 = AtomicI32::new(0);

/// Whether SIGINT and SIGTERM are listened to; one that was ignored stays so.
#[cfg(unix)]
static LISTENED: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];
/// Those signals.
#[cfg(unix)]
const SIGNALS: [libc::c_int; 2] = [libc::SIGINT, libc::SIGTERM];

/// The signal that asks this program to leave, if one came.
pub fn came() -> Option<i32> {
    Some(CAME.load(Relaxed)).filter(|&signal| signal != 0)
}

/// Listens from now on. A file that grows past the system's limit becomes an error instead of a signal.
#[cfg(unix)]
pub fn listen() {
    // SAFETY: the actions are whole, the handler only does what a handler may, and the old actions are plain data. A
    // signal that was ignored stays so, as for programs in the background.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = note as extern "C" fn(libc::c_int) as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigemptyset(&raw mut action.sa_mask);
        for (signal, listened) in SIGNALS.into_iter().zip(&LISTENED) {
            let mut old: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &raw mut old);
            if old.sa_sigaction != libc::SIG_IGN {
                listened.store(true, Relaxed);
                libc::sigaction(signal, &raw const action, std::ptr::null_mut());
            }
        }
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

/// Nothing to listen to.
#[cfg(not(unix))]
pub fn listen() {}

#[cfg(unix)]
extern "C" fn note(signal: libc::c_int) {
    CAME.store(signal, Relaxed);
    let text = b"\nplimsoll: finishing the step and saving; once more to stop at once\n";
    // SAFETY: writes constant bytes, and lets the next signal of either kind kill; both may be done in a handler.
    unsafe {
        for (signal, _) in SIGNALS.into_iter().zip(&LISTENED).filter(|(_, listened)| listened.load(Relaxed)) {
            libc::signal(signal, libc::SIG_DFL);
        }
        libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len());
    }
}
