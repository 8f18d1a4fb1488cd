//! Replicas and placed layers: what exchange nodes mean, on the reference executor and on the CPU with its memory checked.

use plimsoll_conformance::{synthetic, trained_states};
use plimsoll_cpu::Cpu;
use plimsoll_nn::{AdamW, zoo};
use plimsoll_plan::Executor;
use plimsoll_reference::Reference;
use plimsoll_train::{LogicalDevices, Placement, Trainer};
use std::sync::Arc;

fn devices(count: usize, make: impl Fn() -> Arc<dyn Executor>) -> LogicalDevices {
    LogicalDevices::new((0..count).map(|_| make()).collect()).unwrap()
}

fn trainer(micro_batches: usize) -> Trainer {
    let model = zoo::mlp_of(&[11], &[17], 5);
    Trainer::new(model, AdamW::new(1e-2)).line(usize::MAX).batch(192).steps(3).micro_batches(micro_batches)
}

/// A sum of the reference executor is rounded once for each micro-batch, so six of one device are three of two.
#[test]
fn replicas_of_the_reference_have_its_bits() {
    let data = synthetic(&zoo::mlp_of(&[11], &[17], 5), 384, 32, 1);
    let one = trained_states(&trainer(6).executor(Reference), &data).unwrap();
    let two = trained_states(&trainer(3).replicas(&devices(2, || Arc::new(Reference))), &data).unwrap();
    let three = trained_states(&trainer(2).replicas(&devices(3, || Arc::new(Reference))), &data).unwrap();
    assert!(one == two && one == three);
}

#[test]
fn placed_layers_of_the_reference_have_its_bits() {
    let data = synthetic(&zoo::mlp_of(&[11], &[17], 5), 384, 32, 1);
    let place = |rules: [&str; 2]| {
        let placement = Placement::new(rules).unwrap();
        trainer(3).place(&devices(2, || Arc::new(Reference)), placement)
    };
    let one = trained_states(&trainer(3).executor(Reference), &data).unwrap();
    // Those of the first device come first.
    let sorted = |mut states: Vec<(String, Vec<u8>)>| {
        states.sort();
        states
    };
    for rules in [["*1=cpu:0", "*=cpu:1"], ["relu1=cpu:0", "*=cpu:1"]] {
        let two = trained_states(&place(rules), &data).unwrap();
        assert!(sorted(two) == sorted(one.clone()), "{rules:?}");
    }
}

#[test]
fn replicas_write_only_to_their_own_buffers() {
    let data = synthetic(&zoo::mlp_of(&[11], &[17], 5), 384, 32, 1);
    let checked = devices(3, || Arc::new(Cpu::new(1).unwrap().checked()));
    let one = trained_states(&trainer(1).executor(Cpu::new(1).unwrap()), &data).unwrap();
    assert!(one == trained_states(&trainer(2).replicas(&checked), &data).unwrap());
}
