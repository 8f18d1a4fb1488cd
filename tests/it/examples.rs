//! The quick examples run and check their own claims.

#[path = "../../examples/accumulation.rs"]
mod accumulation;
#[path = "../../examples/buckets.rs"]
pub mod buckets;
#[path = "../../examples/fine_tuning.rs"]
mod fine_tuning;
#[path = "../../examples/input_pipeline.rs"]
mod input_pipeline;
#[path = "../../examples/resume.rs"]
mod resume;

#[test]
fn accumulation_equals_a_large_batch_and_the_classic_bug_does_not() {
    accumulation::main().unwrap();
}

#[test]
fn buckets_skip_padding_and_learn_the_same() {
    buckets::main().unwrap();
}

#[test]
fn frozen_layers_need_less_memory_and_do_not_change() {
    fine_tuning::main().unwrap();
}

#[test]
fn workers_add_buffers_and_no_copies_of_the_data() {
    input_pipeline::main().unwrap();
}

#[test]
fn an_interrupted_run_resumes_to_the_same_bits() {
    resume::main().unwrap();
}
