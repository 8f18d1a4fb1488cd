//! Sizes in headers are checked before memory is taken for them.

use super::*;
use arrow_array::{ArrayRef, Int32Array};
use parquet::arrow::ArrowWriter;
use parquet::basic::GzipLevel;
use parquet::file::properties::{WriterProperties, WriterVersion};
use plimsoll_testing::Scratch;

#[test]
fn the_header_of_a_page_gives_its_values_and_levels() {
    let sizes_then = |kind: u8, more: &[u8]| sizes(&[&[0x15, kind, 0x15, 40, 0x15, 42][..], more].concat());
    let page = PageSizes { compressed: 21, uncompressed: 20, values: 0, levels: 0 };
    let dictionary = Some(PageSizes { values: 3, ..page });
    assert_eq!(sizes_then(4, &[0x4c, 0x15, 6, 0x15, 0]), dictionary);
    // With a checksum, which may be negative.
    assert_eq!(sizes_then(4, &[0x15, 7, 0x3c, 0x15, 6, 0x15, 0]), dictionary);
    let many = [0x4c, 0x15, 0xfe, 0xff, 0xff, 0xff, 0x0f];
    assert_eq!(sizes_then(4, &many), Some(PageSizes { values: i32::MAX as usize, ..page }));
    // Fields out of order, and a negative number of values.
    assert_eq!(sizes_then(4, &[0x0c, 14, 0x15, 6]), None);
    assert_eq!(sizes_then(4, &[0x4c, 0x15, 7]), None);
    assert_eq!(sizes_then(0, &[0x2c]), Some(page));
    // Levels of 3 and 2 bytes.
    let second = [0x15, 8, 0x15, 0, 0x15, 8, 0x15, 0, 0x15, 6, 0x15, 4];
    let levels = Some(PageSizes { levels: 5, ..page });
    assert_eq!(sizes_then(6, &[&[0x5c][..], &second].concat()), levels);
    assert_eq!(sizes_then(6, &[&[0x15, 7, 0x4c][..], &second].concat()), levels);
    assert_eq!(sizes_then(6, &[0x5c, 0x15, 8]), None);
}

fn read(path: &Path) -> Result<RecordBatch, String> {
    let file = ParquetFile::open(path).unwrap();
    let columns: Vec<usize> = (0..file.names().len()).collect();
    file.start(&columns).unwrap().next().unwrap()
}

#[test]
fn a_dictionary_with_more_values_than_bytes_is_refused() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/table.parquet");
    let mut bytes = std::fs::read(fixture).unwrap();
    let header =
        |at: &usize| sizes(&bytes[*at..]).is_some_and(|page| page.values > 0 && page.uncompressed < 60);
    let at = (0..bytes.len() - 32).find(header).expect("a small dictionary");
    let place = at + bytes[at..].iter().position(|byte| *byte == 0x4c).unwrap() + 2;
    bytes[place] = 63 * 2;
    let error = read(&Scratch::new("dictionary").write("table.parquet", &bytes)).unwrap_err();
    assert!(error.contains("a dictionary of 63 values in"), "{error}");
}

/// Numbers in one page that is compressed with gzip, and the header's uncompressed size.
fn gzip_file(version: WriterVersion) -> (Vec<u8>, RecordBatch, usize) {
    let numbers: ArrayRef = Arc::new(Int32Array::from_iter((0..4000).map(|i| (i % 7 != 0).then_some(5))));
    let rows = RecordBatch::try_from_iter_with_nullable([("x", numbers, true)]).unwrap();
    let properties = WriterProperties::builder()
        .set_writer_version(version)
        .set_dictionary_enabled(false)
        .set_compression(Compression::GZIP(GzipLevel::default()))
        .build();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, rows.schema(), Some(properties)).unwrap();
    writer.write(&rows).unwrap();
    writer.close().unwrap();
    let uncompressed = sizes(&bytes[4..]).expect("the first page").uncompressed;
    (bytes, rows, uncompressed)
}

#[test]
fn a_gzip_page_that_is_longer_than_it_states_is_refused_before_it_is_inflated() {
    let folder = Scratch::new("gzip-page");
    for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
        let (mut bytes, rows, uncompressed) = gzip_file(version);
        let path = folder.write("table.parquet", &bytes);
        let found = read(&path).unwrap();
        assert_eq!(found, rows.slice(0, found.num_rows()));
        // The field after the kind: a varint of two bytes or more, of which the second is lowered.
        assert!(uncompressed > 64 && bytes[6] == 0x15 && bytes[7] & 0x80 != 0, "{uncompressed}");
        bytes[8] -= 1;
        let stated = sizes(&bytes[4..]).unwrap();
        assert!(stated.uncompressed < uncompressed);
        let error = read(&folder.write("table.parquet", &bytes)).unwrap_err();
        let most = stated.uncompressed - stated.levels;
        assert!(error.contains(&format!("inflates to more than the {most} bytes")), "{error}");
    }
}

/// Memory that the system has given to this process, touched or not.
#[cfg(target_os = "linux")]
fn most_virtual_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPeak:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// The library decodes a page in one go, into memory of the size that the page states: what a frame says of its window takes
/// nothing. A decoder of streams would allocate it.
#[cfg(target_os = "linux")]
#[test]
fn the_window_that_a_zstd_frame_names_takes_no_memory() {
    const WINDOW_OF_2_GIB: u8 = 21 << 3;
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/table-zstd.parquet");
    let whole = read(&fixture).unwrap();
    let mut bytes = std::fs::read(&fixture).unwrap();
    // A frame of one segment with a length of one byte becomes one with a window.
    let frames = |bytes: &[u8]| bytes.windows(5).position(|at| at == [0x28, 0xb5, 0x2f, 0xfd, 0x20]);
    let mut changed = 0;
    while let Some(at) = frames(&bytes) {
        bytes[at + 4..at + 6].copy_from_slice(&[0, WINDOW_OF_2_GIB]);
        changed += 1;
    }
    assert!(changed > 5, "{changed}");
    let folder = Scratch::new("zstd-window");
    let path = folder.write("table.parquet", &bytes);
    let before = most_virtual_bytes();
    assert_eq!(read(&path).unwrap(), whole);
    let taken = most_virtual_bytes() - before;
    assert!(taken < 512 << 20, "{taken} bytes");
}
