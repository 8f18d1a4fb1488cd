//! Tests of what a machine may lack.

use std::fmt::Display;

/// What a test needs, if the machine has it; else says that it is skipped, and why.
///
/// ```
/// assert_eq!(plimsoll_testing::or_skip(Ok::<_, String>(7)), Some(7));
/// assert_eq!(plimsoll_testing::or_skip(Err::<u8, _>("this machine lacks avx512")), None);
/// ```
pub fn or_skip<T, E: Display>(found: Result<T, E>) -> Option<T> {
    found.map_err(|reason| eprintln!("skipped: {reason}")).ok()
}
