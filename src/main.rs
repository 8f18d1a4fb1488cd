//! The `plimsoll` program.

mod cli;
mod heap;

use std::process::ExitCode;

/// Counts what is on the heap, and who put it there.
#[global_allocator]
static HEAP: heap::Heap = heap::Heap::new();

fn main() -> ExitCode {
    plimsoll::memory::tame_heap();
    cli::run()
}
