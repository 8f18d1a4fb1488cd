//! The batches that come, and that they come the same after a resume.

use plimsoll_data::{Batches, Cursor, DataError, Order, Source, Synthetic, SyntheticSpec};
use plimsoll_tensor::TensorType;

const SHUFFLED: Order = Order::Shuffled { seed: 5 };

/// Examples that tell their own index.
struct Counting(usize);

impl Source for Counting {
    fn len(&self) -> usize {
        self.0
    }
    fn input_type(&self) -> TensorType {
        "i32[2]".parse().unwrap()
    }
    fn label_type(&self) -> TensorType {
        "i32[]".parse().unwrap()
    }
    fn classes(&self) -> usize {
        self.0
    }
    fn read(&self, index: usize, input: &mut [u8], label: &mut [u8]) -> Result<(), DataError> {
        input[..4].copy_from_slice(&(index as i32).to_ne_bytes());
        input[4..].copy_from_slice(&(-(index as i32)).to_ne_bytes());
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
            let inputs: Vec<i32> = labels.iter().flat_map(|&i| [i, -i]).collect();
            assert_eq!(batch.input_tensor().as_i32().unwrap(), inputs);
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
    assert_eq!(batches.resident_bytes(), 3 * (8 + 4));
    let mut batch = batches.batch().unwrap();
    let place = (batch.inputs().as_ptr(), batch.labels().as_ptr());
    for _ in 0..9 {
        batches.next_into(&mut batch).unwrap();
        assert_eq!((batch.inputs().as_ptr(), batch.labels().as_ptr()), place);
        assert_eq!(
            (batch.inputs().len(), batch.labels().len()),
            (batch.examples() * 8, batch.examples() * 4)
        );
    }
    let whole = Batches::new(&source, usize::MAX, SHUFFLED, Cursor::default()).unwrap();
    assert_eq!(whole.resident_bytes(), 7 * 12, "a batch is never longer than the source");
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
    let spec = SyntheticSpec {
        input: TensorType::new(plimsoll_tensor::DType::F32, [usize::MAX / 8]),
        label: "i32[]".parse().unwrap(),
        classes: 2,
        input_bound: 1,
    };
    let enormous = Synthetic::new(spec, 1000, 0, 0).unwrap();
    assert!(refused(&enormous, 3, start).contains("overflow"));
    let one = Batches::new(&enormous, 1, SHUFFLED, start).unwrap();
    assert!(matches!(one.batch(), Err(DataError::OutOfMemory { .. })));
}

#[test]
fn a_batch_of_other_batches_is_refused() {
    let source = Counting(7);
    let batches = |size| Batches::new(&source, size, SHUFFLED, Cursor::default()).unwrap();
    let mut other = batches(4).batch().unwrap();
    let error = batches(3).next_into(&mut other).unwrap_err();
    assert!(matches!(error, DataError::Buffer { expected: 24, found: 32, .. }), "{error}");

    // Two examples of twelve bytes fill the inputs exactly as three of eight do.
    let spec = SyntheticSpec {
        input: "i32[3]".parse().unwrap(),
        label: "i32[]".parse().unwrap(),
        classes: 2,
        input_bound: 9,
    };
    let longer = Synthetic::new(spec, 7, 0, 0).unwrap();
    let mut other = Batches::new(&longer, 2, SHUFFLED, Cursor::default()).unwrap().batch().unwrap();
    let error = batches(3).next_into(&mut other).unwrap_err();
    assert!(matches!(error, DataError::Buffer { expected: 8, found: 12, .. }), "{error}");
}

/// A source whose example 4 is unreadable.
struct Faulty;

impl Source for Faulty {
    fn len(&self) -> usize {
        7
    }
    fn input_type(&self) -> TensorType {
        Counting(7).input_type()
    }
    fn label_type(&self) -> TensorType {
        Counting(7).label_type()
    }
    fn classes(&self) -> usize {
        7
    }
    fn read(&self, index: usize, input: &mut [u8], label: &mut [u8]) -> Result<(), DataError> {
        if index == 4 {
            Err(DataError::Index { index, len: 7 })
        } else {
            Counting(7).read(index, input, label)
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
