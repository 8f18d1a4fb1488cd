//! Threads, micro-batches, passes and the memory checker never change a bit of what is trained.

use plimsoll_conformance::{
    any_executor, executors, executors_of_long_tests, long_tests, older_instruction_sets, products_of,
    synthetic, trained_states,
};
use plimsoll_graph::Numerics;
use plimsoll_nn::{
    Adafactor, Adam, AdamW, Clip, Decay, LOSS_SCALE, Lion, LossScale, Model, Moments, Optimizer, Policy,
    Precision, Recipe, RmsProp, SKIPPED_STEPS, Sgd, step, zoo,
};
use plimsoll_plan::Executor;
use plimsoll_tensor::DType;
use plimsoll_train::Trainer;
use plimsoll_transform::{Pass, optimize};
use std::collections::BTreeSet;

/// Models with odd sizes, so that kernels meet edges everywhere.
fn odd(name: &str) -> Box<dyn Model> {
    match name {
        "mlp" => Box::new(zoo::mlp_of(&[37], &[61, 83], 7)),
        "lenet" => Box::new(zoo::lenet_of([20, 20, 1], 5)),
        "resnet20" => Box::new(zoo::resnet20_of([16, 16, 3], 10)),
        _ => Box::new(zoo::Gpt {
            layers: 2,
            width: 48,
            heads: 3,
            context: 40,
            vocabulary: 53,
            gpt2: false,
            key_heads: None,
            window: None,
        }),
    }
}

/// The name and the bytes of every state.
type States = Vec<(String, Vec<u8>)>;

/// States after three steps, the last on a remainder.
fn trained(
    name: &str,
    batch: usize,
    executor: Box<dyn Executor>,
    change: impl Fn(Trainer) -> Trainer,
) -> States {
    run(name, odd(name), Box::new(AdamW::new(1e-2)), batch, executor, change)
}

fn run(
    name: &str,
    model: Box<dyn Model>,
    optimizer: Box<dyn Optimizer>,
    batch: usize,
    executor: Box<dyn Executor>,
    change: impl Fn(Trainer) -> Trainer,
) -> States {
    let data = synthetic(&model, 2 * batch + batch / 2, 3, 5);
    let trainer = change(
        Trainer::new(model, optimizer).executor(executor).line(usize::MAX).batch(batch).steps(3).seed(9),
    );
    trained_states(&trainer, &data).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn same(name: &str, what: &str, found: &States, expected: &States) {
    assert_eq!(found.len(), expected.len());
    for ((state, found), (other, expected)) in found.iter().zip(expected) {
        assert_eq!(state, other);
        assert!(found == expected, "{name}: {what} changed `{state}`");
    }
}

/// Models with their batch size.
const MODELS: [(&str, usize); 4] = [("mlp", 128), ("lenet", 64), ("resnet20", 10), ("gpt", 8)];

/// Models with their batch size and numbers of micro-batches.
const SPLITS: [(&str, usize, &[usize]); 3] =
    [("mlp", 128, &[2, 4]), ("lenet", 64, &[2]), ("gpt", 8, &[2, 4, 8])];

/// Passes that can be switched off on every executor.
const PASSES: [Pass; 3] = [Pass::Simplify, Pass::Save, Pass::Fuse];

#[test]
fn threads_do_not_change_bits() {
    for executor in executors() {
        for (name, batch) in MODELS {
            let one = trained(name, batch, executor.on(1), |t| t);
            for threads in [2, 3, 7] {
                let found = trained(name, batch, executor.on(threads), |t| t);
                same(name, &format!("{threads} threads of {}", executor.name), &found, &one);
            }
        }
    }
}

#[test]
fn threads_do_not_change_bits_on_older_instruction_sets() {
    for executor in older_instruction_sets() {
        for (name, batch) in MODELS {
            let [one, three] = [1, 3].map(|threads| trained(name, batch, executor.on(threads), |t| t));
            same(name, &format!("three threads of {}", executor.name), &three, &one);
        }
    }
}

#[test]
fn micro_batches_do_not_change_bits() {
    for executor in executors() {
        for (name, batch, splits) in SPLITS {
            let whole = trained(name, batch, executor.on(2), |t| t);
            for &split in splits {
                for threads in [1, 3] {
                    let parts = trained(name, batch, executor.on(threads), |t| t.micro_batches(split));
                    same(name, &format!("{split} micro-batches on {}", executor.name), &parts, &whole);
                }
            }
        }
    }
}

/// Every optimizer, most of them with clipping or averaging.
fn recipes() -> Vec<(&'static str, Box<dyn Optimizer>)> {
    let bytes = AdamW::new(1e-2).moments(Moments::Bytes);
    let half = Adam::new(1e-2).moments(Moments::Half).weight_decay(Decay::new(0.1).group("vectors", 0.0));
    let factored = Adafactor::new(1e-2).weight_decay(Decay::new(0.1));
    vec![
        ("8-bit", Box::new(Recipe::new(bytes).clip(Clip::Norm(0.1)))),
        ("bf16", Box::new(Recipe::new(half).average(0.9))),
        ("adafactor", Box::new(Recipe::new(factored).clip(Clip::GlobalNorm(0.1)).average(0.9))),
        ("lion", Box::new(Recipe::new(Lion::new(1e-3)).clip(Clip::Value(0.01)))),
        ("nesterov", Box::new(Recipe::new(Sgd::new(1e-2).nesterov(0.9)).clip(Clip::GlobalNorm(0.1)))),
        ("rmsprop", Box::new(RmsProp::new(1e-3).centred().momentum(0.5))),
    ]
}

#[test]
fn every_optimizer_keeps_its_bits() {
    for (executor, (name, batch)) in
        executors_of_long_tests().iter().flat_map(|e| [(e, ("mlp", 128)), (e, ("gpt", 8))])
    {
        for i in 0..recipes().len() {
            let what = format!("{name} {} on {}", recipes()[i].0, executor.name);
            let with = |executor: Box<dyn Executor>, change: &dyn Fn(Trainer) -> Trainer| {
                run(name, odd(name), recipes().swap_remove(i).1, batch, executor, change)
            };
            let one = with(executor.on(1), &|t| t);
            same(&what, "three threads", &with(executor.on(3), &|t| t), &one);
            let split = |t: Trainer| t.micro_batches(2);
            same(&what, "micro-batches", &with(executor.checked(2), &split), &one);
            let accumulated = |t: Trainer| t.batch(batch / 4).accumulate(4);
            same(&what, "gradient accumulation", &with(executor.on(2), &accumulated), &one);
            for pass in PASSES.into_iter().filter(|_| name == "mlp" || long_tests()) {
                same(&what, pass.name(), &with(executor.on(2), &|t| t.without(pass)), &one);
            }
        }
    }
}

#[test]
fn batch_norm_is_not_split_silently() {
    let result = std::panic::catch_unwind(|| trained("resnet20", 64, any_executor(), |t| t.micro_batches(2)));
    let message = *result.unwrap_err().downcast::<String>().unwrap();
    assert!(message.contains("norm") && message.contains("cannot be split"), "{message}");
}

#[test]
fn passes_do_not_change_bits() {
    for executor in executors_of_long_tests() {
        for (name, batch) in MODELS {
            let all = trained(name, batch, executor.on(2), |t| t);
            for pass in PASSES {
                let without = trained(name, batch, executor.on(2), |t| t.without(pass));
                let what = format!("switching {} off on {}", pass.name(), executor.name);
                same(name, &what, &without, &all);
            }
        }
    }
}

#[test]
fn no_kernel_reads_or_writes_outside_its_buffers() {
    for executor in executors_of_long_tests() {
        let what = format!("the memory checker of {}", executor.name);
        for (name, batch) in MODELS {
            let plain = trained(name, batch, executor.on(2), |t| t);
            same(name, &what, &trained(name, batch, executor.checked(3), |t| t), &plain);
        }
        let split = |t: Trainer| t.micro_batches(4);
        let plain = trained("gpt", 8, executor.on(2), |t| t);
        same("gpt", &what, &trained("gpt", 8, executor.checked(2), split), &plain);
    }
}

/// Where the memory checker looks at single kernels, none runs with others.
pub fn kernels_that_run_as_one_have_the_bits_of_single_ones() {
    for executor in executors_of_long_tests() {
        for (name, batch) in [("mlp", 64), ("gpt", 8)] {
            let plain = trained(name, batch, executor.on(2), |t| t);
            let what = format!("running kernels one by one on {}", executor.name);
            same(name, &what, &trained(name, batch, executor.checked(2), |t| t), &plain);
        }
    }
}

/// A batch of two blocks; of a few examples for models whose batch cannot be split.
fn zoo_batch(entry: &zoo::ZooEntry) -> usize {
    let block = step::example_block((entry.make)(&entry.small).as_ref(), &Numerics::default());
    if entry.splits { 2 * block } else { 6 }
}

/// Models of which every op is in another model of the zoo, too: they take long, and CI leaves them to `.ci/long`.
const OF_LONG_TESTS: [&str; 6] = ["resnet18", "resnet50", "mobilenet_v2", "densenet121", "unet", "gpt"];

fn is_of_long_tests(entry: &zoo::ZooEntry) -> bool {
    OF_LONG_TESTS.contains(&entry.name)
}

/// The models of this run: the whole zoo if [`long_tests`], else a part with every op.
fn zoo_models() -> impl Iterator<Item = &'static zoo::ZooEntry> {
    zoo::ZOO.iter().filter(|entry| long_tests() || !is_of_long_tests(entry))
}

#[test]
fn models_of_the_short_tests_have_every_op_of_the_zoo() {
    for precision in [Precision::F32, Precision::BF16, Precision::F16] {
        let ops = |entry: &zoo::ZooEntry| -> BTreeSet<&'static str> {
            let (model, numerics) = ((entry.make)(&entry.small), Numerics::default());
            let (policy, optimizer) = (Policy::new(precision), AdamW::new(1e-2));
            let graph = step::training_as(&policy, &numerics, model.as_ref(), &optimizer, zoo_batch(entry));
            let graph = optimize(graph.unwrap(), &numerics, &[]).unwrap();
            graph.nodes.iter().map(|node| node.op.name()).collect()
        };
        let of = |long| -> BTreeSet<_> {
            zoo::ZOO.iter().filter(|entry| is_of_long_tests(entry) == long).flat_map(ops).collect()
        };
        let missing: Vec<_> = of(true).difference(&of(false)).copied().collect();
        assert!(missing.is_empty(), "{precision}: only in long tests: {missing:?}");
    }
}

/// Every promise about bits, for models of the zoo at their smallest.
#[test]
fn the_zoo_keeps_its_bits() {
    for (executor, entry) in
        executors_of_long_tests().iter().flat_map(|e| zoo_models().map(move |entry| (e, entry)))
    {
        let name = format!("{} on {}", entry.name, executor.name);
        let train = |executor: Box<dyn Executor>, change: &dyn Fn(Trainer) -> Trainer| {
            let optimizer = Box::new(AdamW::new(1e-2));
            run(&name, (entry.make)(&entry.small), optimizer, zoo_batch(entry), executor, change)
        };
        let plain = train(executor.on(1), &|t| t);
        same(&name, "three threads", &train(executor.on(3), &|t| t), &plain);
        same(&name, "the memory checker", &train(executor.checked(2), &|t| t), &plain);
        for pass in PASSES {
            same(&name, pass.name(), &train(executor.on(2), &|t| t.without(pass)), &plain);
        }
        if entry.splits {
            same(&name, "two micro-batches", &train(executor.on(2), &|t| t.micro_batches(2)), &plain);
            let checked = executor.checked(3);
            same(&name, "micro-batches, checked", &train(checked, &|t| t.micro_batches(2)), &plain);
        }
    }
}

#[test]
fn the_zoo_keeps_its_bits_on_older_instruction_sets() {
    // In short tests one of them.
    let executors = older_instruction_sets().take(if long_tests() { usize::MAX } else { 1 });
    for (executor, entry) in executors.flat_map(|e| zoo_models().map(move |entry| (e, entry))) {
        let name = format!("{} on {}", entry.name, executor.name);
        let [one, three] = [1, 3].map(|threads| {
            let (model, optimizer) = ((entry.make)(&entry.small), Box::new(AdamW::new(1e-2)));
            run(&name, model, optimizer, zoo_batch(entry), executor.on(threads), |t| t)
        });
        same(&name, "three threads", &three, &one);
    }
}

/// Policies of both 16-bit types. The loss scale of f16 starts where the model's gradients begin to overflow and doubles
/// after every good step, so that some steps are skipped and some are not: skipped steps keep their bits, too.
fn low(name: &str, model: &dyn Fn() -> Box<dyn Model>, batch: usize) -> [Policy; 2] {
    let f16 = |initial| Policy::new(Precision::F16).loss_scale(LossScale { initial, growth: 1 });
    let still = Box::new(Sgd::new(0.0));
    let search = |t: Trainer| t.precision(f16(2f64.powi(16))).steps(14);
    let states = run(name, model(), still, batch, any_executor(), search);
    [Policy::new(Precision::BF16), f16(scalar(&states, LOSS_SCALE).unwrap())]
}

fn scalar(states: &States, name: &str) -> Option<f64> {
    let (_, bytes) = states.iter().find(|(state, _)| state == name)?;
    Some(f64::from(f32::from_ne_bytes(bytes[..].try_into().unwrap())))
}

/// Some steps of f16 were skipped, and not all three.
fn check_skipped(name: &str, states: &States) {
    let skipped = scalar(states, SKIPPED_STEPS);
    assert!(skipped.is_none_or(|n| n > 0.0 && n < 3.0), "{name}: {skipped:?} of 3 steps were skipped");
}

#[test]
fn the_zoo_keeps_its_bits_in_16_bits() {
    for (executor, entry) in
        executors_of_long_tests().iter().flat_map(|e| zoo_models().map(move |entry| (e, entry)))
    {
        let batch = zoo_batch(entry);
        // f16 of some models is in the tests below.
        let policies = match long_tests() {
            true => low(entry.name, &|| (entry.make)(&entry.small), batch).to_vec(),
            false => vec![Policy::new(Precision::BF16)],
        };
        for policy in policies {
            let name = format!("{} in {} on {}", entry.name, policy.precision, executor.name);
            let train = |executor: Box<dyn Executor>, change: &dyn Fn(Trainer) -> Trainer| {
                let change = |t: Trainer| change(t.precision(policy.clone()));
                let optimizer = Box::new(AdamW::new(1e-2));
                run(&name, (entry.make)(&entry.small), optimizer, batch, executor, change)
            };
            let plain = train(executor.on(1), &|t| t);
            check_skipped(&name, &plain);
            same(&name, "seven threads", &train(executor.checked(7), &|t| t), &plain);
            // In f32 they are compared every time.
            for pass in PASSES.into_iter().filter(|_| long_tests()) {
                same(&name, pass.name(), &train(executor.on(3), &|t| t.without(pass)), &plain);
            }
            if entry.splits {
                same(&name, "two micro-batches", &train(executor.on(2), &|t| t.micro_batches(2)), &plain);
            }
        }
    }
}

#[test]
fn micro_batches_do_not_change_bits_in_16_bits() {
    for (executor, (name, batch, splits)) in
        executors_of_long_tests().iter().flat_map(|e| SPLITS.map(|split| (e, split)))
    {
        for policy in low(name, &|| odd(name), batch) {
            let with = |threads, change: &dyn Fn(Trainer) -> Trainer| {
                trained(name, batch, executor.on(threads), |t| change(t.precision(policy.clone())))
            };
            let whole = with(2, &|t| t);
            check_skipped(name, &whole);
            for &split in splits {
                let parts = with(3, &|t| t.micro_batches(split));
                let what = format!("{split} micro-batches in {} on {}", policy.precision, executor.name);
                same(name, &what, &parts, &whole);
            }
        }
    }
}

/// Instructions that multiply several k at a time stop at blocks of examples. (An example of the gpt has 40 rows, which are no
/// whole tiles.)
#[test]
fn sets_that_multiply_bf16_keep_their_bits() {
    for (executor, (name, batch, splits)) in
        products_of(DType::BF16).flat_map(|e| SPLITS.map(|split| (e, split)))
    {
        let with = |threads, change: &dyn Fn(Trainer) -> Trainer| {
            let low = |t: Trainer| change(t.precision(Policy::new(Precision::BF16)));
            trained(name, batch, executor.checked(threads), low)
        };
        let whole = with(1, &|t| t);
        same(name, &format!("seven threads of {}", executor.name), &with(7, &|t| t), &whole);
        for &split in splits {
            let what = format!("{split} micro-batches on {}", executor.name);
            same(name, &what, &with(2, &|t| t.micro_batches(split)), &whole);
        }
        // In f32 they are compared every time.
        for pass in PASSES.into_iter().filter(|_| long_tests()) {
            let what = format!("no {} on {}", pass.name(), executor.name);
            same(name, &what, &with(2, &|t| t.without(pass)), &whole);
        }
    }
}

/// A skipped step holds batch norm's running statistics in every micro-batch.
#[test]
fn split_batch_norm_keeps_its_bits_in_16_bits() {
    for executor in executors_of_long_tests() {
        for policy in low("resnet20", &|| odd("resnet20"), 8) {
            let with = |threads, change: &dyn Fn(Trainer) -> Trainer| {
                let split = |t: Trainer| {
                    change(t.precision(policy.clone()).allow_split_batch_norm().micro_batches(2))
                };
                trained("resnet20", 8, executor.on(threads), split)
            };
            let plain = with(1, &|t| t);
            check_skipped("resnet20", &plain);
            same("resnet20", "three threads", &with(3, &|t| t), &plain);
            same("resnet20", "without fuse", &with(2, &|t| t.without(Pass::Fuse)), &plain);
        }
    }
}
