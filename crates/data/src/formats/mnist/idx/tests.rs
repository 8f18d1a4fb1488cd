//! On any bytes the reader returns, and allocates no more memory than the bytes could fill.

use super::*;
use flate2::{Compression, write::GzEncoder};
use proptest::prelude::*;
use std::io::Write;

const UNLIMITED: usize = usize::MAX;

fn plain(bytes: &[u8]) -> IdxReader<'_> {
    IdxReader { file: "test".into(), reader: Box::new(bytes), available: bytes.len() as u64, examples: 0 }
}

fn compress(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn words(words: &[u32], rest: &[u8]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_be_bytes()).chain(rest.iter().copied()).collect()
}

/// Reads bytes as a file of images or of labels; returns the result and the bytes allocated for it.
fn read(mut reader: IdxReader<'_>, as_images: bool) -> (Result<usize, DataError>, u64) {
    let mut budget = Budget::new(UNLIMITED);
    let result = if as_images {
        reader.images(&mut budget).map(|images| images.pixels.len())
    } else {
        reader.labels(10, &mut budget).map(|labels| labels.len())
    };
    (result.and_then(|length| reader.finish().map(|()| length)), budget.taken())
}

#[test]
fn gzip_announcing_more_than_it_can_hold_is_refused_before_allocation() {
    let packed = compress(&words(&[IMAGES_MAGIC, u32::MAX, 1024, 1024], &[]));
    let reader = IdxReader::gzip("test".into(), &packed[..], packed.len() as u64).unwrap();
    let (result, taken) = read(reader, true);
    assert!(matches!(result, Err(DataError::Truncated { .. })), "{result:?}");
    assert_eq!(taken, 0);
}

#[test]
fn the_highest_ratio_of_deflate_is_allowed() {
    // The most compressible content: the bound must not refuse it.
    let packed = compress(&words(&[LABELS_MAGIC, 20_000_000], &vec![0; 20_000_000]));
    let reader = IdxReader::gzip("test".into(), &packed[..], packed.len() as u64).unwrap();
    assert_eq!(read(reader, false).0.unwrap(), 20_000_000);
}

#[test]
fn several_gzip_members_are_read_as_one_file() {
    let bytes = words(&[LABELS_MAGIC, 3], &[1, 2, 3]);
    let packed = [compress(&bytes[..9]), compress(&bytes[9..])].concat();
    let reader = IdxReader::gzip("test".into(), &packed[..], packed.len() as u64).unwrap();
    assert_eq!(read(reader, false).0.unwrap(), 3);
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), as_images: bool) {
        prop_assert!(read(plain(&bytes), as_images).1 <= bytes.len() as u64);
    }

    #[test]
    fn arbitrary_extents_allocate_no_more_than_the_file_holds(
        extents in prop::array::uniform3(prop_oneof![0u32..40, any::<u32>()]),
        rest in prop::collection::vec(0u8..12, 0..200),
        as_images: bool,
    ) {
        let header = if as_images { vec![IMAGES_MAGIC, extents[0], extents[1], extents[2]] } else { vec![LABELS_MAGIC, extents[0]] };
        let bytes = words(&header, &rest);
        let (result, taken) = read(plain(&bytes), as_images);
        prop_assert!(taken <= rest.len() as u64);
        if let Ok(length) = result {
            prop_assert_eq!(length, rest.len());
        }
    }

    #[test]
    fn damaged_gzip_never_panics(
        rest in prop::collection::vec(0u8..10, 1..100),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut: prop::sample::Index,
    ) {
        let mut packed = compress(&words(&[LABELS_MAGIC, rest.len() as u32], &rest));
        for (place, byte) in damage {
            let place = place.index(packed.len());
            packed[place] = byte;
        }
        packed.truncate(cut.index(packed.len() + 1));
        if let Ok(reader) = IdxReader::gzip("test".into(), &packed[..], packed.len() as u64) {
            let (result, taken) = read(reader, false);
            prop_assert!(taken <= packed.len() as u64 * DEFLATE_RATIO);
            prop_assert!(result.is_err() || result.unwrap() == rest.len());
        }
    }
}
