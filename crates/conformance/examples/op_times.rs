//! Times every step of a zoo model's training plan and compares it with the target's prediction.
//!
//!     cargo run --release -p plimsoll-conformance --example op_times resnet50 batch=8 image=128 threads=2
//!
//! Options: `device=cuda`, `batch`, `micro` (micro-batches), `threads`, `isa=avx2`, `optimizer=adamw`, `precision=bf16`, `repeats` (steps, of which the fastest
//! counts), `worst` (ops listed), `launches` (ops whose launches on a GPU are listed), the model's own (`image`, `context`, `width`, `layers`, `heads`, `classes`, `channels`), and
//! `save=FILE` or `from=FILE` to save measured times and to compare with saved ones.
#![allow(clippy::print_stdout, reason = "it is what the example is for")]

use plimsoll_cpu::Cpu;
use plimsoll_cpu::isa::Isa;
use plimsoll_cuda::Cuda;
use plimsoll_data::{Cursor, OpenOptions, SyntheticSpec, ValidationSplit, open};
use plimsoll_graph::Op;
use plimsoll_graph::op::Conv;
use plimsoll_nn::zoo::{ZOO, ZooOptions};
use plimsoll_nn::{AdamW, Optimizer, Policy, Precision, Sgd};
use plimsoll_plan::{Action, ExecutionPlan, Executor, KernelQuery, Step, Target};
use plimsoll_runtime::StepTimes;
use plimsoll_tensor::TensorType;
use plimsoll_train::{BatchKind, Trainer};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (name, options) = arguments.split_first().ok_or("which model of the zoo?")?;
    let text = |key: &str| options.iter().find_map(|o| o.strip_prefix(key)?.strip_prefix('='));
    let number = |key: &str| text(key).map(str::parse::<usize>).transpose();
    let entry = ZOO.iter().find(|e| e.name == name).ok_or("the zoo has no such model")?;
    let (threads, batch) = (number("threads")?.unwrap_or(2), number("batch")?.unwrap_or(entry.batch));
    let sizes = ZooOptions {
        classes: number("classes")?,
        image: number("image")?,
        channels: number("channels")?,
        context: number("context")?,
        layers: number("layers")?,
        width: number("width")?,
        heads: number("heads")?,
        key_heads: number("key_heads")?,
        window: number("window")?,
        dropout: None,
        features: None,
    };
    let optimizer: Box<dyn Optimizer> = match text("optimizer") {
        Some("adamw") => Box::new(AdamW::new(1e-4)),
        _ => Box::new(Sgd::new(1e-4).momentum(0.9)),
    };
    let model = (entry.make)(&sizes);
    let (inputs, label) = (model.inputs(), model.target());
    let data = open(
        "synthetic",
        &OpenOptions {
            context: inputs.first().and_then(|field| field.ty.shape.first().copied()).unwrap_or(1),
            synthetic: Some(SyntheticSpec { inputs, label }),
            examples: batch,
            validation: ValidationSplit::None,
            ..OpenOptions::default()
        },
    )?;
    let times = Arc::new(StepTimes::default());
    let isa = text("isa").and_then(|name| Isa::ALL.into_iter().find(|isa| isa.name() == name));
    let make = || -> Result<Box<dyn Executor>, Failure> {
        Ok(match text("device") {
            Some("cuda") => Box::new(Cuda::open(0, None)?.timed(times.clone())),
            _ => Box::new(Cpu::with_isa(threads, isa.unwrap_or_else(Isa::detect))?.timed(times.clone())),
        })
    };
    let (executor, planned_for) = (make()?, make()?);
    let target = planned_for.target();
    let trainer = Trainer::new(model, optimizer)
        .executor(executor)
        .line(usize::MAX)
        .batch(batch)
        .kinds(&[BatchKind::Train]);
    let trainer = match number("micro")? {
        Some(micro_batches) => trainer.micro_batches(micro_batches),
        None => trainer,
    };
    let trainer = match text("precision") {
        Some("bf16") => trainer.precision(Policy::new(Precision::BF16)),
        Some("f16") => trainer.precision(Policy::new(Precision::F16)),
        _ => trainer,
    };
    let plans = trainer.plan(&data)?;
    let plan = plans.plans[0].clone();
    let measured: Vec<u64> = match text("from") {
        Some(file) => {
            let saved: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(file)?)?;
            saved.iter().map(|step| step["nanoseconds"].as_u64().unwrap_or(0)).collect()
        }
        None => {
            let mut session = plans.start()?;
            let mut batches = data.train.batch(batch).start(Cursor::default())?;
            if let Some(batch) = batches.next()? {
                for _ in 0..number("repeats")?.unwrap_or(15) {
                    session.train_step(batch)?;
                }
            }
            times.of(0)
        }
    };
    if let Some(file) = text("save") {
        std::fs::write(file, serde_json::to_string(&saved(&plan, &measured))?)?;
    }
    println!("{name} × {batch}, {}", target.name());
    compare(&plan, target, &measured, number("worst")?.unwrap_or(8))?;
    if let (Some("cuda"), Some(ops)) = (text("device"), number("launches")?) {
        list_launches(&Cuda::open(0, None)?, &plan, &measured, ops)?;
    }
    Ok(())
}

/// The launches of the slowest kinds of nodes, each kind once.
fn list_launches(gpu: &Cuda, plan: &ExecutionPlan, measured: &[u64], ops: usize) -> Result<(), Failure> {
    let marks = plan.graph.batch_marks();
    let mut kinds: BTreeMap<String, (u64, usize, KernelQuery<'_>)> = BTreeMap::new();
    for (step, &nanoseconds) in plan.steps.iter().zip(measured) {
        let Action::Run { node, .. } = step.action else { continue };
        let query = KernelQuery::new(&plan.graph, &marks, plan.graph.node(node));
        let list = |types: &[&TensorType]| types.iter().map(|t| format!(" {t}")).collect::<String>();
        let name = format!("{}{} →{}", query.op.name(), list(&query.inputs), list(&query.outputs));
        let kind = kinds.entry(name).or_insert((0, 0, query));
        *kind = (kind.0 + nanoseconds, kind.1 + 1, kind.2.clone());
    }
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by_key(|(_, (nanoseconds, ..))| std::cmp::Reverse(*nanoseconds));
    for (name, (nanoseconds, count, query)) in kinds.iter().take(ops) {
        println!("{count} × {name}: {} µs", nanoseconds / 1000);
        let mut launches: BTreeMap<String, (u32, f64)> = BTreeMap::new();
        for (launch, time) in gpu.launch_times(query)? {
            let sums = launches.entry(launch).or_default();
            *sums = (sums.0 + 1, sums.1 + time.as_secs_f64() * 1e6);
        }
        for (launch, (count, microseconds)) in launches {
            println!("  {microseconds:9.1} µs in {count:4}  {launch}");
        }
    }
    Ok(())
}

/// The content of a file of saved times: each with its op.
fn saved(plan: &ExecutionPlan, measured: &[u64]) -> Vec<Value> {
    let marks = plan.graph.batch_marks();
    let save = |(step, nanoseconds): (&Step, &u64)| {
        let Action::Run { node, .. } = step.action else { return json!({ "nanoseconds": nanoseconds }) };
        let query = KernelQuery::new(&plan.graph, &marks, plan.graph.node(node));
        let list = |types: &[&TensorType]| types.iter().map(ToString::to_string).collect::<Vec<_>>();
        let (inputs, outputs) = (list(&query.inputs), list(&query.outputs));
        let fold_rows = query.fold_rows;
        json!({ "op": query.op, "inputs": inputs, "outputs": outputs, "fold_rows": fold_rows, "nanoseconds": nanoseconds })
    };
    plan.steps.iter().zip(measured).map(save).collect()
}

/// One step of the plan.
struct Line {
    family: &'static str,
    text: String,
    measured: f64,
    predicted: f64,
}

/// Prints totals by family, and the steps with the largest error.
fn compare(plan: &ExecutionPlan, target: &dyn Target, measured: &[u64], worst: usize) -> Result<(), Failure> {
    let marks = plan.graph.batch_marks();
    let mut lines = Vec::new();
    for (step, &nanoseconds) in plan.steps.iter().zip(measured) {
        let Action::Run { node, .. } = step.action else { continue };
        let node = plan.graph.node(node);
        let query = KernelQuery::new(&plan.graph, &marks, node);
        let kernel = target.kernel(&query)?;
        let list = |types: &[&TensorType]| types.iter().map(|t| format!(" {t}")).collect::<String>();
        let (reads, writes) = (list(&query.inputs), list(&query.outputs));
        let text = format!("{} {}{reads} →{writes}", node.layer, node.op.name());
        let times = if step.optimizer_step { 1.0 } else { plan.graph.micro_batches as f64 };
        let [measured, predicted] = [nanoseconds, kernel.nanoseconds].map(|ns| times * ns as f64 / 1e3);
        lines.push(Line { family: family(&node.op), text, measured, predicted });
    }
    let mut families: BTreeMap<&str, (usize, f64, f64)> = BTreeMap::new();
    for line in &lines {
        for family in [line.family, "~ whole step"] {
            let sums = families.entry(family).or_default();
            *sums = (sums.0 + 1, sums.1 + line.measured, sums.2 + line.predicted);
        }
    }
    println!("{:24} {:>6} {:>12} {:>12} {:>6}", "family", "steps", "measured µs", "predicted µs", "ratio");
    for (family, (steps, measured, predicted)) in families {
        println!("{family:24} {steps:6} {measured:12.0} {predicted:12.0} {:6.2}", predicted / measured);
    }
    lines.sort_by(|a, b| (b.measured - b.predicted).abs().total_cmp(&(a.measured - a.predicted).abs()));
    for Line { family, text, measured, predicted } in lines.iter().take(worst) {
        let ratio = predicted / measured;
        println!("  {family:22} {measured:9.1} {predicted:9.1} {ratio:5.2}  {text}");
    }
    Ok(())
}

/// The family that an op is counted under.
fn family(op: &Op) -> &'static str {
    match op {
        Op::Elementwise(_) | Op::Fused(_) => "elementwise",
        Op::Movement(_) => "movement",
        Op::Reduce(_) => "reduce",
        Op::MatMul(_) => "matmul",
        Op::Conv(Conv::Forward { .. }) => "conv forward",
        Op::Conv(Conv::InputGrad { .. }) => "conv input grad",
        Op::Conv(Conv::WeightGrad { .. }) => "conv weight grad",
        Op::Pool(_) => "pool",
        Op::Resize(_) => "resize",
        Op::Norm(_) => "norm",
        Op::Attention(_) => "attention",
        Op::Recurrent(_) => "recurrent",
        Op::Index(_) => "index",
        Op::Loss(_) => "loss",
        Op::Random(_) => "random",
        Op::Quantise(_) => "quantise",
        Op::Prune(_) => "prune",
        Op::Int8(_) => "int8",
        Op::Exchange(_) => "exchange",
    }
}
