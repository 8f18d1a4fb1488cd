//! The library through its public interface. Tests that count allocations or measure their own process are binaries of their own.

mod examples;
mod first_program;
mod gradients;
mod length_buckets;
mod non_finite_search;
mod predictor;
