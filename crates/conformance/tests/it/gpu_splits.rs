//! What the bits of a GPU rest on, asked of its libraries and of our kernels: a row does not depend on the rows beside it, and a sum over
//! the batch goes on from block to block. A new driver or library that breaks this fails here.

use plimsoll_conformance::{executors, long_tests, on_emulated_cuda, on_gpu, synthetic, trained_states};
use plimsoll_nn::{AdamW, Model, Policy, Precision, step, zoo};
use plimsoll_train::Trainer;

type Make = fn() -> Box<dyn Model>;

fn mlp() -> Box<dyn Model> {
    Box::new(zoo::mlp_of(&[48], &[96, 64], 10))
}

fn lenet() -> Box<dyn Model> {
    Box::new(zoo::lenet_of([20, 20, 1], 10))
}

/// A width that large tiles divide, as products of other sizes than the mlp's.
fn gpt() -> Box<dyn Model> {
    Box::new(zoo::Gpt {
        layers: 2,
        width: 256,
        heads: 4,
        context: 128,
        vocabulary: 512,
        gpt2: false,
        key_heads: None,
        window: None,
    })
}

/// A step of `blocks` blocks of examples ends in the same bits, whole and in micro-batches.
fn splits_change_no_bits(models: &[(&str, Make)], precisions: &[Precision], blocks: usize) {
    let mut differences = Vec::new();
    for (name, make) in models {
        let block = step::example_block(make().as_ref(), &executors()[0].on(1).target().numerics());
        let batch = blocks * block;
        let data = synthetic(make().as_ref(), batch, 1, 5);
        for &precision in precisions {
            let trained = |micro_batches| {
                let trainer = Trainer::new(make(), AdamW::new(1e-2)).executor(executors()[0].on(1));
                let trainer = trainer.precision(Policy::new(precision)).line(usize::MAX).seed(9);
                trained_states(&trainer.batch(batch).steps(1).micro_batches(micro_batches), &data).unwrap()
            };
            let whole = trained(1);
            for micro_batches in [2, 4].into_iter().filter(|count| blocks.is_multiple_of(*count)) {
                let split = trained(micro_batches);
                let differing = whole.iter().zip(&split).filter(|(a, b)| a != b).map(|((state, _), _)| state);
                let differing: Vec<&String> = differing.collect();
                if !differing.is_empty() {
                    differences
                        .push(format!("{name} in {precision:?}, {micro_batches} parts: {differing:?}"));
                }
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn emulated_kernels_keep_the_bits_of_whole_batches() {
    // As code of the host, whole blocks of a GPU take long.
    if long_tests() {
        on_emulated_cuda(|| splits_change_no_bits(&[("mlp", mlp)], &[Precision::F32], 2));
    }
}

#[test]
fn a_gpu_keeps_the_bits_of_whole_batches() {
    let precisions = [Precision::F32, Precision::BF16, Precision::F16];
    on_gpu(|| splits_change_no_bits(&[("mlp", mlp), ("lenet", lenet), ("gpt", gpt)], &precisions, 4));
}
