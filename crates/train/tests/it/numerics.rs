//! The numerics of the executor's target: graphs are built by them, and a run resumes only with the same.

use crate::support::{data, deep};
use plimsoll_graph::{InPlaceKernels, Numerics, Op};
use plimsoll_nn::{AdamW, Precision};
use plimsoll_plan::{NullExecutor, NullTarget};
use plimsoll_train::{TrainState, Trainer};

fn trainer(numerics: Numerics) -> Trainer {
    let target = NullTarget { numerics, ..NullTarget::default() };
    Trainer::new(deep(2), AdamW::new(1e-3)).executor(NullExecutor { target }).line(usize::MAX).batch(128)
}

fn changed(change: impl FnOnce(&mut Numerics)) -> Numerics {
    let mut numerics = Numerics::default();
    change(&mut numerics);
    numerics
}

#[test]
fn graphs_are_built_by_the_numerics_of_the_target() {
    let data = data(&deep(2));
    for numerics in [
        Numerics::default(),
        changed(|n| n.block_rows = 64),
        changed(|n| n.epilogues.bias = None),
        changed(|n| n.in_place.read_first = false),
    ] {
        let trainer = trainer(numerics);
        assert_eq!(trainer.block(), numerics.block_rows);
        let plans = trainer.plan(&data).unwrap();
        assert_eq!(plans.numerics, numerics);
        assert!(plans.plans.len() > 2);
        for plan in &plans.plans {
            assert_eq!(plan.graph.example_block, numerics.block_rows, "{}", plan.name);
            let has_bias = |op: &Op| matches!(op, Op::MatMul(product) if product.epilogue.bias);
            let fused = plan.graph.nodes.iter().any(|node| has_bias(&node.op));
            assert_eq!(fused, numerics.epilogues.bias.is_some(), "{}", plan.name);
        }
    }
}

#[test]
fn mixed_precision_follows_the_numerics_of_the_target() {
    let data = data(&deep(2));
    let products = |numerics| {
        let trainer = trainer(numerics).precision(plimsoll_nn::Policy::new(Precision::BF16));
        let plans = trainer.plan(&data).unwrap();
        let all = plans.plans.iter().flat_map(|plan| &plan.graph.nodes);
        all.filter(|node| matches!(&node.op, Op::MatMul(p) if p.epilogue.bias)).count()
    };
    assert!(products(Numerics::default()) > 0);
    assert_eq!(products(changed(|n| n.product_before_bias = plimsoll_graph::ProductType::AsOperands)), 0);
}

#[test]
fn a_run_resumes_only_with_the_same_numerics() {
    let folder = std::env::temp_dir().join(format!("plimsoll-numerics-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let data = data(&deep(2));
    let resume = |numerics| {
        let trainer = trainer(numerics);
        let mut session = trainer.plan(&data).unwrap().start().unwrap();
        session.resume(&folder).map(|_| ()).map_err(|error| error.to_string())
    };
    let saver = trainer(changed(|n| n.block_rows = 64));
    saver.plan(&data).unwrap().start().unwrap().checkpoint(&folder).unwrap();
    assert!(TrainState::read(&folder).unwrap().numerics.contains("blocks of 64 rows"));
    assert_eq!(resume(changed(|n| n.block_rows = 64)), Ok(()));
    // What works in place changes no bit.
    let in_place = InPlaceKernels { elementwise: false, read_first: false };
    assert_eq!(resume(Numerics { block_rows: 64, in_place, ..Numerics::default() }), Ok(()));
    let refused = resume(Numerics::default()).unwrap_err();
    std::fs::remove_dir_all(&folder).unwrap();
    for words in ["numerics of the target", "blocks of 64 rows", "blocks of 32 rows", "resume with the same"]
    {
        assert!(refused.contains(words), "no `{words}` in: {refused}");
    }
}
