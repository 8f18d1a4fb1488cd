//! What each field of a target's numerics changes in a model's graphs.

use plimsoll_graph::op::{Conv, Elementwise, Epilogue, MatMul};
use plimsoll_graph::{BatchRelation, Epilogues, Graph, Node, Numerics, Op, ProductType};
use plimsoll_nn::{Policy, Precision, Sgd, step, zoo};
use plimsoll_tensor::DType;
use plimsoll_transform::optimize;

const NOTHING_FUSED: Epilogues = Epilogues { bias: None, relu: false, rounding: false };

fn epilogues(change: impl FnOnce(&mut Epilogues)) -> Numerics {
    let mut numerics = Numerics::default();
    change(&mut numerics.epilogues);
    numerics
}

/// LeNet's optimized training step.
fn lenet(precision: Precision, numerics: &Numerics) -> Graph {
    let graph =
        step::training_as(&Policy::new(precision), numerics, &zoo::lenet(), &Sgd::new(0.1), 8).unwrap();
    optimize(graph, numerics, &[]).unwrap()
}

/// The epilogue of a product or convolution, and the element type of its result.
fn product(graph: &Graph, node: &Node) -> Option<(Epilogue, DType)> {
    let epilogue = match node.op {
        Op::MatMul(MatMul { epilogue, .. }) | Op::Conv(Conv::Forward { epilogue, .. }) => epilogue,
        _ => return None,
    };
    Some((epilogue, graph.ty(node.outputs[0]).dtype))
}

/// Products with a bias, with a relu, and with a result that was rounded after the bias.
fn fused(graph: &Graph) -> [usize; 3] {
    let all: Vec<_> = graph.nodes.iter().filter_map(|node| product(graph, node)).collect();
    let count = |is: fn(&(Epilogue, DType)) -> bool| all.iter().filter(|p| is(p)).count();
    [count(|p| p.0.bias), count(|p| p.0.relu), count(|p| p.0.bias && p.1.is_low())]
}

#[test]
fn the_fold_has_blocks_of_the_targets_rows() {
    let numerics = |block_rows| Numerics { block_rows, ..Numerics::default() };
    for rows in [32, 64, 100] {
        let block = step::example_block(&zoo::lenet(), &numerics(rows));
        assert_eq!(block, rows.next_power_of_two());
        let (model, policy) = (zoo::lenet(), Policy::default());
        let graphs = [
            step::training_as(&policy, &numerics(rows), &model, &Sgd::new(0.1), 8),
            step::evaluation_as(&policy, &numerics(rows), &model, 8, step::Report::Classes),
            step::prediction_as(&policy, &numerics(rows), &model, 8),
        ];
        graphs.into_iter().for_each(|graph| assert_eq!(graph.unwrap().example_block, block));
    }
    // Every position of a text is a row.
    assert_eq!(step::example_block(&zoo::Gpt::default(), &numerics(512)), 2);
}

#[test]
fn only_the_epilogues_of_the_target_are_fused() {
    for (precision, rounded) in [(Precision::F32, 0), (Precision::BF16, 5)] {
        let found = |numerics| fused(&lenet(precision, &numerics));
        assert_eq!(found(Numerics::default()), [5, 4, rounded]);
        assert_eq!(found(epilogues(|e| e.bias = None))[0], 0);
        assert_eq!(found(epilogues(|e| e.relu = false)), [5, 0, rounded]);
        assert_eq!(found(epilogues(|e| e.rounding = false))[2], 0);
        assert_eq!(found(epilogues(|e| *e = NOTHING_FUSED)), [0, 0, 0]);
    }
}

#[test]
fn a_bias_has_the_type_that_the_epilogue_takes() {
    let types = |precision, bias| {
        let graph = lenet(precision, &epilogues(|e| e.bias = Some(bias)));
        assert_eq!(fused(&graph)[0], 5);
        for (value, relation) in graph.value_ids().zip(graph.batch_relations()) {
            let low = graph.ty(value).dtype.is_low();
            assert!(
                !(low && relation == BatchRelation::Reduced),
                "a gradient of a bias is {}",
                graph.ty(value)
            );
        }
        let biased = |node: &&Node| product(&graph, node).is_some_and(|(e, _)| e.bias);
        let bias = |node: &Node| graph.ty(node.inputs[2]).dtype;
        graph.nodes.iter().filter(biased).map(bias).collect::<Vec<_>>()
    };
    for bias in [ProductType::Wide, ProductType::AsOperands] {
        assert_eq!(types(Precision::F32, bias), [DType::F32; 5]);
        assert_eq!(types(Precision::BF16, bias), [bias.of(DType::BF16); 5]);
        assert_eq!(types(Precision::F16, bias), [bias.of(DType::F16); 5]);
    }
}

#[test]
fn a_product_is_rounded_before_its_bias_where_the_target_says_so() {
    let forward = |product_before_bias| {
        let numerics = Numerics { product_before_bias, ..Numerics::default() };
        let policy = Policy::new(Precision::BF16);
        let graph = step::prediction_as(&policy, &numerics, &zoo::lenet(), 8).unwrap();
        let types: Vec<_> = graph.nodes.iter().filter_map(|node| Some(product(&graph, node)?.1)).collect();
        let fused = fused(&optimize(graph, &numerics, &[]).unwrap())[0];
        (types, fused)
    };
    assert_eq!(forward(ProductType::Wide), (vec![DType::F32; 5], 5));
    // What is rounded already gets no epilogue.
    assert_eq!(forward(ProductType::AsOperands), (vec![DType::BF16; 5], 0));
}

#[test]
fn gradients_of_a_products_input_have_the_targets_type() {
    let gradients = |input_gradient| {
        let numerics = Numerics { input_gradient, ..Numerics::default() };
        let policy = Policy::new(Precision::BF16);
        // The gradients of a gpt's queries, keys and values meet in one sum; relus and pools read stored values.
        for entry in zoo::ZOO.iter().filter(|e| ["gpt", "lenet", "resnet20", "lstm"].contains(&e.name)) {
            let model = (entry.make)(&entry.small);
            let graph = step::training_as(&policy, &numerics, model.as_ref(), &Sgd::new(0.1), 8).unwrap();
            optimize(graph, &numerics, &[]).unwrap();
        }
        let graph = step::training_as(&policy, &numerics, &zoo::lenet(), &Sgd::new(0.1), 8).unwrap();
        let loss = graph.producer(graph.output("loss").unwrap()).unwrap();
        let relations = graph.batch_relations();
        let is_input_gradient = |node: &&Node| match node.op {
            Op::MatMul(_) => relations[node.outputs[0].index()] == BatchRelation::PerExample,
            Op::Conv(Conv::InputGrad { .. }) => true,
            _ => false,
        };
        let backward = &graph.nodes[loss.index()..];
        backward.iter().filter(is_input_gradient).map(|n| graph.ty(n.outputs[0]).dtype).collect::<Vec<_>>()
    };
    assert_eq!(gradients(ProductType::AsOperands), [DType::BF16; 4]);
    assert_eq!(gradients(ProductType::Wide), [DType::F32; 4]);
}

/// A transformer's block: rounded values are cast from f32, so wide gradients pass them.
#[test]
fn wide_gradients_are_not_rounded_where_the_input_was() {
    let casts = |input_gradient| {
        let numerics = Numerics { input_gradient, ..Numerics::default() };
        let entry = zoo::ZOO.iter().find(|e| e.name == "gpt").unwrap();
        let model = (entry.make)(&entry.small);
        let policy = Policy::new(Precision::BF16);
        let graph = step::training_as(&policy, &numerics, model.as_ref(), &Sgd::new(0.1), 8).unwrap();
        let loss = graph.producer(graph.output("loss").unwrap()).unwrap();
        let is_cast = |node: &&Node| node.op == Op::Elementwise(Elementwise::Cast(DType::F32));
        graph.nodes[loss.index()..].iter().filter(is_cast).count()
    };
    let (wide, rounded) = (casts(ProductType::Wide), casts(ProductType::AsOperands));
    assert!(wide < rounded, "{wide} and {rounded} gradients are widened");
}
