//! A folder of what took time to find out, by what it depends on: machine code, and the fastest algorithms. A damaged file is a miss.

use plimsoll_tensor::random::fnv1a;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a file at most that is read.
const MOST_BYTES: u64 = 16 << 20;

/// The folder, if there is one.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    folder: Option<PathBuf>,
}

impl Kept {
    /// In a folder, which is made when something is kept; `None`: nothing is.
    pub fn new(folder: Option<PathBuf>) -> Self {
        Self { folder }
    }

    /// What is kept under a key, in a file of this kind.
    pub fn get(&self, kind: &str, key: &str) -> Option<Vec<u8>> {
        read(&self.file(kind, key)?, key)
    }

    /// Keeps it. A folder that cannot be written only costs time.
    pub fn put(&self, kind: &str, key: &str, bytes: &[u8]) {
        if let Some(file) = self.file(kind, key) {
            let _ = write(&file, key, bytes);
        }
    }

    fn file(&self, kind: &str, key: &str) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(format!("{:016x}.{kind}", fnv1a(key))))
    }
}

/// A file: the key, then the checksum and what is kept.
fn contents(key: &str, kept: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(key.len() + kept.len() + 17);
    bytes.extend_from_slice(key.as_bytes());
    bytes.push(0);
    bytes.extend_from_slice(&checksum(kept).to_le_bytes());
    bytes.extend_from_slice(kept);
    bytes
}

/// What a file holds, if it is whole and of this key.
fn read(file: &Path, key: &str) -> Option<Vec<u8>> {
    if fs::metadata(file).ok()?.len() > MOST_BYTES {
        return None;
    }
    let bytes = fs::read(file).ok()?;
    let rest = bytes.strip_prefix(key.as_bytes())?.strip_prefix(&[0])?;
    let (sum, kept) = rest.split_at_checked(8)?;
    (checksum(kept).to_le_bytes() == sum).then(|| kept.to_vec())
}

/// Writes a file under another name, then renames it: programs that share the folder see it whole or not at all.
fn write(file: &Path, key: &str, kept: &[u8]) -> std::io::Result<()> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let begun = file.with_extension(format!("begun-{}-{number}", std::process::id()));
    fs::write(&begun, contents(key, kept))?;
    fs::rename(&begun, file).inspect_err(|_| drop(fs::remove_file(&begun)))
}

/// FNV-1a over bytes.
fn checksum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_or_other_file_is_a_miss() {
        let folder = std::env::temp_dir().join(format!("plimsoll-kept-{}", std::process::id()));
        let kept = Kept::new(Some(folder.clone()));
        kept.put("cubin", "key", b"machine code");
        assert_eq!(kept.get("cubin", "key").as_deref(), Some(&b"machine code"[..]));
        assert_eq!(kept.get("cubin", "other"), None);
        assert_eq!(kept.get("algorithm", "key"), None);
        let file = kept.file("cubin", "key").unwrap();
        assert_eq!(read(&file, "other"), None);
        let whole = fs::read(&file).unwrap();
        for cut in 0..whole.len() {
            fs::write(&file, &whole[..cut]).unwrap();
            assert_eq!(kept.get("cubin", "key"), None, "cut to {cut} bytes");
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&file, &damaged).unwrap();
            assert_eq!(kept.get("cubin", "key"), None, "byte {at} changed");
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn without_a_folder_nothing_is_kept() {
        let kept = Kept::new(None);
        kept.put("cubin", "key", b"machine code");
        assert_eq!(kept.get("cubin", "key"), None);
    }
}
