//! The CUDA kernels in the tests of the other executors' kernels: run as code of the host, and on a GPU where there is one.

use plimsoll_conformance::{on_emulated_cuda, on_gpu};

macro_rules! on_cuda {
    ($module:ident: $($test:ident),* $(,)?) => {
        mod $module {
            $(mod $test {
                #[test]
                fn emulated() {
                    super::super::on_emulated_cuda(crate::$module::$test);
                }

                #[test]
                fn on_gpu() {
                    super::super::on_gpu(crate::$module::$test);
                }
            })*
        }
    };
}

on_cuda!(cpu_matches_reference:
    golden_cases_match_in_f32,
    elementwise_over_awkward_shapes,
    movement_and_reductions_over_awkward_shapes,
    matmul_over_awkward_shapes,
    convolutions_and_pools_over_awkward_shapes,
    large_convolutions_match,
    resizing_over_awkward_shapes,
    norms_gathers_and_losses_over_awkward_shapes,
    gradient_ops_over_awkward_shapes,
    attention_over_awkward_shapes,
    attention_with_windows,
    large_attention_matches,
    masked_attention_over_awkward_shapes,
    rotary_embeddings_over_awkward_shapes,
    rotary_embeddings_work_in_place,
    attention_of_an_example_does_not_depend_on_its_batch,
    sums_over_the_batch_match_for_every_block,
    an_index_out_of_range_is_an_error_that_names_it,
    reductions_of_every_kind_over_awkward_shapes,
    large_reductions_match,
    ties_infinities_and_nan_match,
    take_put_and_one_hot_over_awkward_shapes,
    batched_matmul_over_awkward_shapes,
    every_index_op_names_an_index_out_of_range,
);

on_cuda!(pruned_weights:
    masks_are_made_applied_and_expanded,
    a_mask_of_another_number_of_values_is_an_error,
);

on_cuda!(low_precision:
    products_of_16_bits_match_the_reference,
    every_executor_trains_near_the_reference,
);

on_cuda!(layers_match:
    layers_are_pytorchs_on_every_executor,
    layers_and_their_gradients_stay_finite,
    losses_are_pytorchs_on_every_executor,
    losses_and_their_gradients_stay_finite,
);

on_cuda!(optimizers_match:
    every_executor_steps_as_pytorch_does_in_f32,
);

on_cuda!(bit_identity: kernels_that_run_as_one_have_the_bits_of_single_ones);

on_cuda!(eager:
    golden_norms_match_whole,
    tapes_give_the_golden_gradients,
    marked_batches_have_the_bits_of_a_graph,
);

on_cuda!(eager_devices:
    values_stay_under_a_line_of_device_memory,
    copies_and_their_gradients_arrive,
    an_index_out_of_range_is_told_at_the_next_read,
);

on_cuda!(eager_networks: every_executor_has_the_bits_of_a_trainer);

/// Larger models take too long as code of the host.
#[test]
fn networks_on_eager_tensors_on_gpu() {
    on_gpu(crate::eager_networks::loops_and_compiled_steps_have_the_bits_of_a_trainer);
}
