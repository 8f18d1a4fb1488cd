//! Threads, micro-batches, passes and the memory checker never change a bit of what is trained.

use plimsoll_cpu::Cpu;
use plimsoll_cpu::isa::Isa;
use plimsoll_data::{Dataset, Synthetic, SyntheticSpec};
use plimsoll_nn::{
    Adafactor, Adam, AdamW, Clip, Decay, LOSS_SCALE, Lion, LossScale, Model, Moments, Optimizer, Policy,
    Precision, Recipe, RmsProp, SKIPPED_STEPS, Sgd, step, zoo,
};
use plimsoll_train::{Control, Trainer};
use plimsoll_transform::Pass;

/// Models with odd sizes, so that edges are met everywhere.
fn odd(name: &str) -> Box<dyn Model> {
    match name {
        "mlp" => Box::new(zoo::mlp_of(&[37], &[61, 83], 7)),
        "lenet" => Box::new(zoo::lenet_of([20, 20, 1], 5)),
        "resnet20" => Box::new(zoo::resnet20_of([16, 16, 3], 10)),
        _ => Box::new(zoo::Gpt { layers: 2, width: 48, heads: 3, context: 40, vocabulary: 53, gpt2: false }),
    }
}

/// States after three steps, the last on a remainder.
fn trained(
    name: &str,
    batch: usize,
    cpu: Cpu,
    change: impl Fn(Trainer) -> Trainer,
) -> Vec<(String, Vec<u8>)> {
    run(name, odd(name), Box::new(AdamW::new(1e-2)), batch, cpu, change)
}

fn run(
    name: &str,
    model: Box<dyn Model>,
    optimizer: Box<dyn Optimizer>,
    batch: usize,
    cpu: Cpu,
    change: impl Fn(Trainer) -> Trainer,
) -> Vec<(String, Vec<u8>)> {
    let spec = SyntheticSpec { inputs: model.inputs(), label: model.target() };
    let source = |len, part| Box::new(Synthetic::new(spec.clone(), len, 5, part).unwrap());
    let data = Dataset::new("synthetic", source(2 * batch + batch / 2, 0), source(3, 1));
    let trainer = change(Trainer::new(model, optimizer, cpu).batch(batch).steps(3).seed(9));
    let plans = trainer.plan(&data).unwrap_or_else(|e| panic!("{name}: {e}"));
    let names: Vec<String> = plans.states.iter().map(|s| s.name.clone()).collect();
    let mut session = trainer.prepare(plans, &data).unwrap();
    session.fit(&data, &mut |_| Control::Continue).unwrap_or_else(|e| panic!("{name}: {e}"));
    names.into_iter().map(|n| (n.clone(), session.state(&n).unwrap().as_bytes().to_vec())).collect()
}

fn same(name: &str, what: &str, found: &[(String, Vec<u8>)], expected: &[(String, Vec<u8>)]) {
    assert_eq!(found.len(), expected.len());
    for ((state, found), (other, expected)) in found.iter().zip(expected) {
        assert_eq!(state, other);
        assert!(found == expected, "{name}: {what} changed `{state}`");
    }
}

const MODELS: [(&str, usize); 4] = [("mlp", 128), ("lenet", 64), ("resnet20", 10), ("gpt", 8)];

#[test]
fn threads_do_not_change_bits() {
    for (name, batch) in MODELS {
        let one = trained(name, batch, Cpu::new(1).unwrap(), |t| t);
        for threads in [2, 3, 7] {
            same(
                name,
                &format!("{threads} threads"),
                &trained(name, batch, Cpu::new(threads).unwrap(), |t| t),
                &one,
            );
        }
    }
}

#[test]
fn every_instruction_set_keeps_its_bits_over_threads() {
    for isa in [Isa::Portable, Isa::Avx2] {
        let cpu = |threads| Cpu::with_isa(threads, isa).unwrap();
        for (name, batch) in MODELS {
            same(
                name,
                isa.name(),
                &trained(name, batch, cpu(3), |t| t),
                &trained(name, batch, cpu(1), |t| t),
            );
        }
    }
}

#[test]
fn micro_batches_do_not_change_bits() {
    for (name, batch, splits) in [("mlp", 128, &[2, 4][..]), ("lenet", 64, &[2]), ("gpt", 8, &[2, 4, 8])] {
        let whole = trained(name, batch, Cpu::new(2).unwrap(), |t| t);
        for &split in splits {
            for threads in [1, 3] {
                let parts = trained(name, batch, Cpu::new(threads).unwrap(), |t| t.micro_batches(split));
                same(name, &format!("{split} micro-batches"), &parts, &whole);
            }
        }
    }
}

/// Every optimizer, with something around it.
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
    for (name, batch) in [("mlp", 128), ("gpt", 8)] {
        for i in 0..recipes().len() {
            let what = format!("{name} {}", recipes()[i].0);
            let with = |cpu: Cpu, change: &dyn Fn(Trainer) -> Trainer| {
                run(name, odd(name), recipes().swap_remove(i).1, batch, cpu, change)
            };
            let one = with(Cpu::new(1).unwrap(), &|t| t);
            same(&what, "three threads", &with(Cpu::new(3).unwrap(), &|t| t), &one);
            let split = |t: Trainer| t.micro_batches(2);
            same(&what, "micro-batches", &with(Cpu::new(2).unwrap().checked(), &split), &one);
            let accumulated = |t: Trainer| t.batch(batch / 4).accumulate(4);
            same(&what, "accumulating", &with(Cpu::new(2).unwrap(), &accumulated), &one);
            for pass in [Pass::Simplify, Pass::Save, Pass::Fuse] {
                same(&what, pass.name(), &with(Cpu::new(2).unwrap(), &|t| t.without(pass)), &one);
            }
        }
    }
}

#[test]
fn batch_norm_is_not_split_silently() {
    let result =
        std::panic::catch_unwind(|| trained("resnet20", 64, Cpu::new(1).unwrap(), |t| t.micro_batches(2)));
    let message = *result.unwrap_err().downcast::<String>().unwrap();
    assert!(message.contains("norm") && message.contains("cannot be split"), "{message}");
}

#[test]
fn passes_do_not_change_bits() {
    for (name, batch) in MODELS {
        let all = trained(name, batch, Cpu::new(2).unwrap(), |t| t);
        for pass in [Pass::Simplify, Pass::Save, Pass::Fuse] {
            let less = trained(name, batch, Cpu::new(2).unwrap(), |t| t.without(pass));
            same(name, &format!("switching {} off", pass.name()), &less, &all);
        }
    }
}

#[test]
fn no_kernel_reads_or_writes_outside_its_buffers() {
    for (name, batch) in MODELS {
        let plain = trained(name, batch, Cpu::new(2).unwrap(), |t| t);
        same(
            name,
            "the memory checker",
            &trained(name, batch, Cpu::new(3).unwrap().checked(), |t| t),
            &plain,
        );
    }
    let split = |t: Trainer| t.micro_batches(4);
    let plain = trained("gpt", 8, Cpu::new(2).unwrap(), |t| t);
    same("gpt", "the memory checker", &trained("gpt", 8, Cpu::new(2).unwrap().checked(), split), &plain);
}

/// Every promise about bits, for every model of the zoo at its smallest.
#[test]
fn the_whole_zoo_keeps_its_bits() {
    for entry in &zoo::ZOO {
        let name = entry.name;
        let block = step::example_block((entry.make)(&entry.small).as_ref());
        // What cannot be split is trained on a few examples.
        let batch = if entry.splits { 2 * block } else { 6 };
        let one = |cpu: Cpu, change: &dyn Fn(Trainer) -> Trainer| {
            let optimizer = Box::new(AdamW::new(1e-2));
            run(name, (entry.make)(&entry.small), optimizer, batch, cpu, change)
        };
        let cpu = |threads| Cpu::new(threads).unwrap();
        let plain = one(cpu(1), &|t| t);
        same(name, "three threads", &one(cpu(3), &|t| t), &plain);
        same(name, "the memory checker", &one(cpu(2).checked(), &|t| t), &plain);
        for pass in [Pass::Simplify, Pass::Save, Pass::Fuse] {
            same(name, pass.name(), &one(cpu(2), &|t| t.without(pass)), &plain);
        }
        for isa in [Isa::Portable, Isa::Avx2] {
            let on = |threads| Cpu::with_isa(threads, isa).unwrap();
            same(name, isa.name(), &one(on(3), &|t| t), &one(on(1), &|t| t));
        }
        if entry.splits {
            same(name, "two micro-batches", &one(cpu(2), &|t| t.micro_batches(2)), &plain);
            let checked = cpu(3).checked();
            same(name, "micro-batches, checked", &one(checked, &|t| t.micro_batches(2)), &plain);
        }
    }
}

/// Both 16-bit types. The loss scale of f16 overflows in the first steps: skipped steps keep their bits, too.
/// Policies for a model: the scale of f16 is where its gradients begin to overflow, and doubles after every good step, so
/// that some steps are skipped and some are not.
fn low(name: &str, model: &dyn Fn() -> Box<dyn Model>, batch: usize) -> [Policy; 2] {
    let f16 = |initial| Policy::new(Precision::F16).loss_scale(LossScale { initial, growth: 1 });
    let still = Box::new(Sgd::new(0.0));
    let search = |t: Trainer| t.precision(f16(2f64.powi(20))).steps(24);
    let states = run(name, model(), still, batch, Cpu::new(2).unwrap(), search);
    [Policy::new(Precision::BF16), f16(scalar(&states, LOSS_SCALE).unwrap())]
}

fn scalar(states: &[(String, Vec<u8>)], name: &str) -> Option<f64> {
    let (_, bytes) = states.iter().find(|(state, _)| state == name)?;
    Some(f64::from(f32::from_ne_bytes(bytes[..].try_into().unwrap())))
}

/// Steps of f16 were skipped, and not all three.
fn some_are_skipped(name: &str, states: &[(String, Vec<u8>)]) {
    let skipped = scalar(states, SKIPPED_STEPS);
    assert!(skipped.is_none_or(|n| n > 0.0 && n < 3.0), "{name}: {skipped:?} of 3 steps were skipped");
}

#[test]
fn the_whole_zoo_keeps_its_bits_in_16_bits() {
    for entry in &zoo::ZOO {
        let block = step::example_block((entry.make)(&entry.small).as_ref());
        let batch = if entry.splits { 2 * block } else { 6 };
        for policy in low(entry.name, &|| (entry.make)(&entry.small), batch) {
            let name = format!("{} in {}", entry.name, policy.precision);
            let one = |cpu: Cpu, change: &dyn Fn(Trainer) -> Trainer| {
                let change = |t: Trainer| change(t.precision(policy.clone()));
                run(&name, (entry.make)(&entry.small), Box::new(AdamW::new(1e-2)), batch, cpu, change)
            };
            let cpu = |threads| Cpu::new(threads).unwrap();
            let plain = one(cpu(1), &|t| t);
            some_are_skipped(&name, &plain);
            same(&name, "seven threads", &one(cpu(7).checked(), &|t| t), &plain);
            for pass in [Pass::Simplify, Pass::Save, Pass::Fuse] {
                same(&name, pass.name(), &one(cpu(3), &|t| t.without(pass)), &plain);
            }
            if entry.splits {
                same(&name, "two micro-batches", &one(cpu(2), &|t| t.micro_batches(2)), &plain);
            }
        }
    }
}

#[test]
fn lines_and_splits_do_not_change_bits_in_16_bits() {
    for (name, batch, splits) in [("mlp", 128, &[2, 4][..]), ("lenet", 64, &[2]), ("gpt", 8, &[2, 4, 8])] {
        for policy in low(name, &|| odd(name), batch) {
            let with = |threads, change: &dyn Fn(Trainer) -> Trainer| {
                trained(name, batch, Cpu::new(threads).unwrap(), |t| change(t.precision(policy.clone())))
            };
            let whole = with(2, &|t| t);
            some_are_skipped(name, &whole);
            for &split in splits {
                let parts = with(3, &|t| t.micro_batches(split));
                same(name, &format!("{split} micro-batches in {}", policy.precision), &parts, &whole);
            }
        }
    }
}

/// Batch norm in micro-batches, with its statistics held where a step is skipped.
#[test]
fn split_batch_norm_keeps_its_bits_in_16_bits() {
    for policy in low("resnet20", &|| odd("resnet20"), 8) {
        let with = |threads, change: &dyn Fn(Trainer) -> Trainer| {
            let split =
                |t: Trainer| change(t.precision(policy.clone()).allow_split_batch_norm().micro_batches(2));
            trained("resnet20", 8, Cpu::new(threads).unwrap(), split)
        };
        let plain = with(1, &|t| t);
        some_are_skipped("resnet20", &plain);
        same("resnet20", "three threads", &with(3, &|t| t), &plain);
        same("resnet20", "without fuse", &with(2, &|t| t.without(Pass::Fuse)), &plain);
    }
}
