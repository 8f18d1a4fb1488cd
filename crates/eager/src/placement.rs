//! The placement log: which op runs where, and what is copied between devices.

use crate::context::Context;
use crate::program::Program;
use crate::tensor::Tensor;
use crate::trace::current_layer;
use plimsoll_plan::in_words;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static LOGS: AtomicBool = AtomicBool::new(false);

/// From now on, writes a line to standard error for each op that runs (the op, its device, the types of its results, and its
/// [`layer`](crate::layer)), and for each copy between devices; or no longer.
pub fn log_placement(on: bool) {
    LOGS.store(on, Relaxed);
}

/// An op that ran.
#[inline]
pub(crate) fn log_op(program: &Program, context: &Context) {
    if LOGS.load(Relaxed) {
        let types: Vec<String> = program.outputs.iter().map(|output| output.ty.to_string()).collect();
        log(program.name, &context.device, &types.join(", "));
    }
}

/// A copy from a device to another.
pub(crate) fn log_copy(from: &Tensor, to: &Tensor) {
    if LOGS.load(Relaxed) {
        let moved = format!("{} from {}: {}", to.ty(), from.device(), in_words(to.ty().bytes()));
        log("copy", to.device(), &moved);
    }
}

#[allow(clippy::print_stderr, reason = "that is what was asked for")]
fn log(op: &str, device: &str, what: &str) {
    eprintln!("{device:<8} {op:<16} {what:<40} {}", current_layer());
}
