//! Builds the load sheet of finished plans.

use crate::sheet::words::op_in_words;
use crate::{
    Action, Budget, Buffer, BufferKind, Entry, ExecutionPlan, Holder, HostSheet, LoadSheet, Offloaded, Peak,
    PerTier, PlanRow, StateHome, StatePlacement, Tier, sheet,
};
use plimsoll_graph::{Origin, Role, ValueId};
use std::cmp::Reverse;

/// The entry of the optimizer state.
const OPTIMIZER_STATE: &str = "optimizer state";
/// How many holders the peak lists.
const HOLDERS: usize = 10;

/// The load sheet of an arena that these plans share.
pub(crate) fn load_sheet(
    target: String,
    plans: &[ExecutionPlan],
    states: &[StatePlacement],
    arena_bytes: usize,
    tier_bytes: PerTier<u64>,
    budget: &Budget,
) -> LoadSheet {
    let first = plans.first();
    let stored = first.map_or_else(PerTier::default, |p| p.stored_bytes(states));
    let mut outside = budget.outside.clone();
    let mut host = budget.tiers.host.map(|_| host_sheet(tier_bytes.host, stored.host, budget));
    if let (Some(host), Some(spec)) = (&mut host, budget.tiers.host.filter(|_| tier_bytes.host > 0)) {
        host.add_outside(sheet::link_staging(spec.staging_bytes));
    }
    if let Some(file) = budget.tiers.file.filter(|_| tier_bytes.file > 0) {
        let staging = sheet::spill_staging(file.staging_bytes);
        match &mut host {
            Some(host) => host.add_outside(staging),
            None => outside.push(staging),
        }
    }
    let largest = plans.iter().min_by_key(|p| Reverse(p.peak_bytes));
    let row = |plan: &ExecutionPlan| PlanRow {
        name: plan.name.clone(),
        examples: plan.graph.examples * plan.graph.step_micro_batches(),
        micro_batches: plan.graph.step_micro_batches(),
        peak_bytes: plan.peak_bytes,
        live_bytes: plan.live_bytes,
        predicted_us: plan.nanoseconds / 1_000,
        recomputed: plan.rematerialized().count(),
    };
    let offloaded = in_file(first, states);
    LoadSheet {
        target,
        arena: entries(largest, states, arena_bytes),
        arena_bytes,
        total_bytes: outside.iter().fold(arena_bytes, |sum, e| sum.saturating_add(e.bytes)),
        outside,
        line_bytes: budget.line_bytes,
        host,
        device: None,
        devices: Vec::new(),
        offloaded_bytes: offloaded.iter().map(|entry| entry.bytes).sum(),
        offloaded,
        stored_bytes: stored.file,
        peak: largest.map_or_else(Peak::default, |plan| peak(plan, states)),
        plans: plans.iter().map(row).collect(),
        unlimited_ns: first.map_or(0, |p| p.nanoseconds),
        notes: Vec::new(),
    }
}

/// What the spill file holds: states, and values of a plan.
fn in_file(plan: Option<&ExecutionPlan>, states: &[StatePlacement]) -> Vec<Entry> {
    let of_role = |role: Role| {
        let there = states.iter().filter(move |s| {
            s.role == role && matches!(s.home, StateHome::Offloaded { tier: Tier::File, .. })
        });
        there.map(|s| s.ty.bytes()).fold((0, 0), |(sum, count), bytes| (sum + bytes, count + 1))
    };
    let values = plan.map_or((0, 0), |plan| {
        let there = plan.offloaded.iter().filter(|s| s.tier == Tier::File);
        there
            .map(|s| plan.graph.ty(s.value).bytes())
            .fold((0, 0), |(sum, count), bytes| (sum + bytes, count + 1))
    });
    let rows = [
        ("parameters", of_role(Role::Parameter), "tensors"),
        (OPTIMIZER_STATE, of_role(Role::Moment), "tensors"),
        ("averages", of_role(Role::Average), "tensors"),
        ("statistics", of_role(Role::Statistic), "tensors"),
        ("masks", of_role(Role::Mask), "tensors"),
        ("activations", values, "values, from when they are computed until they are read"),
    ];
    let held = rows.into_iter().filter(|(_, (bytes, _), _)| *bytes > 0);
    held.map(|(name, (bytes, count), what)| Entry::new(name, bytes, format!("{count} {what}"))).collect()
}

/// The account of host memory with an arena for so many offloaded bytes.
fn host_sheet(arena_bytes: u64, stored_bytes: u64, budget: &Budget) -> HostSheet {
    let outside = budget.host.outside.clone();
    let arena_bytes = arena_bytes as usize;
    HostSheet {
        arena_bytes,
        total_bytes: outside.iter().fold(arena_bytes, |sum, e| sum.saturating_add(e.bytes)),
        outside,
        line_bytes: budget.host.line_bytes,
        stored_bytes,
    }
}

/// What the arena holds at the peak of its largest plan.
fn entries(largest: Option<&ExecutionPlan>, states: &[StatePlacement], arena_bytes: usize) -> Vec<Entry> {
    let role = |role: Role| -> (usize, usize) {
        let here = states.iter().filter(|s| s.role == role && matches!(s.home, StateHome::Arena(_)));
        here.fold((0, 0), |(bytes, count), s| (bytes + s.ty.bytes(), count + 1))
    };
    let live = |wanted: &dyn Fn(usize, &Buffer) -> bool| -> (usize, usize) {
        let Some(plan) = largest else { return (0, 0) };
        let wanted = |(i, b): &(usize, &Buffer)| is_live(plan, b) && b.bytes > 0 && wanted(*i, b);
        plan.buffers
            .iter()
            .enumerate()
            .filter(wanted)
            .fold((0, 0), |(bytes, count), (_, b)| (bytes + b.bytes, count + 1))
    };
    let touched = largest.map_or_else(Vec::new, touched);
    let is_value = |b: &Buffer| b.kind == BufferKind::Value;
    let rows = [
        ("parameters", role(Role::Parameter), "tensors, in every plan"),
        (OPTIMIZER_STATE, role(Role::Moment), "tensors, in every plan"),
        ("averages", role(Role::Average), "tensors, of parameters, in every plan"),
        ("statistics", role(Role::Statistic), "tensors, in every plan"),
        ("masks", role(Role::Mask), "tensors, of pruned parameters, in every plan"),
        ("batch", live(&|_, b| matches!(b.kind, BufferKind::Input(_))), "inputs"),
        (
            "accumulators",
            live(&|_, b| matches!(b.kind, BufferKind::Accumulator(_))),
            "gradients summed over micro-batches",
        ),
        (
            "kept",
            live(&|i, b| is_value(b) && !touched[i]),
            "values computed before the peak and read after it",
        ),
        (
            "in use",
            live(&|i, b| is_value(b) && touched[i]),
            "values that the step at the peak reads or writes",
        ),
        ("workspace", live(&|_, b| b.kind == BufferKind::Workspace), "scratch of the step at the peak"),
    ];
    let known: usize = rows.iter().map(|(_, (bytes, _), _)| bytes).sum();
    let mut entries: Vec<Entry> = (rows.into_iter().filter(|(_, (bytes, _), _)| *bytes > 0))
        .map(|(name, (bytes, count), what)| Entry::new(name, bytes, format!("{count} {what}")))
        .collect();
    if let Some(entry) = entries.iter_mut().find(|entry| entry.name == OPTIMIZER_STATE) {
        entry.note += &format!("; {:.2} bytes per parameter", bytes_per_parameter(states));
    }
    if arena_bytes > known {
        entries.push(Entry::new("alignment and gaps", arena_bytes - known, "between the above"));
    }
    entries
}

/// Bytes of optimizer state, wherever it lives, for each element of a parameter.
fn bytes_per_parameter(states: &[StatePlacement]) -> f64 {
    let of = |role: Role| states.iter().filter(move |s| s.role == role);
    let elements: usize = of(Role::Parameter).map(|s| s.ty.shape.elements()).sum();
    of(Role::Moment).map(|s| s.ty.bytes()).sum::<usize>() as f64 / elements.max(1) as f64
}

fn is_live(plan: &ExecutionPlan, buffer: &Buffer) -> bool {
    buffer.first <= plan.peak_step && plan.peak_step <= buffer.last
}

/// For every buffer, whether the step at the peak reads or writes it.
fn touched(plan: &ExecutionPlan) -> Vec<bool> {
    let mut touched = vec![false; plan.buffers.len()];
    match plan.steps.get(plan.peak_step).map(|s| &s.action) {
        Some(Action::Run { reads, writes, .. }) => {
            reads.iter().chain(writes).for_each(|b| touched[b.index()] = true);
        }
        Some(Action::ChunkedUpdate { reads, writes, .. }) => {
            reads.iter().chain(writes).flatten().for_each(|b| touched[b.index()] = true);
        }
        Some(Action::Copy { from, to, .. }) => [from, to].into_iter().for_each(|b| touched[b.index()] = true),
        Some(Action::Load { to: buffer, .. } | Action::Store { from: buffer, .. }) => {
            touched[buffer.index()] = true;
        }
        None => {}
    }
    touched
}

fn peak(plan: &ExecutionPlan, states: &[StatePlacement]) -> Peak {
    let (layer, op) = match plan.steps.get(plan.peak_step).map(|s| &s.action) {
        Some(Action::Run { node, .. } | Action::ChunkedUpdate { node, .. }) => {
            let node = plan.graph.node(*node);
            (node.layer.to_string(), op_in_words(node.op.name()))
        }
        Some(Action::Copy { value, .. }) => (layer_of(plan, *value), "copy".into()),
        Some(Action::Load { what, .. }) => (moved(plan, states, *what), "load".into()),
        Some(Action::Store { what, .. }) => (moved(plan, states, *what), "store".into()),
        None => (String::new(), "nothing".to_string()),
    };
    let content = content(plan);
    let mut holders: Vec<Holder> = (plan.buffers.iter().zip(&content))
        .filter(|(b, _)| is_live(plan, b) && b.bytes > 0)
        .map(|(buffer, value)| {
            let ty = value.map(|v| plan.graph.ty(v).to_string()).unwrap_or_default();
            let (layer, what) = match buffer.kind {
                BufferKind::State(i) => match states.get(i) {
                    Some(state) => (state.name.clone(), format!("{} {ty}", role_name(state.role))),
                    None => (String::new(), ty),
                },
                BufferKind::Input(i) => {
                    let times = plan.graph.micro_batches;
                    let times = if buffer.micro_stride > 0 { format!("{times} × ") } else { String::new() };
                    (plan.graph.inputs[i].label(), format!("input {times}{ty}"))
                }
                BufferKind::Accumulator(_) => {
                    (value.map(|v| layer_of(plan, v)).unwrap_or_default(), format!("accumulator {ty}"))
                }
                BufferKind::Value if value.is_some_and(|v| state_name(plan, v).is_some()) => {
                    let name = value.and_then(|v| state_name(plan, v)).cloned().unwrap_or_default();
                    (name, format!("loaded state {ty}"))
                }
                BufferKind::Value => {
                    let producer = value.and_then(|v| plan.graph.producer(v)).map(|n| plan.graph.node(n));
                    let op = producer.map_or("copy".to_string(), |n| op_in_words(n.op.name()));
                    (value.map(|v| layer_of(plan, v)).unwrap_or_default(), format!("{op} {ty}"))
                }
                BufferKind::Workspace => (layer.clone(), format!("workspace of {op}")),
            };
            Holder { layer, what, bytes: buffer.bytes }
        })
        .collect();
    holders.sort_by_key(|h| Reverse(h.bytes));
    holders.truncate(HOLDERS);
    Peak { plan: plan.name.clone(), step: plan.peak_step, steps: plan.steps.len(), layer, op, holders }
}

/// The value that each buffer holds when the step at the peak has run: several values may share one.
fn content(plan: &ExecutionPlan) -> Vec<Option<ValueId>> {
    let mut content: Vec<Option<ValueId>> = plan.buffers.iter().map(|b| b.value).collect();
    for step in plan.steps.iter().take(plan.peak_step + 1) {
        match &step.action {
            Action::Run { node, writes, .. } => {
                for (buffer, &value) in writes.iter().zip(&plan.graph.node(*node).outputs) {
                    content[buffer.index()] = Some(value);
                }
            }
            Action::ChunkedUpdate { node, writes, .. } => {
                for (buffer, &value) in writes.iter().zip(&plan.graph.node(*node).outputs) {
                    buffer.iter().for_each(|b| content[b.index()] = Some(value));
                }
            }
            Action::Copy { value, to, .. } => content[to.index()] = Some(*value),
            Action::Load { .. } | Action::Store { .. } => {}
        }
    }
    content
}

fn layer_of(plan: &ExecutionPlan, value: ValueId) -> String {
    plan.graph.producer(value).map_or_else(String::new, |n| plan.graph.node(n).layer.to_string())
}

/// The name of a state, or the layer of a value.
fn moved(plan: &ExecutionPlan, states: &[StatePlacement], what: Offloaded) -> String {
    match what {
        Offloaded::State(i) => states[i].name.clone(),
        Offloaded::Value(i) => layer_of(plan, plan.offloaded[i].value),
    }
}

/// The name of the state that a value is the old version of.
fn state_name(plan: &ExecutionPlan, value: ValueId) -> Option<&String> {
    match plan.graph.origin(value) {
        Origin::State(i) => Some(&plan.graph.states[i].name),
        _ => None,
    }
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::Parameter => "parameter",
        Role::Moment => "moment",
        Role::Statistic => "statistic",
        Role::Average => "average",
        Role::Mask => "mask",
    }
}
