//! Masks of pruned weights on every executor: sizes beyond a block of threads, weights that are tied or not finite, and damaged masks.

use plimsoll_conformance::{executors, random, reference_op, run_op};
use plimsoll_graph::Op;
use plimsoll_graph::op::Prune;
use plimsoll_tensor::{DType, Tensor, TensorType, kept_elements, mask_bytes};

/// An op's one result on the reference, which every executor must give to the last bit.
fn result(op: Prune, inputs: &[Tensor]) -> Tensor {
    let expected = reference_op(&Op::Prune(op.clone()), inputs).unwrap().remove(0);
    for entry in executors() {
        let found = run_op(&entry.checked(2), &Op::Prune(op.clone()), inputs, &[], 1).unwrap();
        assert!(found[0].as_bytes() == expected.as_bytes(), "{op:?} on {}", entry.name);
    }
    expected
}

fn weights(count: usize) -> Tensor {
    let ty = TensorType::new(DType::F32, [count]);
    let mut weights = random("weights", &ty, 1).to_f64();
    for (i, weight) in weights.iter_mut().enumerate() {
        match i % 100 {
            // Ties, zeros, subnormals, and what is not finite.
            0..20 => *weight = 0.25,
            20..30 => *weight = -0.0,
            30..33 => *weight *= 1e-40,
            33 => *weight = f64::NAN,
            34 => *weight = f64::NEG_INFINITY,
            _ => {}
        }
    }
    Tensor::from_f64(ty, &weights).unwrap()
}

#[test]
pub(super) fn masks_are_made_applied_and_expanded() {
    for count in [1, 7, 2049, 70_001] {
        let weights = weights(count);
        let old = random("old", &TensorType::new(DType::U8, [mask_bytes(count)]), 256);
        for sparsity in [0.0, 0.3, 0.7, 0.985, 1.0, -1.0, f64::NAN] {
            let sparsity = Tensor::from_f64(TensorType::scalar(DType::F32), &[sparsity]).unwrap();
            let mask = result(Prune::Mask, &[weights.clone(), old.clone(), sparsity]);
            let _ = result(Prune::Apply, &[weights.clone(), mask.clone()]);
            // An old mask of random bytes may have bits behind the last element; they count for nobody.
            let kept = kept_elements(mask.as_bytes(), count);
            for dtype in [DType::F32, DType::U8] {
                let values = random("values", &TensorType::new(dtype, [kept]), 256);
                let op = Prune::Expand { shape: [count].into() };
                let _ = result(op, &[values, mask.clone()]);
            }
        }
    }
}

#[test]
pub(super) fn a_mask_of_another_number_of_values_is_an_error() {
    let mask = Tensor::from_f64(TensorType::new(DType::U8, [400]), &[3.0; 400]).unwrap();
    for values in [0, 799, 801, 3200] {
        let values = random("values", &TensorType::new(DType::F32, [values]), 1);
        let op = Op::Prune(Prune::Expand { shape: [3200].into() });
        for entry in executors() {
            let error = run_op(&entry.on(2), &op, &[values.clone(), mask.clone()], &[], 1).unwrap_err();
            let named = error.contains("expand") && error.contains("mask") && error.contains("values");
            assert!(named, "{}: {error}", entry.name);
        }
    }
}
