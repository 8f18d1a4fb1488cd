//! Parameter counts, and the graphs that the passes make of zoo models.

use super::entries::NONE;
use super::*;
use crate::{AdamW, step};
use plimsoll_graph::op::{Conv, Elementwise, Unary};
use plimsoll_graph::{Numerics, Op, Role};
use plimsoll_tensor::DType;

fn parameters(model: &dyn Model) -> usize {
    step::prediction(model, 2).unwrap().parameter_count()
}

/// Counts as published, or as PyTorch counts the same layers.
#[test]
fn parameter_counts_are_the_published_ones() {
    assert_eq!(parameters(&mlp()), 784 * 2048 + 2048 + 2048 * 2048 + 2048 + 2048 * 10 + 10);
    assert_eq!(parameters(&lenet()), 61_706);
    assert_eq!(parameters(&resnet20()), 272_474);
    assert_eq!(parameters(&Gpt::default()), 5_322_240);
    for (name, count) in [
        ("resnet18", 11_689_512),
        ("resnet50", 25_557_032),
        ("vgg16", 138_357_544),
        ("mobilenet_v2", 3_504_872),
        ("efficientnet_b0", 5_288_548),
        ("densenet121", 7_978_856),
        ("unet", 31_037_698),
        ("vit_tiny", 5_717_416),
        ("gpt2", 124_439_808),
        // BertForMaskedLM's 4 416 698 without the decoder's bias of 30 522.
        ("bert_tiny", 4_386_176),
    ] {
        let entry = ZOO.iter().find(|e| e.name == name).unwrap();
        assert_eq!(parameters((entry.make)(&ZooOptions::default()).as_ref()), count, "{name}");
    }
}

#[test]
fn every_zoo_model_builds_all_its_steps() {
    for (entry, options) in ZOO.iter().flat_map(|entry| [(entry, NONE), (entry, entry.small)]) {
        let model = (entry.make)(&options);
        assert_eq!(model.name(), entry.name);
        let train = step::training(model.as_ref(), &AdamW::new(1e-3), 4).unwrap();
        let small = plimsoll_transform::optimize(train.clone(), &Numerics::default(), &[]).unwrap();
        assert!(small.nodes.len() < train.nodes.len());
        for graph in [train, small, step::evaluation(model.as_ref(), 3, step::Report::Classes).unwrap()] {
            assert_eq!(plimsoll_graph::parse(&graph.to_string()).unwrap(), graph, "{}", entry.name);
        }
    }
}

#[test]
fn default_sizes_are_those_built_without_options() {
    for entry in &ZOO {
        let (layers, width) = entry.default_layers_and_width();
        for (name, default) in [("layers", layers), ("width", width)] {
            assert_eq!(default.is_some(), entry.options.contains(&name), "{}: {name}", entry.name);
        }
        let count = parameters((entry.make)(&ZooOptions { layers, width, ..NONE }).as_ref());
        assert_eq!(count, parameters((entry.make)(&NONE).as_ref()), "{}", entry.name);
    }
}

#[test]
fn batches_split_where_the_zoo_says_so() {
    for entry in &ZOO {
        let model = (entry.make)(&entry.small);
        let block = step::example_block(model.as_ref(), &Numerics::default());
        let graph = step::training(model.as_ref(), &AdamW::new(1e-3), block).unwrap();
        let split = plimsoll_transform::accumulate(&graph, 2);
        assert_eq!(split.is_ok(), entry.splits, "{}: {:?}", entry.name, split.err());
    }
}

fn optimized(model: &dyn Model) -> plimsoll_graph::Graph {
    let graph = step::training(model, &AdamW::new(1e-3), 4).unwrap();
    plimsoll_transform::optimize(graph, &Numerics::default(), &[]).unwrap()
}

#[test]
fn bias_and_relu_are_fused_into_the_product_before_them() {
    let graph = optimized(&lenet());
    let with_epilogue = |n: &&plimsoll_graph::Node| match &n.op {
        Op::MatMul(op) => op.epilogue.bias,
        Op::Conv(Conv::Forward { epilogue, .. }) => epilogue.bias && epilogue.relu,
        _ => false,
    };
    assert_eq!(graph.nodes.iter().filter(with_epilogue).count(), 5);
    let alone = |n: &&plimsoll_graph::Node| matches!(n.op, Op::Elementwise(Elementwise::Unary(Unary::Relu)));
    assert_eq!(graph.nodes.iter().filter(alone).count(), 0);
}

#[test]
fn a_relu_before_a_pool_saves_a_byte_mask() {
    let graph = optimized(&lenet());
    let loss = graph.producer(graph.output("loss").unwrap()).unwrap();
    let masks = graph.value_ids().filter(|&v| graph.ty(v).dtype == DType::Bool);
    let early: Vec<_> = masks.filter(|&v| graph.producer(v).is_some_and(|p| p < loss)).collect();
    let shapes: Vec<_> = early.iter().map(|&v| graph.ty(v).to_string()).collect();
    assert_eq!(shapes, ["bool[4,28,28,6]", "bool[4,10,10,16]"]);
}

#[test]
fn each_update_is_one_fused_kernel() {
    let graph = optimized(&lenet());
    let updates = graph.states.iter().filter(|s| s.role == Role::Parameter).map(|s| s.output.unwrap());
    for value in updates {
        let node = graph.node(graph.producer(value).unwrap());
        assert!(matches!(node.op, Op::Fused(_)) && node.outputs.len() == 3, "{}", node.layer);
    }
}

/// Backward recomputes norms and gelu; a block saves only the results of its products.
#[test]
fn a_transformer_block_saves_ten_activations() {
    let gpt = Gpt { layers: 3, ..Gpt::default() };
    let graph = optimized(&gpt);
    let loss = graph.producer(graph.output("loss").unwrap()).unwrap();
    let unit = 4 * 256 * 256 * 4;
    let readers = graph.readers();
    let mut kept = 0;
    for value in graph.value_ids() {
        let in_block =
            graph.producer(value).is_some_and(|p| p < loss && graph.node(p).layer.starts_with("block2"));
        let is_view = graph.producer(value).is_some_and(|p| graph.node(p).op.is_view());
        // Readers of a view read its base.
        let mut late = readers[value.index()].iter().any(|&r| r > loss);
        for &reader in &readers[value.index()] {
            let node = graph.node(reader);
            late |= node.op.is_view() && readers[node.outputs[0].index()].iter().any(|&r| r > loss);
        }
        if in_block && !is_view && late && graph.ty(value).bytes() >= unit {
            kept += graph.ty(value).bytes();
        }
    }
    // q, k, v, the attention's result, two sums of the residual stream, and four for the wide layer.
    assert_eq!(kept, 10 * unit);
}
