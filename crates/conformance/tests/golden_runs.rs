//! Ten training steps of the four models against PyTorch's numbers.

use plimsoll_conformance::{GoldenRun, Harness, Summary, formula, golden_run};
use plimsoll_cpu::Cpu;
use plimsoll_nn::{AdamW, Model, Optimizer, Sgd, step, zoo};
use plimsoll_plan::Executor;
use plimsoll_reference::Reference;
use plimsoll_tensor::{DType, HostTensor, TensorType};
use plimsoll_transform::optimize;

/// The models as the script has them, with their batch sizes.
fn models() -> [(&'static str, Box<dyn Model>, usize); 4] {
    let gpt = zoo::Gpt { layers: 2, width: 16, heads: 2, context: 8, vocabulary: 11, gpt2: false };
    [
        ("mlp", Box::new(zoo::mlp_of(&[12], &[16, 16], 10)), 6),
        ("lenet", Box::new(zoo::lenet_of([12, 12, 1], 10)), 4),
        ("resnet20", Box::new(zoo::resnet20_of([8, 8, 3], 10)), 8),
        ("gpt", Box::new(gpt), 3),
    ]
}

/// A state's start, as the script's header says.
fn start(name: &str, ty: &TensorType) -> HostTensor {
    let shape = &ty.shape;
    let spread = |i: usize, bound: f64| (formula(name, i) - 0.5) * 2.0 * bound;
    let value = |i: usize| match name.rsplit('/').next().unwrap_or(name) {
        "kernel" => spread(i, (1.0 / shape[..shape.rank() - 1].iter().product::<usize>() as f64).sqrt()),
        "table" => spread(i, 0.1),
        "bias" => 0.1 * (formula(name, i) - 0.5),
        "gain" => 1.0 + 0.1 * (formula(name, i) - 0.5),
        "running_variance" => 1.0,
        _ => 0.0,
    };
    HostTensor::from_f64(ty.clone(), &(0..shape.elements()).map(value).collect::<Vec<_>>()).unwrap()
}

/// What an input is in step `step`.
fn input(
    name: &str,
    ty: &TensorType,
    model: &dyn Model,
    optimizer: &dyn Optimizer,
    step: usize,
) -> HostTensor {
    let elements = ty.shape.elements();
    let classes = model.target().bound.unwrap_or(0) as f64;
    let fill = |value: &dyn Fn(usize) -> f64| (0..elements).map(value).collect::<Vec<_>>();
    let values = match name {
        "inputs" if ty.dtype.is_float() => fill(&|i| (formula(&format!("x{step}"), i) - 0.5) * 2.0),
        "inputs" => fill(&|i| (formula(&format!("x{step}"), i) * classes).floor()),
        "labels" => fill(&|i| (formula(&format!("labels{step}"), i) * classes).floor()),
        "weights" => fill(&|_| 1.0 / elements as f64),
        setting => {
            let names = optimizer.setting_names();
            let mut values = vec![0.0; names.len()];
            optimizer.settings(step as u64, 1.0, &mut values);
            let place = names.iter().position(|n| setting.ends_with(n)).expect("a setting of the optimizer");
            vec![values[place]]
        }
    };
    HostTensor::from_f64(ty.clone(), &values).unwrap()
}

/// Ten steps: the losses, and the states after them.
fn run(
    executor: &dyn Executor,
    dtype: DType,
    model: &dyn Model,
    optimizer: &dyn Optimizer,
    batch: usize,
) -> (Vec<f64>, Vec<(String, HostTensor)>) {
    let graph = step::training_in(dtype, model, optimizer, batch).unwrap();
    let mut harness = Harness::new(executor, optimize(&graph, &[]).unwrap()).unwrap();
    harness.set_states(start);
    let losses = (0..10).map(|step| {
        let graph = harness.graph();
        let types = graph.inputs.iter().map(|i| (i.name.clone(), graph.ty(i.value).clone()));
        let inputs: Vec<_> = types.map(|(name, ty)| input(&name, &ty, model, optimizer, step)).collect();
        harness.run(&inputs).unwrap()[0].to_f64()[0]
    });
    let losses = losses.collect();
    (losses, harness.states())
}

fn near(found: f64, expected: f64, tolerance: f64, what: &str) {
    let allowed = tolerance * expected.abs().max(1.0);
    assert!((found - expected).abs() <= allowed, "{what}: found {found:e}, expected {expected:e}");
}

fn check_states(golden: &GoldenRun, states: &[(String, HostTensor)], tolerance: f64, what: &str) {
    for (name, expected) in golden.parameters.iter().chain(&golden.statistics) {
        let (_, tensor) =
            states.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("{what}: no state {name}"));
        let found = Summary::of(&tensor.ty().shape, &tensor.to_f64());
        assert_eq!(found.shape, expected.shape, "{what} {name}");
        near(found.sum, expected.sum, tolerance, &format!("{what} {name} sum"));
        near(found.squares, expected.squares, tolerance, &format!("{what} {name} squares"));
        for (f, e) in found.first.iter().chain(&found.last).zip(expected.first.iter().chain(&expected.last)) {
            near(*f, *e, tolerance, &format!("{what} {name} element"));
        }
    }
}

#[test]
fn the_reference_trains_as_pytorch_does_in_f64() {
    for (name, model, batch) in models() {
        let optimizers: [(&str, Box<dyn Optimizer>); 2] =
            [("sgd", Box::new(Sgd::new(0.01).momentum(0.9))), ("adamw", Box::new(AdamW::new(1e-3)))];
        for (optimizer_name, optimizer) in optimizers {
            let golden = golden_run(name, optimizer_name);
            let (losses, states) = run(&Reference, DType::F64, model.as_ref(), optimizer.as_ref(), batch);
            for (step, (found, expected)) in losses.iter().zip(&golden.losses).enumerate() {
                near(*found, *expected, 1e-8, &format!("{name} {optimizer_name} loss of step {step}"));
            }
            check_states(&golden, &states, 1e-8, &format!("{name} {optimizer_name}"));
        }
    }
}

#[test]
fn the_cpu_trains_as_pytorch_does_in_f32_with_sgd() {
    for (name, model, batch) in models() {
        let golden = golden_run(name, "sgd");
        let optimizer = Sgd::new(0.01).momentum(0.9);
        let (losses, states) = run(&Cpu::new(2).unwrap(), DType::F32, model.as_ref(), &optimizer, batch);
        for (step, (found, expected)) in losses.iter().zip(&golden.losses).enumerate() {
            near(*found, *expected, 1e-4, &format!("{name} loss of step {step}"));
        }
        check_states(&golden, &states, 1e-4, name);
    }
}
