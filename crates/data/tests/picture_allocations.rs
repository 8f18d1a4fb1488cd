//! Reading picture files allocates nothing; decoding allocates what its libraries do, a bounded number of times.

mod support;

use plimsoll_data::{Cursor, Decode, Folder, Pipeline, Record, Source};
use plimsoll_testing::CountingAllocator;

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

/// Allocations of the JPEG decoder for one picture: its list of components, and rows of blocks of each.
const OF_DECODER: usize = 24;

/// Those of the resizer, whose buffers are kept: weights of every row and every column of the result, which its library makes anew
/// for each picture, and a few lists of them.
const OF_RESIZER: usize = 32 + 32 + 12;

#[test]
fn only_decoders_allocate() {
    let folder = support::Scratch::new("picture-allocations");
    for i in 0..40 {
        folder.write(&format!("class{}/{i}.jpg", i % 2), &support::photo(40, 36, i));
    }
    let (train, _) = Folder::open(&folder.0, 1 << 20).unwrap();
    let (mut bytes, mut scratch) = (vec![0; train.schema().capacity()], vec![0; train.scratch_bytes()]);
    let before = HEAP.allocations();
    for index in 0..train.len() {
        train.read(index, &mut Record::over(train.schema(), &mut bytes), &mut scratch).unwrap();
    }
    assert_eq!(HEAP.allocations(), before, "reading files");
    let each = |decode: Decode| {
        let (train, _) = Folder::open(&folder.0, 1 << 20).unwrap();
        let pipeline = Pipeline::new(train).apply(decode).unwrap();
        let mut batches = pipeline.batch(6).workers(0).start(Cursor::default()).unwrap();
        batches.next().unwrap();
        let before = HEAP.allocations();
        for _ in 0..5 {
            batches.next().unwrap();
        }
        (HEAP.allocations() - before).div_ceil(30)
    };
    let (whole, resized) =
        (each(Decode::new([32, 32, 3], 40 * 36)), each(Decode::new([32, 32, 3], 40 * 36).resize(34)));
    eprintln!("{whole} allocations for a picture, {resized} where it is resized");
    assert!(whole <= OF_DECODER, "{whole} allocations for a picture");
    assert!(resized <= OF_DECODER + OF_RESIZER, "{resized} allocations for a resized picture");
}
