//! Ctrl-C and SIGTERM: the first lets a run finish its step and save, the second kills.

use std::io;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// The signal that arrived, or zero.
static RECEIVED: AtomicI32 = AtomicI32::new(0);

/// The signal that asked this program to stop, if one arrived.
pub fn received() -> Option<i32> {
    Some(RECEIVED.load(Relaxed)).filter(|&signal| signal != 0)
}

/// Listens from now on. A signal that is ignored stays ignored, as for programs in the background. A file that grows past
/// the system's limit becomes an error instead of a signal.
#[cfg(unix)]
pub fn listen() -> io::Result<()> {
    use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
    use signal_hook::{flag, low_level};
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    let second = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM].into_iter().filter(|&signal| !is_ignored(signal)) {
        // Registered first, so that it runs first: it sees only what an earlier signal set.
        flag::register_conditional_default(signal, second.clone())?;
        let second = second.clone();
        let first = move || {
            RECEIVED.store(signal, Relaxed);
            second.store(true, Relaxed);
            let text = b"\nplimsoll: finishing the step and saving; once more to stop at once\n";
            // SAFETY: writes constant bytes to a file descriptor.
            unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
        };
        // SAFETY: stores to atomics and `write` may be done in a signal handler.
        unsafe { low_level::register(signal, first) }?;
    }
    flag::register(SIGXFSZ, Arc::default())?;
    Ok(())
}

/// Whether the process that started this one had a signal ignored.
#[cfg(unix)]
fn is_ignored(signal: i32) -> bool {
    // SAFETY: reads the current action into plain data, and changes none.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut action);
        action.sa_sigaction == libc::SIG_IGN
    }
}

/// There are no such signals here.
#[cfg(not(unix))]
pub fn listen() -> io::Result<()> {
    Ok(())
}
