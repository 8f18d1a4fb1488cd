//! Reports of what a trainer and its sessions do besides training steps.

use crate::Control;
use plimsoll_plan::PlanningProgress;
use std::rc::Rc;

/// What is being done, and how far it is. [`crate::Trainer::on_progress`] listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A plan is searched for.
    Planning(PlanningProgress),
    /// States get their initial values.
    Initializing {
        /// Bytes written so far.
        bytes: u64,
        /// Bytes of all states that do not start as zeros.
        of: u64,
    },
    /// A part of the data is evaluated.
    Evaluating {
        /// Examples evaluated so far.
        examples: u64,
        /// Examples of the part, where it knows.
        of: Option<u64>,
    },
    /// A part of the data is predicted.
    Predicting {
        /// Examples predicted so far.
        examples: u64,
        /// Examples of the part, where it knows.
        of: Option<u64>,
    },
}

/// A listener.
pub(crate) type Listen = Rc<dyn Fn(&Progress) -> Control>;
