//! Examples from tensors in memory.

use plimsoll_data::{Cursor, DataError, Memory, Pipeline, Record, Source};
use plimsoll_tensor::{DType, Tensor, TensorType};
use proptest::prelude::*;

fn tensor(ty: &str, values: &[f64]) -> Tensor {
    Tensor::from_f64(ty.parse().unwrap(), values).unwrap()
}

fn zeros(ty: &str) -> Tensor {
    Tensor::zeros(ty.parse().unwrap())
}

fn refused(inputs: &[&str], labels: &str, classes: Option<usize>) -> DataError {
    let inputs = inputs.iter().map(|ty| zeros(ty)).collect();
    Memory::new(inputs, zeros(labels), classes).unwrap_err()
}

#[test]
fn an_example_is_a_row_of_every_tensor() {
    let images = tensor("f32[3,1,2]", &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    let bytes = tensor("u8[3]", &[10.0, 11.0, 12.0]);
    let source = Memory::new(vec![images, bytes], tensor("i32[3]", &[0.0, -1.0, 1.0]), Some(2)).unwrap();
    assert_eq!(source.schema().in_words(), "input f32[1,2], input1 u8[], label i32[]");
    assert_eq!((source.len(), source.schema().classes(), source.resident_bytes()), (3, Some(2), 24 + 3 + 12));

    let mut batches = Pipeline::new(source).batch(2).start(Cursor::default()).unwrap();
    batches.next().unwrap();
    let batch = batches.next().unwrap().unwrap();
    let inputs = batch.input_tensors();
    assert_eq!((inputs[0].to_f64(), inputs[1].to_f64()), (vec![4.0, 5.0], vec![12.0]));
    assert_eq!(batch.label_tensor().to_f64(), [1.0]);
}

#[test]
fn reading_checks_index_column_count_and_lengths() {
    let source = Memory::new(vec![zeros("f32[3,2]"), zeros("u8[3]")], zeros("f32[3]"), None).unwrap();
    let read = |index, columns: &[usize]| {
        let mut columns: Vec<Vec<u8>> = columns.iter().map(|&bytes| vec![0; bytes]).collect();
        let mut record = Record::new(columns.iter_mut().map(|column| &mut column[..]));
        source.read(index, &mut record, &mut []).map_err(|error| error.to_string())
    };
    assert_eq!(read(2, &[8, 1, 4]), Ok(()));
    assert!(read(3, &[8, 1, 4]).unwrap_err().contains("example 3 of 3"));
    assert!(read(0, &[8, 4]).unwrap_err().contains("3 columns, 2 buffers"));
    assert!(read(0, &[8, 1, 1, 4]).unwrap_err().contains("3 columns, 4 buffers"));
    assert!(read(0, &[8, 2, 4]).unwrap_err().contains("input1 takes 1 bytes, 2 were given"));
    assert!(read(0, &[8, 1, 8]).unwrap_err().contains("label takes 4 bytes, 8 were given"));
}

#[test]
fn tensors_with_different_batch_axes_are_refused() {
    let error = refused(&["f32[3,2]", "f32[4]"], "f32[3]", None);
    assert!(matches!(error, DataError::Examples { expected: 3, found: 4, .. }), "{error}");
    assert!(error.to_string().contains("input 0 holds 3 examples, input 1 4"), "{error}");
    let error = refused(&["f32[3,2]"], "f32[2,3]", None);
    assert!(error.to_string().contains("input 0 holds 3 examples, the labels 2"), "{error}");
    for (input, label, what) in [("f32[]", "f32[3]", "input 0"), ("f32[3]", "f32[]", "the labels")] {
        let error = refused(&[input], label, None);
        assert!(matches!(error, DataError::NoExamplesAxis { .. }), "{error}");
        assert!(error.to_string().starts_with(what), "{error}");
    }
}

#[test]
fn empty_tensors_and_wrong_numbers_of_inputs_are_refused() {
    assert!(matches!(refused(&["f32[0,2]"], "f32[0]", None), DataError::Empty { .. }));
    assert!(matches!(refused(&[], "f32[3]", None), DataError::InputCount { found: 0, .. }));
    assert!(matches!(refused(&["f32[3]"; 9], "f32[3]", None), DataError::InputCount { found: 9, .. }));
}

#[test]
fn labels_are_checked_at_construction() {
    let make = |labels, classes| Memory::new(vec![zeros("f32[2]")], labels, classes);
    // Negative means "no label".
    assert!(make(tensor("i32[2,3]", &[0.0, 4.0, -1.0, -100.0, 2.0, 3.0]), Some(5)).is_ok());
    let error = make(tensor("i32[2,3]", &[0.0, 4.0, -1.0, -100.0, 2.0, 5.0]), Some(5)).unwrap_err();
    assert!(matches!(error, DataError::Label { index: 1, label: 5, classes: 5, .. }), "{error}");
    assert!(matches!(refused(&["f32[2]"], "i32[2]", Some(0)), DataError::Option { .. }));
    for (labels, classes) in [("i64[2]", Some(5)), ("f32[2]", Some(5)), ("i32[2]", None), ("f64[2]", None)] {
        let error = refused(&["f32[2]"], labels, classes);
        assert!(matches!(error, DataError::LabelType { .. }), "{error}");
    }
}

#[test]
fn nan_and_infinite_labels_are_kept() {
    let labels = tensor("f32[3]", &[f64::NAN, f64::INFINITY, -0.0]);
    let bytes = labels.as_bytes().to_vec();
    let source = Memory::new(vec![zeros("f32[3]")], labels, None).unwrap();
    for (index, expected) in bytes.chunks_exact(4).enumerate() {
        let mut bytes = [0; 8];
        source.read(index, &mut Record::over(source.schema(), &mut bytes), &mut []).unwrap();
        assert_eq!(&bytes[4..], expected);
    }
}

/// A tensor of `len` examples whose bytes are a function of `salt`.
fn numbered(dtype: DType, len: usize, extents: &[usize], salt: usize) -> Tensor {
    let shape: Vec<usize> = std::iter::once(len).chain(extents.iter().copied()).collect();
    let ty = TensorType::new(dtype, shape);
    let values: Vec<f64> = (0..ty.shape.elements()).map(|i| ((i * 7 + salt * 31) % 120) as f64).collect();
    Tensor::from_f64(ty, &values).unwrap()
}

proptest! {
    /// Examples read one by one equal the tensors, byte for byte, for any types and number of inputs.
    #[test]
    fn the_examples_in_order_equal_the_tensors(
        len in 1usize..9,
        fields in prop::collection::vec((0usize..4, prop::collection::vec(0usize..4, 0..3)), 1..=8),
        label in prop::collection::vec(1usize..4, 0..3),
        floats in any::<bool>(),
    ) {
        let dtypes = [DType::F32, DType::I32, DType::U8, DType::F64];
        let inputs: Vec<Tensor> = fields.iter().enumerate()
            .map(|(salt, (dtype, extents))| numbered(dtypes[*dtype], len, extents, salt))
            .collect();
        let labels = numbered(if floats { DType::F32 } else { DType::I32 }, len, &label, 99);
        let source = Memory::new(inputs.clone(), labels.clone(), (!floats).then_some(120)).unwrap();
        let tensors: Vec<&Tensor> = inputs.iter().chain([&labels]).collect();
        prop_assert_eq!(source.resident_bytes(), tensors.iter().map(|t| t.ty().bytes()).sum::<usize>());

        let mut read = vec![Vec::<u8>::new(); tensors.len()];
        for index in 0..len {
            let mut bytes = vec![0; source.schema().capacity()];
            let mut record = Record::over(source.schema(), &mut bytes);
            source.read(index, &mut record, &mut []).unwrap();
            read.iter_mut().enumerate().for_each(|(column, all)| all.extend(record.bytes(column)));
        }
        for (read, tensor) in read.iter().zip(tensors) {
            prop_assert_eq!(&read[..], tensor.as_bytes());
        }
    }
}
