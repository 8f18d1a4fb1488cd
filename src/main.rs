//! The `plimsoll` program.

mod cli;
mod heap;

use std::process::ExitCode;

/// Counts what is on the heap, and who put it there.
#[global_allocator]
static HEAP: heap::Heap = heap::Heap::new();

fn main() -> ExitCode {
    plimsoll::memory::tame_heap();
    hush_caught_panics();
    cli::run()
}

/// Says nothing of panics in libraries that read data: they are caught, and told as errors.
fn hush_caught_panics() {
    let say = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !plimsoll::data::is_guarded() {
            say(info);
        }
    }));
}
