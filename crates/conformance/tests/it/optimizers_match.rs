//! Ten steps of every optimizer against PyTorch's, and one of 8-bit Adam against bitsandbytes. Parameters and gradients are
//! defined by `scripts/freeze_optimizers.py`.

use plimsoll_conformance::{Harness, any_executor, compare, executors, formula};
use plimsoll_graph::{Builder, Graph, Init, Numerics, Role};
use plimsoll_nn::{
    AVERAGE, Adafactor, Adam, AdamW, Clip, Decay, Lion, Moments, Optimizer, Parameter, Recipe, RmsProp, Sgd,
};
use plimsoll_plan::Executor;
use plimsoll_reference::Reference;
use plimsoll_tensor::{DType, Tensor, TensorType};
use plimsoll_transform::optimize;
use serde::Deserialize;
use std::collections::BTreeMap;

const SHAPES: [(&str, &[usize]); 4] =
    [("matrix", &[6, 5]), ("vector", &[17]), ("stack", &[2, 4, 3]), ("long", &[9, 30])];

#[derive(Deserialize)]
struct Golden {
    runs: BTreeMap<String, BTreeMap<String, Vec<f64>>>,
    codes: BTreeMap<String, Codes>,
}

#[derive(Deserialize)]
struct Codes {
    codes: Vec<f64>,
    scales: Vec<f64>,
}

fn golden() -> Golden {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/optimizers.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The optimizers as in the script.
fn optimizers() -> Vec<(&'static str, Box<dyn Optimizer>)> {
    let sgd = || Sgd::new(0.1);
    let adamw = || AdamW::new(0.01).weight_decay(Decay::new(0.1));
    let adafactor = |rate| Adafactor::new(rate).eps(1e-6, 1e-3);
    vec![
        ("sgd", Box::new(sgd())),
        ("sgd_decay", Box::new(sgd().weight_decay(Decay::new(0.1)))),
        ("momentum", Box::new(sgd().momentum(0.9))),
        ("nesterov", Box::new(sgd().nesterov(0.9).weight_decay(Decay::new(0.01)))),
        ("rmsprop", Box::new(RmsProp::new(0.01).weight_decay(Decay::new(0.01)))),
        ("rmsprop_centred", Box::new(RmsProp::new(0.01).momentum(0.9).centred())),
        ("adam", Box::new(Adam::new(0.01))),
        ("adam_decay", Box::new(Adam::new(0.01).weight_decay(Decay::new(0.1)))),
        ("adamw", Box::new(adamw())),
        (
            "adamw_matrices",
            Box::new(AdamW::new(0.01).weight_decay(Decay::new(0.0).group("vectors", 0.0).group("*", 0.1))),
        ),
        ("adam_bf16", Box::new(Adam::new(0.01).moments(Moments::Half))),
        ("lion", Box::new(Lion::new(0.01).weight_decay(Decay::new(0.1)))),
        ("adafactor", Box::new(adafactor(0.05).weight_decay(Decay::new(0.01)))),
        ("adafactor_small", Box::new(adafactor(0.5))),
        ("sgd_clip_value", Box::new(Recipe::new(sgd()).clip(Clip::Value(0.25)))),
        ("sgd_clip_norm", Box::new(Recipe::new(sgd()).clip(Clip::Norm(1.5)))),
        ("sgd_clip_global_norm", Box::new(Recipe::new(sgd()).clip(Clip::GlobalNorm(2.0)))),
        ("adamw_clip_global_norm", Box::new(Recipe::new(adamw()).clip(Clip::GlobalNorm(2.0)))),
        ("momentum_average", Box::new(Recipe::new(sgd().momentum(0.9)).average(0.8))),
    ]
}

/// An optimizer step with gradients as inputs.
fn graph(optimizer: &dyn Optimizer, dtype: DType) -> Graph {
    let mut b = Builder::new(1, 1);
    let (mut parameters, mut gradients) = (Vec::new(), Vec::new());
    for (name, shape) in SHAPES {
        let ty = TensorType::new(dtype, shape);
        let value = b.state(name, ty.clone(), Role::Parameter, Init::Zeros);
        parameters.push(Parameter { name: name.into(), value });
        gradients.push(b.setting(name, ty));
    }
    let names = optimizer.setting_names().into_iter();
    let settings: Vec<_> = names.map(|name| b.setting(&name, TensorType::scalar(dtype))).collect();
    optimizer.updates(&mut b, &parameters, &gradients, &settings).unwrap();
    optimize(b.finish().unwrap(), &Numerics::default(), &[]).unwrap()
}

fn gradient(name: &str, step: u64, i: usize) -> f64 {
    (formula(&format!("{name}.g{step}"), i) - 0.5) * 2.0 * (1 + i % 7) as f64 / 4.0
}

/// The states after this many steps.
fn run(
    executor: &dyn Executor,
    dtype: DType,
    optimizer: &dyn Optimizer,
    steps: u64,
) -> BTreeMap<String, Tensor> {
    let mut harness = Harness::new(executor, graph(optimizer, dtype)).unwrap();
    harness.set_states(|name, ty| {
        let is_parameter = SHAPES.iter().any(|(parameter, _)| *parameter == name);
        let value = |i| if is_parameter { (formula(name, i) - 0.5) * 2.0 } else { 0.0 };
        Tensor::from_f64(ty.clone(), &(0..ty.shape.elements()).map(value).collect::<Vec<_>>()).unwrap()
    });
    let names = optimizer.setting_names();
    let mut settings = vec![0.0; names.len()];
    for step in 0..steps {
        optimizer.settings(step, 1.0, &mut settings);
        let input = |name: &str, ty: &TensorType| {
            let values: Vec<f64> = match names.iter().position(|setting| setting == name) {
                Some(index) => vec![settings[index]],
                None => (0..ty.shape.elements()).map(|i| gradient(name, step, i)).collect(),
            };
            Tensor::from_f64(ty.clone(), &values).unwrap()
        };
        let graph = harness.graph();
        let inputs: Vec<_> = graph.inputs.iter().map(|i| input(&i.name, graph.ty(i.value))).collect();
        harness.run(&inputs).unwrap();
    }
    harness.states().into_iter().collect()
}

/// Compares every parameter, or its average where there is one.
fn check(executor: &dyn Executor, dtype: DType, tolerance: f64) {
    let golden = golden();
    for (name, optimizer) in optimizers() {
        let found = run(executor, dtype, optimizer.as_ref(), 10);
        for (parameter, expected) in &golden.runs[name] {
            let average = format!("{parameter}/{AVERAGE}");
            let tensor = found.get(&average).unwrap_or(&found[parameter]);
            let expected = Tensor::from_f64(TensorType::new(DType::F64, tensor.ty().shape.clone()), expected);
            if let Err(difference) = compare(tensor, &expected.unwrap(), tolerance) {
                panic!("{name}: {parameter}: {difference}");
            }
        }
    }
    assert_eq!(golden.runs.len(), optimizers().len());
}

#[test]
fn the_reference_steps_as_pytorch_does_in_f64() {
    check(&Reference, DType::F64, 1e-10);
}

#[test]
pub(super) fn every_executor_steps_as_pytorch_does_in_f32() {
    executors().iter().for_each(|executor| check(&executor.on(2), DType::F32, 1e-5));
}

#[test]
fn codes_of_8_bit_adam_are_within_one_of_bitsandbytes() {
    let optimizer = Adam::new(0.01).moments(Moments::Bytes);
    let reference: Box<dyn Executor> = Box::new(Reference);
    for executor in executors().iter().map(|entry| entry.on(2)).chain([reference]) {
        let states = run(&executor, DType::F32, &optimizer, 1);
        for (moment, expected) in golden().codes {
            let codes = states[&format!("long/{moment}/codes")].to_f64();
            assert_eq!(codes.len(), expected.codes.len());
            for (i, (found, expected)) in codes.iter().zip(&expected.codes).enumerate() {
                assert!((found - expected).abs() <= 1.0, "{moment} {i}: {found}, expected {expected}");
            }
            let differ = codes.iter().zip(&expected.codes).filter(|(a, b)| a != b).count();
            assert!(differ * 50 <= codes.len(), "{moment}: {differ} of {} differ", codes.len());
            let scales = &states[&format!("long/{moment}/scales")];
            let expected = Tensor::from_f64(scales.ty().clone(), &expected.scales).unwrap();
            compare(scales, &expected, 1e-6).unwrap();
        }
    }
}

/// Ten steps with rounded moments end near those with f32 moments.
#[test]
fn rounded_moments_step_like_f32_moments() {
    let executor = any_executor();
    let whole = run(&executor, DType::F32, &Adam::new(0.01), 10);
    for (moments, tolerance) in [(Moments::Half, 2e-3), (Moments::Bytes, 2e-2)] {
        let found = run(&executor, DType::F32, &Adam::new(0.01).moments(moments), 10);
        for (name, _) in SHAPES {
            compare(&found[name], &whole[name], tolerance)
                .unwrap_or_else(|e| panic!("{moments:?} {name}: {e}"));
        }
    }
}

/// Bytes of optimizer state per parameter of a step.
fn state_bytes(optimizer: &dyn Optimizer) -> f64 {
    let mut b = Builder::new(1, 1);
    let ty = TensorType::new(DType::F32, [256, 512]);
    let value = b.state("p", ty.clone(), Role::Parameter, Init::Zeros);
    let gradient = b.setting("g", ty);
    let names = optimizer.setting_names().into_iter();
    let settings: Vec<_> = names.map(|name| b.setting(&name, TensorType::scalar(DType::F32))).collect();
    let parameters = [Parameter { name: "p".into(), value }];
    optimizer.updates(&mut b, &parameters, &[gradient], &settings).unwrap();
    let graph = b.finish().unwrap();
    let moments = graph.states.iter().filter(|s| s.role == Role::Moment);
    moments.map(|s| graph.ty(s.input).bytes()).sum::<usize>() as f64 / (256.0 * 512.0)
}

#[test]
fn states_take_the_documented_bytes() {
    let expected: [(Box<dyn Optimizer>, f64); 9] = [
        (Box::new(Sgd::new(0.1)), 0.0),
        (Box::new(Sgd::new(0.1).momentum(0.9)), 4.0),
        (Box::new(RmsProp::new(0.1)), 4.0),
        (Box::new(Adam::new(0.1)), 8.0),
        (Box::new(AdamW::new(0.1)), 8.0),
        (Box::new(Lion::new(0.1)), 4.0),
        (Box::new(Adafactor::new(0.1)), 4.0 * 768.0 / (256.0 * 512.0)),
        (Box::new(AdamW::new(0.1).moments(Moments::Half)), 4.0),
        (Box::new(AdamW::new(0.1).moments(Moments::Bytes)), 2.03125),
    ];
    for (optimizer, bytes) in expected {
        assert_eq!(state_bytes(optimizer.as_ref()), bytes, "{}", optimizer.description());
    }
}

/// Also with clipping by value and averaging.
#[test]
fn an_elementwise_update_is_one_kernel() {
    let wrapped = |optimizer: Box<dyn Optimizer>| -> Box<dyn Optimizer> {
        Box::new(Recipe::new(optimizer).clip(Clip::Value(1.0)).average(0.9))
    };
    for (name, optimizer) in optimizers() {
        let elementwise = !["norm", "adafactor", "average"].iter().any(|word| name.contains(word));
        if elementwise {
            assert_eq!(graph(optimizer.as_ref(), DType::F32).nodes.len(), SHAPES.len(), "{name}");
            assert_eq!(graph(wrapped(optimizer).as_ref(), DType::F32).nodes.len(), SHAPES.len(), "{name}");
        }
    }
}
