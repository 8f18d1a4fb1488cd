//! The conformance suite: one list of executors, one list of cases, and golden numbers from PyTorch.
//!
//! - [`executors`] lists the executors under test, [`kernel_sets`] also the CPU's older instruction sets. Each must agree
//!   with the reference executor, which defines every op.
//! - [`golden_cases`] are single ops, [`golden_layers`] layers and losses with their gradients (built by [`layers`] and
//!   [`losses`]), [`golden_run`] ten training steps of a small model, [`golden_logits`] the scores of a published one. The
//!   files are in `golden/`, written by the programs in `scripts/`; weights and data are not stored but computed by
//!   [`formula`].
//! - [`Harness`] plans, verifies and runs a graph on any executor; [`check_op`] compares one op on every kernel set with the
//!   reference. [`tolerance`] bounds the rounding error of an op, [`compare`] applies the bound.
//! - [`synthetic`] and [`trained_states`] are short training runs, for tests of bit identity.

mod case;
mod compare;
mod executors;
mod harness;
mod layer;
mod layer_builders;
mod logits;
mod run;
mod training;

pub use case::{Case, golden_cases};
pub use compare::{compare, tolerance};
pub use executors::{
    ExecutorEntry, any_executor, executors, executors_of_long_tests, kernel_sets, long_tests,
    older_instruction_sets, on_emulated_cuda, on_emulated_tf32, on_gpu, on_gpu_tf32, products_of,
    widening_sets,
};
pub use harness::{Harness, cast, check_op, eager_op, random, reference_op, run_op};
pub use layer::{LayerCase, LayerInput, golden_layers};
pub use layer_builders::{BuildLayer, layers, losses};
pub use logits::{GoldenLogits, golden_logits};
pub use run::{GoldenRun, Summary, Total, formula, golden_run};
pub use training::{synthetic, trained_states};
