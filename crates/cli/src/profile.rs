//! `train --profile`: the time of a step by layer and by kernel, beside what the target predicts for it.

use super::text::escaped;
use plimsoll::plan::{Action, ExecutionPlan, KernelQuery, Target};
use plimsoll::runtime::StepTimes;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Rows of a table; the rest is one row.
const MOST_ROWS: usize = 12;

/// Sums over some steps of a plan, for one run of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sums {
    calls: u64,
    nanoseconds: f64,
    predicted: f64,
    flops: f64,
    bytes: f64,
}

impl Sums {
    fn add(&mut self, other: Self) {
        self.calls += other.calls;
        self.nanoseconds += other.nanoseconds;
        self.predicted += other.predicted;
        self.flops += other.flops;
        self.bytes += other.bytes;
    }

    fn to_json(self, name: &str) -> Value {
        json!({
            "name": name, "calls": self.calls, "ns": self.nanoseconds, "predicted_ns": self.predicted, "flops": self.flops,
            "bytes": self.bytes,
        })
    }
}

/// A profile of the training step.
pub struct Profile {
    /// Runs of which the shortest time of each step counts.
    steps: u64,
    plan: String,
    layers: Vec<(String, Sums)>,
    kernels: Vec<(String, Sums)>,
    whole: Sums,
}

impl Profile {
    /// The profile of a plan of which `times` holds the shortest time of each step.
    pub fn new(steps: u64, plan: &ExecutionPlan, target: &dyn Target, times: &[u64]) -> Self {
        let marks = plan.graph.batch_marks();
        let (mut layers, mut kernels) = (BTreeMap::<String, Sums>::new(), BTreeMap::<String, Sums>::new());
        let mut whole = Sums::default();
        let measured = plan.steps.iter().zip(times).filter(|(_, time)| **time != u64::MAX);
        for (step, &time) in measured {
            let runs = if step.optimizer_step { 1 } else { plan.graph.micro_batches as u64 };
            let of = |ns: u64| (runs * ns) as f64;
            let mut sums = Sums { calls: runs, nanoseconds: of(time), ..Sums::default() };
            let (layer, kernel) = match step.action {
                Action::Run { node, .. } | Action::ChunkedUpdate { node, .. } => {
                    let node = plan.graph.node(node);
                    let query = KernelQuery::new(&plan.graph, &marks, node);
                    sums.predicted = target.kernel(&query).map_or(0.0, |kernel| of(kernel.nanoseconds));
                    sums.flops = of(query.op.flops(&query.inputs, &query.outputs));
                    sums.bytes = of(query.op.bytes(&query.inputs, &query.outputs));
                    (node.layer.to_string(), node.op.name())
                }
                Action::Copy { .. } => (String::new(), "copy"),
                Action::Load { .. } => (String::new(), "start of a load"),
                Action::Store { .. } => (String::new(), "start of a store"),
            };
            layers.entry(layer).or_default().add(sums);
            kernels.entry(kernel.to_string()).or_default().add(sums);
            whole.add(sums);
        }
        let sorted = |sums: BTreeMap<String, Sums>| {
            let mut rows: Vec<_> = sums.into_iter().collect();
            rows.sort_by(|a, b| b.1.nanoseconds.total_cmp(&a.1.nanoseconds));
            rows
        };
        Self { steps, plan: plan.name.clone(), layers: sorted(layers), kernels: sorted(kernels), whole }
    }

    /// Two tables.
    pub fn in_words(&self) -> String {
        let tables = [("layer", &self.layers), ("kernel", &self.kernels)];
        let tables = tables.map(|(what, rows)| table(what, rows, &self.whole)).join("\n\n");
        let steps = self.steps;
        format!(
            "\nProfile of a training step: the shortest time of each kernel in {steps} steps; the roofline is the time that the target \
             predicts\n{tables}\n"
        )
    }

    /// The same as JSON.
    pub fn to_json(&self) -> Value {
        let rows = |rows: &[(String, Sums)]| rows.iter().map(|(name, sums)| sums.to_json(name)).collect();
        let (layers, kernels): (Vec<Value>, Vec<Value>) = (rows(&self.layers), rows(&self.kernels));
        json!({ "plan": self.plan, "steps": self.steps, "whole": self.whole.to_json("whole step"), "layers": layers, "kernels": kernels })
    }
}

fn table(what: &str, rows: &[(String, Sums)], whole: &Sums) -> String {
    let mut shown: Vec<(String, Sums)> =
        rows.iter().take(MOST_ROWS).map(|(name, sums)| (named(name), *sums)).collect();
    if rows.len() > MOST_ROWS {
        let mut rest = Sums::default();
        rows[MOST_ROWS..].iter().for_each(|(_, sums)| rest.add(*sums));
        shown.push((format!("{} others", rows.len() - MOST_ROWS), rest));
    }
    shown.push(("together".into(), *whole));
    let width = shown.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0).clamp(12, 40);
    let mut lines = vec![format!(
        "{what:<width$} {:>7} {:>10} {:>7} {:>9} {:>7} {:>12}",
        "calls", "ms", "share", "GFLOP/s", "GB/s", "of roofline"
    )];
    for (name, sums) in shown {
        let name: String = name.chars().take(width).collect();
        let share = percent(sums.nanoseconds, whole.nanoseconds);
        let rate = |count: f64| format!("{:.1}", count / sums.nanoseconds.max(1.0));
        let roofline =
            if sums.predicted > 0.0 { percent(sums.predicted, sums.nanoseconds) } else { "".into() };
        lines.push(format!(
            "{name:<width$} {:>7} {:>10.3} {share:>7} {:>9} {:>7} {roofline:>12}",
            sums.calls,
            sums.nanoseconds / 1e6,
            rate(sums.flops),
            rate(sums.bytes)
        ));
    }
    lines.join("\n")
}

fn named(name: &str) -> String {
    if name.is_empty() { "(no layer)".into() } else { escaped(name) }
}

fn percent(part: f64, whole: f64) -> String {
    format!("{:.1} %", 100.0 * part / whole.max(1.0))
}

/// A profile that is made once so many steps have run.
pub struct Profiler {
    times: std::sync::Arc<StepTimes>,
    steps: u64,
    /// Steps of this run so far.
    done: u64,
}

impl Profiler {
    /// Of a run whose executor records these times.
    pub fn new(times: std::sync::Arc<StepTimes>, steps: u64) -> Self {
        Self { times, steps, done: 0 }
    }

    /// Counts a step; after the last of those looked at, nothing more is recorded.
    pub fn step(&mut self) {
        self.done += 1;
        if self.done == self.steps {
            self.times.stop();
        }
    }

    /// The profile, if a step has run.
    pub fn profile(&self, plans: &[ExecutionPlan], target: &dyn Target) -> Option<Profile> {
        let (plan, times) = (plans.first()?, self.times.of(0));
        (self.done > 0).then(|| Profile::new(self.done.min(self.steps), plan, target, &times))
    }
}
