//! The quick examples show what they say.

#[path = "../examples/accumulation.rs"]
mod accumulation;
#[path = "../examples/buckets.rs"]
mod buckets;
#[path = "../examples/fine_tuning.rs"]
mod fine_tuning;
#[path = "../examples/input_pipeline.rs"]
mod input_pipeline;
#[path = "../examples/resume.rs"]
mod resume;

#[test]
fn accumulation_equals_a_large_batch_and_the_bug_every_fourth_one() {
    accumulation::main().unwrap();
}

#[test]
fn buckets_leave_padding_away_and_learn_the_same() {
    buckets::main().unwrap();
}

#[test]
fn frozen_layers_take_less_and_stay_as_they_are() {
    fine_tuning::main().unwrap();
}

#[test]
fn workers_add_buffers_and_no_copies_of_the_data() {
    input_pipeline::main().unwrap();
}

#[test]
fn a_run_in_two_pieces_ends_in_the_same_bits() {
    resume::main().unwrap();
}
