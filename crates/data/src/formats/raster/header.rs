//! The lists that a TIFF file announces, checked before the library allocates memory for them.

use crate::DataError;
use crate::formats::shared::files::failed;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

/// The last tag needed to decode pixels; later tags, and text, are never read.
const LAST_TAG: u16 = 532;
/// The most entries of a directory; typical files have about twenty.
const MAX_ENTRIES: u64 = 1 << 12;
/// The field type of text.
const TEXT: u16 = 2;

/// Refuses a file whose first directory announces a list of more than `most` numbers.
pub fn check(path: &Path, most: u64) -> Result<(), DataError> {
    let corrupt =
        |reason: String| Err(DataError::Corrupt { reason: format!("`{}`: {reason}", path.display()) });
    let mut file = BufReader::new(File::open(path).map_err(|e| failed(path, e))?);
    match longest(&mut file) {
        Ok(Some(found)) if found > most => {
            corrupt(format!("a list of {found} numbers, at most {most} may be; write larger tiles"))
        }
        Ok(Some(_)) => Ok(()),
        Ok(None) => corrupt("no TIFF file".into()),
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => corrupt("the TIFF header is cut short".into()),
        Err(e) => Err(failed(path, e)),
    }
}

/// Length of the longest list; `None` if it is not a TIFF file.
fn longest(file: &mut (impl Read + Seek)) -> Result<Option<u64>, std::io::Error> {
    let mut start = [0; 16];
    file.read_exact(&mut start[..8])?;
    let little = match &start[..2] {
        b"II" => true,
        b"MM" => false,
        _ => return Ok(None),
    };
    let number = |bytes: &[u8]| {
        let shifted = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
        if little { bytes.iter().rev().fold(0, shifted) } else { bytes.iter().fold(0, shifted) }
    };
    // BigTIFF, for files above 4 GiB, has wider numbers.
    let wide = match number(&start[2..4]) {
        42 => false,
        43 => true,
        _ => return Ok(None),
    };
    if wide {
        file.read_exact(&mut start[8..])?;
    }
    file.seek(SeekFrom::Start(number(if wide { &start[8..] } else { &start[4..8] })))?;
    let mut bytes = [0; 20];
    let (count_bytes, entry_bytes, wide_bytes) = if wide { (8, 20, 8) } else { (2, 12, 4) };
    file.read_exact(&mut bytes[..count_bytes])?;
    let mut longest = 0;
    let entries = number(&bytes[..count_bytes]);
    if entries > MAX_ENTRIES {
        return Ok(None);
    }
    for _ in 0..entries {
        file.read_exact(&mut bytes[..entry_bytes])?;
        let (tag, kind) = (number(&bytes[..2]) as u16, number(&bytes[2..4]) as u16);
        if tag <= LAST_TAG && kind != TEXT {
            longest = longest.max(number(&bytes[4..4 + wide_bytes]));
        }
    }
    Ok(Some(longest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    #[test]
    fn the_longest_list_is_found_in_both_byte_orders_and_widths() {
        let entry = |tag: u16, kind: u16, count: u32| {
            [&tag.to_le_bytes()[..], &kind.to_le_bytes(), &count.to_le_bytes(), &[0; 4]].concat()
        };
        let list = [entry(256, 3, 1), entry(270, 2, 900), entry(273, 4, 77), entry(34675, 7, 800)].concat();
        let little = [&b"II\x2a\0\x08\0\0\0\x04\0"[..], &list].concat();
        assert_eq!(longest(&mut Cursor::new(&little)).unwrap(), Some(77));
        let swapped = |tag: u16, count: u32| {
            [&tag.to_be_bytes()[..], &4u16.to_be_bytes(), &count.to_be_bytes(), &[0; 4]].concat()
        };
        let big = [&b"MM\0\x2a\0\0\0\x08\0\x01"[..], &swapped(324, 1 << 30)].concat();
        assert_eq!(longest(&mut Cursor::new(&big)).unwrap(), Some(1 << 30));
        let wide_entry =
            [&324u16.to_le_bytes()[..], &16u16.to_le_bytes(), &(1u64 << 40).to_le_bytes(), &[0; 8]].concat();
        let head = [&b"II\x2b\0\x08\0\0\0"[..], &16u64.to_le_bytes(), &1u64.to_le_bytes()].concat();
        assert_eq!(longest(&mut Cursor::new([head, wide_entry].concat())).unwrap(), Some(1 << 40));
        assert_eq!(longest(&mut Cursor::new(b"\x89PNG\r\n\x1a\n")).unwrap(), None);
        assert!(longest(&mut Cursor::new(&little[..20])).is_err());
    }
}
