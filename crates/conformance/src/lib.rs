//! One list of cases for every executor, and golden numbers.
//!
//! `golden/` holds numbers frozen from another framework by the scripts beside it: [`golden_cases`] are single ops,
//! [`golden_layers`] layers and losses, [`golden_run`] ten training steps of a small model; [`formula`] makes the weights
//! and data of both again.
//! [`Harness`] runs a graph on any executor.
//! [`tolerance`] says how far an executor may be off, [`compare`] whether it is.

mod case;
mod compare;
mod harness;
mod layer;
mod run;

pub use case::{Case, golden_cases};
pub use compare::{compare, tolerance};
pub use harness::{Harness, cast, random, run_op};
pub use layer::{LayerCase, LayerInput, golden_layers};
pub use run::{GoldenRun, Summary, formula, golden_run};
