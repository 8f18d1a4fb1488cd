//! Ctrl-C and SIGTERM: the first lets a run finish its step and save, the second kills.

use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// The signal that came, or zero.
static CAME: AtomicI32 = AtomicI32::new(0);

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
        for signal in [libc::SIGINT, libc::SIGTERM] {
            let mut old: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, &raw const action, &raw mut old);
            if old.sa_sigaction == libc::SIG_IGN {
                libc::sigaction(signal, &raw const old, std::ptr::null_mut());
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
        libc::signal(libc::SIGINT, libc::SIG_DFL);
        libc::signal(libc::SIGTERM, libc::SIG_DFL);
        libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len());
    }
}
