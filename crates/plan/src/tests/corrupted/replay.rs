//! Steps that read, write or run something other than they should.

use super::{
    accumulated, copy_step, corrupted, move_step, plans_of, recompute_figures, run_mut, step_of, swapped,
    trained,
};
use crate::tests::ty;
use crate::{Action, BufferId, BufferKind, VerifyError, verify};
use plimsoll_graph::op::Unary;
use plimsoll_graph::{Builder, Init, NodeId, Role, ValueId};

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
