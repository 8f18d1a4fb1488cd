//! Policies of mixed precision: which layers compute in which type, one that stays f32 by name, and a loss scale of f16 that
//! starts far too large: the scale halves, those steps are skipped, and the loss falls as in f32.
//!
//!     cargo run --release --example mixed_precision_policy

#![allow(clippy::print_stdout, reason = "an example prints")]

use plimsoll::graph::Role;
use plimsoll::nn::LossScale;
use plimsoll::prelude::*;

const LAYERS: [&str; 5] = ["conv1", "conv2", "dense1", "dense2", "dense3"];

fn trainer(policy: Policy) -> Trainer {
    Trainer::new(zoo::lenet(), AdamW::new(2e-3)).batch(64).steps(250).seed(3).precision(policy)
}

/// The type that each layer hands on, and those of all parameters.
fn types(plan: &TrainingPlan) -> (Vec<DType>, Vec<DType>) {
    let graph = &plan.plans[0].graph;
    let of = |layer: &str| {
        graph.nodes.iter().find(|node| &*node.layer == layer).map(|n| graph.ty(n.outputs[0]).dtype)
    };
    let parameters = plan.states.iter().filter(|state| state.role == Role::Parameter);
    (LAYERS.iter().filter_map(|layer| of(layer)).collect(), parameters.map(|state| state.ty.dtype).collect())
}

/// Trains; returns the test loss, and how many steps were skipped.
fn fit(data: &Dataset, policy: Policy) -> Result<(f64, u64), TrainError> {
    let mut session = trainer(policy).plan(data)?.start()?;
    let mut before = None;
    let report = session.fit_with(&mut |event| {
        if let TrainEvent::Step { step, loss, scale: Some(now), .. } = event {
            if before.is_some_and(|before| before != now.scale) {
                println!("    step {step}: loss {loss:.3}, scale {}, {} skipped", now.scale, now.skipped);
            }
            before = Some(now.scale);
        }
        Control::Continue
    })?;
    Ok((report.evaluation.loss, report.scale.map_or(0, |scale| scale.skipped)))
}

/// Compares policies, then trains with them.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let data = datasets::mnist()?;
    let kept = || Policy::new(Precision::BF16).keep_f32("dense3");
    println!("{:<24} {}   parameters", "policy", LAYERS.map(|layer| format!("{layer:<7}")).concat());
    for policy in [Policy::default(), Policy::new(Precision::BF16), kept(), Policy::new(Precision::F16)] {
        let name = policy.description();
        let (layers, parameters) = types(&trainer(policy.clone()).plan(&data)?);
        let words: Vec<String> = layers.iter().map(|ty| format!("{:<7}", ty.to_string())).collect();
        println!("{:<24} {}   f32", name.split(", loss scale").next().unwrap_or(&name), words.concat());
        let own = policy.precision.dtype();
        assert!(layers[..4].iter().all(|ty| *ty == own), "{layers:?}");
        assert_eq!(layers[4], if policy.keep.is_empty() { own } else { DType::F32 });
        assert!(parameters.len() == 10 && parameters.iter().all(|ty| *ty == DType::F32));
    }

    println!("f16, with a loss scale of 2^30 that doubles after 100 steps without overflow:");
    let scale = LossScale { initial: 2f64.powi(30), growth: 100 };
    let (f16, skipped) = fit(&data, Policy::new(Precision::F16).loss_scale(scale))?;
    let ((f32, none), (bf16, _)) = (fit(&data, Policy::default())?, fit(&data, kept())?);
    println!(
        "test loss: f32 {f32:.3}, bf16 with dense3 in f32 {bf16:.3}, f16 {f16:.3} with {skipped} steps skipped"
    );
    assert!(skipped > 0 && none == 0);
    assert!(f16 < 1.3 * f32 + 0.05 && bf16 < 1.3 * f32 + 0.05);
    Ok(())
}
