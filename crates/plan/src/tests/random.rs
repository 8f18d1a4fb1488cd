//! Properties that hold for every graph.

use super::{plan_with, random_graph};
use crate::{NullTarget, verify};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, failure_persistence: None, rng_seed: RngSeed::Fixed(7), ..ProptestConfig::default() })]

    #[test]
    fn plans_of_random_graphs_pass_verify_and_are_deterministic(
        seed in any::<u64>(),
        nodes in 1_usize..40,
        micro_batches in 1_usize..4,
        workspace in prop_oneof![Just(0_usize), Just(100), Just(5_000)],
        alignment in prop_oneof![Just(1_usize), Just(64), Just(4_096)],
    ) {
        let graph = random_graph(seed, nodes, micro_batches);
        let target = NullTarget { alignment, workspace, ..NullTarget::default() };
        let plans = plan_with(&target, &graph);
        prop_assert_eq!(verify(&plans), Ok(()), "{}\n{:#?}", graph, plans.plans[0].steps);
        prop_assert!(plans.plans[0].peak_bytes >= plans.plans[0].live_bytes);
        prop_assert!(plans == plan_with(&target, &graph));
    }
}
