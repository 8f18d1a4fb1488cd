//! Planning time against the size of the graph: from a model to a verified plan of its training step, phase by phase.
//!
//!     cargo run --release -p plimsoll-conformance --example planning_time
//!     cargo run --release -p plimsoll-conformance --example planning_time -- gpt 25 400
//!
//! Takes a kind (gpt by blocks, mlp by hidden layers, lstm by positions) and sizes; without, some sizes of each. `nodes` are
//! counted before the passes, `planned` after them. `us/node` is the total time per planned node: where it stays, planning is
//! linear in the graph.
#![allow(clippy::print_stdout)]

use plimsoll_cpu::{CpuTarget, isa::Isa};
use plimsoll_graph::Numerics;
use plimsoll_nn::zoo::{CharLstm, Gpt, mlp_of};
use plimsoll_nn::{AdamW, Model, step};
use plimsoll_plan::{Budget, plan, verify};
use plimsoll_transform::Pass;
use std::error::Error;
use std::time::Instant;

/// Sizes of each kind when none are named.
const SIZES: [(&str, &[usize]); 3] =
    [("gpt", &[25, 50, 100, 200, 400]), ("mlp", &[100, 300, 1000, 3000]), ("lstm", &[64, 128, 256, 512])];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let passes = Pass::ALL.map(|pass| format!("{:>10}", pass.name())).concat();
    println!(
        "{:<12}{:>8}{:>8}{:>8}{passes}{:>8}{:>8}{:>8}{:>9}",
        "", "nodes", "planned", "build", "plan", "verify", "total", "us/node"
    );
    match arguments.split_first() {
        Some((kind, sizes)) => {
            for size in sizes {
                row(kind, size.parse()?)?;
            }
        }
        None => {
            for (kind, sizes) in SIZES {
                sizes.iter().try_for_each(|&size| row(kind, size))?;
            }
        }
    }
    Ok(())
}

/// A model of a kind, and its batch size.
fn model(kind: &str, size: usize) -> Result<(Box<dyn Model>, usize), String> {
    Ok(match kind {
        "gpt" => (Box::new(Gpt { layers: size, ..Gpt::default() }), 4),
        "mlp" => (Box::new(mlp_of(&[28, 28, 1], &vec![128; size], 10)), 64),
        "lstm" => (Box::new(CharLstm { context: size, ..CharLstm::default() }), 32),
        _ => return Err(format!("unknown kind `{kind}`: gpt, mlp or lstm")),
    })
}

/// Plans a model and prints the seconds of each phase.
fn row(kind: &str, size: usize) -> Result<(), Box<dyn Error>> {
    let (model, batch) = model(kind, size)?;
    let begin = Instant::now();
    let mut graph = step::training(model.as_ref(), &AdamW::new(1e-3), batch)?;
    let built = begin.elapsed().as_secs_f64();
    let nodes = graph.nodes.len();
    let mut passes = String::new();
    for pass in Pass::ALL {
        let start = Instant::now();
        graph = pass.run(graph, &|_| Numerics::default())?;
        graph.check()?;
        passes += &format!("{:>10.2}", start.elapsed().as_secs_f64());
    }
    let planned = graph.nodes.len();
    let start = Instant::now();
    let target = CpuTarget::new(Isa::Avx2, 2);
    let plans = plan(&[("train".into(), graph)], &target, &Budget::new(usize::MAX, Vec::new()))?;
    let plan = start.elapsed().as_secs_f64();
    let start = Instant::now();
    verify(&plans)?;
    let verify = start.elapsed().as_secs_f64();
    let total = begin.elapsed().as_secs_f64();
    let name = format!("{kind} {size}");
    let each = total * 1e6 / planned as f64;
    println!(
        "{name:<12}{nodes:>8}{planned:>8}{built:>8.2}{passes}{plan:>8.2}{verify:>8.2}{total:>8.2}{each:>9.0}"
    );
    Ok(())
}
