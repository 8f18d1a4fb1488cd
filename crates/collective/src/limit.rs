//! Waits for other processes that cannot be left with an error.

use std::io::Write;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Does a call that waits for other processes. Where it takes longer than the time-out, this process is ended with these words and status
/// 1, and with it the run: such a call cannot be left.
pub fn within<T>(time_out: Duration, words: String, call: impl FnOnce() -> T) -> T {
    let end = move || {
        let told = format!("plimsoll: {words}\n");
        // The process ends, whether anyone reads this or not.
        let _ = std::io::stderr().write_all(told.as_bytes());
        // SAFETY: ends the process without what it has registered to run then: the library's part waits for the others, too.
        unsafe { libc::_exit(1) }
    };
    watched(time_out, end, call)
}

/// Does a call, and something else, once, where it takes too long.
fn watched<T>(time_out: Duration, late: impl FnOnce() + Send + 'static, call: impl FnOnce() -> T) -> T {
    let (_done, ends) = channel::<()>();
    let watch = move || {
        if ends.recv_timeout(time_out) == Err(RecvTimeoutError::Timeout) {
            late();
        }
    };
    // Without a thread the call is done without a time-out.
    let _ = std::thread::Builder::new().name("time-out".into()).stack_size(64 << 10).spawn(watch);
    call()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::time::Instant;

    #[test]
    fn only_a_call_that_takes_too_long_is_given_up() {
        let given_up = Arc::new(AtomicBool::new(false));
        let late = || {
            let given_up = given_up.clone();
            move || given_up.store(true, SeqCst)
        };
        assert_eq!(watched(Duration::from_millis(50), late(), || 7), 7);
        std::thread::sleep(Duration::from_millis(200));
        assert!(!given_up.load(SeqCst));

        let since = Instant::now();
        watched(Duration::from_millis(50), late(), || {
            while !given_up.load(SeqCst) && since.elapsed() < Duration::from_secs(60) {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        assert!(given_up.load(SeqCst));
    }
}
