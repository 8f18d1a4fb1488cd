//! Memory of the program's process: as planned, and inside a kernel limit. Not in one binary with the other tests, so that
//! those do not run beside these.

#[path = "../support/mod.rs"]
mod support;

mod data;
mod export;
mod line_holds;
mod own_program;
mod planning;
mod swap;
mod under_lines;
mod watchdog;
