//! The steps of a plan as spans of a trace, with the bytes of the arena in use.

use super::step_name;
use plimsoll_graph::{Graph, Node};
use plimsoll_plan::{Action, ExecuteError, ExecutionPlan, PlanSet, Step};
use plimsoll_trace::{LikeSpan, SpanKind, SpanKinds, Value};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Waits for transfers that are shorter are not shown: most take no time at all.
const SHORTEST_WAIT: Duration = Duration::from_micros(2);

/// The counter of the arena's bytes.
const IN_USE: &str = "arena in use";

/// Steps of kernels that are shorter are shown together where they follow each other: each span takes a part of a microsecond.
const SHORT_KERNEL: Duration = Duration::from_micros(5);

/// Steps whose spans are handed over together: their kernels have driven the trace's code and buffers out of the caches.
const WRITTEN_TOGETHER: usize = 256;

/// The kind of spans of several short kernels. Those of nodes follow.
const SHORT_KERNELS: u32 = 0;

/// The spans of the plans' steps.
pub struct StepSpans {
    /// What each step's span says.
    plans: Vec<Vec<TracedStep>>,
    kinds: Arc<SpanKinds>,
    /// Steps that are over and not yet written.
    done: Vec<Done>,
}

/// What a step's span says.
struct TracedStep {
    /// The kernel and the kind of its spans, if a node is computed.
    kernel: Option<(&'static str, u32)>,
    /// The bytes of the arena in use.
    bytes: u64,
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
    fn goes_with(&self, next: &Self, plan: &[TracedStep]) -> bool {
        let is_short = |done: &Self| {
            done.time < SHORT_KERNEL && !done.rematerialized && plan[done.step].kernel.is_some()
        };
        (self.plan, self.step + 1, self.micro_batch) == (next.plan, next.step, next.micro_batch)
            && is_short(self)
            && is_short(next)
    }
}

impl StepSpans {
    /// Those of plans; nothing where the process writes no trace.
    pub fn new(plans: &PlanSet) -> Self {
        if !plimsoll_trace::is_created() {
            let kinds = Arc::new(SpanKinds { kinds: Vec::new(), counter: IN_USE });
            return Self { plans: Vec::new(), kinds, done: Vec::new() };
        }
        let nodes = plans.plans.iter().map(|plan| plan.graph.nodes.len()).sum::<usize>();
        let mut kinds = Vec::with_capacity(1 + nodes);
        kinds.push(short_kernels());
        let traced = |plan: &ExecutionPlan| {
            let first = kinds.len() as u32;
            kinds.extend(plan.graph.nodes.iter().map(kind_of));
            let kernel_of = |node: u32| (plan.graph.nodes[node as usize].op.name(), first + node);
            let steps = plan.steps.iter().zip(live_bytes_of(plan, plans.alignment));
            steps.map(|(step, bytes)| TracedStep { kernel: node_of(step).map(kernel_of), bytes }).collect()
        };
        let steps = plans.plans.iter().map(traced).collect();
        let kinds = Arc::new(SpanKinds { kinds, counter: IN_USE });
        Self { plans: steps, kinds, done: Vec::with_capacity(WRITTEN_TOGETHER) }
    }

    /// Begins the span of a step, if a trace is recorded.
    pub fn begin(&self, plan: usize, step: usize) -> Option<Instant> {
        if !plimsoll_trace::is_recording() {
            return None;
        }
        // Where the step before has just ended, its end is the start.
        let last = self.done.last().filter(|last| last.plan == plan && last.step + 1 == step);
        let started = last.map_or_else(Instant::now, |last| last.started + last.time);
        let kernel = self.plans.get(plan)?.get(step)?.kernel;
        plimsoll_trace::set_kernel(kernel.map(|(name, _)| name));
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
        if self.done.len() == WRITTEN_TOGETHER {
            self.write(plans);
        }
        self.done.push(Done { plan, step, micro_batch, rematerialized, started, time });
    }

    /// Hands the spans of all steps that are over to the trace. The calling thread ran them.
    pub fn write(&mut self, plans: &PlanSet) {
        plimsoll_trace::set_kernel(None);
        let together = |a: &Done, b: &Done| a.goes_with(b, &self.plans[a.plan]);
        for all in self.done.chunk_by(together) {
            let traced = &self.plans[all[0].plan];
            match all {
                [done] => self.write_step(done, &plans.plans[done.plan]),
                [first, .., last] => {
                    let span = LikeSpan {
                        started: first.started,
                        time: last.started + last.time - first.started,
                        kind: SHORT_KERNELS,
                        arguments: &["step", "count"],
                        values: [first.step as u32, all.len() as u32, 0],
                        bytes: all.iter().map(|done| traced[done.step].bytes).max().unwrap_or(0),
                    };
                    plimsoll_trace::span_like(&self.kinds, span);
                }
                [] => {}
            }
        }
        self.done.clear();
    }

    /// Writes the span of one step.
    fn write_step(&self, done: &Done, plan: &ExecutionPlan) {
        const ARGUMENTS: &[&str] = &["step", "micro_batch", "rematerialized"];
        let values = [done.step as u32, done.micro_batch as u32, done.rematerialized.into()];
        // What is as in most steps is left out.
        let said = if done.rematerialized { 3 } else { 1 + usize::from(done.micro_batch > 0) };
        let arguments = &ARGUMENTS[..said];
        let TracedStep { kernel, bytes } = self.plans[done.plan][done.step];
        let (started, time) = (done.started, done.time);
        if let Some((_, kind)) = kernel {
            let span = LikeSpan { started, time, kind, arguments, values, bytes };
            plimsoll_trace::span_like(&self.kinds, span);
        } else {
            let (_, name) = step_name(plan, done.step);
            let category = if name == "copy" { "kernel" } else { "transfer" };
            let all = [0, 1, 2].map(|i| (ARGUMENTS[i], Value::Count(values[i].into())));
            plimsoll_trace::span_of(started, time, category, name, &all[..said]);
        }
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
    let nodes = graphs.into_iter().flat_map(|graph| &graph.nodes);
    let nodes: usize = nodes.map(|node| kind_of(node).bytes() + size_of::<TracedStep>()).sum();
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
        let step = |step| TracedStep { kernel: (step != 4).then_some(("exp", 1)), bytes: 0 };
        let plan: Vec<TracedStep> = (0..8).map(step).collect();
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
