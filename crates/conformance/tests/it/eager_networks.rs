//! Custom loops over networks on eager tensors have the bits of a trainer's steps, moments and running statistics too.

use plimsoll_conformance::{ExecutorEntry, kernel_sets, long_tests, synthetic};
use plimsoll_data::{Batch, Cursor};
use plimsoll_eager::{Network, Optimizer, Tape, Tensor, compile_step};
use plimsoll_nn::{
    AdamW, Clip, Decay, Dense, Dropout, Flatten, Model, Optimizer as Rule, Recipe, Relu, Sequential, Sgd, zoo,
};
use plimsoll_plan::MiB;
use plimsoll_train::Trainer;
use std::collections::BTreeMap;

/// A training step as one writes it.
fn step(
    net: &mut Network,
    optimizer: &mut Optimizer,
    x: &[&Tensor],
    y: &Tensor,
) -> plimsoll_eager::Result<Tensor> {
    let tape = Tape::new();
    let loss = net.loss(x, y)?;
    let gradients = tape.gradient(&loss, &net.variables())?;
    optimizer.apply(net, &gradients)?;
    Ok(loss)
}

type States = BTreeMap<String, Vec<u8>>;

fn states(net: &Network, optimizer: &Optimizer) -> States {
    let all = net.states().chain(optimizer.states());
    all.map(|(name, tensor)| (name.to_string(), tensor.to_host().unwrap().as_bytes().to_vec())).collect()
}

/// Losses and states after three steps, the last on fewer examples: of a trainer, of a loop, and of a compiled step.
fn check<M: Model + 'static>(
    entry: &ExecutorEntry,
    name: &str,
    model: impl Fn() -> M,
    rule: impl Fn() -> Box<dyn Rule>,
) {
    const BATCH: usize = 10;
    let eager = entry.eager(2);
    let data = synthetic(&model(), 2 * BATCH + 5, 4, 3);
    let trainer = Trainer::new(model(), rule()).executor(entry.on(2)).line(usize::MAX).batch(BATCH).seed(4);
    let plans = trainer.plan(&data).unwrap();
    let names: Vec<String> = plans.states.iter().map(|s| s.name.clone()).collect();
    let mut session = plans.start().unwrap();
    let fresh = || (eager.model_with_seed(model(), 4).unwrap(), Optimizer::new(rule()));
    let (mut net, mut optimizer) = fresh();
    let own: States = names
        .iter()
        .filter(|name| net.states().any(|(other, _)| other == name.as_str()))
        .map(|name| (name.clone(), session.state(name).unwrap().as_bytes().to_vec()))
        .collect();
    assert!(own == states(&net, &optimizer), "{name}: first values");

    let mut compiled = None;
    let mut batches = data.train.batch(BATCH).start(Cursor::default()).unwrap();
    for number in 0..3 {
        let batch = batches.next().unwrap().unwrap();
        // Examples are numbered from 0 in each.
        let batch = Batch::of(batch.input_tensors(), batch.label_tensor()).unwrap();
        let wanted = session.train_step(&batch).unwrap();
        let x: Vec<Tensor> = batch.input_tensors().into_iter().map(|x| eager.tensor(x).unwrap()).collect();
        let y = eager.tensor(batch.label_tensor()).unwrap();
        let inputs: Vec<&Tensor> = x.iter().collect();
        let loss = step(&mut net, &mut optimizer, &inputs, &y).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(loss.item().unwrap(), wanted, "{name}, step {number}");
        let all = [&inputs[..], &[&y]].concat();
        let compiled = compiled.get_or_insert_with(|| {
            let train = |(net, optimizer): &mut (Network, Optimizer), inputs: &[Tensor]| {
                let (y, x) = inputs.split_last().unwrap();
                Ok(vec![step(net, optimizer, &x.iter().collect::<Vec<_>>(), y)?])
            };
            let made = compile_step(fresh(), train, &all, MiB(256)).unwrap_or_else(|e| panic!("{name}: {e}"));
            made.trace_new_types()
        });
        let found = compiled.run(&all).unwrap()[0].item().unwrap();
        assert_eq!(found, wanted, "{name}, compiled, step {number}");
    }
    let wanted: States =
        (names.iter()).map(|name| (name.clone(), session.state(name).unwrap().as_bytes().to_vec())).collect();
    let check = |found: States, what: &str| {
        let differ: Vec<&String> =
            wanted.keys().filter(|state| wanted.get(*state) != found.get(*state)).collect();
        assert!(differ.is_empty(), "{name} on {}, {what}: {differ:?}", entry.name);
        assert_eq!(wanted.len(), found.len(), "{name}, {what}");
    };
    check(states(&net, &optimizer), "loop");
    let (net, optimizer) = compiled.unwrap().into_states().unwrap();
    check(states(&net, &optimizer), "compiled");
}

/// A model with dropout.
fn drops() -> impl Model + 'static {
    let model = Sequential::classifier([6, 6, 1], 5).push(Flatten).push(Dense::new(40)).push(Relu);
    model.push(Dropout::new(0.4)).push(Dense::new(5))
}

fn adamw() -> Box<dyn Rule> {
    Box::new(AdamW::new(3e-3))
}

#[test]
pub(super) fn every_executor_has_the_bits_of_a_trainer() {
    for entry in kernel_sets() {
        check(entry, "dropout", drops, adamw);
    }
}

#[test]
pub(super) fn loops_and_compiled_steps_have_the_bits_of_a_trainer() {
    let gpt =
        || zoo::Gpt { layers: 2, width: 24, heads: 2, context: 12, vocabulary: 31, ..zoo::Gpt::default() };
    for entry in kernel_sets().take(if long_tests() { usize::MAX } else { 1 }) {
        check(entry, "lenet", || zoo::lenet_of([20, 20, 1], 5), adamw);
        check(
            entry,
            "resnet20",
            || zoo::resnet20_of([8, 8, 3], 10),
            || Box::new(Sgd::new(0.1).momentum(0.9)),
        );
        check(entry, "gpt", gpt, || {
            let decay = Decay::new(0.1).group("vectors", 0.0);
            let adamw = AdamW::new(3e-3).weight_decay(decay);
            Box::new(Recipe::new(adamw).clip(Clip::GlobalNorm(0.5)).average(0.9))
        });
        check(entry, "tied gpt", || zoo::Gpt { gpt2: true, ..gpt() }, adamw);
    }
}
