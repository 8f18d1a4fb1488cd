//! Which kernels work in place is the target's statement: planner and checker keep to it.

use super::lines::heavy;
use super::ty;
use crate::{
    Action, Budget, Kernel, KernelQuery, Link, NullTarget, PlanSet, Step, Target, Tiers, Unsupported,
    VerifyError, plan, plan_lowest, verify,
};
use plimsoll_graph::op::{Attention, Unary};
use plimsoll_graph::{Builder, Graph, InPlaceKernels, Numerics, Op};

const NEVER: InPlaceKernels = InPlaceKernels { elementwise: false, read_first: false };

fn target(in_place: InPlaceKernels) -> NullTarget {
    let numerics = Numerics { in_place, ..Numerics::default() };
    NullTarget { numerics, ..NullTarget::default() }
}

/// `tanh(exp(x))`.
fn chain() -> Graph {
    let mut b = Builder::new(4, 4);
    let x = b.batch_input("x", ty("f32[4,16]"));
    let y = b.unary(Unary::Exp, x).unwrap();
    let y = b.unary(Unary::Tanh, y).unwrap();
    b.output("y", y);
    b.finish().unwrap()
}

/// Steps that write over an input.
fn overwriting(plans: &PlanSet) -> usize {
    let overwrites = |step: &&Step| match &step.action {
        Action::Run { reads, writes, .. } => writes.iter().any(|b| reads.contains(b)),
        _ => false,
    };
    plans.plans[0].steps.iter().filter(overwrites).count()
}

#[test]
fn kernels_that_the_target_excludes_write_apart_from_their_inputs() {
    let without_line = Budget::new(usize::MAX, Vec::new());
    let planned = |in_place| {
        let plans = plan(&[("test".to_string(), chain())], &target(in_place), &without_line).unwrap();
        assert_eq!(verify(&plans), Ok(()));
        plans
    };
    let elementwise = planned(InPlaceKernels { elementwise: true, read_first: false });
    assert_eq!((overwriting(&elementwise), overwriting(&planned(NEVER))), (1, 0));
}

#[test]
fn the_checker_takes_the_statement_of_the_target() {
    /// Kernels that all write over their first input.
    struct Overwriting(Numerics);
    impl Target for Overwriting {
        fn name(&self) -> String {
            "overwriting".into()
        }
        fn numerics(&self) -> Numerics {
            self.0
        }
        fn alignment(&self) -> usize {
            64
        }
        fn kernel(&self, _: &KernelQuery<'_>) -> Result<Kernel, Unsupported> {
            Ok(Kernel { in_place: vec![(0, 0)], ..Kernel::default() })
        }
    }
    let mut b = Builder::new(4, 4);
    let x = b.batch_input("x", ty("f32[4,2,1,8]"));
    let x = b.unary(Unary::Exp, x).unwrap();
    let rotary = Op::Attention(Attention::Rotary { base: 10.0, inverse: false, start: 0 });
    let rotated = b.one(rotary, &[x]).unwrap();
    b.output("rotated", rotated);
    for (graph, op) in [(chain(), "tanh"), (b.finish().unwrap(), "rotary")] {
        for allowed in [true, false] {
            let (elementwise, read_first) = if op == "tanh" { (allowed, true) } else { (true, allowed) };
            let in_place = InPlaceKernels { elementwise, read_first };
            let target = Overwriting(Numerics { in_place, ..Numerics::default() });
            let without_line = Budget::new(usize::MAX, Vec::new());
            let plans = plan(&[("test".to_string(), graph.clone())], &target, &without_line).unwrap();
            assert_eq!((plans.numerics, overwriting(&plans)), (target.0, 1));
            let found = verify(&plans);
            let expected =
                matches!((allowed, &found), (true, Ok(())) | (false, Err(VerifyError::InPlace { .. })));
            assert!(expected, "{op}: {found:?}");
        }
    }
}

#[test]
fn states_are_updated_in_chunks_only_in_place() {
    let fast = Link { load_ns_per_mib: 1, store_ns_per_mib: 1, ..Link::default() };
    let budget = Budget::new(7 << 19, Vec::new()).offload_to(Tiers::disk(fast, 0));
    let batches = [("train".to_string(), heavy())];
    let is_chunked = |step: &Step| matches!(step.action, Action::ChunkedUpdate { .. });
    let mut plans = plan_lowest(&batches, &NullTarget::default(), &budget).unwrap();
    assert!(plans.plans[0].steps.iter().any(is_chunked));
    assert_eq!(verify(&plans), Ok(()));
    plans.numerics.in_place = NEVER;
    assert!(matches!(verify(&plans), Err(VerifyError::Malformed { .. })), "{:?}", verify(&plans));

    // Over the line, but otherwise right.
    let plans = plan_lowest(&batches, &target(NEVER), &budget).unwrap();
    assert_eq!(verify::places(&plans), Ok(()));
    assert!(!plans.plans[0].steps.iter().any(is_chunked));
}
