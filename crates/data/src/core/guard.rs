//! Panics of user code and of libraries become errors.

use crate::DataError;
use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic of this thread would be caught here and become an error, so that a panic hook need not report it.
///
/// ```
/// let report = std::panic::take_hook();
/// std::panic::set_hook(Box::new(move |info| {
///     if !plimsoll_data::is_guarded() {
///         report(info);
///     }
/// }));
/// assert!(!plimsoll_data::is_guarded());
/// ```
pub fn is_guarded() -> bool {
    GUARDED.try_with(Cell::get).unwrap_or(false)
}

/// Runs code that is not ours; a panic is an error.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T, DataError>) -> Result<T, DataError> {
    let outer = GUARDED.replace(true);
    let message = |panic: Box<dyn Any + Send>| {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
    };
    let done = catch_unwind(AssertUnwindSafe(work));
    GUARDED.set(outer);
    match done {
        Ok(result) => result,
        Err(panic) => Err(DataError::Panic { message: message(panic) }),
    }
}
