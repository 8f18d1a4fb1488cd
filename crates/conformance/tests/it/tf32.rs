//! Products in TF32: near those of f32 and not the same, with the bits of any line, split and number of threads.

use plimsoll_conformance::{
    compare, executors, on_emulated_cuda, on_emulated_tf32, on_gpu, on_gpu_tf32, random, reference_op,
    run_op, synthetic, trained_states,
};
use plimsoll_cpu::Cpu;
use plimsoll_data::Dataset;
use plimsoll_graph::Op;
use plimsoll_graph::op::{Attention, Conv, Epilogue, Geometry, Loss, MatMul};
use plimsoll_nn::{AdamW, Policy, Precision, zoo};
use plimsoll_tensor::{Tensor, TensorType};
use plimsoll_train::Trainer;
use std::path::Path;

/// What rounding an operand changes it by at most, relative to it, where the hardware cuts digits off; the emulator, which rounds to the
/// nearest, changes it by half of that.
const CUT: f64 = 1.0 / 1024.0;

/// Products and convolutions, whose results are linear in each operand.
fn bilinear() -> Vec<(Op, [&'static str; 2])> {
    let mut cases = Vec::new();
    for (a, b, transpose_a, transpose_b) in [
        ("f32[5,3]", "f32[3,17]", false, false),
        ("f32[32,600]", "f32[600,32]", false, false),
        ("f32[300,32]", "f32[300,72]", true, false),
        ("f32[70,19]", "f32[65,19]", false, true),
        ("f32[6,9,8]", "f32[6,8,4]", false, false),
    ] {
        cases.push((Op::MatMul(MatMul { transpose_a, transpose_b, ..MatMul::default() }), [a, b]));
    }
    let plain = Geometry { window: [3, 3], stride: [1, 1], padding: [[1, 1], [1, 1]], dilation: [1, 1] };
    let strided = Geometry { stride: [2, 2], padding: [[1, 0], [0, 1]], ..plain };
    let one = Geometry { window: [1, 1], padding: [[0, 0], [0, 0]], ..plain };
    for (geometry, groups, x, kernel, y) in [
        (plain, 1, "f32[2,9,7,5]", "f32[3,3,5,18]", "f32[2,9,7,18]"),
        (strided, 1, "f32[2,9,8,40]", "f32[3,3,40,8]", "f32[2,4,4,8]"),
        (plain, 2, "f32[3,6,5,8]", "f32[3,3,4,6]", "f32[3,6,5,6]"),
        (one, 1, "f32[2,4,4,16]", "f32[1,1,16,32]", "f32[2,4,4,32]"),
    ] {
        let image: TensorType = x.parse().unwrap();
        let image = [image.shape[1], image.shape[2]];
        let epilogue = Epilogue::default();
        cases.push((Op::Conv(Conv::Forward { geometry, groups, epilogue, output: None }), [x, kernel]));
        cases.push((Op::Conv(Conv::InputGrad { geometry, groups, image, output: None }), [y, kernel]));
        cases.push((Op::Conv(Conv::WeightGrad { geometry, groups }), [x, y]));
    }
    cases
}

fn inputs(types: &[&str]) -> Vec<Tensor> {
    let input = |(i, ty): (usize, &&str)| random(&format!("tf32 {i}"), &ty.parse().unwrap(), 1);
    types.iter().enumerate().map(input).collect()
}

fn on_one(op: &Op, inputs: &[Tensor]) -> Vec<Tensor> {
    run_op(executors()[0].checked(2).as_ref(), op, inputs, &[], 1).unwrap()
}

/// Each element is within the bound that the magnitudes of its terms give.
fn products_are_within_the_bound(rounding: f64) {
    for (op, types) in bilinear() {
        let inputs = inputs(&types);
        let magnitudes = |tensor: &Tensor| {
            let values: Vec<f64> = tensor.to_f64().iter().map(|x| x.abs()).collect();
            Tensor::from_f64(tensor.ty().clone(), &values).unwrap()
        };
        let magnitudes: Vec<Tensor> = inputs.iter().map(magnitudes).collect();
        let expected = reference_op(&op, &inputs).unwrap()[0].to_f64();
        let terms = reference_op(&op, &magnitudes).unwrap()[0].to_f64();
        let found = on_one(&op, &inputs)[0].to_f64();
        for ((found, expected), terms) in found.iter().zip(&expected).zip(&terms) {
            let (distance, allowed) = ((found - expected).abs(), 2.0 * rounding * (1.0 + CUT) * terms);
            assert!(distance <= allowed, "{op:?} {types:?}: {found}, expected {expected}, allowed {allowed}");
        }
    }
}

#[test]
fn emulated_products_are_within_the_bound() {
    on_emulated_tf32(|| products_are_within_the_bound(CUT / 2.0));
}

#[test]
fn products_of_a_gpu_are_within_the_bound() {
    on_gpu_tf32(|| products_are_within_the_bound(CUT));
}

/// Attention and the loss of a language head, with their gradients.
fn attention_and_loss_are_near() {
    let (causal, window, masked) = (true, None, false);
    let (q, lse) = ("f32[2,40,2,16]", "f32[2,40,2]");
    let forward = Op::Attention(Attention::Forward { causal, window, masked });
    let mut cases = vec![(forward.clone(), inputs(&[q, q, q]))];
    let mut all = inputs(&[q, q, q, q, lse, q]);
    let saved = reference_op(&forward, &all[..3]).unwrap();
    all.splice(3..5, saved);
    cases.push((Op::Attention(Attention::Grad { causal, window, masked }), all));
    let mut all = inputs(&["f32[40,24]", "f32[24,16]", "i32[40]", "f32[40]", "f32[]"]);
    all[2] = Tensor::from_f64(all[2].ty().clone(), &(0..40).map(|i| f64::from(i % 16)).collect::<Vec<_>>())
        .unwrap();
    cases.push((Op::Loss(Loss::LinearCrossEntropyWithGrad { transposed: false }), all));
    for (op, inputs) in cases {
        for (found, expected) in on_one(&op, &inputs).iter().zip(reference_op(&op, &inputs).unwrap()) {
            compare(found, &expected, 16.0 * CUT).unwrap_or_else(|e| panic!("{op:?}: {e}"));
        }
    }
}

#[test]
fn emulated_attention_and_loss_are_near() {
    on_emulated_tf32(attention_and_loss_are_near);
}

#[test]
fn attention_and_loss_of_a_gpu_are_near() {
    on_gpu_tf32(attention_and_loss_are_near);
}

/// Results of every case, first of numbers that TF32 has, then of others.
fn results() -> [Vec<Vec<Tensor>>; 2] {
    let short = |tensor: &Tensor| {
        let values: Vec<f64> = tensor.to_f64().iter().map(|x| (x * 8.0).round()).collect();
        Tensor::from_f64(tensor.ty().clone(), &values).unwrap()
    };
    let all: Vec<(Op, Vec<Tensor>)> =
        bilinear().into_iter().map(|(op, types)| (op, inputs(&types))).collect();
    let shorts = all.iter().map(|(op, inputs)| on_one(op, &inputs.iter().map(short).collect::<Vec<_>>()));
    [shorts.collect(), all.iter().map(|(op, inputs)| on_one(op, inputs)).collect()]
}

/// Numbers of few digits give the bits of f32, others do not, of the cases that are rounded.
fn differ_where_operands_are_rounded(
    f32: Option<[Vec<Vec<Tensor>>; 2]>,
    tf32: Option<[Vec<Vec<Tensor>>; 2]>,
    is_rounded: impl Fn(&[&str; 2]) -> bool,
) {
    let (Some(f32), Some(tf32)) = (f32, tf32) else { return };
    let same = |a: &[Tensor], b: &[Tensor]| a.iter().zip(b).all(|(a, b)| a.as_bytes() == b.as_bytes());
    for (i, (op, types)) in bilinear().into_iter().enumerate() {
        assert!(same(&f32[0][i], &tf32[0][i]), "{op:?} {types:?} of numbers that TF32 has");
        assert!(!is_rounded(&types) || !same(&f32[1][i], &tf32[1][i]), "{op:?} {types:?} is as in f32");
    }
}

#[test]
fn emulated_products_differ_from_f32_where_operands_are_rounded() {
    let (mut f32, mut tf32) = (None, None);
    on_emulated_cuda(|| f32 = Some(results()));
    on_emulated_tf32(|| tf32 = Some(results()));
    differ_where_operands_are_rounded(f32, tf32, |_| true);
}

#[test]
fn products_of_a_gpu_differ_from_f32_where_operands_are_rounded() {
    let (mut f32, mut tf32) = (None, None);
    on_gpu(|| f32 = Some(results()));
    on_gpu_tf32(|| tf32 = Some(results()));
    // cuBLASLt computes some products in f32 whose rows are not whole 32 bytes.
    let whole = |ty: &&str| ty.parse::<TensorType>().unwrap().shape.last().is_some_and(|n| n % 8 == 0);
    differ_where_operands_are_rounded(f32, tf32, |types| types.iter().all(whole));
}

/// Two blocks of a GPU's sums over examples.
const EXAMPLES: usize = 2 * 8192;

fn data() -> Dataset {
    synthetic(&zoo::mlp_of(&[12], &[24, 16], 4), EXAMPLES, 1, 5)
}

/// A run in TF32 of two blocks of examples, on so many threads.
fn trainer(threads: usize) -> Trainer {
    let model = || zoo::mlp_of(&[12], &[24, 16], 4);
    let executor = executors()[0].on(threads);
    let trainer =
        Trainer::new(model(), AdamW::new(1e-2)).executor(executor).precision(Policy::new(Precision::TF32));
    trainer.line(usize::MAX).batch(EXAMPLES).steps(1).seed(9)
}

fn bits_are_those_of_any_line_split_and_threads() {
    let data = data();
    let expected = trained_states(&trainer(1).micro_batches(1), &data).unwrap();
    let floor = trainer(1).forecast(&data).floor().unwrap();
    let with_device = executors()[0].on(1).tiers().host.is_some();
    let low = if with_device { trainer(1).device_line(floor) } else { trainer(1).line(floor) };
    for (name, run) in [("split", trainer(1).micro_batches(2)), ("threads", trainer(2)), ("floor", low)] {
        assert!(trained_states(&run, &data).unwrap() == expected, "{name}");
    }
}

#[test]
fn emulated_tf32_has_the_bits_of_any_line_split_and_threads() {
    on_emulated_tf32(bits_are_those_of_any_line_split_and_threads);
}

#[test]
fn tf32_of_a_gpu_has_the_bits_of_any_line_split_and_threads() {
    on_gpu_tf32(bits_are_those_of_any_line_split_and_threads);
}

/// A checkpoint of TF32 tells a run without it what differs.
#[test]
fn checkpoints_of_emulated_tf32_do_not_go_on_without_it() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tf32-checkpoint");
    std::fs::create_dir_all(&folder).unwrap();
    on_emulated_tf32(|| {
        let run = trainer(1).precision(Policy::default()).checkpoints(&folder, None);
        run.plan(&data()).unwrap().start().unwrap().fit().unwrap();
    });
    on_emulated_cuda(|| {
        let run = trainer(1).precision(Policy::default()).checkpoints(&folder, None);
        let error = run.plan(&data()).unwrap().start().unwrap().resume(&folder).unwrap_err().to_string();
        assert!(error.contains("products in tf32"), "{error}");
    });
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_cpu_refuses_tf32() {
    let model = || zoo::mlp_of(&[12], &[8], 4);
    let run = Trainer::new(model(), AdamW::new(1e-2)).executor(Cpu::new(1).unwrap());
    let run = run.precision(Policy::new(Precision::TF32)).batch(32).steps(1);
    let Err(error) = run.plan(&synthetic(&model(), 32, 1, 5)) else { panic!("a CPU has no TF32") };
    let error = error.to_string();
    assert!(error.contains("tf32") && error.contains("use f32 or bf16"), "{error}");
}
