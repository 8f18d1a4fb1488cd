//! Nothing allocates in the step loop, on any thread.

use plimsoll::data::{Synthetic, SyntheticSpec};
use plimsoll::graph::Numerics;
use plimsoll::memory::Watchdog;
use plimsoll::nn::zoo::ZOO;
use plimsoll::nn::{Clip, Decay, Moments, Recipe};
use plimsoll::prelude::*;
use plimsoll::train::Watch;
use plimsoll_testing::CountingAllocator;

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

/// A different optimizer for each number of micro-batches.
fn optimizer(split: usize) -> Box<dyn Optimizer> {
    let whole = AdamW::new(1e-3);
    if split == 1 {
        return Box::new(whole);
    }
    let bytes = whole.moments(Moments::Bytes).weight_decay(Decay::new(0.1).group("vectors", 0.0));
    Box::new(Recipe::new(bytes).clip(Clip::GlobalNorm(1.0)).average(0.9))
}

/// One test, because allocations of a test on another thread would be counted.
#[test]
fn steps_allocate_nothing_on_any_thread() {
    batches_of_several_inputs_allocate_nothing();
    checking_memory_allocates_nothing();
    devices_allocate_nothing();
    for entry in &ZOO {
        let make = || (entry.make)(&entry.small);
        let model = make();
        let spec = SyntheticSpec { inputs: model.inputs(), label: model.target() };
        let source = |part| Box::new(Synthetic::new(spec.clone(), 320, 0, part).unwrap());
        let data = Dataset::new("synthetic", source(0), source(1));
        for split in [1, 2] {
            if split > 1 && !entry.splits {
                continue;
            }
            let batch = 2 * step::example_block(model.as_ref(), &Numerics::default());
            let executor = Cpu::new(3).unwrap();
            let trainer = Trainer::new(make(), optimizer(split))
                .executor(executor)
                .line(usize::MAX)
                .batch(batch)
                .micro_batches(split);
            let mut session = trainer.plan(&data).unwrap().start().unwrap();
            let pipeline = data.train.clone().shuffle(0, 0).batch(batch).workers(split - 1);
            let mut batches = pipeline.start(Cursor::default()).unwrap();
            let mut step = |session: &mut Session| {
                let batch = batches.next().unwrap().unwrap();
                session.train_step(batch).unwrap();
            };
            step(&mut session);
            let before = HEAP.allocations();
            for _ in 0..4 {
                step(&mut session);
            }
            assert_eq!(HEAP.allocations() - before, 0, "{} in {split} micro-batches", entry.name);
        }
    }
}

fn checking_memory_allocates_nothing() {
    let watchdog = Watchdog::new();
    let before = HEAP.allocations();
    let looks = (0..200).filter(|_| watchdog.above(usize::MAX).is_some()).count();
    assert!(looks == 0 && watchdog.above(0).is_some());
    assert_eq!(HEAP.allocations() - before, 0);
}

fn batches_of_several_inputs_allocate_nothing() {
    let types = ["f32[5]", "i32[3]", "f32[]"].map(|ty| ty.parse::<TensorType>().unwrap());
    let inputs = types.iter().map(|ty| Field { ty: ty.clone(), bound: Some(9) }).collect();
    let spec = SyntheticSpec { inputs, label: Field::floats([2]) };
    let tensors = ["f32[40,5]", "i32[40]"].map(|ty| Tensor::zeros(ty.parse().unwrap()));
    let labels = Tensor::zeros("i32[40,3]".parse().unwrap());
    let sources: [Box<dyn Source>; 2] = [
        Box::new(Synthetic::new(spec, 40, 0, 0).unwrap()),
        Box::new(Memory::new(tensors.into(), labels, Some(7)).unwrap()),
    ];
    for source in sources {
        let pipeline = Pipeline::new(source).shuffle(0, 0).batch(7);
        let mut batches = pipeline.start(Cursor::default()).unwrap();
        let before = HEAP.allocations();
        for _ in 0..20 {
            batches.next().unwrap();
        }
        assert_eq!(HEAP.allocations() - before, 0, "{}", pipeline.schema().in_words());
    }
}

/// Steps in replicas and with placed layers, in one micro-batch and in several.
fn devices_allocate_nothing() {
    let model = || zoo::mlp_of(&[20], &[32, 32], 5);
    let spec = SyntheticSpec { inputs: model().inputs(), label: model().target() };
    let source = |part| Box::new(Synthetic::new(spec.clone(), 8 * 192, 0, part).unwrap());
    let data = Dataset::new("synthetic", source(0), source(1));
    for (split, placed) in [(1, false), (2, false), (1, true), (2, true)] {
        let devices = LogicalDevices::cpu(3, 2).unwrap();
        let trainer =
            Trainer::new(model(), AdamW::new(1e-3)).line(usize::MAX).batch(192).micro_batches(split);
        let rules = ["*1=cpu:0", "*2=cpu:1", "*=cpu:2"];
        let trainer = match placed {
            true => trainer.place(&devices, Placement::new(rules).unwrap()),
            false => trainer.replicas(&devices),
        };
        let mut session = trainer.plan(&data).unwrap().start().unwrap();
        let mut batches =
            data.train.clone().shuffle(0, 0).batch(192).workers(0).start(Cursor::default()).unwrap();
        let mut step = |session: &mut Session| {
            let batch = batches.next().unwrap().unwrap();
            session.train_step(batch).unwrap();
        };
        step(&mut session);
        let before = HEAP.allocations();
        (0..4).for_each(|_| step(&mut session));
        assert_eq!(HEAP.allocations() - before, 0, "in {split} micro-batches, placed: {placed}");
    }
}
