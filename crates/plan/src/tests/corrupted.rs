//! Plans corrupted on purpose: `verify` must name what is wrong.

use super::training::perceptron;
use super::{FOLD, ty};
use crate::{
    Action, Budget, BufferId, BufferKind, Disk, Entry, ExecutionPlan, NullTarget, PlanSet, Step, VerifyError,
    plan, verify,
};
use plimsoll_graph::op::Unary;
use plimsoll_graph::{Builder, Graph, Init, NodeId, Role, ValueId};

fn plans_of(batches: &[(String, Graph)]) -> PlanSet {
    let budget = Budget::new(1 << 40, vec![Entry::new("code", 1_000, "")]);
    let plans = plan(batches, &NullTarget { alignment: 64, workspace: 128 }, &budget).unwrap();
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

macro_rules! assert_error {
    ($error:expr, $pattern:pat) => {
        let error = $error;
        assert!(matches!(error, $pattern), "{error}");
    };
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
fn reports_steps_in_the_wrong_order() {
    let error = corrupted(swapped(), |plan| {
        let (tanh, abs) = (step_of(plan, "tanh"), step_of(plan, "abs"));
        plan.steps.swap(tanh, abs);
    });
    assert_error!(error, VerifyError::Read { .. });
}

#[test]
fn reports_a_read_of_the_old_version_after_the_update() {
    // The update runs before the sum that reads the old version; lifetimes are extended to allow it.
    let mut b = Builder::new(4, 4);
    let w = b.named_state("w".to_string(), ty("f32[4,16]"), Role::Parameter, Init::Zeros);
    let x = b.batch_input("x", ty("f32[4,16]"));
    let y = b.add(w, x).unwrap();
    let new = b.sub(w, x).unwrap();
    b.set_state(w, new);
    b.output("y", y);
    let error = corrupted(plans_of(&[("train".to_string(), b.finish().unwrap())]), |plan| {
        let end = plan.steps.len() - 1;
        plan.buffers.iter_mut().for_each(|b| (b.first, b.last) = (0, end));
        plan.steps.swap(0, 1);
    });
    assert_error!(error, VerifyError::Read { .. });
}

#[test]
fn reports_a_state_written_twice() {
    let error = corrupted(swapped(), |plan| {
        let copy = copy_step(plan, true);
        let end = plan.steps.len();
        let Action::Copy { from, to, .. } = plan.steps[copy].action else { panic!() };
        plan.buffers[from.index()].offset = 1 << 20;
        let extended = [from, to, plan.outputs[0]];
        extended.iter().for_each(|b| plan.buffers[b.index()].last = end);
        plan.steps.push(plan.steps[copy].clone());
    });
    assert_error!(error, VerifyError::StateWrites { writes: 2, expected: 1, .. });
}

#[test]
fn reports_a_state_that_is_not_written() {
    let error = corrupted(swapped(), |plan| {
        // A copy into a spare buffer takes the place of the copy into the state, so that lifetimes stay.
        let (copy, snapshot) = (copy_step(plan, true), copy_step(plan, false));
        let Action::Copy { to: kept, .. } = plan.steps[snapshot].action else { panic!() };
        let Action::Copy { value, from, .. } = plan.steps[copy].action else { panic!() };
        let spare = BufferId(plan.buffers.len() as u32);
        let mut buffer = plan.buffers[kept.index()].clone();
        (buffer.first, buffer.last, buffer.offset) = (copy, copy, 1 << 20);
        plan.buffers.push(buffer);
        plan.steps[copy].action = Action::Copy { value, from, to: spare };
    });
    assert_error!(error, VerifyError::StateWrites { writes: 0, expected: 1, .. });
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
fn reports_a_missing_step() {
    let error = corrupted(trained(), |plan| {
        let last = plan.steps.len() - 2;
        plan.steps.pop();
        plan.buffers.iter_mut().for_each(|b| (b.first, b.last) = (b.first.min(last), b.last.min(last)));
    });
    assert_error!(error, VerifyError::Runs { runs: 0, expected: 1, .. });
}

#[test]
fn reports_an_update_that_runs_twice() {
    let error = corrupted(trained(), |plan| {
        let update = step_of(plan, "sub");
        let step = plan.steps[update].clone();
        plan.steps.push(step);
    });
    assert_error!(error, VerifyError::Runs { runs: 2, expected: 1, .. });
}

#[test]
fn reports_a_dead_node_that_runs() {
    let error = corrupted(swapped(), |plan| {
        let step = step_of(plan, "abs");
        let mut dead = plan.steps[step].clone();
        let Action::Run { node, .. } = &mut dead.action else { panic!() };
        *node = NodeId(3);
        plan.steps.push(dead);
    });
    assert_error!(error, VerifyError::Runs { expected: 0, .. });
}

#[test]
fn reports_an_output_in_the_wrong_buffer() {
    let error = corrupted(trained(), |plan| {
        let input = plan.buffers.iter().position(|b| b.kind == BufferKind::Input(0)).unwrap();
        plan.outputs[0] = BufferId(input as u32);
    });
    assert_error!(error, VerifyError::Output { .. });
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
fn reports_a_micro_batch_step_after_the_optimizer_step() {
    let error = corrupted(accumulated(), |plan| {
        let last = plan.steps.len() - 1;
        move_step(plan, last, 0);
    });
    assert_error!(error, VerifyError::Phase { .. });
}

#[test]
fn reports_an_optimizer_node_in_every_micro_batch() {
    let error = corrupted(accumulated(), |plan| plan.steps.iter_mut().for_each(|s| s.optimizer_step = false));
    assert_error!(error, VerifyError::Phase { .. });
}

#[test]
fn reports_a_copy_of_the_wrong_value() {
    let error = corrupted(swapped(), |plan| {
        let copy = copy_step(plan, true);
        let Action::Copy { value, .. } = &mut plan.steps[copy].action else { panic!() };
        *value = ValueId(if value.0 == 1 { 2 } else { 1 });
    });
    assert_error!(error, VerifyError::Read { .. });
}

#[test]
fn reports_a_copy_into_the_wrong_state() {
    let error = corrupted(swapped(), |plan| {
        let copy = copy_step(plan, true);
        let states: Vec<u32> = (0..plan.buffers.len() as u32)
            .filter(|&i| matches!(plan.buffers[i as usize].kind, BufferKind::State(_)))
            .collect();
        let Action::Copy { to, .. } = &mut plan.steps[copy].action else { panic!() };
        *to = BufferId(if to.0 == states[0] { states[1] } else { states[0] });
    });
    assert_error!(error, VerifyError::StateBytes { .. });
}

#[test]
fn reports_a_product_in_place_of_its_operand() {
    let error = corrupted(trained(), |plan| {
        let step = step_of(plan, "matmul");
        let (reads, writes, _) = run_mut(plan, step);
        writes[0] = reads[0];
    });
    assert_error!(error, VerifyError::InPlace { .. });
}

#[test]
fn reports_a_value_on_a_state_of_another_plan() {
    let mut plans = trained();
    let moment = plans.states.iter().find(|s| s.role == Role::Moment).unwrap().arena_range().start;
    let predict = &mut plans.plans[1];
    predict.buffers.iter_mut().find(|b| b.kind == BufferKind::Value).unwrap().offset = moment;
    recompute_figures(&mut plans);
    assert_error!(verify(&plans).unwrap_err(), VerifyError::StateBytes { .. });
}

#[test]
fn reports_an_accumulation_into_another_buffer() {
    let error = corrupted(accumulated(), |plan| {
        let step = step_of(plan, "matmul");
        let kind = BufferKind::Accumulator(0);
        let mut elsewhere = plan.buffers.iter().find(|b| b.kind == kind).unwrap().clone();
        elsewhere.kind = BufferKind::Value;
        elsewhere.offset = 1 << 20;
        plan.buffers.push(elsewhere);
        let other = BufferId(plan.buffers.len() as u32 - 1);
        run_mut(plan, step).1[0] = other;
    });
    assert_error!(error, VerifyError::Accumulator { .. });
}

#[test]
fn reports_an_accumulator_that_is_not_updated() {
    let error = corrupted(accumulated(), |plan| {
        let copy = copy_step(plan, false);
        let Action::Copy { value, from, .. } = plan.steps[copy].action else { panic!() };
        let mut spare = plan.buffers[from.index()].clone();
        (spare.first, spare.last, spare.offset) = (copy, copy, 1 << 20);
        plan.buffers.push(spare);
        plan.steps[copy].action = Action::Copy { value, from, to: BufferId(plan.buffers.len() as u32 - 1) };
    });
    assert_error!(error, VerifyError::AccumulatorEnd { .. });
}

#[test]
fn reports_a_batch_slice_overwritten_before_its_micro_batch() {
    let mut b = Builder::new(4, 4);
    b.set_micro_batches(3);
    let x = b.batch_input("x", ty("f32[4,16]"));
    let y = b.unary(Unary::Exp, x).unwrap();
    let z = b.unary(Unary::Tanh, y).unwrap();
    b.output("y", y);
    b.output("z", z);
    let error = corrupted(plans_of(&[("train".to_string(), b.finish().unwrap())]), |plan| {
        // A plan that ignores micro-batches: it reuses the batch's bytes after its last read.
        let x = plan.buffers.iter_mut().find(|b| b.kind == BufferKind::Input(0)).unwrap();
        x.last = 0;
        let slice = x.offset + 2 * x.micro_stride;
        let z = plan.outputs[1].index();
        plan.buffers[z].offset = slice;
    });
    assert_error!(error, VerifyError::Batch { micro_batch: 2, .. });
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

/// A plan with chunked updates.
fn chunked() -> PlanSet {
    let disk = Disk { read_ns_per_mib: 1, write_ns_per_mib: 1, ..Disk::default() };
    let budget = Budget { offload: Some(disk), ..Budget::new(7 << 19, vec![Entry::new("code", 1_000, "")]) };
    let batches = [("train".to_string(), super::lines::heavy())];
    let mut plans = plan(&batches, &NullTarget { alignment: 64, workspace: 128 }, &budget).unwrap();
    assert_eq!(verify(&plans), Ok(()));
    plans.sheet.outside.truncate(1);
    plans
}

fn chunked_update(plan: &mut ExecutionPlan) -> (usize, &mut Action) {
    let at = plan.steps.iter().position(|s| matches!(s.action, Action::ChunkedUpdate { .. })).unwrap();
    (at, &mut plan.steps[at].action)
}

#[test]
fn reports_malformed_chunked_updates() {
    type Operands = Vec<Option<BufferId>>;
    let changed = |change: fn(&mut Operands, &mut Operands, &mut usize)| {
        corrupted(chunked(), |plan| {
            let (_, Action::ChunkedUpdate { reads, writes, chunk_elements, .. }) = chunked_update(plan)
            else {
                panic!()
            };
            change(reads, writes, chunk_elements);
        })
    };
    assert_error!(changed(|_, _, chunk_elements| *chunk_elements = 0), VerifyError::Malformed { .. });
    assert_error!(changed(|_, _, chunk_elements| *chunk_elements = 1000), VerifyError::Malformed { .. });
    assert_error!(changed(|reads, _, _| reads.swap(0, 1)), VerifyError::Malformed { .. });
    assert_error!(changed(|reads, _, _| reads.fill(None)), VerifyError::Malformed { .. });
    assert_error!(changed(|_, writes, _| writes.clear()), VerifyError::Malformed { .. });
    assert_error!(
        corrupted(chunked(), |plan| {
            let (at, _) = chunked_update(plan);
            let again = plan.steps[at].clone();
            plan.steps.insert(at + 1, again);
            plan.buffers.iter_mut().filter(|b| b.last >= at).for_each(|b| b.last += 1);
            plan.buffers.iter_mut().filter(|b| b.first > at).for_each(|b| b.first += 1);
        }),
        VerifyError::Runs { .. }
    );
}

#[test]
fn reports_malformed_offloaded_values() {
    let offloaded = || {
        let disk = Disk { read_ns_per_mib: 1, write_ns_per_mib: 1, ..Disk::default() };
        let outside = vec![Entry::new("code", 1_000, "")];
        let graph = perceptron(6, 4096, 16, true);
        let whole = plan(
            &[("train".to_string(), graph.clone())],
            &NullTarget { alignment: 64, workspace: 128 },
            &Budget::new(1 << 40, Vec::new()),
        );
        let line_bytes = whole.unwrap().arena_bytes * 3 / 4;
        let budget = Budget { offload: Some(disk), ..Budget::new(line_bytes, outside) };
        let batches = [("train".to_string(), graph)];
        let mut plans = plan(&batches, &NullTarget { alignment: 64, workspace: 128 }, &budget).unwrap();
        assert_eq!(verify(&plans), Ok(()));
        assert!(plans.plans[0].offloaded.len() > 1);
        plans.sheet.outside.truncate(1);
        plans
    };
    assert_error!(
        corrupted(offloaded(), |plan| plan.offloaded[1].offset = plan.offloaded[0].offset),
        VerifyError::Malformed { .. }
    );
    assert_error!(
        corrupted(offloaded(), |plan| plan.offloaded[0].offset += 1),
        VerifyError::Malformed { .. }
    );
    assert_error!(
        corrupted(offloaded(), |plan| plan.offloaded[0].offset = 1 << 40),
        VerifyError::Malformed { .. }
    );
    assert_error!(corrupted(offloaded(), |plan| plan.offloaded.clear()), VerifyError::Malformed { .. });
    // A load before its store.
    assert_error!(
        corrupted(offloaded(), |plan| {
            let store = plan.steps.iter().position(|s| matches!(s.action, Action::Store { .. })).unwrap();
            let Action::Store { what, .. } = plan.steps[store].action else { panic!() };
            let is = |s: &Step| matches!(s.action, Action::Load { what: loaded, .. } if loaded == what);
            let load = plan.steps.iter().position(is).unwrap();
            let Action::Load { to, .. } = plan.steps[load].action else { panic!() };
            plan.steps[store].action = Action::Load { what, to };
            plan.buffers[to.index()].first = store;
        }),
        VerifyError::Read { .. } | VerifyError::Overlap { .. }
    );
}
