//! Mixed precision: 16-bit kernels against the reference and against f32 kernels on the same numbers, f32 sums, loss scaling,
//! and the memory it saves.

use plimsoll_conformance::{
    any_executor, cast, check_op, compare, executors, products_of, random, reference_op, run_op, synthetic,
    tolerance, trained_states, widening_sets,
};
use plimsoll_cpu::{CpuTarget, isa::Isa};
use plimsoll_data::{Dataset, Memory};
use plimsoll_graph::op::{
    Attention, Conv, Epilogue, Geometry, Index, Loss, MatMul, Norm, NormAxis, Pool, Reduce, Unary, Windows,
};
use plimsoll_graph::{BatchRelation, GraphError, Init, Numerics, Op, ValueId};
use plimsoll_nn::{
    AdamW, Dense, Layer, LossScale, Model, Moments, NarrowInputs, Net, Optimizer, Policy, Precision, Recipe,
    SKIPPED_STEPS, Sequential, Sgd, step, zoo,
};
use plimsoll_plan::{Budget, Executor, plan, verify};
use plimsoll_reference::Reference;
use plimsoll_tensor::{DType, Tensor, TensorType};
use plimsoll_train::{Schedule, TrainError, Trainer};
use plimsoll_transform::optimize;

const LOW: [DType; 2] = [DType::BF16, DType::F16];

/// An op and its inputs' types, `low` for the 16-bit ones.
fn cases() -> Vec<(Op, Vec<&'static str>)> {
    let mut cases: Vec<(Op, Vec<&'static str>)> = Vec::new();
    let wide = Some(DType::F32);
    for output in [None, wide] {
        for (a, b, transpose_a, transpose_b) in [
            ("low[5,3]", "low[3,17]", false, false),
            ("low[31,600]", "low[600,33]", false, false),
            ("low[300,31]", "low[300,70]", true, false),
            ("low[70,19]", "low[65,19]", false, true),
            ("low[4,0]", "low[0,3]", false, false),
        ] {
            let op = MatMul { transpose_a, transpose_b, output, ..MatMul::default() };
            cases.push((Op::MatMul(op), vec![a, b]));
        }
        let epilogue = Epilogue { bias: true, relu: true };
        let op = Op::MatMul(MatMul { epilogue, output, ..MatMul::default() });
        cases.push((op, vec!["low[37,290]", "low[290,300]", "f32[300]"]));
        cases.push((Op::MatMul(MatMul { output, ..MatMul::default() }), vec!["low[6,9,8]", "low[6,8,5]"]));
    }
    let plain = Geometry { window: [3, 3], stride: [1, 1], padding: [[1, 1], [1, 1]], dilation: [1, 1] };
    let strided = Geometry { stride: [2, 2], padding: [[1, 0], [0, 1]], ..plain };
    let one = Geometry { window: [1, 1], padding: [[0, 0], [0, 0]], ..plain };
    let seven = Geometry { window: [7, 7], stride: [2, 2], padding: [[3, 3], [3, 3]], dilation: [1, 1] };
    let apart = Geometry { stride: [2, 2], ..one };
    let wide_apart = Geometry { stride: [2, 1], dilation: [2, 2], ..plain };
    for (geometry, groups, x, kernel, y) in [
        (plain, 1, "low[2,9,7,5]", "low[3,3,5,18]", "low[2,9,7,18]"),
        (strided, 1, "low[2,9,8,40]", "low[3,3,40,7]", "low[2,4,4,7]"),
        (plain, 2, "low[3,6,5,8]", "low[3,3,4,6]", "low[3,6,5,6]"),
        (plain, 21, "low[2,6,5,21]", "low[3,3,1,21]", "low[2,6,5,21]"),
        (one, 1, "low[2,4,4,16]", "low[1,1,16,32]", "low[2,4,4,32]"),
        (strided, 2, "low[2,9,8,32]", "low[3,3,16,48]", "low[2,4,4,48]"),
        // Channels that tensor cores multiply, or too few of them.
        (plain, 1, "low[2,9,7,8]", "low[3,3,8,24]", "low[2,9,7,24]"),
        (strided, 1, "low[2,9,8,40]", "low[3,3,40,72]", "low[2,4,4,72]"),
        (wide_apart, 1, "low[2,9,8,16]", "low[3,3,16,8]", "low[2,4,6,8]"),
        (apart, 1, "low[2,5,4,8]", "low[1,1,8,16]", "low[2,3,2,16]"),
        (seven, 1, "low[1,12,11,3]", "low[7,7,3,8]", "low[1,6,6,8]"),
        (plain, 1, "low[2,5,6,3]", "low[3,3,3,16]", "low[2,5,6,16]"),
    ] {
        let image: TensorType = x.replace("low", "f32").parse().unwrap();
        let image = [image.shape[1], image.shape[2]];
        for output in [None, wide] {
            for relu in [false, true] {
                let epilogue = Epilogue { bias: false, relu };
                cases.push((Op::Conv(Conv::Forward { geometry, groups, epilogue, output }), vec![x, kernel]));
            }
            cases.push((Op::Conv(Conv::InputGrad { geometry, groups, image, output }), vec![y, kernel]));
        }
        cases.push((Op::Conv(Conv::WeightGrad { geometry, groups }), vec![x, y]));
    }
    for causal in [false, true] {
        let (q, k) = ("low[2,70,4,8]", "low[2,70,2,8]");
        cases
            .push((Op::Attention(Attention::Forward { causal, window: None, masked: false }), vec![q, k, k]));
        let op = Op::Attention(Attention::Grad { causal, window: None, masked: false });
        cases.push((op, vec![q, k, k, q, "f32[2,70,4]", q]));
        // Widths that tensor cores multiply, with keys past the last query and queries past the last key; masked, or not.
        for (q, k, lse, mask) in [
            ("low[1,70,2,16]", "low[1,130,1,16]", "f32[1,70,2]", None),
            ("low[1,130,1,64]", "low[1,70,1,64]", "f32[1,130,1]", None),
            ("low[2,33,2,32]", "low[2,70,2,32]", "f32[2,33,2]", Some("bool[2,1,33,70]")),
        ] {
            let masked = mask.is_some();
            let inputs = [&[q, k, k][..], &mask.into_iter().collect::<Vec<_>>()].concat();
            cases.push((Op::Attention(Attention::Forward { causal, window: None, masked }), inputs));
            let inputs = [&[q, k, k, q, lse, q][..], &mask.into_iter().collect::<Vec<_>>()].concat();
            cases.push((Op::Attention(Attention::Grad { causal, window: None, masked }), inputs));
        }
    }
    for (window, q, k, lse) in [
        (7, "low[1,70,2,16]", "low[1,70,1,16]", "f32[1,70,2]"),
        (64, "low[1,200,1,64]", "low[1,200,1,64]", "f32[1,200,1]"),
        (40, "low[1,200,1,32]", "low[1,70,1,32]", "f32[1,200,1]"),
        (9, "low[1,70,2,8]", "low[1,70,2,8]", "f32[1,70,2]"),
    ] {
        let (causal, window, masked) = (true, Some(window), false);
        cases.push((Op::Attention(Attention::Forward { causal, window, masked }), vec![q, k, k]));
        let op = Op::Attention(Attention::Grad { causal, window, masked });
        cases.push((op, vec![q, k, k, q, lse, q]));
    }
    for axis in [NormAxis::Row, NormAxis::Channel] {
        // Rows that are loaded element by element, and in vectors; few and many of them.
        for (low, wide, row, channel) in [
            ("low[40,13]", "f32[40,13]", "f32[40,1]", "f32[13]"),
            ("low[40,24]", "f32[40,24]", "f32[40,1]", "f32[24]"),
            ("low[600,24]", "f32[600,24]", "f32[600,1]", "f32[24]"),
        ] {
            let statistic = if axis == NormAxis::Row { row } else { channel };
            cases.push((Op::Norm(Norm::Stats { axis }), vec![low]));
            for dy in [low, wide] {
                cases.push((Op::Norm(Norm::Sums { axis }), vec![dy, low, statistic, statistic]));
            }
        }
    }
    for (start, end) in [(0, 1), (1, 2), (0, 2), (2, 3)] {
        cases.push((Op::Reduce(Reduce::Sum { start, end }), vec!["low[70,5,33]"]));
    }
    cases.push((Op::Reduce(Reduce::Sum { start: 0, end: 1 }), vec!["low[300,40]"]));
    let windows = Windows::Sliding(Geometry { padding: [[0, 0]; 2], ..strided });
    cases.push((Op::Pool(Pool::Max { windows }), vec!["low[2,9,9,20]"]));
    let apart = Windows::Sliding(Geometry { window: [2, 2], padding: [[0, 0]; 2], ..strided });
    let grad = Op::Pool(Pool::MaxGrad { windows: apart, image: [8, 6] });
    cases.push((grad, vec!["low[2,4,3,5]", "u8[2,4,3,5]"]));
    // More indices than a kernel looks at in one go.
    cases.push((Op::Index(Index::ScatterAdd { rows: 3 }), vec!["i32[50]", "low[50,9]"]));
    cases.push((Op::Index(Index::ScatterAdd { rows: 40 }), vec!["i32[5000]", "low[5000,2]"]));
    // The last one has classes and rows that fill several tiles and parts of a gradient's sum, and some that do not.
    for (transposed, kernel, x, labels, row) in [
        (false, "f32[20,3]", "low[70,20]", "i32[70]", "f32[70]"),
        (true, "f32[3,20]", "low[70,20]", "i32[70]", "f32[70]"),
        (true, "f32[70,8]", "low[600,8]", "i32[600]", "f32[600]"),
    ] {
        cases.push((Op::Loss(Loss::LinearCrossEntropy { transposed }), vec![x, kernel, labels, row]));
        let grad = Op::Loss(Loss::LinearCrossEntropyGrad { transposed });
        cases.push((grad, vec![x, kernel, labels, row, row, "f32[]"]));
        let both = Op::Loss(Loss::LinearCrossEntropyWithGrad { transposed });
        cases.push((both, vec![x, kernel, labels, row, "f32[]"]));
    }
    cases
}

fn inputs(types: &[&str], low: DType) -> Vec<Tensor> {
    let make = |(i, ty): (usize, &&str)| {
        random(&format!("low {i}"), &ty.replace("low", low.name()).parse().unwrap(), 3)
    };
    types.iter().enumerate().map(make).collect()
}

#[test]
pub(super) fn kernels_match_the_reference() {
    for low in LOW {
        for (op, types) in cases() {
            let name = format!("{} {types:?} in {low}", op.name());
            let inputs = inputs(&types, low);
            let types: Vec<&TensorType> = inputs.iter().map(Tensor::ty).collect();
            // An f32 result has only f32 roundings.
            let allowed = |output: &TensorType| 2.0 * tolerance(&op, &types, output.dtype);
            if low == DType::F16 || !matches!(Isa::detect(), Isa::Avx512Bf16 | Isa::Amx) {
                check_op(&op, &inputs, &[], 1, allowed).unwrap_or_else(|e| panic!("{name} {e}"));
                continue;
            }
            // This machine's best set does not widen bf16: its older ones do.
            let expected = reference_op(&op, &inputs).unwrap();
            for executor in widening_sets() {
                for (found, expected) in
                    run_op(&executor.checked(2), &op, &inputs, &[], 1).unwrap().iter().zip(&expected)
                {
                    compare(found, expected, allowed(expected.ty()))
                        .unwrap_or_else(|e| panic!("{name} on {}: {e}", executor.name));
                }
            }
        }
    }
}

/// Where products of 16-bit floats are not widened, sums are still f32; an f32 beside a 16-bit float is rounded first.
#[test]
pub(super) fn products_of_16_bits_match_the_reference() {
    LOW.into_iter().for_each(check_products);
}

fn check_products(low: DType) {
    for (op, types) in cases() {
        let name = format!("{} {types:?} in {low}", op.name());
        let mut inputs = inputs(&types, low);
        // A log-sum-exp that is not that of the logits would magnify their errors, so everyone gets its own.
        let forward = match op {
            Op::Loss(Loss::LinearCrossEntropyGrad { transposed }) => {
                Some(Op::Loss(Loss::LinearCrossEntropy { transposed }))
            }
            _ => None,
        };
        if let Some(forward) = &forward {
            inputs[4] = reference_op(forward, &inputs[..4]).unwrap().swap_remove(1);
        }
        let types: Vec<TensorType> = inputs.iter().map(|tensor| tensor.ty().clone()).collect();
        let types: Vec<&TensorType> = types.iter().collect();
        let rounds = matches!(op, Op::Attention(_) | Op::Loss(_));
        let expected = reference_op(&op, &inputs).unwrap();
        for executor in products_of(low) {
            if let Some(forward) = &forward {
                inputs[4] =
                    run_op(&executor.checked(2), forward, &inputs[..4], &[], 1).unwrap().swap_remove(1);
            }
            for (found, expected) in
                run_op(&executor.checked(2), &op, &inputs, &[], 1).unwrap().iter().zip(&expected)
            {
                let precision = if rounds { low } else { expected.ty().dtype };
                compare(found, expected, 2.0 * tolerance(&op, &types, precision))
                    .unwrap_or_else(|e| panic!("{name} on {}: {e}", executor.name));
            }
        }
    }
}

/// Widening every 16-bit input first, and rounding the result after, gives the same bits: passes that fuse casts into kernels
/// change nothing, where the instruction set does not multiply bf16.
#[test]
fn kernels_have_the_bits_of_f32_kernels_on_the_same_numbers() {
    for low in LOW {
        for (op, types) in cases() {
            let name = format!("{} {types:?} in {low}", op.name());
            let inputs = inputs(&types, low);
            let widened: Vec<Tensor> = inputs.iter().map(|t| cast(t, DType::F32)).collect();
            let mut plain = op.clone();
            match &mut plain {
                Op::MatMul(MatMul { output, .. })
                | Op::Conv(Conv::Forward { output, .. } | Conv::InputGrad { output, .. }) => *output = None,
                _ => {}
            }
            for executor in widening_sets() {
                let found = run_op(&executor.checked(3), &op, &inputs, &[], 1).unwrap();
                let wide = run_op(&executor.checked(1), &plain, &widened, &[], 1).unwrap();
                for (found, wide) in found.iter().zip(&wide) {
                    let expected = cast(wide, found.ty().dtype);
                    assert!(found.as_bytes() == expected.as_bytes(), "{name} on {}", executor.name);
                }
            }
        }
    }
}

/// A zoo model at its smallest.
fn small(name: &str) -> Box<dyn Model> {
    let entry = zoo::ZOO.iter().find(|e| e.name == name).unwrap();
    (entry.make)(&entry.small)
}

/// A 16-bit sum over the batch would be rounded elsewhere for every split into micro-batches.
#[test]
fn values_reduced_over_the_batch_are_f32() {
    for entry in &zoo::ZOO {
        for precision in [Precision::BF16, Precision::F16] {
            let policy = Policy::new(precision);
            let (model, numerics) = (small(entry.name), Numerics::default());
            let graph = step::training_as(&policy, &numerics, model.as_ref(), &AdamW::new(1e-3), 4).unwrap();
            for (value, relation) in graph.value_ids().zip(graph.batch_relations()) {
                let low = graph.ty(value).dtype.is_low();
                assert!(
                    !(low && relation == BatchRelation::Reduced),
                    "{}: {value} is {}",
                    entry.name,
                    graph.ty(value)
                );
            }
            let states = graph.states.iter();
            states.for_each(|s| assert!(!graph.ty(s.input).dtype.is_low(), "{}", s.name));
        }
    }
}

/// Bytes of a training step besides its states: of activations, and of the whole arena.
fn activation_bytes(model: &dyn Model, precision: Precision, batch: usize) -> (usize, usize) {
    let policy = Policy::new(precision);
    let graph = step::training_as(&policy, &Numerics::default(), model, &AdamW::new(1e-3), batch).unwrap();
    let graph = optimize(graph, &Numerics::default(), &[]).unwrap();
    let target = CpuTarget::new(Isa::Avx512, 2);
    let plans = plan(&[("train".into(), graph)], &target, &Budget::new(usize::MAX, Vec::new())).unwrap();
    verify(&plans).unwrap();
    let states: usize = plans.states.iter().map(|s| s.ty.bytes()).sum();
    let values = plans.sheet.arena.iter().filter(|e| ["kept", "in use"].contains(&e.name.as_str()));
    (values.map(|e| e.bytes).sum(), plans.arena_bytes - states)
}

#[test]
fn activations_take_about_half() {
    for (name, batch) in [("resnet20", 128), ("gpt", 16)] {
        let entry = zoo::ZOO.iter().find(|e| e.name == name).unwrap();
        let model = (entry.make)(&Default::default());
        let (activations, arena) = activation_bytes(model.as_ref(), Precision::F32, batch);
        for precision in [Precision::BF16, Precision::F16] {
            let (low, low_arena) = activation_bytes(model.as_ref(), precision, batch);
            println!("{name} {precision}: {low} of {activations}, {low_arena} of {arena} bytes");
            assert!(low as f64 <= 0.55 * activations as f64, "{name}: {low} of {activations} bytes");
        }
    }
}

/// A layer in f32 before a norm: its gradient is 16-bit, while the norm reads f32.
#[test]
fn a_layer_before_a_norm_can_be_kept_in_f32() {
    let model = small("resnet20");
    let policy = Policy::new(Precision::BF16).keep_f32("conv");
    let graph =
        step::training_as(&policy, &Numerics::default(), model.as_ref(), &AdamW::new(1e-3), 4).unwrap();
    let graphs = [("train".into(), optimize(graph, &Numerics::default(), &[]).unwrap())];
    let target = CpuTarget::new(Isa::Avx512, 2);
    let plans = plan(&graphs, &target, &Budget::new(usize::MAX, Vec::new()));
    assert!(plans.is_ok(), "{}", plans.unwrap_err());
}

#[test]
pub(super) fn every_executor_trains_near_the_reference() {
    for precision in [Precision::BF16, Precision::F16] {
        let run = |executor: Box<dyn Executor>| {
            let model = zoo::mlp_of(&[12], &[16], 4);
            let data = synthetic(&model, 64, 8, 5);
            let trainer =
                Trainer::new(model, Sgd::new(0.1)).executor(executor).line(usize::MAX).batch(32).steps(4);
            let trainer = trainer.precision(Policy::new(precision));
            trainer.plan(&data).unwrap().start().unwrap().fit().unwrap().final_loss
        };
        let reference = run(Box::new(Reference));
        for executor in executors() {
            let (found, name) = (run(executor.on(2)), executor.name);
            let near = (found - reference).abs() < 2e-2 * reference.abs();
            assert!(near, "{precision} on {name}: {found} and {reference}");
        }
    }
}

/// An overflow halves the scale and changes no parameter or moment; training goes on.
#[test]
fn an_overflow_skips_the_step_and_halves_the_scale() {
    let optimizers: [fn() -> Box<dyn Optimizer>; 3] = [
        || Box::new(AdamW::new(1e-2)),
        || Box::new(Recipe::new(Sgd::new(1e-2).momentum(0.9)).average(0.9)),
        || Box::new(AdamW::new(1e-2).moments(Moments::Bytes)),
    ];
    for (make, entry) in optimizers.into_iter().zip(["mlp", "resnet20", "gpt"]) {
        let model = small(entry);
        let data = synthetic(&model, 64, 8, 5);
        let scale = LossScale { initial: 2f64.powi(60), growth: 2 };
        let trainer = Trainer::new(model, make()).executor(any_executor()).line(usize::MAX).batch(8);
        let trainer = trainer.precision(Policy::new(Precision::F16).loss_scale(scale));
        let plans = trainer.plan(&data).unwrap();
        let names: Vec<String> = plans.states.iter().map(|s| s.name.clone()).collect();
        let mut session = plans.start().unwrap();
        let mut batches = trainer.training_batches(&data).start(Default::default()).unwrap();
        let mut next = |session: &mut plimsoll_train::Session| {
            let batch = loop {
                if let Some(batch) = batches.next().unwrap() {
                    break batch;
                }
            };
            session.train_step(batch).unwrap()
        };
        let number = |session: &plimsoll_train::Session, name: &str| session.state(name).unwrap().to_f64()[0];
        let scale_of = |session: &plimsoll_train::Session| number(session, plimsoll_nn::LOSS_SCALE);
        let kept: Vec<&String> = names.iter().filter(|n| !n.starts_with("loss_scale/")).collect();
        let states = |session: &plimsoll_train::Session| -> Vec<Vec<u8>> {
            kept.iter().map(|n| session.state(n).unwrap().as_bytes().to_vec()).collect()
        };
        let before = states(&session);
        next(&mut session);
        assert_eq!(scale_of(&session), 2f64.powi(59), "{entry}");
        assert_eq!(number(&session, SKIPPED_STEPS), 1.0);
        for ((name, before), after) in kept.iter().zip(&before).zip(states(&session)) {
            assert!(*before == after, "{entry}: a skipped step changed `{name}`");
        }
        let mut steps = 1;
        while number(&session, plimsoll_nn::GOOD_STEPS) == 0.0 {
            next(&mut session);
            steps += 1;
            assert!(steps < 64, "{entry}: the scale is {}", scale_of(&session));
        }
        assert_eq!(number(&session, SKIPPED_STEPS), (steps - 1) as f64);
        assert!(states(&session) != before, "{entry}: a good step changes parameters");
        let found = scale_of(&session);
        next(&mut session);
        let (after, good) = (scale_of(&session), number(&session, plimsoll_nn::GOOD_STEPS));
        assert!(
            good == 0.0 && (after == 2.0 * found || after == found / 2.0),
            "{entry}: {found}, then {after}"
        );
    }
}

/// After skipped steps, the first good one has the same result as without them.
#[test]
fn skipped_steps_do_not_change_the_optimizer() {
    let model = || zoo::mlp_of(&[12], &[16], 4);
    let data = synthetic(&model(), 32, 8, 5);
    // The states after the first good step, the steps until then, and its scale.
    let first_good = |initial: f64| {
        let scale = LossScale { initial, growth: 1000 };
        let optimizer = Recipe::new(AdamW::new(1e-2)).average(0.9);
        let trainer = Trainer::new(model(), optimizer).executor(any_executor()).line(usize::MAX).batch(32);
        let trainer = trainer.schedule(Schedule::Constant);
        let trainer = trainer.precision(Policy::new(Precision::F16).loss_scale(scale));
        let plans = trainer.plan(&data).unwrap();
        let names: Vec<String> = plans.states.iter().map(|s| s.name.clone()).collect();
        let mut session = plans.start().unwrap();
        let mut batches = trainer.training_batches(&data).start(Default::default()).unwrap();
        let batch = batches.next().unwrap().unwrap();
        let mut steps = 0;
        while session.state(plimsoll_nn::GOOD_STEPS).unwrap().to_f64()[0] == 0.0 {
            session.train_step(batch).unwrap();
            steps += 1;
            assert!(steps < 64);
        }
        let kept = names.into_iter().filter(|name| name != SKIPPED_STEPS);
        let states: Vec<_> = kept.map(|n| (session.state(&n).unwrap().as_bytes().to_vec(), n)).collect();
        (states, steps, session.scale().unwrap().unwrap().scale)
    };
    let (late, steps, scale) = first_good(2f64.powi(40));
    assert!(steps > 4);
    let (at_once, steps, _) = first_good(scale);
    assert_eq!(steps, 1);
    for ((late, name), (at_once, _)) in late.iter().zip(&at_once) {
        assert!(late == at_once, "skipped steps changed `{name}`");
    }
}

/// A shift by a function of a parameter, which is zero.
struct Shift(Unary);

impl Layer for Shift {
    fn forward(&self, net: &mut Net, x: ValueId) -> Result<ValueId, GraphError> {
        let parameter = net.parameter("at", [], Init::Zeros);
        let shift = net.unary(self.0, parameter)?;
        net.add(x, shift)
    }
}

/// No loss scale mends a loss that is not finite; it may mend gradients that are not, until it is the smallest.
#[test]
fn divergence_that_no_loss_scale_mends_ends_the_run() {
    // The logarithm of zero is infinite; the root of zero has an infinite gradient only.
    for (op, steps, gradients) in [(Unary::Log, 0, false), (Unary::Sqrt, 2, true)] {
        let model = Sequential::classifier([6], 3)
            .named("shifted")
            .layer("hidden", Dense::new(8))
            .layer("gate", Shift(op))
            .layer("head", Dense::new(3));
        let data = synthetic(&model, 32, 8, 5);
        let scale = LossScale { initial: 4.0, growth: 2000 };
        let trainer =
            Trainer::new(model, Sgd::new(0.1)).executor(any_executor()).line(usize::MAX).batch(16).steps(20);
        let trainer = trainer.precision(Policy::new(Precision::F16).loss_scale(scale));
        let result = trainer.plan(&data).unwrap().start().unwrap().fit();
        let Err(TrainError::Diverged(found)) = result else { panic!("{op:?}: it did not diverge") };
        assert_eq!((found.step, found.gradients), (steps, gradients), "{found}");
        assert!(found.loss.is_finite() == gradients, "{found}");
        assert_eq!(found.origin.as_ref().map(|origin| &*origin.layer), Some("gate"), "{found}");
        assert!(!gradients || found.to_string().contains("a gradient is not finite in step 3"), "{found}");
    }
}

/// Images in bf16 train to the same bits as f32 images, which are rounded as they are read.
#[test]
fn bf16_inputs_change_no_bit_and_take_half_the_bytes() {
    let numbers = |count: usize, scale: f64| (0..count).map(move |i| (i as f64 * 0.37).sin() * scale);
    let images: Vec<f64> = numbers(16 * 28 * 28, 2.0).collect();
    let labels: Vec<f64> = (0..16).map(|i| f64::from(i % 10)).collect();
    let run = |dtype: &str, model: Box<dyn Model>| {
        let images = Tensor::from_f64(format!("{dtype}[16,28,28,1]").parse().unwrap(), &images).unwrap();
        let labels = Tensor::from_f64("i32[16]".parse().unwrap(), &labels).unwrap();
        let source = || Memory::new(vec![images.clone()], labels.clone(), Some(10)).unwrap();
        let data = Dataset::new("memory", source(), source());
        let trainer =
            Trainer::new(model, Sgd::new(0.1)).executor(any_executor()).line(usize::MAX).batch(8).steps(4);
        let trainer = trainer.precision(Policy::new(Precision::BF16));
        let plans = trainer.plan(&data).unwrap();
        let inputs: usize =
            plans.plans[0].graph.inputs.iter().map(|i| plans.plans[0].graph.ty(i.value).bytes()).sum();
        (inputs, trained_states(&trainer, &data).unwrap())
    };
    let wide = run("f32", Box::new(zoo::lenet()));
    let narrow = run("bf16", Box::new(NarrowInputs::new(zoo::lenet(), Precision::BF16)));
    assert!(wide.1 == narrow.1, "the states differ");
    assert_eq!(wide.0 - narrow.0, 8 * 28 * 28 * 2);
}
