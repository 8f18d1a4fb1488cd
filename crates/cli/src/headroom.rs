//! Planning inside a memory group: where what the process holds comes near the group's limit, the program ends with an answer, before the
//! kernel ends it without one.

use super::text::escaped_lines;
use super::{Failure, hint};
use plimsoll::memory::{anonymous, group_limit};
use plimsoll::plan::in_words;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

/// What the kernel needs for the process beside its anonymous pages: page tables, the code in use.
const BESIDE: usize = 1 << 20;
/// As many intervals as the last one's growth must leave room for: a look may come late.
const AHEAD: usize = 4;

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
}

impl Headroom {
    pub fn new() -> Self {
        Self { limit: group_limit(), held: usize::MAX }
    }

    /// Whether there is a group to look at.
    pub fn is_limited(&self) -> bool {
        self.limit.is_some()
    }

    /// Ends the program if the next moments may take the rest.
    pub fn check(&mut self) {
        if let (Some(limit), Some(held)) = (self.limit, anonymous())
            && self.is_short(limit, held)
        {
            end(limit);
        }
    }

    fn is_short(&mut self, limit: usize, held: usize) -> bool {
        let growth = held.saturating_sub(self.held);
        self.held = held;
        held.saturating_add(AHEAD * growth).saturating_add(BESIDE) > limit
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
        let mut headroom = Headroom { limit: Some(100 << 20), held: usize::MAX };
        let mib = |n: usize| n << 20;
        assert!(!headroom.is_short(mib(100), mib(90)), "nothing is known of its growth");
        assert!(!headroom.is_short(mib(100), mib(91)), "4 MiB may come, and 1 beside");
        assert!(headroom.is_short(mib(100), mib(95)), "16 MiB may come");
        assert!(!headroom.is_short(mib(100), mib(95)), "it does not grow");
        assert!(!headroom.is_short(mib(100), mib(60)), "it shrinks");
        assert!(headroom.is_short(mib(100), mib(100)));
    }
}
