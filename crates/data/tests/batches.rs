//! The batches that come, and that they come the same after a resume.

use plimsoll_data::{
    Batch, Batches, Cursor, DataError, MOST_INPUTS, Order, Source, Synthetic, SyntheticSpec,
};
use plimsoll_tensor::{Field, TensorType};

const SHUFFLED: Order = Order::Shuffled { seed: 5 };

/// Examples that tell their own index.
struct Counting(usize);

impl Source for Counting {
    fn len(&self) -> usize {
        self.0
    }
    fn input_types(&self) -> Vec<TensorType> {
        vec!["i32[2]".parse().unwrap(), "u8[]".parse().unwrap()]
    }
    fn label_type(&self) -> TensorType {
        "i32[]".parse().unwrap()
    }
    fn classes(&self) -> Option<usize> {
        Some(self.0)
    }
    fn read(&self, index: usize, inputs: &mut [&mut [u8]], label: &mut [u8]) -> Result<(), DataError> {
        let [pair, byte] = inputs else { panic!("{} inputs", inputs.len()) };
        pair[..4].copy_from_slice(&(index as i32).to_ne_bytes());
        pair[4..].copy_from_slice(&(-(index as i32)).to_ne_bytes());
        byte[0] = index as u8;
        label.copy_from_slice(&(index as i32).to_ne_bytes());
        Ok(())
    }
    fn resident_bytes(&self) -> usize {
        0
    }
}

/// The labels of each batch, an empty one at the end of each epoch, for `calls` calls.
fn labels(batches: &mut Batches<'_>, calls: usize) -> Vec<Vec<i32>> {
    let mut batch = batches.batch().unwrap();
    (0..calls)
        .map(|_| {
            let before = batches.cursor();
            let more = batches.next_into(&mut batch).unwrap();
            assert_eq!(more, batch.examples() > 0);
            assert!(!more || batch.first_example() == before.example);
            let labels = batch.label_tensor().as_i32().unwrap().to_vec();
            let pairs: Vec<i32> = labels.iter().flat_map(|&i| [i, -i]).collect();
            let bytes: Vec<u8> = labels.iter().map(|&i| i as u8).collect();
            let tensors = batch.input_tensors();
            assert_eq!((tensors[0].as_i32().unwrap(), tensors[1].as_bytes()), (&*pairs, &*bytes));
            assert!(batch.inputs().eq(tensors.iter().map(|tensor| tensor.as_bytes())));
            assert_eq!((batch.input(1), batch.input(2)), (Some(&*bytes), None));
            let types: Vec<TensorType> = tensors.iter().map(|tensor| tensor.ty().clone()).collect();
            assert_eq!(batch.input_types(), types);
            labels
        })
        .collect()
}

#[test]
fn in_order_the_remainder_comes_last() {
    let source = Counting(7);
    let mut batches = Batches::new(&source, 3, Order::Sequential, Cursor::default()).unwrap();
    assert_eq!(batches.per_epoch(), 3);
    let expected = [vec![0, 1, 2], vec![3, 4, 5], vec![6], vec![], vec![0, 1, 2]];
    assert_eq!(labels(&mut batches, 5), expected);
    assert_eq!(batches.cursor(), Cursor { epoch: 1, example: 3 });
}

#[test]
fn a_whole_number_of_batches_has_no_remainder() {
    let source = Counting(6);
    let mut batches = Batches::new(&source, 3, Order::Sequential, Cursor::default()).unwrap();
    assert_eq!(labels(&mut batches, 3), [vec![0, 1, 2], vec![3, 4, 5], vec![]]);
}

#[test]
fn a_shuffled_epoch_has_every_example_once_and_the_next_another_order() {
    let source = Counting(50);
    let mut batches = Batches::new(&source, 8, SHUFFLED, Cursor::default()).unwrap();
    let mut epoch = || labels(&mut batches, 8).concat();
    let (first, second) = (epoch(), epoch());
    assert_ne!(first, second);
    for mut epoch in [first, second] {
        assert!(!epoch.is_sorted());
        epoch.sort_unstable();
        assert!(epoch.into_iter().eq(0..50));
    }
}

#[test]
fn resuming_gives_the_batches_that_would_have_come() {
    let source = Counting(23);
    for order in [Order::Sequential, SHUFFLED] {
        let mut batches = Batches::new(&source, 5, order, Cursor::default()).unwrap();
        let mut whole = Vec::new();
        let mut cursors = Vec::new();
        for _ in 0..20 {
            cursors.push(batches.cursor());
            whole.extend(labels(&mut batches, 1));
        }
        for (done, cursor) in cursors.into_iter().enumerate() {
            let mut resumed = Batches::new(&source, 5, order, cursor).unwrap();
            assert_eq!(labels(&mut resumed, 20 - done), whole[done..], "after {done} batches");
        }
    }
}

#[test]
fn the_order_does_not_depend_on_the_batch_size() {
    let source = Counting(23);
    let epoch =
        |size| labels(&mut Batches::new(&source, size, SHUFFLED, Cursor::default()).unwrap(), 24).concat();
    assert_eq!(epoch(1)[..23], epoch(4)[..23]);
}

#[test]
fn the_bytes_are_stated_and_not_moved() {
    let source = Counting(7);
    let mut batches = Batches::new(&source, 3, SHUFFLED, Cursor::default()).unwrap();
    assert_eq!(batches.resident_bytes(), 3 * (8 + 1 + 4));
    let mut batch = batches.batch().unwrap();
    let places = |batch: &Batch| -> Vec<_> {
        batch.inputs().chain([batch.labels()]).map(|bytes| bytes.as_ptr()).collect()
    };
    let before = places(&batch);
    for _ in 0..9 {
        batches.next_into(&mut batch).unwrap();
        assert_eq!(places(&batch), before);
        let lengths: Vec<_> = batch.inputs().chain([batch.labels()]).map(<[u8]>::len).collect();
        assert_eq!(lengths, [8, 1, 4].map(|bytes| batch.examples() * bytes));
    }
    let whole = Batches::new(&source, usize::MAX, SHUFFLED, Cursor::default()).unwrap();
    assert_eq!(whole.resident_bytes(), 7 * 13, "a batch is never longer than the source");
}

#[test]
fn what_cannot_work_is_refused() {
    let refused = |source: &dyn Source, size, cursor| {
        Batches::new(source, size, SHUFFLED, cursor).err().expect("refused").to_string()
    };
    let start = Cursor::default();
    assert!(refused(&Counting(0), 3, start).contains("no examples"));
    assert!(refused(&Counting(7), 0, start).contains("batch size"));
    assert!(refused(&Counting(7), 3, Cursor { epoch: 0, example: 8 }).contains("cursor"));
    let enormous = TensorType::new(plimsoll_tensor::DType::F32, [usize::MAX / 8]);
    let enormous = synthetic(vec![enormous]);
    assert!(refused(&enormous, 3, start).contains("overflow"));
    let one = Batches::new(&enormous, 1, SHUFFLED, start).unwrap();
    assert!(matches!(one.batch(), Err(DataError::OutOfMemory { .. })));
}

/// Random examples with these inputs and a class of two.
fn synthetic(inputs: Vec<TensorType>) -> Synthetic {
    let inputs = inputs.into_iter().map(|ty| Field { ty, bound: Some(9) }).collect();
    let spec = SyntheticSpec { inputs, label: Field::below(2, []) };
    Synthetic::new(spec, 7, 0, 0).unwrap()
}

#[test]
fn a_batch_of_other_batches_is_refused() {
    fn batches<'a>(source: &'a Synthetic, size: usize) -> Batches<'a> {
        Batches::new(source, size, SHUFFLED, Cursor::default()).unwrap()
    }
    let source = |types: &[&str]| synthetic(types.iter().map(|ty| ty.parse().unwrap()).collect());
    let refused = |other: &Synthetic, size| {
        let mut batch = batches(other, size).batch().unwrap();
        let error = batches(&source(&["i32[2]"]), 3).next_into(&mut batch).unwrap_err();
        assert!(matches!(error, DataError::OtherBatch { .. }), "{error}");
        error.to_string()
    };
    let message = refused(&source(&["i32[2]"]), 4);
    assert!(message.contains("holds 4 examples of i32[2] with labels i32[], 3 examples"), "{message}");
    // Two examples of twelve bytes fill the inputs exactly as three of eight do.
    refused(&source(&["i32[3]"]), 2);
    refused(&source(&["f32[2]"]), 3);
    refused(&source(&["i32[2]", "i32[2]"]), 3);
}

/// A source of any number of inputs, any label and any classes.
struct Stated(usize, &'static str, Option<usize>);

impl Source for Stated {
    fn len(&self) -> usize {
        1
    }
    fn input_types(&self) -> Vec<TensorType> {
        vec!["u8[]".parse().unwrap(); self.0]
    }
    fn label_type(&self) -> TensorType {
        self.1.parse().unwrap()
    }
    fn classes(&self) -> Option<usize> {
        self.2
    }
    fn read(&self, _: usize, inputs: &mut [&mut [u8]], _: &mut [u8]) -> Result<(), DataError> {
        assert_eq!(inputs.len(), self.0);
        inputs.iter_mut().zip(1..).for_each(|(input, i)| input[0] = i);
        Ok(())
    }
    fn resident_bytes(&self) -> usize {
        0
    }
}

#[test]
fn as_many_inputs_as_there_may_be_are_filled_and_more_are_refused() {
    let source = Stated(MOST_INPUTS, "f32[]", None);
    let mut batches = Batches::new(&source, 1, SHUFFLED, Cursor::default()).unwrap();
    let mut batch = batches.batch().unwrap();
    assert!(batches.next_into(&mut batch).unwrap());
    assert_eq!(batch.inputs().collect::<Vec<_>>().concat(), [1, 2, 3, 4, 5, 6, 7, 8]);
    for count in [0, MOST_INPUTS + 1] {
        let refused = Batches::new(&Stated(count, "f32[]", None), 1, SHUFFLED, Cursor::default()).err();
        assert!(matches!(refused, Some(DataError::InputCount { found, most: 8 }) if found == count));
    }
}

#[test]
fn labels_are_classes_or_values() {
    let check = |label, classes| {
        Batches::new(&Stated(1, label, classes), 1, SHUFFLED, Cursor::default()).err().map(|e| e.to_string())
    };
    assert_eq!(check("i32[5]", Some(3)), None);
    assert_eq!(check("f32[5]", None), None);
    assert!(check("f32[5]", Some(3)).unwrap().contains("f32[5], must be i32 with 3 classes"));
    assert!(check("i32[5]", None).unwrap().contains("i32[5], must be f32 without classes"));
    assert!(check("i32[]", Some(0)).unwrap().contains("classes: must be in 1..2^31, not 0"));
}

/// A source whose example 4 is unreadable.
struct Faulty;

impl Source for Faulty {
    fn len(&self) -> usize {
        7
    }
    fn input_types(&self) -> Vec<TensorType> {
        Counting(7).input_types()
    }
    fn label_type(&self) -> TensorType {
        Counting(7).label_type()
    }
    fn classes(&self) -> Option<usize> {
        Some(7)
    }
    fn read(&self, index: usize, inputs: &mut [&mut [u8]], label: &mut [u8]) -> Result<(), DataError> {
        if index == 4 {
            Err(DataError::Index { index, len: 7 })
        } else {
            Counting(7).read(index, inputs, label)
        }
    }
    fn resident_bytes(&self) -> usize {
        0
    }
}

#[test]
fn an_unreadable_example_leaves_the_cursor_and_an_empty_batch() {
    let mut batches = Batches::new(&Faulty, 3, Order::Sequential, Cursor::default()).unwrap();
    let mut batch = batches.batch().unwrap();
    assert!(batches.next_into(&mut batch).unwrap());
    assert!(batches.next_into(&mut batch).is_err());
    assert_eq!((batch.examples(), batches.cursor()), (0, Cursor { epoch: 0, example: 3 }));
}
