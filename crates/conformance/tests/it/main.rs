//! Executors against the reference, and both against frozen numbers.

mod accelerator;
mod bit_identity;
mod claims;
mod cpu_matches_reference;
mod cuda_kernels;
mod cuda_sources;
mod eager;
mod eager_networks;
mod golden_runs;
mod gradients_match;
mod instruction_sets;
mod layers_match;
mod low_precision;
mod named_axes;
mod noise;
mod numerics;
mod offload;
mod optimizers_match;
mod plans_are_lean;
mod random_shapes;
mod recipes;
mod reference_matches_frozen_numbers;
mod replicas;
mod split_batch_norm;
mod splits;
mod torch_weights;
