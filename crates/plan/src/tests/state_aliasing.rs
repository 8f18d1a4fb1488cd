//! Aliasing of states, accumulators and results, in graphs made by hand.

use super::{FOLD, fused, planned, ty};
use crate::{
    Action, Budget, BufferKind, ExecutionPlan, Kernel, KernelQuery, NullTarget, PlanError, PlanSet, Target,
    Unsupported, plan, verify,
};
use plimsoll_graph::op::Unary;
use plimsoll_graph::{Builder, Init, Role, ValueId};

fn state(b: &mut Builder, name: &str, text: &str) -> ValueId {
    b.named_state(name.to_string(), ty(text), Role::Parameter, Init::Zeros)
}

fn copies(plans: &PlanSet) -> usize {
    plans.plans[0].steps.iter().filter(|s| matches!(s.action, Action::Copy { .. })).count()
}

fn run_of<'p>(plan: &'p ExecutionPlan, op: &str) -> &'p Action {
    let is_run =
        |a: &&Action| matches!(a, Action::Run { node, .. } if plan.graph.node(*node).op.name() == op);
    plan.steps.iter().map(|s| &s.action).find(is_run).unwrap()
}

#[test]
fn updates_a_state_in_place() {
    let mut b = Builder::new(4, 4);
    let (x, w) = (b.batch_input("x", ty("f32[4,16]")), state(&mut b, "w", "f32[4,16]"));
    let new = b.sub(w, x).unwrap();
    b.set_state(w, new);
    b.output("new", new);
    let plans = planned(&b.finish().unwrap());
    assert_eq!(copies(&plans), 0);
    assert_eq!(plans.arena_bytes, 2 * 256);
    let output = &plans.plans[0].buffers[plans.plans[0].outputs[0].index()];
    assert_eq!(output.kind, BufferKind::State(0));
}

#[test]
fn readers_of_the_old_version_run_before_the_update() {
    let mut b = Builder::new(4, 4);
    let (x, w) = (b.batch_input("x", ty("f32[4,16]")), state(&mut b, "w", "f32[4,16]"));
    let new = b.sub(w, x).unwrap();
    b.set_state(w, new);
    let late = b.unary(Unary::Exp, w).unwrap();
    b.output("late", late);
    let plans = planned(&b.finish().unwrap());
    assert_eq!(copies(&plans), 0);
    let Action::Run { node, .. } = plans.plans[0].steps[0].action else { panic!() };
    assert_eq!(plans.plans[0].graph.node(node).op.name(), "exp");
}

#[test]
fn a_reader_of_old_and_new_version_costs_a_copy() {
    let mut b = Builder::new(4, 4);
    let (x, w) = (b.batch_input("x", ty("f32[4,16]")), state(&mut b, "w", "f32[4,16]"));
    let new = b.sub(w, x).unwrap();
    b.set_state(w, new);
    let both = b.mul(new, w).unwrap();
    b.output("both", both);
    assert_eq!(copies(&planned(&b.finish().unwrap())), 1);
}

#[test]
fn states_that_update_each_other_cost_one_copy() {
    let mut b = Builder::new(4, 4);
    let (u, v) = (state(&mut b, "u", "f32[16]"), state(&mut b, "v", "f32[16]"));
    let (new_u, new_v) = (b.add(u, v).unwrap(), b.sub(v, u).unwrap());
    b.set_state(u, new_u);
    b.set_state(v, new_v);
    assert_eq!(copies(&planned(&b.finish().unwrap())), 1);
}

#[test]
fn states_can_be_swapped_and_set_to_inputs_and_views() {
    let mut b = Builder::new(4, 4);
    let x = b.batch_input("x", ty("f32[4,4]"));
    let states = ["u", "v", "w", "x", "y"].map(|name| state(&mut b, name, "f32[16]"));
    let [u, v, w, y, same] = states;
    b.set_state(u, v);
    b.set_state(v, u);
    let flat = b.reshape(x, [16]).unwrap();
    b.set_state(w, flat);
    let made = b.unary(Unary::Exp, x).unwrap();
    let made = b.reshape(made, [16]).unwrap();
    b.set_state(y, made);
    b.set_state(same, same);
    b.output("old u", u);
    planned(&b.finish().unwrap());
}

#[test]
fn one_value_may_be_the_new_version_of_two_states() {
    let mut b = Builder::new(4, 4);
    let x = b.batch_input("x", ty("f32[4,4]"));
    let (u, v) = (state(&mut b, "u", "f32[16]"), state(&mut b, "v", "f32[2,8]"));
    let made = b.unary(Unary::Exp, x).unwrap();
    let (flat, wide) = (b.reshape(made, [16]).unwrap(), b.reshape(made, [2, 8]).unwrap());
    b.set_state(u, flat);
    b.set_state(v, wide);
    b.output("made", made);
    assert_eq!(copies(&planned(&b.finish().unwrap())), 1);
}

#[test]
fn in_place_needs_every_operand_on_the_buffer_to_allow_it() {
    // The region reads its operand twice, once broadcast: it must not be overwritten.
    let mut b = Builder::new(4, 4);
    let x = b.batch_input("x", ty("f32[1,16]"));
    let y = b.unary(Unary::Exp, x).unwrap();
    let column = b.reshape(y, [16, 1]).unwrap();
    let z = b.node(fused(), &[y, column]).unwrap();
    b.output("a", z[0]);
    b.output("b", z[1]);
    planned(&b.finish().unwrap());
    // Both operands are read element by element: it may be.
    let mut b = Builder::new(4, 4);
    let x = b.batch_input("x", ty("f32[4,16]"));
    let y = b.unary(Unary::Exp, x).unwrap();
    let z = b.node(fused(), &[y, y]).unwrap();
    b.output("b", z[1]);
    let plans = planned(&b.finish().unwrap());
    let Action::Run { reads, writes, .. } = run_of(&plans.plans[0], "fused") else { panic!() };
    assert_eq!(reads[0], writes[0]);
}

#[test]
fn dead_nodes_do_not_run_and_a_plan_may_be_empty() {
    let mut b = Builder::new(4, 4);
    let x = b.batch_input("x", ty("f32[4,16]"));
    b.batch_input("unused", ty("f32[4,16]"));
    b.unary(Unary::Exp, x).unwrap();
    b.output("x", x);
    let plans = planned(&b.finish().unwrap());
    assert!(plans.plans[0].steps.is_empty());
    assert_eq!(plans.arena_bytes, 512);
}

#[test]
fn values_without_bytes_are_placed_at_the_end_of_the_states() {
    let mut b = Builder::new(4, 4);
    let (x, w) = (b.batch_input("x", ty("f32[4,0]")), state(&mut b, "w", "f32[16]"));
    let y = b.unary(Unary::Exp, x).unwrap();
    let z = b.unary(Unary::Exp, y).unwrap();
    b.output("z", z);
    b.output("w", w);
    let plans = planned(&b.finish().unwrap());
    assert_eq!(plans.arena_bytes, 64);
    for buffer in plans.plans[0].buffers.iter().filter(|b| b.bytes == 0) {
        assert_eq!(buffer.offset, 64);
    }
}

/// Two products accumulated into one accumulator, which updates a state after the last of three micro-batches.
fn accumulated(body: impl FnOnce(&mut Builder, ValueId, ValueId, ValueId)) -> PlanSet {
    let mut b = Builder::new(4, 4);
    b.set_micro_batches(3);
    let (x, y) = (b.batch_input("x", ty("f32[4,16]")), b.batch_input("y", ty("f32[4,32]")));
    let w = state(&mut b, "w", "f32[16,32]");
    let accumulator = b.accumulator(ty("f32[16,32]"));
    let first = b.accumulating(FOLD, &[x, y], &[accumulator]).unwrap()[0];
    let exp = b.unary(Unary::Exp, y).unwrap();
    let second = b.accumulating(FOLD, &[x, exp], &[first]).unwrap()[0];
    b.set_accumulator(accumulator, second);
    let new = b.sub(w, second).unwrap();
    b.set_state(w, new);
    body(&mut b, x, w, first);
    planned(&b.finish().unwrap())
}

#[test]
fn accumulates_in_place_across_micro_batches() {
    let plans = accumulated(|_, _, _, _| {});
    let plan = &plans.plans[0];
    assert_eq!(copies(&plans), 0);
    let accumulator = plan.buffers.iter().position(|b| b.kind == BufferKind::Accumulator(0)).unwrap();
    for step in plan.steps.iter().filter(|s| !s.optimizer_step) {
        if let Action::Run { node, writes, .. } = &step.action
            && plan.graph.node(*node).op.name() == "matmul"
        {
            assert_eq!(writes[0].index(), accumulator);
        }
    }
    let x = plan.buffers.iter().find(|b| b.kind == BufferKind::Input(0)).unwrap();
    assert_eq!((x.bytes, x.micro_stride), (3 * 256, 256));
    assert!(plan.steps.last().unwrap().optimizer_step);
    assert_eq!(plan.buffers[accumulator].last, plan.steps.len() - 1);
    let body = plan.steps.iter().filter(|s| !s.optimizer_step).count();
    assert!(x.last + 1 >= body, "the next micro-batch reads it again");
}

#[test]
fn copies_partial_sums_that_are_read_later() {
    // The first sum is an output: it must outlive the accumulation that would overwrite it.
    let plans = accumulated(|b, _, _, first| b.output("first", first));
    assert!(copies(&plans) >= 1);
    // It is the new version of a state.
    let plans = accumulated(|b, _, _, first| {
        let u = state(b, "u", "f32[16,32]");
        b.set_state(u, first);
    });
    assert!(copies(&plans) >= 2);
}

#[test]
fn a_state_computed_in_every_micro_batch_is_written_once_after_the_last() {
    let plans = accumulated(|b, _, _, _| {
        let count = state(b, "count", "f32[]");
        let one = b.constant(1.0, plimsoll_tensor::DType::F32).unwrap();
        let next = b.add(count, one).unwrap();
        b.set_state(count, next);
    });
    assert_eq!(copies(&plans), 1);
    assert!(
        plans.plans[0].steps.iter().all(|s| s.optimizer_step || !matches!(s.action, Action::Copy { .. }))
    );
}

#[test]
fn the_optimizer_step_reads_a_copy_of_the_last_micro_batch() {
    let plans = accumulated(|b, x, w, _| {
        let Some(new) = b.graph().states[0].output else { panic!() };
        let total = b.sum(new, &[0, 1], true).unwrap();
        let scaled = b.mul(x, total).unwrap();
        b.output("scaled", scaled);
        b.output("x", x);
        b.output("old w", w);
    });
    assert_eq!(copies(&plans), 2);
}

#[test]
fn ordinary_ops_may_accumulate() {
    for in_place in [true, false] {
        let mut b = Builder::new(4, 4);
        b.set_micro_batches(4);
        let x = b.batch_input("x", ty("f32[4,16]"));
        let accumulator = b.accumulator(ty("f32[4,16]"));
        let sum = b.add(x, accumulator).unwrap();
        b.set_accumulator(accumulator, sum);
        if !in_place {
            // After the last micro-batch the sum before it is overwritten.
            let both = b.mul(sum, accumulator).unwrap();
            b.output("both", both);
        }
        b.output("sum", sum);
        assert_eq!(copies(&planned(&b.finish().unwrap())) == 0, in_place);
    }
}

#[test]
fn accumulation_may_start_from_any_value() {
    let mut b = Builder::new(4, 4);
    let (x, y) = (b.batch_input("x", ty("f32[4,16]")), b.batch_input("y", ty("f32[4,32]")));
    let w = state(&mut b, "w", "f32[16,32]");
    let first = b.one(FOLD, &[x, y]).unwrap();
    let onto_value = b.accumulating(FOLD, &[x, y], &[first]).unwrap()[0];
    let onto_state = b.accumulating(FOLD, &[x, y], &[w]).unwrap()[0];
    b.output("value", onto_value);
    b.set_state(w, onto_state);
    // The value is accumulated in place; the state is copied out and back.
    assert_eq!(copies(&planned(&b.finish().unwrap())), 2);
}

#[test]
fn rejects_an_accumulator_that_depends_on_a_finished_one() {
    let mut b = Builder::new(4, 4);
    b.set_micro_batches(2);
    let x = b.batch_input("x", ty("f32[4,16]"));
    let (first, second) = (b.accumulator(ty("f32[4,16]")), b.accumulator(ty("f32[4,16]")));
    let sum = b.add(x, first).unwrap();
    b.set_accumulator(first, sum);
    let late = b.add(sum, second).unwrap();
    b.set_accumulator(second, late);
    let batches = [("train".to_string(), b.finish().unwrap())];
    let budget = Budget::new(usize::MAX, Vec::new());
    assert!(matches!(plan(&batches, &NullTarget::default(), &budget), Err(PlanError::Graph { .. })));
}

#[test]
fn two_accumulations_onto_one_value_cost_one_copy() {
    let mut b = Builder::new(4, 4);
    let (x, y) = (b.batch_input("x", ty("f32[4,16]")), b.batch_input("y", ty("f32[4,32]")));
    let first = b.one(FOLD, &[x, y]).unwrap();
    for name in ["a", "b"] {
        let sum = b.accumulating(FOLD, &[x, y], &[first]).unwrap()[0];
        b.output(name, sum);
    }
    assert_eq!(copies(&planned(&b.finish().unwrap())), 1);
}

#[test]
fn copies_a_value_that_its_own_accumulation_reads() {
    let mut b = Builder::new(4, 4);
    let x = b.batch_input("x", ty("f32[4,4]"));
    let v = b.unary(Unary::Exp, x).unwrap();
    let sum = b.accumulating(FOLD, &[v, v], &[v]).unwrap()[0];
    b.output("sum", sum);
    assert_eq!(copies(&planned(&b.finish().unwrap())), 1);
}

#[test]
fn accumulates_in_place_only_the_final_value_of_an_accumulator() {
    let mut b = Builder::new(4, 4);
    b.set_micro_batches(2);
    let (x, y) = (b.batch_input("x", ty("f32[4,16]")), b.batch_input("y", ty("f32[4,32]")));
    let accumulator = b.accumulator(ty("f32[16,32]"));
    let aside = b.accumulating(FOLD, &[x, y], &[accumulator]).unwrap()[0];
    let norm = b.sum(aside, &[0, 1], true).unwrap();
    b.output("norm", norm);
    let sum = b.accumulating(FOLD, &[x, y], &[accumulator]).unwrap()[0];
    b.set_accumulator(accumulator, sum);
    b.output("sum", sum);
    assert_eq!(copies(&planned(&b.finish().unwrap())), 1);
}

#[test]
fn tensors_of_different_sizes_are_never_aliased() {
    /// Allows every output in place of every input.
    struct Careless;
    impl Target for Careless {
        fn name(&self) -> String {
            "careless".into()
        }
        fn alignment(&self) -> usize {
            64
        }
        fn kernel(&self, query: &KernelQuery<'_>) -> Result<Kernel, Unsupported> {
            let pairs = (0..9).flat_map(|o| (0..9).map(move |i| (o, i)));
            Ok(Kernel {
                in_place: pairs.collect(),
                nanoseconds: query.outputs.len() as u64,
                ..Kernel::default()
            })
        }
    }
    let mut b = Builder::new(4, 4);
    let (x, row) = (b.batch_input("x", ty("f32[4,16]")), b.batch_input("row", ty("f32[4,1]")));
    let row = b.unary(Unary::Exp, row).unwrap();
    let sum = b.add(row, x).unwrap();
    b.output("sum", sum);
    let batches = [("test".to_string(), b.finish().unwrap())];
    let plans = plan(&batches, &Careless, &Budget::new(usize::MAX, Vec::new())).unwrap();
    assert_eq!(verify(&plans), Ok(()));
}
