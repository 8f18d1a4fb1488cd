//! Planning inside a memory group: where what the process holds comes near the group's limit, the program ends with an answer, before the
//! kernel ends it without one.

use super::text::escaped_lines;
use super::{Failure, hint};
use plimsoll::memory::{anonymous, group_limit};
use plimsoll::plan::in_words;
use std::io::Write;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What the kernel needs for the process beside its anonymous pages: page tables, the code in use.
const BESIDE: usize = 1 << 20;
/// For how long growth as fast as since the last look must have room, or for as long as that look took to come.
const AHEAD: Duration = Duration::from_millis(16);

/// The JSON of a question that has its answer, while what is only useful is still looked for.
static ANSWERED: Mutex<Option<String>> = Mutex::new(None);

/// From here on the question is answered: `json` is printed where the program has to end.
pub fn answered(json: String) {
    *ANSWERED.lock().unwrap_or_else(PoisonError::into_inner) = Some(json);
}

/// What is left of the tightest memory group.
pub struct Headroom {
    limit: Option<usize>,
    held: usize,
    looked: Instant,
}

impl Headroom {
    pub fn new() -> Self {
        Self { limit: group_limit(), held: usize::MAX, looked: Instant::now() }
    }

    /// Whether there is a group to look at.
    pub fn is_limited(&self) -> bool {
        self.limit.is_some()
    }

    /// Ends the program if the next moments may take the rest.
    pub fn check(&mut self) {
        if let (Some(limit), Some(held)) = (self.limit, anonymous())
            && self.is_short(limit, held, Instant::now())
        {
            end(limit);
        }
    }

    fn is_short(&mut self, limit: usize, held: usize, now: Instant) -> bool {
        let since = now.duration_since(self.looked);
        let growth = held.saturating_sub(self.held);
        (self.held, self.looked) = (held, now);
        // On a busy machine looks come late and have seen more growth, but not faster growth.
        let ahead = AHEAD.as_secs_f64() / since.as_secs_f64().max(f64::MIN_POSITIVE);
        let coming = (growth as f64 * ahead.max(1.0)) as usize;
        held.saturating_add(coming).saturating_add(BESIDE) > limit
    }
}

/// Says why the program ends, and ends it.
fn end(limit: usize) -> ! {
    let words = in_words(limit);
    let answered = ANSWERED.lock().unwrap_or_else(PoisonError::into_inner).take();
    match &answered {
        Some(_) => hint(&format!(
            "what else would fit is not looked for: it takes more memory than this container allows, {words}"
        )),
        None => hint(&format!(
            "planning this model takes more memory than this container allows, {words}: raise its limit, make the model \
             smaller, or see outside of it what the run needs (`plimsoll plan --memory {limit}`)"
        )),
    }
    if let Some(json) = answered.filter(|json| !json.is_empty()) {
        // The main thread may be printing, too, and is not waited for.
        let _ = writeln!(std::io::stdout(), "{}", escaped_lines(&json));
    }
    std::process::exit(i32::from(Failure::memory("").status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_short_when_growth_would_fill_it() {
        let start = Instant::now();
        let mut headroom = Headroom { limit: Some(100 << 20), held: usize::MAX, looked: start };
        let mut is_short =
            |ms, mib: usize| headroom.is_short(100 << 20, mib << 20, start + Duration::from_millis(ms));
        assert!(!is_short(4, 90), "nothing is known of its growth");
        assert!(!is_short(8, 91), "4 MiB may come, and 1 beside");
        assert!(is_short(12, 95), "16 MiB may come");
        assert!(!is_short(16, 95), "it does not grow");
        assert!(!is_short(20, 60), "it shrinks");
        assert!(!is_short(120, 78), "a late look: 18 MiB came in 100 ms, as many may come");
        assert!(is_short(220, 90), "12 more, and 1 beside");
        assert!(is_short(224, 100));
    }
}
