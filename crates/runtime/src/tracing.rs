//! The steps of a plan as spans of a trace, with the bytes of the arena in use.

use super::step_name;
use plimsoll_graph::{Graph, Node};
use plimsoll_plan::{Action, ExecuteError, ExecutionPlan, PlanSet, Step};
use plimsoll_trace::{SpanKind, Value};
use std::time::{Duration, Instant};

/// Waits for transfers that are shorter are not shown: most take no time at all.
const SHORTEST_WAIT: Duration = Duration::from_micros(2);

/// The counter of the arena's bytes.
const IN_USE: &str = "arena in use";

/// Steps of kernels that are shorter are shown together where they follow each other: each span takes a part of a microsecond.
const SHORT_KERNEL: Duration = Duration::from_micros(5);

/// Steps whose spans are written together: their kernels have driven the writer's code and buffers out of the caches.
const WRITTEN_TOGETHER: usize = 256;

/// The spans of the plans' steps.
pub struct StepSpans {
    plans: Vec<TracedPlan>,
    /// What spans of several short kernels say.
    short_kernels: SpanKind,
    /// Steps that are over and not yet written.
    done: Vec<Done>,
}

/// What a plan's spans say.
struct TracedPlan {
    /// The kernel of each node, and its spans.
    nodes: Vec<(&'static str, SpanKind)>,
    /// Each step's node, if it has one, and the bytes of the arena in use.
    steps: Vec<(Option<u32>, u64)>,
}

/// A step that is over.
struct Done {
    plan: usize,
    step: usize,
    micro_batch: usize,
    rematerialized: bool,
    started: Instant,
    time: Duration,
}

impl Done {
    /// Whether this is a short kernel, and the next step another one.
    fn goes_with(&self, next: &Self, plan: &TracedPlan) -> bool {
        let is_short = |done: &Self| {
            done.time < SHORT_KERNEL && !done.rematerialized && plan.steps[done.step].0.is_some()
        };
        (self.plan, self.step + 1, self.micro_batch) == (next.plan, next.step, next.micro_batch)
            && is_short(self)
            && is_short(next)
    }
}

impl StepSpans {
    /// Those of plans; nothing where the process writes no trace.
    pub fn new(plans: &PlanSet) -> Self {
        let short_kernels = short_kernels();
        if !plimsoll_trace::is_created() {
            return Self { plans: Vec::new(), short_kernels, done: Vec::new() };
        }
        let traced = |plan: &ExecutionPlan| TracedPlan {
            nodes: plan.graph.nodes.iter().map(|node| (node.op.name(), kind_of(node))).collect(),
            steps: plan.steps.iter().map(node_of).zip(live_bytes_of(plan, plans.alignment)).collect(),
        };
        let plans = plans.plans.iter().map(traced).collect();
        Self { plans, short_kernels, done: Vec::with_capacity(WRITTEN_TOGETHER) }
    }

    /// Begins the span of a step, if a trace is recorded.
    pub fn begin(&self, plan: usize, step: usize) -> Option<Instant> {
        if !plimsoll_trace::is_recording() {
            return None;
        }
        // Where the step before has just ended, its end is the start.
        let last = self.done.last().filter(|last| last.plan == plan && last.step + 1 == step);
        let started = last.map_or_else(Instant::now, |last| last.started + last.time);
        let plan = self.plans.get(plan)?;
        let node = plan.steps.get(step)?.0;
        plimsoll_trace::set_kernel(node.map(|node| plan.nodes[node as usize].0));
        Some(started)
    }

    /// Ends the span of a step of a micro-batch.
    pub fn end(
        &mut self,
        plans: &PlanSet,
        [plan, step, micro_batch]: [usize; 3],
        started: Instant,
        rematerialized: bool,
    ) {
        let time = started.elapsed();
        plimsoll_trace::set_kernel(None);
        if self.done.len() == WRITTEN_TOGETHER {
            self.write(plans);
        }
        self.done.push(Done { plan, step, micro_batch, rematerialized, started, time });
    }

    /// Writes the spans of all steps that are over. The calling thread ran them.
    pub fn write(&mut self, plans: &PlanSet) {
        let together = |a: &Done, b: &Done| a.goes_with(b, &self.plans[a.plan]);
        for all in self.done.chunk_by(together) {
            let traced = &self.plans[all[0].plan];
            match all {
                [done] => write_step(done, traced, &plans.plans[done.plan]),
                [first, .., last] => {
                    let arguments = [
                        ("step", Value::Count(first.step as u64)),
                        ("count", Value::Count(all.len() as u64)),
                    ];
                    let time = last.started + last.time - first.started;
                    let most = all.iter().map(|done| traced.steps[done.step].1).max().unwrap_or(0);
                    let in_use = (IN_USE, most);
                    plimsoll_trace::span_like(first.started, time, &self.short_kernels, &arguments, in_use);
                }
                [] => {}
            }
        }
        self.done.clear();
    }
}

/// Writes the span of one step.
fn write_step(done: &Done, traced: &TracedPlan, plan: &ExecutionPlan) {
    let arguments = [
        ("step", Value::Count(done.step as u64)),
        ("micro_batch", Value::Count(done.micro_batch as u64)),
        ("rematerialized", Value::Count(u64::from(done.rematerialized))),
    ];
    // What is as in most steps is left out.
    let said = if done.rematerialized { 3 } else { 1 + usize::from(done.micro_batch > 0) };
    let arguments = &arguments[..said];
    let (node, bytes) = traced.steps[done.step];
    if let Some(node) = node {
        let kind = &traced.nodes[node as usize].1;
        plimsoll_trace::span_like(done.started, done.time, kind, arguments, (IN_USE, bytes));
    } else {
        let (_, name) = step_name(plan, done.step);
        let category = if name == "copy" { "kernel" } else { "transfer" };
        plimsoll_trace::span_of(done.started, done.time, category, name, arguments);
    }
}

fn short_kernels() -> SpanKind {
    SpanKind::new("kernel", "short kernels", &[])
}

fn node_of(step: &Step) -> Option<u32> {
    match &step.action {
        Action::Run { node, .. } | Action::ChunkedUpdate { node, .. } => Some(node.0),
        _ => None,
    }
}

fn kind_of(node: &Node) -> SpanKind {
    SpanKind::new("kernel", node.op.name(), &[("layer", Value::Text(&node.layer))])
}

/// The bytes that a trace takes for the plans of graphs.
pub fn traced_bytes<'g>(graphs: impl IntoIterator<Item = &'g Graph>) -> usize {
    let node_bytes = size_of::<&str>() + size_of::<(Option<u32>, u64)>();
    let nodes = graphs.into_iter().flat_map(|graph| &graph.nodes);
    let nodes: usize = nodes.map(|node| kind_of(node).bytes() + node_bytes).sum();
    nodes + short_kernels().bytes() + WRITTEN_TOGETHER * size_of::<Done>()
}

fn live_bytes_of(plan: &ExecutionPlan, alignment: usize) -> Vec<u64> {
    let mut live = vec![0_u64; plan.steps.len()];
    // Differences first; wrapping, because a sum may go below zero on its way.
    for buffer in &plan.buffers {
        let bytes = buffer.bytes.next_multiple_of(alignment) as u64;
        if let Some(first) = live.get_mut(buffer.first) {
            *first = first.wrapping_add(bytes);
        }
        if let Some(after) = live.get_mut(buffer.last + 1) {
            *after = after.wrapping_sub(bytes);
        }
    }
    let mut sum = 0_u64;
    for bytes in &mut live {
        sum = sum.wrapping_add(*bytes);
        *bytes = sum;
    }
    live
}

/// Waits, and shows it if it took time.
pub fn wait(wait: impl FnOnce() -> Result<(), ExecuteError>) -> Result<(), ExecuteError> {
    let started = plimsoll_trace::now();
    let result = wait();
    if let Some((started, time)) = started.map(|started| (started, started.elapsed()))
        && time >= SHORTEST_WAIT
    {
        plimsoll_trace::span_of(started, time, "transfer", "wait for transfers", &[]);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_short_kernels_that_follow_each_other_are_shown_together() {
        // The step with index 4 is a transfer.
        let steps = (0..8).map(|step| ((step != 4).then_some(0), 0)).collect();
        let plan = TracedPlan { nodes: Vec::new(), steps };
        let started = Instant::now();
        let done = |step, micros, micro_batch, rematerialized| {
            let time = Duration::from_micros(micros);
            Done { plan: 0, step, micro_batch, rematerialized, started, time }
        };
        let all = [
            done(0, 1, 0, false),
            done(1, 4, 0, false),
            done(2, 5, 0, false),
            done(3, 1, 0, false),
            done(4, 1, 0, false),
            done(5, 1, 0, false),
            done(6, 1, 0, true),
            done(7, 1, 0, false),
            done(0, 1, 1, false),
            done(1, 1, 1, false),
        ];
        let counts: Vec<usize> = all.chunk_by(|a, b| a.goes_with(b, &plan)).map(<[Done]>::len).collect();
        assert_eq!(counts, [2, 1, 1, 1, 1, 1, 1, 2]);
    }
}
