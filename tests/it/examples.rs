//! Every example runs, in a process of its own, because its line covers the process. Examples assert their claims; here they
//! must have said what they show, too. One that takes a size runs with a smaller one.

use std::process::Command;

/// A process with this variable runs the example; one without starts that process.
const CHILD: &str = "PLIMSOLL_EXAMPLE";

macro_rules! examples {
    ($($claim:ident: $name:ident at $path:literal $(with $size:literal)?, says $words:expr;)*) => {
        $(
            #[path = $path]
            pub mod $name;

            #[test]
            fn $claim() {
                if std::env::var_os(CHILD).is_some() {
                    run!($name $($size)?).unwrap();
                    return;
                }
                let test = concat!("examples::", stringify!($claim));
                let mut command = Command::new(std::env::current_exe().unwrap());
                command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CHILD, "1");
                let output = command.output().unwrap();
                let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
                assert!(output.status.success() && text[0].contains("1 passed"), "{}", text.concat());
                let words: &[&str] = &$words;
                words.iter().for_each(|words| assert!(text[0].contains(words), "no `{words}` in {}", text[0]));
            }
        )*

        /// The examples that run here.
        const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

macro_rules! run {
    ($name:ident) => {
        $name::main()
    };
    ($name:ident $size:literal) => {{
        let _with_the_full_size = $name::main;
        $name::observe($size)
    }};
}

examples! {
    a_batch_that_does_not_fit_is_split_with_the_same_losses_or_answered: batch_too_large at "../../examples/batch_too_large.rs",
        says ["1/3 of that", "1/16: the line is", "the largest batch under"];
    buckets_skip_padding_and_learn_the_same: buckets at "../../examples/buckets.rs", says ["of the padding"];
    a_compiled_step_frees_values_at_their_last_use: compiled_step at "../../examples/compiled_step.rs",
        says ["last use, of", "the same lifetimes true, the same arena true", "bits of the eager one: true"];
    a_layer_and_a_loss_of_ones_own_train: custom_layer at "../../examples/custom_layer.rs", says [];
    a_step_is_pinned_to_a_device_and_only_its_batch_is_copied: device_pipeline at "../../examples/device_pipeline.rs",
        says ["steps of the plan compute on", "of the batch"];
    dropped_results_return_their_bytes_and_kept_ones_are_listed: eager_lifetime at "../../examples/eager_lifetime.rs" with 2000,
        says ["returned to the system:  1", "the third: matmul needs 15.3 MiB more", "eager_lifetime.rs:", "bit for bit: true"];
    a_model_leaves_as_tflite_in_floats_and_on_bytes: export_tflite at "../../examples/export_tflite.rs",
        says ["DynamicRange: ", "int8: ", "on bytes"];
    frozen_layers_need_less_memory_and_do_not_change: fine_tuning at "../../examples/fine_tuning.rs", says ["bit for bit: true"];
    workers_add_buffers_and_no_copies_of_the_data: fit_workers at "../../examples/fit_workers.rs", says ["bit for bit: true"];
    accumulation_equals_a_large_batch_and_the_classic_bug_does_not: gradient_accumulation at "../../examples/gradient_accumulation.rs",
        says ["the same parameters, bit for bit: true", "fourth batch alone gives the same bits: true"];
    image_files_larger_than_the_line_train: image_generator at "../../examples/image_generator.rs",
        says ["under a line of 64.0 MiB", "planned peak"];
    use_is_the_plan_and_a_second_process_fits: memory_line at "../../examples/memory_line.rs",
        says ["physical devices:\n    cpu:0", "a second process beside it", "the default context is in use already"];
    weights_are_not_halved_and_activations_are: mixed_precision_fit at "../../examples/mixed_precision_fit.rs",
        says ["label f32[10]", "activations"];
    policies_choose_types_by_layer_and_f16_scales_its_loss: mixed_precision_policy at "../../examples/mixed_precision_policy.rs",
        says ["bf16, dense3 in f32", "skipped"];
    a_loop_with_a_tape_trains_and_its_pipelines_bytes_are_known: pipeline_custom_loop at "../../examples/pipeline_custom_loop.rs",
        says ["known before it runs", "test accuracy"];
    a_saved_model_answers_for_a_picture: predict at "../../examples/predict.rs", says [];
    pruned_weights_are_few_and_answer_the_same: pruning at "../../examples/pruning.rs",
        says ["masks in the load sheet", "weights are left", "bit for bit: true"];
    the_first_program_runs: quickstart at "../../examples/quickstart.rs", says ["Load sheet"];
    sessions_leave_nothing_behind: repeat_sessions at "../../examples/repeat_sessions.rs",
        says ["1000 sessions opened and closed", "the same answers: true"];
    resizing_on_the_fly_takes_less_memory: resize_on_the_fly at "../../examples/resize_on_the_fly.rs",
        says ["the second epoch has other crops", "the second epoch has the same crops"];
    an_interrupted_run_resumes_to_the_same_bits: resume at "../../examples/resume.rs", says ["bit for bit: true"];
    pictures_with_masks_train: segmentation at "../../examples/segmentation.rs", says ["iou"];
    state_of_twice_the_line_trains_to_the_same_bits: state_larger_than_memory at "../../examples/state_larger_than_memory.rs",
        says ["times the line", "bit for bit: true"];
    two_replicas_equal_one_device: two_replicas at "../../examples/two_replicas.rs",
        says ["later: ", "equal one device at the global batch, bit for bit"];
}

#[test]
fn every_example_is_tested_and_in_the_documents() {
    let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/examples")).unwrap();
    let mut found: Vec<String> = folder
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    found.sort();
    assert_eq!(found, NAMES);
    let pages = [include_str!("../../docs/coming-from-tensorflow.md"), include_str!("../../docs/library.md")];
    for name in NAMES {
        assert!(pages.iter().any(|page| page.contains(&format!("`{name}`"))), "no page lists `{name}`");
    }
}
