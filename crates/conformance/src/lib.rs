//! One list of cases for every executor, and golden numbers.
//!
//! `golden/` holds numbers frozen from another framework by the scripts beside it: [`golden_cases`] are single ops,
//! [`golden_layers`] layers and losses, [`golden_run`] ten training steps of a small model, [`golden_logits`] what a
//! published one gives; [`formula`] makes their weights and data again.
//! [`Harness`] runs a graph on any executor.
//! [`tolerance`] says how far an executor may be off, [`compare`] whether it is.

mod case;
mod compare;
mod harness;
mod layer;
mod logits;
mod run;

pub use case::{Case, golden_cases};
pub use compare::{compare, tolerance};
pub use harness::{Harness, cast, random, run_op};
pub use layer::{LayerCase, LayerInput, golden_layers};
pub use logits::{GoldenLogits, golden_logits};
pub use run::{GoldenRun, Summary, Total, formula, golden_run};
