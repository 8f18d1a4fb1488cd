use super::*;
use plimsoll_graph::{Init, Role, parse};
use plimsoll_tensor::TensorType;

/// `w` ends as itself minus the sum of the examples.
fn step() -> Graph {
    let mut b = Builder::new(2, 1);
    let x = b.batch_input("x", TensorType::new(DType::F32, [2, 3]));
    let w = b.state("w", TensorType::new(DType::F32, [3]), Role::Parameter, Init::Ones);
    let sum = b.sum(x, &[0], false).unwrap();
    let next = b.sub(w, sum).unwrap();
    b.set_state(w, next);
    b.finish().unwrap()
}

fn replica(device: usize, examples: &[usize], micro_batches: usize, reduction: Reduction) -> Replica<'_> {
    Replica { device, examples, micro_batches, shard: Shard::None, reduction }
}

fn exchanges(device: usize, examples: &[usize], micro_batches: usize) -> Vec<String> {
    let replica = replica(device, examples, micro_batches, Reduction::Chain);
    let graph = replicate(&step(), &replica).unwrap();
    assert_eq!(graph.micro_batches, if examples[device] > 0 { micro_batches } else { 1 });
    words(&graph)
}

fn words(graph: &Graph) -> Vec<String> {
    assert_eq!(parse(&graph.to_string()).unwrap(), *graph);
    let word = |node: &Node| match node.op {
        Op::Exchange(Exchange::Receive { from, wraps, .. }) => format!("receive from {from}, {wraps}"),
        Op::Exchange(Exchange::Send { to, wraps, .. }) => format!("send to {to}, {wraps}"),
        Op::Exchange(Exchange::Synchronise { from, ref chains, .. }) => {
            format!("synchronise {chains:?} from {from}")
        }
        Op::Exchange(Exchange::AllReduce { devices, ref chains, .. }) => {
            format!("all_reduce {chains:?} over {devices}")
        }
        Op::Exchange(Exchange::Share { from, ref chains, .. }) => format!("share {chains:?} from {from}"),
        _ => node.op.name().to_string(),
    };
    graph.nodes.iter().filter(|node| !node.op.is_view()).map(word).collect()
}

#[test]
fn sums_pass_from_each_device_to_the_next_and_around() {
    let first = ["receive from 2, true", "sum", "send to 1, false", "share [0] from 2", "sub"];
    assert_eq!(exchanges(0, &[2, 2, 2], 2), first);
    let second = ["receive from 0, false", "sum", "send to 2, false", "share [0] from 2", "sub"];
    assert_eq!(exchanges(1, &[2, 2, 2], 2), second);
    let last = ["receive from 1, false", "sum", "send to 0, true", "share [0] from 2", "sub"];
    assert_eq!(exchanges(2, &[2, 2, 2], 2), last);
}

#[test]
fn devices_without_examples_only_update() {
    assert_eq!(exchanges(1, &[2, 0, 2], 1), ["share [0] from 2", "sub"]);
    let over_it = ["receive from 2, true", "sum", "send to 2, false", "share [0] from 2", "sub"];
    assert_eq!(exchanges(0, &[2, 0, 2], 1), over_it);
    assert_eq!(exchanges(0, &[2, 0], 1), ["sum", "share [0] from 0", "sub"]);
}

/// `w` ends as itself minus the sum of the squared distances from the batch's mean, and `m` as the mean.
fn normed() -> Graph {
    let mut b = Builder::new(2, 1);
    let x = b.batch_input("x", TensorType::new(DType::F32, [2, 3]));
    let ty = TensorType::new(DType::F32, [3]);
    let w = b.state("w", ty.clone(), Role::Parameter, Init::Ones);
    let m = b.state("m", ty, Role::Statistic, Init::Zeros);
    let stats = b.node(Op::Norm(Norm::Stats { axis: NormAxis::Channel }), &[x]).unwrap();
    let centred = b.sub(x, stats[0]).unwrap();
    let squares = b.mul(centred, centred).unwrap();
    let sum = b.sum(squares, &[0], false).unwrap();
    let next = b.sub(w, sum).unwrap();
    b.set_state(w, next);
    b.set_state(m, stats[0]);
    b.finish().unwrap()
}

#[test]
fn statistics_of_the_whole_batch_are_known_before_the_step_goes_on() {
    let replica = |device, examples, parts| replica(device, examples, parts, Reduction::Chain);
    let graph = replicate(&normed(), &replica(0, &[2, 2], 1)).unwrap();
    let first = [
        "receive from 1, true",
        "norm_moments",
        "send to 1, false",
        "synchronise [0] from 1",
        "norm_stats_of_moments",
        "sub",
        "mul",
        "receive from 1, true",
        "sum",
        "send to 1, false",
        "share [1] from 1",
        "sub",
    ];
    assert_eq!(words(&graph), first);
    // What follows the meeting reads its result, so that no plan has it on the other side.
    let synchronise = graph.nodes.iter().find(|node| node.op.name() == "synchronise").unwrap();
    let receive = graph.nodes.iter().rfind(|node| node.op.name() == "receive").unwrap();
    assert!(receive.inputs.contains(&synchronise.outputs[0]));
    assert!(!graph.batch_relations().contains(&plimsoll_graph::BatchRelation::Mixed));
    let idle = replicate(&normed(), &replica(1, &[2, 0], 1)).unwrap();
    let words = words(&idle);
    assert_eq!(words, ["synchronise [0] from 0", "share [1] from 0", "norm_stats_of_moments", "sub"]);
    let split = replicate(&normed(), &replica(0, &[2, 2], 2));
    assert!(matches!(split, Err(SplitError::Mixes { .. })), "{split:?}");
}

#[test]
fn fast_sums_are_added_up_once_and_statistics_pass_from_device_to_device() {
    let words = |graph: &Graph, device, examples: &[usize], micro_batches| {
        words(&replicate(graph, &replica(device, examples, micro_batches, Reduction::Fast)).unwrap())
    };
    let own = ["sum", "all_reduce [0] over 3", "share [] from 2", "sub"];
    assert_eq!(words(&step(), 0, &[2, 2, 2], 2), own);
    assert_eq!(words(&step(), 2, &[2, 2, 2], 2), own);
    // A device without examples has a sum of zero.
    assert_eq!(words(&step(), 2, &[2, 2, 0], 1), ["all_reduce [0] over 3", "share [] from 1", "sub"]);
    assert_eq!(words(&step(), 0, &[2], 1), ["sum", "share [] from 0", "sub"]);
    let found = words(&normed(), 0, &[2, 2], 1);
    let statistics = ["receive from 1, true", "norm_moments", "send to 1, false", "synchronise [0] from 1"];
    assert_eq!(found[..4], statistics);
    assert_eq!(found[found.len() - 4..], ["sum", "all_reduce [1] over 2", "share [] from 1", "sub"]);
    assert_eq!(found.len(), 4 + 3 + 4);
}

/// Two parameters, each with a moment that its gradient is added to.
fn with_moments_of_two() -> Graph {
    let mut b = Builder::new(2, 1);
    let x = b.batch_input("x", TensorType::new(DType::F32, [2, 3]));
    for name in ["a", "b"] {
        let ty = TensorType::new(DType::F32, [3]);
        let w = b.state(name, ty.clone(), Role::Parameter, Init::Ones);
        let m = b.state(&format!("{name}/moment"), ty, Role::Moment, Init::Zeros);
        let y = b.mul(x, w).unwrap();
        let sum = b.sum(y, &[0], false).unwrap();
        let moment = b.add(m, sum).unwrap();
        let next = b.sub(w, moment).unwrap();
        b.set_state(m, moment);
        b.set_state(w, next);
    }
    b.finish().unwrap()
}

#[test]
fn sharded_updates_are_done_where_their_moments_are() {
    let replica =
        |device| Replica { shard: Shard::Optimizer, ..replica(device, &[2, 2], 1, Reduction::Chain) };
    let owned = owned_states(&with_moments_of_two(), &replica(0)).unwrap();
    let rows: Vec<(&str, usize, bool)> =
        owned.iter().map(|state| (state.name.as_str(), state.owner, state.alone)).collect();
    assert_eq!(rows, [("a", 0, false), ("a/moment", 0, true), ("b", 1, false), ("b/moment", 1, true)]);
    for (device, own, other) in [(0, "a", "b"), (1, "b", "a")] {
        let graph = replicate(&with_moments_of_two(), &replica(device)).unwrap();
        let state = |name: &str| graph.states.iter().find(|state| state.name == name);
        assert!(state(&format!("{own}/moment")).is_some() && state(&format!("{other}/moment")).is_none());
        assert!(state(own).unwrap().output.is_some() && state(other).unwrap().output.is_none());
        // The last device passes the sum that the first one reads, and keeps its own.
        let share = graph.nodes.iter().find_map(|node| match &node.op {
            Op::Exchange(Exchange::Share { chains, to, .. }) => Some((chains.clone(), to.clone())),
            _ => None,
        });
        let to = if device == 1 { vec![vec![0]] } else { Vec::new() };
        assert_eq!(share, Some((vec![0], to)), "{device}");
        assert_eq!(words(&graph).iter().filter(|word| *word == "sub").count(), 1);
    }
}

/// As [`with_moments_of_two`], of parameters that forward reads as 16-bit floats, and backward once more.
fn with_backward() -> Graph {
    let mut b = Builder::new(2, 1);
    let x = b.batch_input("x", TensorType::new(DType::F32, [2, 3]));
    let low = b.cast(x, DType::BF16).unwrap();
    let ty = TensorType::new(DType::F32, [3]);
    let states = ["a", "b"].map(|name| b.state(name, ty.clone(), Role::Parameter, Init::Ones));
    let casts = states.map(|w| b.cast(w, DType::BF16).unwrap());
    let y = b.mul(low, casts[0]).unwrap();
    let z = b.mul(y, casts[1]).unwrap();
    let z = b.cast(z, DType::F32).unwrap();
    let loss = b.sum(z, &[0, 1], false).unwrap();
    b.output(crate::LOSS, loss);
    for (w, (cast, of)) in states.into_iter().zip([(casts[1], low), (casts[0], y)]) {
        let gradient = b.mul(of, cast).unwrap();
        let gradient = b.cast(gradient, DType::F32).unwrap();
        let sum = b.sum(gradient, &[0], false).unwrap();
        let next = b.sub(w, sum).unwrap();
        b.set_state(w, next);
    }
    b.finish().unwrap()
}

#[test]
fn sharded_parameters_pass_before_forward_and_before_backward() {
    let of = |device, examples| {
        let replica = Replica { shard: Shard::Parameters, ..replica(device, examples, 1, Reduction::Chain) };
        replicate(&with_backward(), &replica).unwrap()
    };
    let passes = |graph: &Graph| -> Vec<String> {
        let word = |node: &Node| match &node.op {
            Op::Exchange(Exchange::Give { chain, to }) => Some(format!("give {chain} to {to}")),
            Op::Exchange(Exchange::Take { chain, from, ty, .. }) => {
                Some(format!("take {ty} {chain} from {from}"))
            }
            Op::Elementwise(Elementwise::Binary(_)) => Some(node.op.name().to_string()),
            _ => None,
        };
        graph.nodes.iter().filter_map(word).collect()
    };
    // The chains of the loss and of both gradients have the numbers 0, 1 and 2.
    let first = of(0, &[2, 2]);
    let own = [
        "give 3 to 1",
        "mul",
        "take bf16[3] 4 from 1",
        "mul",
        "take bf16[3] 5 from 1",
        "mul",
        "give 6 to 1",
        "mul",
        "take f32[1,3] 2 from 1",
        "give 2 to 1",
        "sub",
    ];
    assert_eq!(passes(&first), own);
    assert_eq!(first.states.iter().map(|state| state.name.as_str()).collect::<Vec<_>>(), ["a"]);
    // One without examples gives what it holds, and takes nothing.
    let idle = of(1, &[2, 0]);
    assert_eq!(passes(&idle), ["give 4 to 0", "give 5 to 0", "sub"]);
    assert_eq!(idle.states.iter().map(|state| state.name.as_str()).collect::<Vec<_>>(), ["b"]);
}

#[test]
fn steps_that_do_not_train_get_what_they_read_of_sharded_parameters() {
    let replica = Replica { shard: Shard::Parameters, ..replica(0, &[2, 2, 2], 1, Reduction::Chain) };
    let owned = owned_states(&with_backward(), &replica).unwrap();
    let mut b = Builder::new(2, 1);
    let x = b.batch_input("x", TensorType::new(DType::F32, [2, 3]));
    let w = b.state("b", TensorType::new(DType::F32, [3]), Role::Parameter, Init::Ones);
    let y = b.mul(x, w).unwrap();
    b.output("y", y);
    let step = b.finish().unwrap();
    let [first, second, third] =
        [0, 1, 2].map(|device| crate::fetch_parameters(&step, &owned, device, 3).unwrap());
    assert_eq!(words(&first), ["take", "mul"]);
    assert_eq!(words(&second), ["give", "give", "mul"]);
    assert_eq!((words(&third), third.states.len(), second.states.len()), (words(&first), 0, 1));
    assert!(first.optimizer_step().iter().all(|once| !once));
}
