//! Ctrl-C, SIGTERM, SIGHUP and an output that nobody reads any more: the first lets a run finish its step and save, the second
//! signal kills.

use super::Failure;
use super::text::escaped;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};

/// The exit status that what stopped this program asks for, or zero.
static STATUS: AtomicU8 = AtomicU8::new(0);
/// Whether a run is listening: it will save and stop by itself.
static LISTENING: AtomicBool = AtomicBool::new(false);

/// The exit status of a closed pipe, as for any filter: that of SIGPIPE.
pub const CLOSED_PIPE: u8 = 141;

/// The exit status of what asked this program to stop, if anything did.
pub fn received() -> Option<u8> {
    Some(STATUS.load(Relaxed)).filter(|&status| status != 0)
}

/// Standard output cannot be written, for which the exit status is this: a run that listens stops after its step, with a
/// checkpoint; any other program ends here.
pub fn output_lost(status: u8) {
    if !LISTENING.load(Relaxed) {
        std::process::exit(status.into());
    }
    let _ = STATUS.compare_exchange(0, status, Relaxed, Relaxed);
}

/// The signals that stop a program.
#[cfg(unix)]
pub const STOPS: [i32; 3] =
    [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP];

/// Whether a signal ends the program at once, with its exit status: until a run listens.
#[cfg(unix)]
static AT_ONCE: std::sync::OnceLock<std::sync::Arc<AtomicBool>> = std::sync::OnceLock::new();

/// Lets signals end the program at once, with an exit status of their own, also where it is the first process of a container,
/// which signals do not end by themselves. A signal that is ignored stays ignored.
#[cfg(unix)]
pub fn end_at_once() {
    let at_once = AT_ONCE.get_or_init(|| std::sync::Arc::new(AtomicBool::new(true)));
    for signal in STOPS.into_iter().filter(|&signal| !is_ignored(signal)) {
        // Without it the signal does what it does to any program.
        let _ = signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, at_once.clone());
    }
}

/// There are no such signals here.
#[cfg(not(unix))]
pub fn end_at_once() {}

/// The signals that stop a program, each with a mark that is set when it arrives: from now on they do nothing else. A signal that is
/// ignored stays ignored.
#[cfg(unix)]
pub fn collect() -> io::Result<Vec<(i32, std::sync::Arc<AtomicBool>)>> {
    let mut arrived = Vec::new();
    for signal in STOPS.into_iter().filter(|&signal| !is_ignored(signal)) {
        let mark = std::sync::Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal, mark.clone())?;
        arrived.push((signal, mark));
    }
    if let Some(at_once) = AT_ONCE.get() {
        at_once.store(false, Relaxed);
    }
    Ok(arrived)
}

/// Listens from now on. A signal that is ignored stays ignored, as for programs in the background. A file that grows past
/// the system's limit becomes an error instead of a signal.
#[cfg(unix)]
pub fn listen() -> io::Result<()> {
    listen_saying(b"\nplimsoll: stopping after this step; once more to stop at once\n")
}

#[cfg(unix)]
fn listen_saying(text: &'static [u8]) -> io::Result<()> {
    use signal_hook::consts::SIGXFSZ;
    use signal_hook::{flag, low_level};
    use std::sync::Arc;

    LISTENING.store(true, Relaxed);
    let second = Arc::new(AtomicBool::new(false));
    for signal in STOPS.into_iter().filter(|&signal| !is_ignored(signal)) {
        // Registered first, so that it runs first: it sees only what an earlier signal set.
        flag::register_conditional_default(signal, second.clone())?;
        let second = second.clone();
        let first = move || {
            STATUS.store(128 + signal as u8, Relaxed);
            second.store(true, Relaxed);
            // SAFETY: writes constant bytes to a file descriptor.
            unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
        };
        // SAFETY: stores to atomics and `write` may be done in a signal handler.
        unsafe { low_level::register(signal, first) }?;
    }
    flag::register(SIGXFSZ, Arc::default())?;
    if let Some(at_once) = AT_ONCE.get() {
        at_once.store(false, Relaxed);
    }
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
    listen_saying(b"")
}

#[cfg(not(unix))]
fn listen_saying(_: &'static [u8]) -> io::Result<()> {
    LISTENING.store(true, Relaxed);
    Ok(())
}

/// Makes a file or a folder, of which a signal leaves nothing: files that are being written are given up, and the failure says so with
/// the signal's exit status. Until then, where nothing is begun, a signal ends the program at once.
pub fn whole_or_absent<T>(out: &Path, make: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    let begun =
        listen_saying(b"\nplimsoll: stopping, and removing what is unfinished; once more to stop at once\n");
    begun.map_err(|e| Failure::run(format!("cannot listen for signals: {e}")))?;
    plimsoll::export::give_up_when(|| stopped().is_some());
    make().map_err(|failure| match stopped() {
        Some(status) => {
            let name = escaped(out.display());
            Failure { status, ..Failure::run(format!("stopped: nothing was written to {name}")) }
        }
        None => failure,
    })
}

/// The exit status of the signal that arrived, if one did.
fn stopped() -> Option<u8> {
    received().filter(|&status| status > 128 && status != CLOSED_PIPE)
}
