//! Several files that are read as one: a checkpoint of which every process wrote a part.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::atomic::{AtomicU64, Ordering};

/// Pieces of files, one behind the other.
pub(crate) struct Joined {
    pieces: Vec<Piece>,
    /// Where the next byte is read.
    at: AtomicU64,
}

struct Piece {
    file: File,
    /// Its first byte in the file, and how many it has.
    from: u64,
    bytes: u64,
}

impl Joined {
    /// A whole file of so many bytes, read from its byte `at` on.
    pub fn new(file: File, bytes: u64, at: u64) -> Self {
        Self { pieces: vec![Piece { file, from: 0, bytes }], at: AtomicU64::new(at) }
    }

    /// The first file alone.
    pub fn into_file(mut self) -> File {
        self.pieces.swap_remove(0).file
    }

    /// Adds bytes of another file behind all that there are.
    pub fn add(&mut self, file: File, from: u64, bytes: u64) {
        self.pieces.push(Piece { file, from, bytes });
    }

    /// The piece of a byte, and where it begins.
    fn piece(&self, at: u64) -> Option<(&Piece, u64)> {
        let mut begin = 0;
        for piece in &self.pieces {
            if at - begin < piece.bytes {
                return Some((piece, begin));
            }
            begin += piece.bytes;
        }
        None
    }
}

impl Read for &Joined {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let at = self.at.load(Ordering::Relaxed);
        let Some((piece, begin)) = self.piece(at) else { return Ok(0) };
        let most = into.len().min(usize::try_from(begin + piece.bytes - at).unwrap_or(usize::MAX));
        let mut file = &piece.file;
        file.seek(SeekFrom::Start(piece.from + at - begin))?;
        let count = file.read(&mut into[..most])?;
        self.at.store(at + count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

impl Seek for &Joined {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (from, by) = match to {
            SeekFrom::Start(at) => (at, 0),
            SeekFrom::Current(by) => (self.at.load(Ordering::Relaxed), by),
            SeekFrom::End(by) => (self.pieces.iter().map(|piece| piece.bytes).sum(), by),
        };
        let at = from.checked_add_signed(by).ok_or(io::ErrorKind::InvalidInput)?;
        self.at.store(at, Ordering::Relaxed);
        Ok(at)
    }
}

impl Read for Joined {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        (&*self).read(into)
    }
}

impl Seek for Joined {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        (&*self).seek(to)
    }
}
