//! Plans corrupted on purpose: `verify` must name what is wrong. Here: buffers, states, figures and ids.

macro_rules! assert_error {
    ($error:expr, $pattern:pat) => {
        let error = $error;
        assert!(matches!(error, $pattern), "{error}");
    };
}

mod offload;
mod replay;

use super::training::perceptron;
use super::{FOLD, ty};
use crate::{
    Action, Budget, BufferId, BufferKind, Entry, ExecutionPlan, NullTarget, PlanSet, Step, VerifyError, plan,
    verify,
};
use plimsoll_graph::op::Unary;
use plimsoll_graph::{Builder, Graph, Init, NodeId, Role, ValueId};

fn plans_of(batches: &[(String, Graph)]) -> PlanSet {
    let budget = Budget::new(1 << 40, vec![Entry::new("code", 1_000, "")]);
    let plans = plan(batches, &NullTarget { workspace: 128, ..NullTarget::default() }, &budget).unwrap();
    assert_eq!(verify(&plans), Ok(()));
    plans
}

/// A training step and a prediction.
fn trained() -> PlanSet {
    plans_of(&[
        ("train".to_string(), perceptron(2, 4, 16, true)),
        ("predict".to_string(), perceptron(2, 4, 16, false)),
    ])
}

/// Two states swapped, so that there are copies; in-place ops on an input; an output.
fn swapped() -> PlanSet {
    let mut b = Builder::new(4, 4);
    let x = b.batch_input("x", ty("f32[4,16]"));
    let [u, v] =
        ["u", "v"].map(|name| b.named_state(name.to_string(), ty("f32[16]"), Role::Parameter, Init::Zeros));
    b.set_state(u, v);
    b.set_state(v, u);
    let y = b.unary(Unary::Exp, x).unwrap();
    let y = b.unary(Unary::Tanh, y).unwrap();
    let y = b.unary(Unary::Abs, y).unwrap();
    b.unary(Unary::Neg, y).unwrap();
    b.output("y", y);
    plans_of(&[("train".to_string(), b.finish().unwrap())])
}

/// An accumulator over three micro-batches that updates a state; another one that needs a copy.
fn accumulated() -> PlanSet {
    let mut b = Builder::new(4, 4);
    b.set_micro_batches(3);
    let (x, y) = (b.batch_input("x", ty("f32[4,16]")), b.batch_input("y", ty("f32[4,32]")));
    let w = b.named_state("w".to_string(), ty("f32[16,32]"), Role::Parameter, Init::Zeros);
    let accumulator = b.accumulator(ty("f32[16,32]"));
    let exp = b.unary(Unary::Exp, x).unwrap();
    let sum = b.accumulating(FOLD, &[exp, y], &[accumulator]).unwrap()[0];
    b.set_accumulator(accumulator, sum);
    let other = b.accumulator(ty("f32[16,16]"));
    let product = b.one(FOLD, &[exp, x]).unwrap();
    let grown = b.matmul(other, product).unwrap();
    b.set_accumulator(other, grown);
    b.output("grown", grown);
    let new = b.sub(w, sum).unwrap();
    b.set_state(w, new);
    plans_of(&[("train".to_string(), b.finish().unwrap())])
}

/// Corrupts a plan, recomputes its figures, and returns what `verify` reports.
fn corrupted(mut plans: PlanSet, corrupt: impl FnOnce(&mut ExecutionPlan)) -> VerifyError {
    corrupt(&mut plans.plans[0]);
    recompute_figures(&mut plans);
    verify(&plans).unwrap_err()
}

/// Recomputes peaks, arena and load sheet for the buffers as they are, so that only the corruption is wrong.
fn recompute_figures(plans: &mut PlanSet) {
    let states_end = plans.states.iter().map(|s| s.arena_range().end.next_multiple_of(64)).max().unwrap_or(0);
    for plan in &mut plans.plans {
        let end = plan.buffers.iter().map(|b| b.offset + b.bytes).fold(states_end, usize::max);
        plan.peak_bytes = end.next_multiple_of(64);
        let live = |step: usize| -> usize {
            let others = plan.buffers.iter().filter(|b| !matches!(b.kind, BufferKind::State(_)));
            let live = others.filter(|b| b.first <= step && step <= b.last);
            live.map(|b| b.bytes.next_multiple_of(64)).sum::<usize>() + states_end
        };
        let steps = plan.steps.len().max(1);
        let peak = (0..steps).max_by_key(|&s| live(s)).unwrap();
        (plan.live_bytes, plan.peak_step) = (live(peak), peak);
    }
    plans.arena_bytes = plans.plans.iter().map(|p| p.peak_bytes).max().unwrap();
    let sheet = &mut plans.sheet;
    sheet.arena = vec![Entry::new("all", plans.arena_bytes, "")];
    sheet.arena_bytes = plans.arena_bytes;
    sheet.total_bytes = plans.arena_bytes + 1_000;
    for (row, plan) in sheet.plans.iter_mut().zip(&plans.plans) {
        (row.peak_bytes, row.live_bytes) = (plan.peak_bytes, plan.live_bytes);
    }
}

/// The first step that runs an op.
fn step_of(plan: &ExecutionPlan, op: &str) -> usize {
    let is = |s: &Step| matches!(s.action, Action::Run { node, .. } if plan.graph.node(node).op.name() == op);
    plan.steps.iter().position(is).unwrap()
}

fn copy_step(plan: &ExecutionPlan, to_state: bool) -> usize {
    let into_state = |to: &BufferId| matches!(plan.buffers[to.index()].kind, BufferKind::State(_));
    let is = |s: &Step| matches!(&s.action, Action::Copy { to, .. } if into_state(to) == to_state);
    plan.steps.iter().position(is).unwrap()
}

/// Moves a step; lifetimes stay as they are.
fn move_step(plan: &mut ExecutionPlan, from: usize, to: usize) {
    let step = plan.steps.remove(from);
    plan.steps.insert(to, step);
}

fn run_mut(
    plan: &mut ExecutionPlan,
    step: usize,
) -> (&mut Vec<BufferId>, &mut Vec<BufferId>, &mut Option<BufferId>) {
    match &mut plan.steps[step].action {
        Action::Run { reads, writes, workspace, .. } => (reads, writes, workspace),
        other => panic!("step {step} is {other:?}"),
    }
}

#[test]
fn reports_live_buffers_that_overlap() {
    let error = corrupted(trained(), |plan| {
        let values: Vec<usize> = (0..plan.buffers.len())
            .filter(|&i| plan.buffers[i].kind == BufferKind::Value && plan.buffers[i].bytes > 0)
            .collect();
        let (a, b) = (values[0], values[1]);
        plan.buffers[b].offset = plan.buffers[a].offset;
        plan.buffers[b].first = plan.buffers[a].first;
    });
    assert_error!(error, VerifyError::Overlap { .. });
}

#[test]
fn reports_a_wrong_peak() {
    let mut plans = trained();
    plans.plans[0].peak_bytes -= 64;
    assert_error!(verify(&plans).unwrap_err(), VerifyError::Peak { .. });
}

#[test]
fn reports_wrong_live_bytes() {
    let mut plans = trained();
    plans.plans[0].live_bytes -= 64;
    assert_error!(verify(&plans).unwrap_err(), VerifyError::Live { .. });
}

#[test]
fn reports_an_arena_that_is_not_the_largest_peak() {
    let mut plans = trained();
    plans.arena_bytes += 64;
    assert_error!(verify(&plans).unwrap_err(), VerifyError::Arena { .. });
}

#[test]
fn reports_a_state_moved_in_one_plan() {
    let mut plans = trained();
    let other = plans.plans[1].buffers.iter_mut().find(|b| b.kind == BufferKind::State(1)).unwrap();
    other.offset += 64;
    recompute_figures(&mut plans);
    assert_error!(verify(&plans).unwrap_err(), VerifyError::StatePlace { .. });
}

#[test]
fn reports_states_that_overlap() {
    let mut plans = trained();
    plans.states[1].home = plans.states[0].home;
    for plan in &mut plans.plans {
        plan.buffers.iter_mut().find(|b| b.kind == BufferKind::State(1)).unwrap().offset =
            plans.states[0].arena_range().start;
    }
    recompute_figures(&mut plans);
    assert_error!(verify(&plans).unwrap_err(), VerifyError::StatePlace { .. });
}

#[test]
fn reports_a_workspace_that_overlaps_an_input() {
    let error = corrupted(trained(), |plan| {
        let step = step_of(plan, "matmul");
        let (reads, _, workspace) = run_mut(plan, step);
        *workspace = Some(reads[0]);
    });
    assert_error!(error, VerifyError::Workspace { .. });
    let error = corrupted(trained(), |plan| {
        let step = step_of(plan, "matmul");
        let (reads, _, workspace) = run_mut(plan, step);
        let (read, scratch) = (reads[0].index(), workspace.unwrap().index());
        plan.buffers[scratch].offset = plan.buffers[read].offset;
    });
    assert_error!(error, VerifyError::Overlap { .. });
}

#[test]
fn reports_an_unaligned_offset() {
    let error = corrupted(trained(), |plan| {
        plan.buffers.iter_mut().find(|b| b.kind == BufferKind::Value).unwrap().offset += 32;
    });
    assert_error!(error, VerifyError::Unaligned { .. });
}

#[test]
fn reports_a_load_sheet_that_does_not_add_up() {
    let corruptions: [fn(&mut PlanSet); 5] = [
        |p| p.sheet.arena[0].bytes += 1,
        |p| p.sheet.outside[0].bytes += 1,
        |p| p.sheet.total_bytes -= 1,
        |p| p.sheet.line_bytes = p.sheet.total_bytes - 1,
        |p| p.sheet.plans[0].peak_bytes += 1,
    ];
    for corrupt in corruptions {
        let mut plans = trained();
        corrupt(&mut plans);
        assert_error!(verify(&plans).unwrap_err(), VerifyError::Sheet(_));
    }
}

#[test]
fn reports_a_use_after_the_end_of_a_lifetime() {
    let error = corrupted(trained(), |plan| {
        let used = |b: &&mut crate::Buffer| b.kind == BufferKind::Value && b.last > b.first;
        plan.buffers.iter_mut().find(used).unwrap().last -= 1;
    });
    assert_error!(error, VerifyError::Lifetime { .. });
}

#[test]
fn reports_an_input_buffer_that_is_too_small() {
    let mut b = Builder::new(4, 4);
    let x = b.batch_input("x", ty("f32[4,16]"));
    b.batch_input("unread", ty("f32[4,16]"));
    let y = b.unary(Unary::Exp, x).unwrap();
    b.output("y", y);
    let error = corrupted(plans_of(&[("train".to_string(), b.finish().unwrap())]), |plan| {
        plan.buffers.iter_mut().find(|b| b.kind == BufferKind::Input(1)).unwrap().bytes = 64;
    });
    assert_error!(error, VerifyError::Malformed { .. });
}

#[test]
fn reports_ids_out_of_range() {
    let corruptions: [fn(&mut ExecutionPlan); 4] = [
        |p| p.outputs[0] = BufferId(9_999),
        |p| p.buffers[0].value = Some(ValueId(9_999)),
        |p| p.buffers[0].kind = BufferKind::State(9_999),
        |p| {
            if let Action::Run { node, .. } = &mut p.steps[0].action {
                *node = NodeId(9_999);
            }
        },
    ];
    for corrupt in corruptions {
        assert_error!(corrupted(trained(), corrupt), VerifyError::Malformed { .. });
    }
}
