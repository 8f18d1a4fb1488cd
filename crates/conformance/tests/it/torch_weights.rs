//! Weights files with PyTorch's names, and damaged files, which are refused.

use plimsoll_conformance::{any_executor, executors, formula, golden_logits};
use plimsoll_data::{Cursor, Dataset, Memory};
use plimsoll_nn::{Model, Sequential, Sgd, zoo};
use plimsoll_plan::Executor;
use plimsoll_tensor::{DType, Tensor, TensorType};
use plimsoll_train::{BatchKind, Trainer};
use std::path::{Path, PathBuf};

/// A file that is removed when the test ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let name = format!("plimsoll-{name}-{}.safetensors", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, bytes).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

type Tensors = Vec<(String, Vec<usize>)>;

/// A safetensors file around a header and data.
fn file(header: &[u8], data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header, data].concat()
}

/// A safetensors file with these tensors, their elements as in the script.
fn weights(tensors: &Tensors) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, shape) in tensors {
        let first = data.len();
        let counts = name.ends_with("num_batches_tracked");
        if counts {
            data.extend(0i64.to_le_bytes());
        } else {
            let elements = 0..shape.iter().product();
            data.extend(elements.flat_map(|i| value(name, shape, formula(name, i)).to_le_bytes()));
        }
        let dtype = if counts { "I64" } else { "F32" };
        let entry =
            serde_json::json!({ "dtype": dtype, "shape": shape, "data_offsets": [first, data.len()] });
        header.insert(name.clone(), entry);
    }
    file(&serde_json::to_vec(&header).unwrap(), &data)
}

/// An element of the tensor `name`, from u in [0, 1).
fn value(name: &str, shape: &[usize], u: f64) -> f32 {
    let value = match name.rsplit('.').next().unwrap_or(name) {
        "running_var" => 0.5 + u,
        "running_mean" | "bias" => 0.2 * (u - 0.5),
        _ if shape.len() == 1 => (0.9 + 0.2 * u) / if name.contains(".bn3.") { 3.0 } else { 1.0 },
        _ => (u - 0.5) * 2.0 * (6.0 / shape[1..].iter().product::<usize>() as f64).sqrt(),
    };
    value as f32
}

/// Two images as data for a model.
fn images(model: &dyn Model) -> Dataset {
    let shape = [&[2], &model.inputs()[0].ty.shape[..]].concat();
    let ty = TensorType::new(DType::F32, shape);
    let values: Vec<f64> = (0..ty.shape.elements()).map(|i| (formula("image", i) - 0.5) * 2.0).collect();
    let image = Tensor::from_f64(ty, &values).unwrap();
    let labels = Tensor::zeros(TensorType::new(DType::I32, [2]));
    let source = Memory::new(vec![image], labels, model.target().bound).unwrap();
    Dataset::new("images", source.clone(), source)
}

/// The scores of a model with the weights of a file, or why it is refused.
fn predict(executor: Box<dyn Executor>, model: Sequential, path: &Path) -> Result<Vec<f64>, String> {
    let data = images(&model);
    let trainer = Trainer::new(model, Sgd::new(0.0)).executor(executor).line(usize::MAX).batch(2);
    let trainer = trainer.kinds(&[BatchKind::Predict]);
    let mut session = trainer.plan(&data).unwrap().start().unwrap();
    session.load(path).map_err(|e| e.to_string())?;
    let mut batches = data.test.batch(2).start(Cursor::default()).unwrap();
    let batch = batches.next().unwrap().unwrap();
    Ok(session.predict(batch).unwrap()[0].to_f64())
}

fn check_logits(name: &str, model: fn() -> Sequential) {
    let golden = golden_logits(name);
    // Files written by the script must give the same.
    let folder = std::env::var_os("PLIMSOLL_TORCH_WEIGHTS").map(PathBuf::from);
    let scratch = Scratch::new(name, &weights(&golden.tensors));
    let path = folder.map_or(scratch.0.clone(), |folder| folder.join(format!("{name}.safetensors")));
    let largest = golden.logits.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
    for executor in executors() {
        let found = predict(executor.on(2), model(), &path).unwrap();
        assert_eq!(found.len(), golden.logits.len());
        for (i, (found, expected)) in found.iter().zip(&golden.logits).enumerate() {
            let near = (found - expected).abs() <= 1e-4 * largest;
            assert!(near, "{name} {i} on {}: found {found}, expected {expected}", executor.name);
        }
    }
}

#[test]
fn resnet50_loads_pytorchs_weights_and_gives_its_logits() {
    check_logits("resnet50", || zoo::resnet50_of([64, 64, 3], 1000, 64));
}

#[test]
fn mobilenet_v2_loads_pytorchs_weights_and_gives_its_logits() {
    check_logits("mobilenet_v2", || zoo::mobilenet_v2_of([64, 64, 3], 1000, 32, 0.2));
}

fn small() -> Sequential {
    zoo::lenet_of([12, 12, 1], 10)
}

/// The tensors that PyTorch would save of [`small`].
fn small_tensors() -> Tensors {
    let shapes: [(&str, &[usize]); 10] = [
        ("conv1.weight", &[6, 1, 5, 5]),
        ("conv1.bias", &[6]),
        ("conv2.weight", &[16, 6, 5, 5]),
        ("conv2.bias", &[16]),
        ("dense1.weight", &[120, 16]),
        ("dense1.bias", &[120]),
        ("dense2.weight", &[84, 120]),
        ("dense2.bias", &[84]),
        ("dense3.weight", &[10, 84]),
        ("dense3.bias", &[10]),
    ];
    shapes.into_iter().map(|(name, shape)| (name.to_string(), shape.to_vec())).collect()
}

/// Checks that the file is refused with a message that has all of `words` and the file's name.
#[track_caller]
fn refused(name: &str, bytes: &[u8], words: &[&str]) {
    let scratch = Scratch::new(name, bytes);
    let message = predict(any_executor(), small(), &scratch.0).expect_err("the file was loaded");
    for word in words.iter().copied().chain([scratch.0.to_str().unwrap()]) {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
}

#[test]
fn a_complete_file_loads() {
    let scratch = Scratch::new("whole", &weights(&small_tensors()));
    assert_eq!(predict(any_executor(), small(), &scratch.0).map(|scores| scores.len()), Ok(20));
}

#[test]
fn a_missing_tensor_is_named() {
    let mut tensors = small_tensors();
    tensors.retain(|(name, _)| name != "conv2.bias");
    refused("missing", &weights(&tensors), &["conv2.bias", "conv2/bias"]);
}

#[test]
fn an_extra_tensor_is_named() {
    let mut tensors = small_tensors();
    tensors.push(("dense4.weight".into(), vec![2, 10]));
    refused("extra", &weights(&tensors), &["dense4.weight"]);
}

#[test]
fn a_tensor_of_another_shape_is_named() {
    let mut tensors = small_tensors();
    tensors[4].1 = vec![16, 120];
    refused("shape", &weights(&tensors), &["dense1.weight", "[16, 120]", "[120, 16]"]);
}

#[test]
fn a_tensor_of_another_type_is_named() {
    let mut bytes = weights(&small_tensors());
    let text = br#""dtype":"F32","shape":[10]"#;
    let at = bytes.windows(text.len()).position(|w| w == text).unwrap();
    bytes[at..at + text.len()].copy_from_slice(br#""dtype":"I32","shape":[10]"#);
    refused("type", &bytes, &["dense3.bias", "I32", "F32"]);
}

#[test]
fn a_truncated_file_is_refused_with_its_first_missing_tensor() {
    let bytes = weights(&small_tensors());
    refused("cut", &bytes[..bytes.len() - 4], &["dense3.bias", &(bytes.len() - 4).to_string()]);
    refused("cut-header", &bytes[..100], &["header"]);
    refused("cut-length", &bytes[..5], &[]);
    refused("empty", &[], &[]);
}

#[test]
fn a_header_longer_than_the_file_is_refused_before_allocation() {
    for length in [1 << 20, 1 << 40, u64::MAX] {
        let bytes = [&length.to_le_bytes()[..], b"{}"].concat();
        refused(&format!("long-{length}"), &bytes, &["header", &length.to_string()]);
    }
}

#[test]
fn a_malformed_header_is_refused() {
    refused("not-json", &file(b"weights!", &[0; 64]), &["header"]);
    refused("not-utf8", &file(&[0xff; 16], &[0; 64]), &["header"]);
    refused("not-an-object", &file(b"[1, 2]", &[0; 64]), &["header"]);
    let backwards = br#"{"conv1.bias":{"dtype":"F32","shape":[6],"data_offsets":[24,0]}}"#;
    refused("backwards", &file(backwards, &[0; 64]), &["header", "conv1.bias"]);
    let overlap = br#"{"first":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},
        "second":{"dtype":"U8","shape":[8],"data_offsets":[4,12]}}"#;
    refused("overlap", &file(overlap, &[0; 64]), &["header", "second"]);
    let endless = br#"{"conv1.bias":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,24]}}"#;
    refused("endless", &file(endless, &[0; 64]), &["header"]);
}

#[test]
fn a_tensor_past_the_largest_file_offset_is_named() {
    // Batch counts are skipped. These leave too little below 2^64 for the header and a tensor.
    let huge = (1u64 << 61) - 88;
    let entry = |name: &str, dtype: &str, shape: &str, first: u64, bytes: u64| {
        let end = first + bytes;
        format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{first},{end}]}}"#)
    };
    let skipped =
        |i: u64| entry(&format!("{i}.num_batches_tracked"), "U8", &format!("[{huge}]"), i * huge, huge);
    let mut entries: Vec<String> = (0..8).map(skipped).collect();
    entries.push(entry("conv1.weight", "F32", "[6,1,5,5]", 8 * huge, 600));
    let header = format!("{{{}}}", entries.join(","));
    refused("beyond", &file(header.as_bytes(), &[0; 64]), &["conv1.weight"]);
}
