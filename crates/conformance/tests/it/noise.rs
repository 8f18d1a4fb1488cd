//! Dropout and noise: their distribution, that batches and threads do not change them, and that they take no memory.

use plimsoll_conformance::{Harness, any_executor, executors, synthetic, trained_states};
use plimsoll_graph::{Builder, Graph, GraphError, Numerics, Op, ValueId};
use plimsoll_nn::{
    Activation, Dense, Dropout, EXAMPLES, GaussianNoise, Layer, Mode, Model, Net, RANDOM, Sequential, Sgd,
    SpatialDropout, step,
};
use plimsoll_plan::{Budget, Executor, plan, verify};
use plimsoll_reference::Reference;
use plimsoll_tensor::{DType, Tensor, TensorType};
use plimsoll_train::Trainer;
use plimsoll_transform::{LOSS, gradient, optimize};

/// The layer under a name with the gradient of the sum of its result: outputs `y` and `dx`.
fn graph(name: &str, layer: &dyn Layer, shape: &[usize], mode: Mode) -> Graph {
    let mut net = Net::new(Builder::new(shape[0], 1), mode, DType::F32);
    let x = net.batch_input("x", TensorType::new(DType::F32, shape));
    let y = net.scope(name, |net| layer.forward(net, x)).unwrap();
    let sum = net.sum(y, &(0..shape.len()).collect::<Vec<_>>(), true).unwrap();
    let loss = net.reshape(sum, []).unwrap();
    net.output("y", y);
    net.output(LOSS, loss);
    let mut b = net.into_builder();
    let dx = gradient(&mut b, &Numerics::default(), loss, &[x]).unwrap();
    b.output("dx", dx[0]);
    optimize(b.finish().unwrap(), &Numerics::default(), &[]).unwrap()
}

/// What random numbers depend on besides layer and element.
#[derive(Clone, Copy)]
struct Key {
    seed: i64,
    step: i64,
    first_example: usize,
}

const KEY: Key = Key { seed: 3, step: 5, first_example: 0 };

/// Result and gradient of a layer on ones.
fn on_ones(executor: &dyn Executor, graph: &Graph, key: Key) -> (Vec<f64>, Vec<f64>) {
    let value = |name: &str, ty: &TensorType| match name {
        RANDOM => vec![key.seed as f64, key.step as f64],
        EXAMPLES => (0..ty.shape[0]).map(|i| (key.first_example + i) as f64).collect(),
        _ => vec![1.0; ty.shape.elements()],
    };
    let inputs = graph.inputs.iter().map(|i| (graph.ty(i.value), i));
    let inputs: Vec<Tensor> =
        inputs.map(|(ty, i)| Tensor::from_f64(ty.clone(), &value(&i.name, ty)).unwrap()).collect();
    let outputs = Harness::new(executor, graph.clone()).unwrap().run(&inputs).unwrap();
    let named = |name: &str| outputs[graph.outputs.iter().position(|o| o.name == name).unwrap()].to_f64();
    (named("y"), named("dx"))
}

/// Whether a count of `n` draws with probability `p` lies within five deviations of its mean.
fn likely(count: usize, n: usize, p: f64) -> bool {
    (count as f64 - n as f64 * p).abs() <= 5.0 * (n as f64 * p * (1.0 - p)).sqrt()
}

#[test]
fn dropout_drops_its_share_and_scales_the_rest() {
    let shape = [40, 500];
    for rate in [0.1, 0.5, 0.9] {
        let (y, dx) = on_ones(&any_executor(), &graph("drop", &Dropout::new(rate), &shape, Mode::Train), KEY);
        let dropped = y.iter().filter(|&&v| v == 0.0).count();
        assert!(likely(dropped, y.len(), rate), "{dropped} of {} at rate {rate}", y.len());
        let scaled = f64::from((1.0 / (1.0 - rate)) as f32);
        assert!(y.iter().all(|&v| v == 0.0 || v == scaled), "kept elements are scaled by {scaled}");
        // Backward has the mask of forward.
        assert_eq!(y, dx);
        // Neighbouring elements and examples are independent.
        let both = (0..y.len() - 1).filter(|&i| y[i] == 0.0 && y[i + 1] == 0.0).count();
        assert!(likely(both, y.len() - 1, rate * rate), "{both} pairs at rate {rate}");
        let both = (0..y.len() - 500).filter(|&i| y[i] == 0.0 && y[i + 500] == 0.0).count();
        assert!(likely(both, y.len() - 500, rate * rate), "{both} pairs over examples at rate {rate}");
    }
}

#[test]
fn spatial_dropout_drops_whole_channels() {
    let shape = [50, 3, 4, 40];
    let (y, dx) =
        on_ones(&any_executor(), &graph("drop", &SpatialDropout::new(0.3), &shape, Mode::Train), KEY);
    assert_eq!(y, dx);
    let mut dropped = 0;
    for example in y.chunks(3 * 4 * 40) {
        let first = &example[..40];
        assert!(example.chunks(40).all(|position| position == first), "a channel differs between positions");
        dropped += first.iter().filter(|&&v| v == 0.0).count();
    }
    assert!(likely(dropped, 50 * 40, 0.3), "{dropped} of 2000 channels");
}

#[test]
fn gaussian_noise_has_its_mean_and_deviation() {
    let shape = [40, 500];
    let (y, dx) =
        on_ones(&any_executor(), &graph("noise", &GaussianNoise::new(0.25), &shape, Mode::Train), KEY);
    let n = y.len() as f64;
    let mean = y.iter().map(|v| v - 1.0).sum::<f64>() / n;
    let deviation = (y.iter().map(|v| (v - 1.0) * (v - 1.0)).sum::<f64>() / n).sqrt();
    // Five deviations of the estimates: σ / √n and σ / √(2n).
    assert!(mean.abs() <= 5.0 * 0.25 / n.sqrt(), "mean {mean}");
    assert!((deviation - 0.25).abs() <= 5.0 * 0.25 / (2.0 * n).sqrt(), "deviation {deviation}");
    assert!(dx.iter().all(|&v| v == 1.0), "noise has no gradient");
}

#[test]
fn noise_depends_on_seed_step_layer_and_example_only() {
    let layers: [(&dyn Layer, [usize; 2]); 3] = [
        (&Dropout::new(0.5), [8, 70]),
        (&SpatialDropout::new(0.5), [8, 70]),
        (&GaussianNoise::new(1.0), [8, 70]),
    ];
    for (executor, (layer, [examples, width])) in executors().iter().flat_map(|e| layers.map(|l| (e, l))) {
        let whole = graph("noise", layer, &[examples, width], Mode::Train);
        let (y, _) = on_ones(&executor.on(1), &whole, KEY);
        for threads in [2, 3, 7] {
            assert_eq!(on_ones(&executor.on(threads), &whole, KEY).0, y, "{threads} threads");
        }
        for (first, count) in [(0, 3), (3, 5), (7, 1)] {
            let part = graph("noise", layer, &[count, width], Mode::Train);
            let found = on_ones(&executor.on(2), &part, Key { first_example: first, ..KEY }).0;
            assert_eq!(found, y[first * width..(first + count) * width], "examples from {first}");
        }
        let others = [
            ("step", whole.clone(), Key { step: 6, ..KEY }),
            ("seed", whole.clone(), Key { seed: 4, ..KEY }),
            ("example", whole.clone(), Key { first_example: 8, ..KEY }),
            ("layer", graph("other", layer, &[examples, width], Mode::Train), KEY),
        ];
        for (what, graph, key) in others {
            assert_ne!(on_ones(&executor.on(2), &graph, key).0, y, "another {what} has the same noise");
        }
    }
    // The mask is the same to the bit on every executor.
    let dropped = graph("drop", &Dropout::new(0.5), &[8, 70], Mode::Train);
    let reference = on_ones(&Reference, &dropped, KEY);
    executors().iter().for_each(|executor| assert_eq!(on_ones(&executor.on(2), &dropped, KEY), reference));
}

/// A layer that draws twice under one name.
struct Twice;

impl Layer for Twice {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let a = Dropout::new(0.5).forward(net, x)?;
        let b = Dropout::new(0.5).forward(net, x)?;
        net.sub(a, b)
    }
}

#[test]
fn two_draws_of_a_layer_are_independent() {
    let (y, _) = on_ones(&any_executor(), &graph("twice", &Twice, &[4, 100], Mode::Train), KEY);
    let same = y.iter().filter(|&&v| v == 0.0).count();
    assert!(likely(same, 400, 0.5), "{same} of 400 are equal");
}

#[test]
fn inference_has_no_noise() {
    let layers: [&dyn Layer; 3] = [&Dropout::new(0.5), &SpatialDropout::new(0.5), &GaussianNoise::new(1.0)];
    for layer in layers {
        let graph = graph("noise", layer, &[2, 3], Mode::Infer);
        assert!(graph.nodes.iter().all(|n| !matches!(n.op, Op::Random(_))));
        assert_eq!(on_ones(&any_executor(), &graph, KEY).0, [1.0; 6]);
    }
}

/// Layers of dense, relu and what `noise` adds.
fn deep(layers: usize, noise: impl Fn(Sequential, usize) -> Sequential) -> Sequential {
    let model = (0..layers).fold(Sequential::classifier([64], 10).named("deep"), |model, i| {
        let model = model.layer(format!("dense{i}"), Dense::new(128));
        noise(model.layer(format!("relu{i}"), Activation::Relu), i)
    });
    model.layer("head", Dense::new(10))
}

fn with_dropout(layers: usize) -> Sequential {
    deep(layers, |model, i| model.layer(format!("drop{i}"), Dropout::new(0.5)))
}

/// Backward recomputes masks and dropped activations: however deep the net, one dropped activation is live at the peak.
#[test]
fn dropout_costs_no_memory_between_forward_and_backward() {
    let executor = any_executor();
    let bytes = |model: &dyn Model| {
        let graph =
            optimize(step::training(model, &Sgd::new(0.1), 256).unwrap(), &Numerics::default(), &[]).unwrap();
        let budget = Budget::new(usize::MAX, Vec::new());
        let plans = plan(&[("train".into(), graph)], executor.target(), &budget).unwrap();
        verify(&plans).unwrap();
        let states: usize = plans.states.iter().map(|s| s.ty.bytes()).sum();
        (plans.arena_bytes - states) as f64
    };
    let activation = (256 * 128 * 4) as f64;
    for layers in [8, 40] {
        let (without, with) = (bytes(&deep(layers, |model, _| model)), bytes(&with_dropout(layers)));
        let what =
            format!("{layers} layers: {with} bytes besides the states with dropout, {without} without");
        // A small allowance for alignment and the example numbers.
        assert!(with - without <= 1.1 * activation, "{what}");
        assert!(layers < 40 || with <= 1.03 * without, "{what}");
    }
}

/// States after three steps, the last on a remainder.
fn trained(executor: Box<dyn Executor>, change: impl Fn(Trainer) -> Trainer) -> Vec<(String, Vec<u8>)> {
    let model = with_dropout(3);
    let data = synthetic(&model, 160, 3, 5);
    let trainer = change(
        Trainer::new(model, Sgd::new(0.1)).executor(executor).line(usize::MAX).batch(64).steps(3).seed(9),
    );
    trained_states(&trainer, &data).unwrap()
}

#[test]
fn training_with_dropout_keeps_its_bits() {
    for executor in executors() {
        let one = trained(executor.on(1), |t| t);
        assert!(trained(executor.on(3), |t| t) == one, "threads changed the states");
        assert!(trained(executor.on(2), |t| t.micro_batches(2)) == one, "micro-batches changed the states");
        assert!(trained(executor.on(1), |t| t.seed(10)) != one, "another seed gives the same states");
    }
}
