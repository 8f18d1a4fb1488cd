//! Every layer and loss against PyTorch's numbers, forward and gradient.

use plimsoll_conformance::{
    BuildLayer, Harness, LayerCase, compare, executors, golden_layers, layers, losses,
};
use plimsoll_graph::{Builder, Graph, GraphError, Numerics, Role, ValueId};
use plimsoll_nn::{Dense, Head, Loss, Mode, Net, Penalty, Sequential, Sgd, WithLoss, step};
use plimsoll_plan::Executor;
use plimsoll_reference::Reference;
use plimsoll_tensor::{DType, Tensor, TensorType};
use plimsoll_transform::{LOSS, gradient, optimize};
use std::collections::BTreeMap;

/// Golden numbers have thirteen digits, and a case sums at most a few hundred terms.
const F64: f64 = 1e-10;
/// About eighty f32 roundings, relative to the largest element of the tensor. The longest path, through a transformer block
/// and back, has some forty ops, whose errors partly cancel; half an ulp of a score of a hundred alone is 4e-6.
const F32: f64 = 1e-5;

/// The name of the graph output that is the layer's result; a gradient has the name of its input or parameter.
const RESULT: &str = "result";

/// The results of a case.
struct Found {
    output: Tensor,
    gradients: BTreeMap<String, Tensor>,
    states: BTreeMap<String, Tensor>,
}

/// Finishes a graph that has a loss, with the gradients of these inputs and of all parameters as outputs.
fn with_gradients(
    mut net: Net,
    output: ValueId,
    loss: ValueId,
    inputs: Vec<(String, ValueId)>,
) -> Result<Graph, GraphError> {
    net.output(RESULT, output);
    net.output(LOSS, loss);
    let mut b = net.into_builder();
    let parameters = b.graph().states.iter().filter(|s| s.role == Role::Parameter);
    let wanted: Vec<(String, ValueId)> =
        inputs.into_iter().chain(parameters.map(|s| (s.name.clone(), s.input))).collect();
    let values: Vec<ValueId> = wanted.iter().map(|(_, v)| *v).collect();
    for ((name, _), value) in wanted.iter().zip(gradient(&mut b, &Numerics::default(), loss, &values)?) {
        b.output(name, value);
    }
    b.finish()
}

/// Runs a graph on inputs by name.
fn run(
    executor: &dyn Executor,
    graph: Graph,
    case: &LayerCase,
    values: &BTreeMap<String, Vec<f64>>,
) -> Found {
    let fail = |e: &dyn std::fmt::Display| -> ! { panic!("{}: {e}", case.name) };
    let mut harness = Harness::new(executor, graph).unwrap_or_else(|e| fail(&e));
    harness.set_states(|name, ty| case.state(name, ty));
    let graph = harness.graph();
    let inputs = graph.inputs.iter().map(|i| (graph.ty(i.value), &values[&i.name]));
    let inputs: Vec<Tensor> =
        inputs.map(|(ty, values)| Tensor::from_f64(ty.clone(), values).unwrap()).collect();
    let names: Vec<String> = graph.outputs.iter().map(|o| o.name.clone()).collect();
    let outputs = harness.run(&inputs).unwrap_or_else(|e| fail(&e));
    let mut gradients: BTreeMap<String, Tensor> = names.into_iter().zip(outputs).collect();
    gradients.remove(LOSS);
    let output = gradients.remove(RESULT).unwrap();
    Found { output, gradients, states: harness.states().into_iter().collect() }
}

/// Compares within `relative` of a tensor's largest element. A gradient that is zero in exact arithmetic (that of a key
/// projection's bias) is compared with the largest element of all gradients.
fn check(case: &LayerCase, found: &Found, relative: f64) -> Result<(), String> {
    let near = |name: &str, found: &Tensor, expected: &Tensor| {
        compare(found, expected, relative).map_err(|e| format!("{} {name}: {e}", case.name))
    };
    near(RESULT, &found.output, &case.output)?;
    let names = |map: &BTreeMap<String, Tensor>| map.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&found.gradients), names(&case.gradients), "{}", case.name);
    let size = |t: &Tensor| t.to_f64().iter().fold(0.0, |m: f64, x| m.max(x.abs()));
    let largest = case.gradients.values().map(size).fold(0.0, f64::max);
    for (name, expected) in &case.gradients {
        let gradient = &found.gradients[name];
        if size(expected) >= 1e-9 * largest {
            near(name, gradient, expected)?;
        } else if size(gradient) > relative * largest {
            return Err(format!("{} {name}: {} is not zero", case.name, size(gradient)));
        }
    }
    case.statistics.iter().try_for_each(|(name, expected)| near(name, &found.states[name], expected))
}

/// Declares a case's inputs, floats in the net's element type.
fn declare(net: &mut Net, case: &LayerCase) -> Vec<ValueId> {
    let dtype = net.dtype;
    let ty = |ty: &TensorType| match ty.dtype {
        DType::F64 => TensorType::new(dtype, ty.shape.clone()),
        _ => ty.clone(),
    };
    case.inputs.iter().map(|i| net.batch_input(&i.name, ty(&i.ty))).collect()
}

fn inputs(case: &LayerCase) -> BTreeMap<String, Vec<f64>> {
    case.inputs.iter().map(|i| (i.name.clone(), case.input(i))).collect()
}

/// `Σ y · upstream` of a layer.
fn layer_graph(case: &LayerCase, build: &BuildLayer, dtype: DType) -> Result<Graph, GraphError> {
    let mode = if case.name.ends_with("/infer") { Mode::Infer } else { Mode::Train };
    let mut net = Net::new(Builder::new(case.inputs[0].ty.shape[0], 2), mode, dtype);
    let values = declare(&mut net, case);
    let y = build(&mut net, &values)?;
    let ty = net.ty(y).clone();
    let upstream = net.batch_input("upstream", ty);
    let product = net.mul(y, upstream)?;
    let rank = net.shape(product).rank();
    let sum = net.sum(product, &(0..rank).collect::<Vec<_>>(), true)?;
    let loss = net.reshape(sum, [])?;
    let floats = case.inputs.iter().zip(values).filter(|(i, _)| i.ty.dtype.is_float());
    let floats = floats.map(|(i, v)| (i.name.clone(), v)).collect();
    with_gradients(net, y, loss, floats)
}

fn layer_values(case: &LayerCase) -> BTreeMap<String, Vec<f64>> {
    let mut values = inputs(case);
    values.insert("upstream".into(), case.upstream());
    if let Some(mask) = values.get_mut("mask") {
        // Every position attends to itself.
        (0..mask.len()).filter(|i| i / 3 % 3 == i % 3).for_each(|i| mask[i] = 1.0);
    }
    values
}

fn cases(part: impl Fn(&str) -> bool) -> BTreeMap<String, LayerCase> {
    golden_layers().into_iter().filter(|c| part(&c.name)).map(|c| (c.name.clone(), c)).collect()
}

fn is_layer(name: &str) -> bool {
    !is_loss(name) && !name.starts_with("penalty/")
}

fn is_loss(name: &str) -> bool {
    name.starts_with("loss/")
}

/// Checks these layers or losses against their golden cases, and that every golden case is checked. In f32 the graphs are
/// optimized.
fn check_all<T>(
    executor: &dyn Executor,
    dtype: DType,
    mut cases: BTreeMap<String, LayerCase>,
    tested: Vec<(&'static str, T)>,
    graph: impl Fn(&LayerCase, &T, DType) -> Result<Graph, GraphError>,
    values: impl Fn(&LayerCase, &T) -> BTreeMap<String, Vec<f64>>,
) {
    let (passes, relative) = if dtype == DType::F32 { (true, F32) } else { (false, F64) };
    let mut failures = Vec::new();
    for (name, tested) in tested {
        let case = cases.remove(name).unwrap_or_else(|| panic!("{name} has no golden case"));
        let mut graph = graph(&case, &tested, dtype).unwrap_or_else(|e| panic!("{name}: {e}"));
        if passes {
            graph = optimize(graph, &Numerics::default(), &[]).unwrap_or_else(|e| panic!("{name}: {e}"));
        }
        let found = run(executor, graph, &case, &values(&case, &tested));
        failures.extend(check(&case, &found, relative).err());
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(cases.is_empty(), "golden and not checked: {:?}", cases.keys());
}

fn check_layers(executor: &dyn Executor, dtype: DType) {
    check_all(executor, dtype, cases(is_layer), layers(), layer_graph, |case, _| layer_values(case));
}

#[test]
fn layers_are_pytorchs_on_the_reference() {
    check_layers(&Reference, DType::F64);
}

#[test]
pub(super) fn layers_are_pytorchs_on_every_executor() {
    executors().iter().for_each(|executor| check_layers(&executor.checked(2), DType::F32));
}

/// The reference and every executor.
fn with_reference() -> Vec<Box<dyn Executor>> {
    let reference: Box<dyn Executor> = Box::new(Reference);
    executors().iter().map(|entry| entry.on(1)).chain([reference]).collect()
}

/// Large values, and rows of equal values.
#[test]
pub(super) fn layers_and_their_gradients_stay_finite() {
    let cases = cases(is_layer);
    let of_interest = ["activation/", "norm", "attention/", "lstm/", "gru/", "simple_rnn/"];
    for (name, build) in layers().into_iter().filter(|(n, _)| of_interest.iter().any(|i| n.contains(i))) {
        let case = &cases[name];
        let graph =
            optimize(layer_graph(case, &build, DType::F32).unwrap(), &Numerics::default(), &[]).unwrap();
        for (size, equal) in [(0.0, true), (100.0, false), (100.0, true), (1e4, false), (1e4, true)] {
            let mut values = layer_values(case);
            let sized = |x: f64| if equal { size } else { x.signum() * size };
            values.get_mut("x").unwrap().iter_mut().for_each(|x| *x = sized(*x));
            for executor in with_reference() {
                let found = run(&executor, graph.clone(), case, &values);
                let finite = |t: &Tensor| t.to_f64().iter().all(|x| x.is_finite());
                let all = finite(&found.output) && found.gradients.values().all(finite);
                assert!(all, "{name} at {size}: {:?} {:?}", found.output, found.gradients);
            }
        }
    }
}

fn loss_graph(case: &LayerCase, loss: &dyn Loss, dtype: DType) -> Result<Graph, GraphError> {
    let examples = case.inputs[0].ty.shape[0];
    let mut net = Net::new(Builder::new(examples, 2), Mode::Train, dtype);
    let output = net.batch_input("output", TensorType::new(dtype, case.inputs[0].ty.shape.clone()));
    let mut target = case.inputs[1].ty.clone();
    // A binary target is 0.0 or 1.0.
    if target.dtype == DType::F64 || is_binary(case) {
        target.dtype = dtype;
    }
    let rows = TensorType::new(target.dtype, target.shape[1..].to_vec());
    let rows = [&[examples], &loss.rows(&rows)[..]].concat();
    let target = net.batch_input("target", target);
    let weights = net.batch_input("weights", TensorType::new(dtype, rows));
    let total = loss.total(&mut net, &Head::Outputs(vec![output]), target, weights)?;
    with_gradients(net, total, total, vec![("output".into(), output)])
}

fn is_binary(case: &LayerCase) -> bool {
    case.inputs[1].scale == 2.0
}

fn loss_values(case: &LayerCase, loss: &dyn Loss) -> BTreeMap<String, Vec<f64>> {
    let mut values = inputs(case);
    let target = values.get_mut("target").unwrap();
    if case.name.starts_with("loss/soft_cross_entropy") || case.name.starts_with("loss/kl_divergence") {
        for row in target.chunks_mut(5) {
            let sum: f64 = row.iter().map(|x| x.exp()).sum();
            row.iter_mut().for_each(|x| *x = x.exp() / sum);
        }
    }
    if case.inputs.len() == 2 {
        // As a training step feeds labels and weights.
        let ignored = |label: f64| case.name.contains("/ignore") && label == 0.0;
        let weight = |&label: &f64| loss.label_weight(if ignored(label) { -100 } else { label as i32 });
        let weights: Vec<f64> = target.iter().map(weight).collect();
        let sum: f64 = weights.iter().sum();
        values.insert("weights".into(), weights.iter().map(|w| w / sum).collect());
    }
    values
}

fn check_losses(executor: &dyn Executor, dtype: DType) {
    check_all(
        executor,
        dtype,
        cases(is_loss),
        losses(),
        |case, loss, dtype| loss_graph(case, loss.as_ref(), dtype),
        |case, loss| loss_values(case, loss.as_ref()),
    );
}

#[test]
fn losses_are_pytorchs_on_the_reference() {
    check_losses(&Reference, DType::F64);
}

#[test]
pub(super) fn losses_are_pytorchs_on_every_executor() {
    executors().iter().for_each(|executor| check_losses(&executor.checked(2), DType::F32));
}

/// Scores whose softmax is 0 or 1 in f32, right and wrong; vectors of zero or tiny length.
#[test]
pub(super) fn losses_and_their_gradients_stay_finite() {
    let cases = cases(is_loss);
    for (name, loss) in losses() {
        let case = &cases[name];
        let graph = optimize(loss_graph(case, loss.as_ref(), DType::F32).unwrap(), &Numerics::default(), &[])
            .unwrap();
        for size in [0.0, 1e-30, 1e-7, 20.0, 100.0, 1e4] {
            let mut values = loss_values(case, loss.as_ref());
            values.get_mut("output").unwrap().iter_mut().for_each(|x| *x = x.signum() * size);
            if name.contains("cosine") || name.contains("kl_divergence") {
                let target = values.get_mut("target").unwrap();
                target[..5].fill(0.0);
                target[5..10].fill(1e-7);
            }
            for executor in with_reference() {
                let found = run(&executor, graph.clone(), case, &values);
                let numbers = [found.output.to_f64(), found.gradients["output"].to_f64()].concat();
                assert!(numbers.iter().all(|x| x.is_finite()), "{name} at {size}: {numbers:?}");
            }
        }
    }
}

/// A penalty's gradient, read from one SGD step with a learning rate of one.
#[test]
fn penalties_add_their_gradient_to_the_kernels() {
    let product = |net: &mut Net, outputs: &[ValueId], target: ValueId| -> Result<ValueId, GraphError> {
        let product = net.mul(outputs[0], target)?;
        net.sum(product, &[1], true)
    };
    let cases = cases(|name| name.starts_with("penalty/"));
    assert_eq!(cases.len(), 3);
    for (name, case) in cases {
        let (l1, l2) = match name.as_str() {
            "penalty/l1" => (0.3, 0.0),
            "penalty/l2" => (0.0, 0.2),
            _ => (0.3, 0.2),
        };
        let dense = Dense::new(2).penalty(Penalty { l1, l2 });
        let model =
            WithLoss::new(Sequential::regression([4], [2]).named("line").layer("dense", dense), product);
        let graph = step::training_in(DType::F64, &model, &Sgd::new(1.0), 3).unwrap();
        let mut harness =
            Harness::new(&Reference, optimize(graph, &Numerics::default(), &[]).unwrap()).unwrap();
        let plain = |name: &str| name.trim_start_matches("dense/").to_string();
        harness.set_states(|name, ty| case.state(&plain(name), ty));
        let before = harness.states();
        let graph = harness.graph();
        let value = |name: &str| match name {
            "inputs" => case.input(&case.inputs[0]),
            "labels" => case.upstream(),
            "weights" => vec![1.0; 3],
            _ => vec![1.0],
        };
        let inputs = graph.inputs.iter().map(|i| (graph.ty(i.value), value(&i.name)));
        let inputs: Vec<Tensor> =
            inputs.map(|(ty, values)| Tensor::from_f64(ty.clone(), &values).unwrap()).collect();
        harness.run(&inputs).unwrap();
        for ((state, before), (_, after)) in before.iter().zip(harness.states()) {
            let moved: Vec<f64> = before.to_f64().iter().zip(after.to_f64()).map(|(b, a)| b - a).collect();
            let moved = Tensor::from_f64(before.ty().clone(), &moved).unwrap();
            compare(&moved, &case.gradients[&plain(state)], F64)
                .unwrap_or_else(|e| panic!("{name} {state}: {e}"));
        }
    }
}
