//! Graphs for targets with other numerics.

use plimsoll_conformance::{Harness, executors, random};
use plimsoll_graph::{Epilogues, Graph, Numerics, Op, ProductType};
use plimsoll_nn::{Bidirectional, Dense, Lstm, Policy, Precision, Sequential, step, zoo};
use plimsoll_plan::Executor;
use plimsoll_reference::Reference;
use plimsoll_tensor::Tensor;
use plimsoll_transform::optimize;

/// The prediction of a small perceptron with these hidden layers, in bf16.
fn graph(hidden: &[usize], numerics: &Numerics) -> Graph {
    let (model, policy) = (zoo::mlp_of(&[12], hidden, 4), Policy::new(Precision::BF16));
    let graph = step::prediction_as(&policy, numerics, &model, 8).unwrap();
    optimize(graph, numerics, &[]).unwrap()
}

fn run(executor: &dyn Executor, hidden: &[usize], numerics: &Numerics) -> Result<Vec<Tensor>, String> {
    let mut harness = Harness::new(executor, graph(hidden, numerics))?;
    harness.set_states(|name, ty| random(name, ty, 3));
    harness.run(&[random("x", &"f32[8,12]".parse().unwrap(), 4)])
}

#[test]
fn epilogues_that_are_not_fused_change_no_bit() {
    for executor in executors().iter().map(|entry| entry.on(2)) {
        let fused = run(&executor, &[16, 16], &Numerics::default()).unwrap();
        for (bias, relu, rounding) in [(true, false, true), (false, true, false), (true, true, false)] {
            let epilogues = Epilogues { bias: bias.then_some(ProductType::Wide), relu, rounding };
            let numerics = Numerics { epilogues, ..Numerics::default() };
            assert_ne!(graph(&[16, 16], &numerics), graph(&[16, 16], &Numerics::default()));
            assert_eq!(run(&executor, &[16, 16], &numerics).unwrap(), fused, "{numerics}");
        }
    }
}

/// An executor refuses a bias that its kernels would misread.
#[test]
fn a_16_bit_bias_is_added_or_refused() {
    let mut numerics = Numerics::default();
    numerics.epilogues.bias = Some(ProductType::AsOperands);
    let wide = run(&Reference, &[], &Numerics::default()).unwrap();
    let low = run(&Reference, &[], &numerics).unwrap();
    assert_ne!(low, wide);
    let is_bias = |s: &&plimsoll_graph::State| s.name.ends_with("bias");
    let graph = graph(&[], &Numerics::default());
    let bias = graph.states.iter().find(is_bias).unwrap();
    let bias = random(&bias.name, graph.ty(bias.input), 3).to_f64();
    let largest = bias.iter().fold(0.0, |most: f64, b| most.max(b.abs()));
    // The bias is rounded to 8 bits first, and what differs by that may round to the next number of 8 bits.
    for (low, wide) in low[0].to_f64().iter().zip(wide[0].to_f64()) {
        let bound = largest * 2f64.powi(-9) + wide.abs().max(low.abs()) * 2f64.powi(-7);
        assert!((low - wide).abs() <= bound, "{low} and {wide}");
    }
    for entry in executors() {
        let refused = run(&entry.on(2), &[], &numerics).unwrap_err();
        assert!(refused.contains("has no matmul"), "{refused}");
    }
}

/// Long short-term memory as one op has the outputs of the unrolled form to the bit, in both directions through the sequence.
#[test]
fn a_recurrence_is_one_op_or_unrolled() {
    let (joined, unrolled) = (Numerics::default(), Numerics { recurrences: false, ..Numerics::default() });
    let model = Sequential::classifier([5, 6], 3)
        .push(Bidirectional::new(Lstm::new(33).all()))
        .push(Lstm::new(7))
        .push(Dense::new(3));
    let predicted = |numerics: &Numerics, executor: &dyn Executor| {
        let graph = step::prediction_as(&Policy::default(), numerics, &model, 9).unwrap();
        let ops = graph.nodes.iter().filter(|node| matches!(node.op, Op::Recurrent(_))).count();
        let mut harness = Harness::new(executor, optimize(graph, numerics, &[]).unwrap()).unwrap();
        harness.set_states(|name, ty| random(name, ty, 3));
        (ops, harness.run(&[random("x", &"f32[9,5,6]".parse().unwrap(), 4)]).unwrap())
    };
    for executor in executors().iter().map(|entry| entry.on(2)) {
        let (one, wanted) = predicted(&unrolled, &executor);
        let (several, found) = predicted(&joined, &executor);
        assert_eq!((one, several), (0, 3));
        assert_eq!(found, wanted);
    }
}
