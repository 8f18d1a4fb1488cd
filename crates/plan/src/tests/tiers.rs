//! Two tiers behind a device: what is offloaded where, under a line for each memory space.

use super::training::perceptron;
use crate::{
    Budget, Direction, Entry, HostBudget, Link, NullTarget, PlanError, PlanSet, Queue, Space, TierSpec,
    Tiers, VerifyError, plan, verify, verify_hazards,
};
use plimsoll_graph::Graph;

const HOST: Link = Link {
    load_ns_per_mib: 20_000,
    store_ns_per_mib: 25_000,
    latency_ns: 1_000,
    single_request_ns: 0,
    request_cpu_ns: 0,
};
const DISK: Link = Link {
    load_ns_per_mib: 2_000_000,
    store_ns_per_mib: 3_000_000,
    latency_ns: 100_000,
    single_request_ns: 0,
    request_cpu_ns: 0,
};
const STAGING: usize = 10_000;

fn tiers(link: Link) -> Tiers {
    let spec = |link, staging_bytes| Some(TierSpec { capacity_bytes: u64::MAX, link, staging_bytes });
    Tiers { host: spec(link, 0), file: spec(link.through(DISK), STAGING) }
}

fn plan_under(graph: &Graph, tiers: Tiers, device: usize, host: usize) -> Result<PlanSet, PlanError> {
    let host = HostBudget { line_bytes: host, outside: vec![Entry::new("code", 1_000, "")] };
    let budget = Budget { rematerialize: true, host, ..Budget::new(device, Vec::new()) }.offload_to(tiers);
    let plans = plan(&[("train".to_string(), graph.clone())], &NullTarget::default(), &budget)?;
    assert_eq!(verify(&plans), Ok(()), "under {device} and {}", budget.host.line_bytes);
    let host = plans.sheet.host.as_ref().unwrap();
    assert!(plans.sheet.total_bytes <= device && host.total_bytes <= host.line_bytes);
    assert_eq!(host.arena_bytes as u64, plans.tier_bytes.host);
    Ok(plans)
}

fn transfers(plans: &PlanSet, queue: Queue) -> usize {
    plans.plans[0].steps.iter().filter(|s| s.action.queue() == Some(queue)).count()
}

#[test]
fn host_memory_comes_before_the_file_and_each_space_stays_under_its_line() {
    let graph = perceptron(8, 16, 256, true);
    let whole = plan_under(&graph, tiers(HOST), usize::MAX, usize::MAX).unwrap();
    assert_eq!(whole.tier_bytes.sum(), 0, "what fits is not offloaded");
    let device = whole.arena_bytes / 2;
    let roomy = plan_under(&graph, tiers(HOST), device, usize::MAX).unwrap();
    assert!(roomy.tier_bytes.host > 0 && roomy.tier_bytes.file == 0);
    assert!(transfers(&roomy, Queue::HostLoads) > 0 && transfers(&roomy, Queue::HostStores) > 0);
    // Half of what it would take.
    let host = roomy.sheet.host.as_ref().unwrap().total_bytes;
    let tight = plan_under(&graph, tiers(HOST), device, host / 2 + STAGING).unwrap();
    assert!(tight.tier_bytes.host > 0 && tight.tier_bytes.file > 0, "{:?}", tight.tier_bytes);
    assert!(transfers(&tight, Queue::File) > 0);
    let staging = tight.sheet.host.as_ref().unwrap().outside.iter().find(|e| e.name == "spill staging");
    assert_eq!(staging.map(|e| e.bytes), Some(STAGING));
    // Nothing but the file.
    let none = plan_under(&graph, tiers(HOST), device, 1_000 + STAGING).unwrap();
    assert!(none.tier_bytes.host == 0 && none.tier_bytes.file > 0);
    let [roomy, tight, none] = [roomy, tight, none].map(|plans| plans.plans[0].nanoseconds);
    assert!(whole.plans[0].nanoseconds <= roomy && roomy < tight && tight <= none, "{roomy} {tight} {none}");
}

#[test]
fn a_faster_link_makes_a_faster_plan() {
    let graph = perceptron(8, 16, 256, true);
    let whole = plan_under(&graph, tiers(HOST), usize::MAX, usize::MAX).unwrap().arena_bytes;
    let times = [1, 10, 100].map(|times| {
        let [load_ns_per_mib, store_ns_per_mib] = [HOST.load_ns_per_mib, HOST.store_ns_per_mib];
        let link = Link {
            load_ns_per_mib: load_ns_per_mib * times,
            store_ns_per_mib: store_ns_per_mib * times,
            ..HOST
        };
        let plans = plan_under(&graph, tiers(link), whole / 2, usize::MAX).unwrap();
        assert_eq!(plans.predict(0, &NullTarget::default(), &tiers(link)), Ok(plans.plans[0].nanoseconds));
        plans.plans[0].nanoseconds
    });
    assert!(times[0] < times[1] && times[1] < times[2], "{times:?}");
}

#[test]
fn batches_pass_the_link_to_the_device() {
    let graph = perceptron(2, 64, 16, true);
    let [device, host] = [Tiers::default(), tiers(HOST)].map(|tiers| {
        let budget = Budget { tiers, ..Budget::new(usize::MAX, Vec::new()) };
        plan(&[("train".to_string(), graph.clone())], &NullTarget::default(), &budget).unwrap()
    });
    let inputs: u64 = (graph.inputs.iter())
        .map(|input| {
            let bytes = graph.ty(input.value).bytes() * if input.batched { graph.micro_batches } else { 1 };
            HOST.latency(bytes) + HOST.ns(Direction::Load, bytes)
        })
        .sum();
    assert_eq!(host.plans[0].nanoseconds, device.plans[0].nanoseconds + inputs);
}

#[test]
fn a_line_of_host_memory_that_is_too_low_is_named() {
    let graph = perceptron(2, 16, 16, true);
    let Err(PlanError::Infeasible(short)) = plan_under(&graph, tiers(HOST), usize::MAX, 600) else {
        panic!("it fits")
    };
    assert_eq!((short.space, short.needed_bytes, short.missing_bytes), (Space::Host, 1_000, 400));
    assert!(short.to_string().starts_with("the line of host memory is 400 bytes too low"), "{short}");
    let Err(PlanError::Infeasible(short)) = plan_under(&graph, tiers(HOST), 600, 1 << 20) else {
        panic!("it fits")
    };
    assert_eq!(short.space, Space::Computing);
    assert!(short.to_string().starts_with("the line of device memory"), "{short}");
}

#[test]
fn queues_wait_for_transfers_of_other_queues() {
    let graph = perceptron(8, 16, 256, true);
    let whole = plan_under(&graph, tiers(HOST), usize::MAX, usize::MAX).unwrap().arena_bytes;
    let plans = plan_under(&graph, tiers(HOST), whole / 2, usize::MAX).unwrap();
    let mut waits = plans.plans[0].waits();
    assert_eq!(verify_hazards(&plans, std::slice::from_ref(&waits)), Ok(()));
    let mut waiting = 0;
    for (step, list) in plans.plans[0].steps.iter().zip(&mut waits.steps) {
        if step.action.queue().is_some() {
            waiting += list.len();
            list.clear();
        }
    }
    assert!(waiting > 0);
    assert!(matches!(verify_hazards(&plans, &[waits]), Err(VerifyError::Race { .. })));
}
