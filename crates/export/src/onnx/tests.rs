//! What is written is read back: the same states with the same elements. Damaged files are errors.

use super::proto::{GraphProto, ModelProto, element};
use super::{OnnxModel, OnnxOptions, onnx};
use crate::test_models::{branches_on_bytes, layers_on_bytes, on_bytes};
use crate::{Batch, ExportError, ExportGraph, Weights};
use plimsoll_graph::Graph;
use plimsoll_nn::zoo::{self, ZOO};
use plimsoll_nn::{InitialValues, Model, step};
use plimsoll_testing::Scratch;
use prost::Message;
use std::cell::Cell;
use std::fs;
use std::path::PathBuf;

/// Weights that are a function of the state and the element.
struct Numbered;

fn number(state: usize, element: usize) -> f32 {
    state as f32 + element as f32 * 1e-4
}

impl Weights for Numbered {
    fn read(&self, state: usize, offset: usize, into: &mut [u8]) -> Result<(), ExportError> {
        for (i, element) in into.chunks_mut(4).enumerate() {
            element.copy_from_slice(&number(state, offset / 4 + i).to_le_bytes());
        }
        Ok(())
    }
}

fn export(scratch: &Scratch, model: &dyn Model, batch: Batch, options: &OnnxOptions) -> PathBuf {
    let path = scratch.0.join(format!("{}.onnx", model.name()));
    let step = ExportGraph::new(model, batch).unwrap();
    let exported = onnx(&step, &Numbered, &path, options).unwrap_or_else(|e| panic!("{}: {e}", model.name()));
    let data =
        fs::metadata(scratch.0.join(format!("{}.onnx.data", model.name()))).map_or(0, |file| file.len());
    assert_eq!(exported.bytes, fs::metadata(&path).unwrap().len() + data);
    path
}

fn decoded(path: &PathBuf) -> GraphProto {
    ModelProto::decode(&fs::read(path).unwrap()[..]).unwrap().graph.unwrap()
}

/// Every state that the file was made from is one of the imported model, with the same type and the same elements.
fn same_states(name: &str, graph: &Graph, imported: &OnnxModel) {
    let read = step::prediction(imported, 2).unwrap_or_else(|e| panic!("{name}: {e}"));
    for (i, state) in graph.states.iter().enumerate() {
        let used = graph.nodes.iter().any(|node| node.inputs.contains(&state.input));
        let Some(found) = read.states.iter().find(|s| s.name == state.name) else {
            assert!(!used, "{name}: there is no {}", state.name);
            continue;
        };
        let ty = graph.ty(state.input);
        assert_eq!(read.ty(found.input), ty, "{name}: {}", state.name);
        // From the middle of an element's row on.
        let first = (ty.shape.elements() / 3).min(5);
        let mut bytes = vec![0; (ty.shape.elements() - first) * 4];
        imported.read(&state.name, first * 4, &mut bytes).unwrap();
        let wanted = (first..ty.shape.elements()).flat_map(|element| number(i, element).to_le_bytes());
        assert!(bytes.iter().copied().eq(wanted), "{name}: other elements in {}", state.name);
    }
}

#[test]
fn every_model_of_the_zoo_is_written_and_read_back() {
    let scratch = Scratch::new("onnx-zoo");
    for entry in &ZOO {
        let model = (entry.make)(&entry.small);
        let path = export(&scratch, model.as_ref(), Batch::Dynamic, &OnnxOptions::default());
        let imported = OnnxModel::open(&path).unwrap_or_else(|e| panic!("{}: {e}", entry.name));
        assert_eq!(imported.inputs(), model.inputs(), "{}", entry.name);
        assert_eq!(imported.target(), model.target(), "{}", entry.name);
        same_states(entry.name, ExportGraph::new(model.as_ref(), Batch::Dynamic).unwrap().graph(), &imported);
        fs::remove_file(path).unwrap();
    }
}

/// Attention to some positions before: tables of positions that do not begin at zero.
#[test]
fn a_window_below_the_context_is_read_back() {
    let scratch = Scratch::new("onnx-window");
    let model = zoo::Gpt { layers: 1, width: 8, heads: 2, context: 8, vocabulary: 12, ..zoo::Gpt::default() };
    for window in [1, 3, 8] {
        let model = zoo::Gpt { window: Some(window), ..model };
        let path = export(&scratch, &model, Batch::Dynamic, &OnnxOptions::default());
        let imported = OnnxModel::open(&path).unwrap_or_else(|e| panic!("{window}: {e}"));
        same_states("gpt", ExportGraph::new(&model, Batch::Dynamic).unwrap().graph(), &imported);
    }
}

#[test]
fn nodes_have_the_names_of_layers_and_no_needless_transposes() {
    let scratch = Scratch::new("onnx-names");
    let graph = decoded(&export(&scratch, &zoo::lenet(), Batch::Dynamic, &OnnxOptions::default()));
    let names: Vec<&str> = graph.node.iter().map(|node| node.name.as_str()).collect();
    let wanted = [
        "conv1/Transpose",
        "conv1/Conv",
        "relu1/Relu",
        "pool1/MaxPool",
        "conv2/Conv",
        "relu2/Relu",
        "pool2/MaxPool",
        "flatten/Transpose",
        "flatten/Reshape",
        "dense1/Gemm",
        "relu3/Relu",
        "dense2/Gemm",
        "relu4/Relu",
        "dense3/Gemm",
    ];
    assert_eq!(names, wanted);
    assert_eq!(graph.input[0].name, "inputs");
    assert_eq!(graph.output[0].name, "output");
    let resnet = decoded(&export(&scratch, &zoo::resnet20(), Batch::Fixed(1), &OnnxOptions::default()));
    let count = |op: &str| resnet.node.iter().filter(|node| node.op_type == op).count();
    assert_eq!([count("Conv"), count("BatchNormalization"), count("Transpose")], [21, 21, 1]);
    assert!(resnet.initializer.iter().any(|tensor| tensor.name == "stage1/block1/conv1/kernel"));
}

#[test]
fn large_files_have_their_weights_beside_them() {
    let scratch = Scratch::new("onnx-external");
    let model = zoo::lenet();
    let path = export(&scratch, &model, Batch::Dynamic, &OnnxOptions { external_above: 1 << 10 });
    let graph = decoded(&path);
    let kernel = graph.initializer.iter().find(|t| t.name == "dense1/kernel").unwrap();
    assert_eq!(kernel.raw_data, None);
    assert_eq!(kernel.external_data[0].value, "lenet.onnx.data");
    let imported = OnnxModel::open(&path).unwrap();
    same_states("lenet", ExportGraph::new(&model, Batch::Dynamic).unwrap().graph(), &imported);
    // A file out of the model's folder is refused, and one that is too short.
    let whole = fs::read(&path).unwrap();
    let text = |from: &str, to: &str| {
        let mut bytes = whole.clone();
        let at = bytes.windows(from.len()).position(|w| w == from.as_bytes()).unwrap();
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        fs::write(&path, bytes).unwrap();
        OnnxModel::open(&path).map(|_| ()).unwrap_err().to_string()
    };
    assert!(text("lenet.onnx.data", "../et.onnx.data").contains("not in the model's folder"));
    assert!(text("lenet.onnx.data", "/enet.onnx.data").contains("not in the model's folder"));
    fs::write(scratch.0.join("lenet.onnx.data"), [0; 9]).unwrap();
    fs::write(&path, &whole).unwrap();
    assert!(OnnxModel::open(&path).map(|_| ()).unwrap_err().to_string().contains("ends behind its file"));
}

thread_local! {
    /// How often this thread's files may still ask whether they are given up before they are.
    static QUESTIONS: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Wherever an export is given up, its two files are both there or both as before.
#[test]
fn weights_beside_a_model_are_there_with_it_or_not_at_all() {
    crate::give_up_when(|| {
        let left = QUESTIONS.get();
        QUESTIONS.set(left.saturating_sub(1));
        left == 0
    });
    let scratch = Scratch::new("onnx-given-up");
    let step = ExportGraph::new(&zoo::lenet(), Batch::Dynamic).unwrap();
    let files = ["lenet.onnx", "lenet.onnx.data"].map(|name| scratch.0.join(name));
    let export = |questions| {
        QUESTIONS.set(questions);
        let options = OnnxOptions { external_above: 1 << 10 };
        let exported = onnx(&step, &Numbered, &files[0], &options);
        QUESTIONS.set(usize::MAX);
        exported
    };
    for before in [None, Some("the model of before")] {
        let mut questions = 0;
        loop {
            for file in &files {
                match before {
                    Some(text) => fs::write(file, text).unwrap(),
                    None => drop(fs::remove_file(file)),
                }
            }
            let count = fs::read_dir(&scratch.0).unwrap().count();
            let Err(error) = export(questions) else { break };
            assert!(error.to_string().contains("stopped before it was whole"), "{error}");
            for file in &files {
                assert_eq!(fs::read_to_string(file).ok().as_deref(), before, "after {questions} questions");
            }
            assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), count, "after {questions} questions");
            questions += 1;
        }
        assert!(questions > 10, "{questions}");
        OnnxModel::open(&files[0]).unwrap();
    }
    // Where the second cannot have its name, the first is not left alone.
    fs::remove_file(&files[0]).unwrap();
    fs::create_dir(&files[0]).unwrap();
    assert!(export(usize::MAX).unwrap_err().to_string().contains("lenet.onnx:"));
    assert!(!files[1].exists());
}

#[cfg(unix)]
#[test]
fn a_device_has_no_weights_beside_it() {
    let step = ExportGraph::new(&zoo::lenet(), Batch::Dynamic).unwrap();
    let out = std::path::Path::new("/dev/null");
    let error = onnx(&step, &Numbered, out, &OnnxOptions { external_above: 1 << 10 }).unwrap_err();
    assert!(error.to_string().contains("name a file"), "{error}");
    assert!(!std::path::Path::new("/dev/null.data").exists());
}

#[test]
fn weights_that_are_not_finite_leave_the_file_that_was_there() {
    struct Nan;
    impl Weights for Nan {
        fn read(&self, _: usize, _: usize, into: &mut [u8]) -> Result<(), ExportError> {
            into.chunks_mut(4).for_each(|e| e.copy_from_slice(&f32::NAN.to_le_bytes()));
            Ok(())
        }
    }
    let scratch = Scratch::new("onnx-nan");
    let path = scratch.0.join("model.onnx");
    fs::write(&path, "before").unwrap();
    let step = ExportGraph::new(&zoo::lenet(), Batch::Dynamic).unwrap();
    let error = onnx(&step, &Nan, &path, &OnnxOptions::default()).unwrap_err();
    assert!(matches!(&error, ExportError::NotFinite(name) if name == "conv1/kernel"), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "before");
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1);
}

#[test]
fn cycles_unknown_ops_and_dynamic_sizes_are_refused_by_name() {
    let scratch = Scratch::new("onnx-refused");
    let path = export(&scratch, &zoo::lenet(), Batch::Dynamic, &OnnxOptions::default());
    let model = ModelProto::decode(&fs::read(&path).unwrap()[..]).unwrap();
    let refused = |change: &dyn Fn(&mut GraphProto)| {
        let mut model = model.clone();
        change(model.graph.as_mut().unwrap());
        fs::write(&path, model.encode_to_vec()).unwrap();
        OnnxModel::open(&path).map(|_| ()).unwrap_err().to_string()
    };
    let cycle = refused(&|graph| graph.node[1].input[0] = graph.node[4].output[0].clone());
    assert!(cycle.contains("node `conv1/Conv` (Conv)") && cycle.contains("cycle"), "{cycle}");
    let unknown = refused(&|graph| graph.node[2].op_type = "Hardmax".into());
    assert!(unknown.contains("node `relu1/Relu` (Hardmax): this op has no counterpart"), "{unknown}");
    let domain = refused(&|graph| graph.node[2].domain = "com.example".into());
    assert!(domain.contains("`com.example`"), "{domain}");
    let dynamic = refused(&|graph| {
        let tensor = graph.input[0].r#type.as_mut().unwrap().tensor_type.as_mut().unwrap();
        let dim = &mut tensor.shape.as_mut().unwrap().dim[2];
        (dim.dim_value, dim.dim_param) = (None, Some("width".into()));
    });
    assert!(dynamic.contains("axis 2 of input `inputs` is `width`"), "{dynamic}");
    let short = refused(&|graph| graph.initializer[0].raw_data = Some(vec![0; 12]));
    assert!(short.contains("bytes, it has 12"), "{short}");
    let huge = refused(&|graph| graph.initializer[0].dims = vec![i64::MAX; 4]);
    assert!(huge.contains("too large"), "{huge}");
    let mut old = model.clone();
    old.opset_import[0].version = 9;
    fs::write(&path, old.encode_to_vec()).unwrap();
    assert!(OnnxModel::open(&path).map(|_| ()).unwrap_err().to_string().contains("version 9"));
}

/// However long a file is, fields that are not read end soon: those of a number that no field has at once, others after a million.
#[test]
fn files_of_fields_that_nothing_reads_are_refused() {
    let scratch = Scratch::new("onnx-fields");
    let path = scratch.0.join("model.onnx");
    let refused = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        OnnxModel::open(&path).map(|_| ()).unwrap_err().to_string()
    };
    let zeros = refused(&[0; 1 << 10]);
    assert!(zeros.contains("a field has the number 0"), "{zeros}");
    let large = refused(&[0x80, 0x80, 0x80, 0x80, 0x10, 0]);
    assert!(large.contains("a field has the number 536870912"), "{large}");
    // Field 20, which a model does not have, with a number, and one of no bytes.
    for field in [[0xa0, 0x01, 0x01], [0xa2, 0x01, 0x00]] {
        let unknown = refused(&field.repeat((1 << 20) + 1));
        assert!(unknown.contains("the file is too large"), "{unknown}");
    }
    // Extents of one tensor, one behind the other, and nodes of nothing.
    let field = |tag: u8, bytes: &[u8]| {
        let mut field = vec![tag << 3 | 2];
        prost::encoding::encode_varint(bytes.len() as u64, &mut field);
        [&field[..], bytes].concat()
    };
    for graph in [field(5, &[0x08, 0x01].repeat(33 << 20)), field(1, &[]).repeat((1 << 20) + 1)] {
        let many = refused(&[field(8, &[0x10, 17]), field(7, &graph)].concat());
        assert!(many.contains("the file is too large"), "{many}");
    }
}

/// Truncated at any length, with any bytes changed, a file is a model or an error.
#[test]
fn damaged_files_are_errors_and_nothing_panics() {
    let scratch = Scratch::new("onnx-damaged");
    let model = zoo::resnet18_of([32, 32, 3], 10, 8);
    let path = export(&scratch, &model, Batch::Dynamic, &OnnxOptions::default());
    let whole = fs::read(&path).unwrap();
    // Nodes come first, then weights: most of the changes are among the nodes.
    let structure = decoded(&path).node.iter().map(|node| node.encoded_len() + 3).sum::<usize>();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below.max(1)
    };
    let mut refused = 0;
    for round in 0..400 {
        let mut bytes = whole.clone();
        match round % 4 {
            0 => bytes.truncate(random(whole.len())),
            1 => bytes.truncate(random(structure)),
            2 => (0..1 + random(4)).for_each(|_| bytes[random(structure)] = random(256) as u8),
            _ => {
                // A number becomes a huge one.
                let at = random(structure);
                bytes.splice(at..at + 1, [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]);
            }
        }
        fs::write(&path, &bytes).unwrap();
        refused += usize::from(OnnxModel::open(&path).is_err());
    }
    assert!(refused > 200, "only {refused} of 400 damaged files were refused");
}

/// Floats between ops that quantize and dequantize, with weights of signed bytes and biases of 32 bits.
#[test]
fn a_model_on_bytes_is_written_between_pairs_that_quantize() {
    let scratch = Scratch::new("onnx-qdq");
    let path = scratch.0.join("model.onnx");
    let (step, weights) = on_bytes(&layers_on_bytes(), Batch::Dynamic, (0.125, 20));
    onnx(&step, &weights, &path, &OnnxOptions::default()).unwrap();
    let graph = decoded(&path);
    let ops: Vec<&str> = graph.node.iter().map(|node| node.op_type.as_str()).collect();
    let (q, d) = ("QuantizeLinear", "DequantizeLinear");
    let expected = [
        &[q, "Transpose"][..],
        &[d, d, d, "Conv", "Relu", q],
        &[d, "MaxPool", q],
        &[d, d, d, "Conv", "Clip", q],
        &[d, "GlobalAveragePool", q],
        &["Reshape"],
        &[d, d, d, "Gemm", q],
        &[d],
    ];
    assert_eq!(ops, expected.concat());
    let tensor = |name: &str| graph.initializer.iter().find(|tensor| tensor.name == name).unwrap();
    let types = ["conv/kernel/codes", "conv/kernel/bias"].map(|name| tensor(name).data_type);
    assert_eq!(types, [element::INT8, element::INT32]);
    assert_eq!(tensor("conv/kernel/codes").dims, [5, 3, 3, 3]);
    // Each layer reads floats of its own: runtimes join it with them.
    for node in graph.node.iter().filter(|node| node.op_type == d) {
        let readers = graph.node.iter().filter(|other| other.input.contains(&node.output[0])).count();
        assert!(
            readers == 1 || graph.output.iter().any(|output| output.name == node.output[0]),
            "{}",
            node.name
        );
    }
}

/// Codes are concatenated as they are; a swish is a sigmoid, on a grid of its own, and a product.
#[test]
fn branches_on_bytes_are_written_between_pairs_that_quantize() {
    let scratch = Scratch::new("onnx-branches");
    let path = scratch.0.join("model.onnx");
    let (step, weights) = on_bytes(&branches_on_bytes(), Batch::Dynamic, (0.125, 20));
    onnx(&step, &weights, &path, &OnnxOptions::default()).unwrap();
    let graph = decoded(&path);
    let ops: Vec<&str> = graph.node.iter().map(|node| node.op_type.as_str()).collect();
    let (q, d) = ("QuantizeLinear", "DequantizeLinear");
    let expected = [
        &[q, "Transpose"][..],
        &[d, d, d, "Conv", q],
        &[d, d, d, "Conv", q],
        &[d, "Sigmoid", q, d, d, "Mul", q],
        &[d, d, d, "Conv", q],
        &[d, "Sigmoid", q],
        &[d, d, "Mul", q],
        &["Concat"],
        &[d, d, d, "Conv", q],
        &[d, "AveragePool", q],
        &[d, d, d, "Conv", q],
        &["Transpose", "Reshape", "Transpose", "Reshape", "Transpose"],
        &[d, "GlobalAveragePool", q],
        &["Reshape"],
        &[d, d, d, "Gemm", q],
        &[d],
    ];
    assert_eq!(ops, expected.concat());
}

/// Recurrences are unrolled, as in a file of floats; their first product is on bytes.
#[test]
fn recurrences_beside_layers_on_bytes_are_unrolled() {
    let scratch = Scratch::new("onnx-recurrence");
    let path = scratch.0.join("model.onnx");
    let lstm = ZOO.iter().find(|entry| entry.name == "lstm").unwrap();
    let (step, weights) = on_bytes((lstm.make)(&lstm.small).as_ref(), Batch::Dynamic, (0.125, 20));
    onnx(&step, &weights, &path, &OnnxOptions::default()).unwrap();
    let graph = decoded(&path);
    let count = |op: &str| graph.node.iter().filter(|node| node.op_type == op).count();
    assert!(count("Gemm") > 1 && count("Tanh") > count("Gemm"), "{} {}", count("Gemm"), count("Tanh"));
}
