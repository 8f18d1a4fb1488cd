//! Every example runs, in a process of its own, because its line covers the process; most check their own claims.

use std::process::Command;

/// A process with this variable runs the example; one without starts that process.
const CHILD: &str = "PLIMSOLL_EXAMPLE";

macro_rules! examples {
    ($($claim:ident: $name:ident at $path:literal),* $(,)?) => {
        $(
            #[path = $path]
            pub mod $name;

            #[test]
            fn $claim() {
                if std::env::var_os(CHILD).is_some() {
                    $name::main().unwrap();
                    return;
                }
                let test = concat!("examples::", stringify!($claim));
                let mut command = Command::new(std::env::current_exe().unwrap());
                command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CHILD, "1");
                let output = command.output().unwrap();
                let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
                assert!(output.status.success() && text[0].contains("1 passed"), "{}", text.concat());
            }
        )*

        /// The examples that run here.
        const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

examples! {
    accumulation_equals_a_large_batch_and_the_classic_bug_does_not: accumulation at "../../examples/accumulation.rs",
    buckets_skip_padding_and_learn_the_same: buckets at "../../examples/buckets.rs",
    a_layer_and_a_loss_of_ones_own_train: custom_layer at "../../examples/custom_layer.rs",
    a_loop_by_hand_trains: custom_loop at "../../examples/custom_loop.rs",
    frozen_layers_need_less_memory_and_do_not_change: fine_tuning at "../../examples/fine_tuning.rs",
    workers_add_buffers_and_no_copies_of_the_data: input_pipeline at "../../examples/input_pipeline.rs",
    low_precision_takes_less_memory: mixed_precision at "../../examples/mixed_precision.rs",
    decoding_on_the_fly_takes_less_memory: on_the_fly at "../../examples/on_the_fly.rs",
    data_larger_than_the_line_trains: out_of_core at "../../examples/out_of_core.rs",
    a_saved_model_answers_for_a_picture: predict at "../../examples/predict.rs",
    the_first_program_runs: quickstart at "../../examples/quickstart.rs",
    an_interrupted_run_resumes_to_the_same_bits: resume at "../../examples/resume.rs",
    pictures_with_masks_train: segmentation at "../../examples/segmentation.rs",
    two_replicas_equal_one_device: two_replicas at "../../examples/two_replicas.rs",
}

#[test]
fn every_example_is_tested() {
    let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/examples")).unwrap();
    let mut found: Vec<String> = folder
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    found.sort();
    assert_eq!(found, NAMES);
}
