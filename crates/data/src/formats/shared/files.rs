//! Files of a dataset: checked before they are opened, and only a few open at a time.

use super::image_files::TEST_FOLDERS;
use crate::DataError;
use crate::core::file_io::read_at;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The most files open at a time: a dataset may have more files than a process may open.
const MAX_OPEN: usize = 16;

/// An error of the operating system.
pub(crate) fn failed(path: &Path, source: io::Error) -> DataError {
    DataError::Read { file: path.display().to_string(), source }
}

/// The length of a regular file. Check it before opening: opening a named pipe would block.
pub(crate) fn length(path: &Path) -> Result<u64, DataError> {
    let metadata = fs::metadata(path).map_err(|e| failed(path, e))?;
    if !metadata.is_file() {
        return Err(failed(path, io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")));
    }
    Ok(metadata.len())
}

/// The files that a pattern with `*` and `?` matches, sorted by name.
pub(crate) fn matching(option: &'static str, pattern: &str) -> Result<Vec<PathBuf>, DataError> {
    let invalid = |reason: String| DataError::Option { option, reason };
    let paths = glob::glob(pattern).map_err(|e| invalid(format!("`{pattern}`: {e}")))?;
    let mut found = Vec::new();
    for path in paths {
        found.push(path.map_err(|e| invalid(e.to_string()))?);
    }
    if found.is_empty() {
        return Err(DataError::Empty { what: format!("`{pattern}`: no file has such a name, so it") });
    }
    Ok(found)
}

/// Whether a file belongs to the test part by its name: `test` or `val` is a word of it.
pub(crate) fn is_test_file(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut words = name.split(|c: char| !c.is_alphabetic());
    words.any(|word| TEST_FOLDERS.iter().any(|test| word.eq_ignore_ascii_case(test)))
}

/// Files by index; the most recently read ones are kept open.
#[derive(Debug)]
pub(crate) struct Files {
    paths: Vec<PathBuf>,
    open: Mutex<Vec<(usize, Arc<File>)>>,
}

impl Files {
    pub fn new(paths: Vec<PathBuf>) -> Self {
        Self { paths, open: Mutex::new(Vec::with_capacity(MAX_OPEN + 1)) }
    }

    pub fn count(&self) -> usize {
        self.paths.len()
    }

    pub fn path(&self, file: usize) -> &Path {
        &self.paths[file]
    }

    /// Reads bytes of a file from an offset on.
    pub fn read_at(&self, file: usize, bytes: &mut [u8], at: u64) -> Result<(), DataError> {
        let open = self.get(file)?;
        read_at(&open, bytes, at).map_err(|source| {
            let file = format!("{} at byte {at}", self.paths[file].display());
            DataError::Read { file, source }
        })
    }

    /// A file, opened if it is not.
    pub fn get(&self, file: usize) -> Result<Arc<File>, DataError> {
        let lock = || self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let mut open = lock();
        if let Some(position) = open.iter().position(|(number, _)| *number == file) {
            let found = open.remove(position);
            let handle = found.1.clone();
            open.push(found);
            return Ok(handle);
        }
        drop(open);
        let path = &self.paths[file];
        let handle = Arc::new(File::open(path).map_err(|e| failed(path, e))?);
        let mut open = lock();
        if open.len() >= MAX_OPEN {
            open.remove(0);
        }
        open.push((file, handle.clone()));
        Ok(handle)
    }

    /// Heap bytes of names and handles.
    pub fn bytes(&self) -> usize {
        let names: usize = self.paths.iter().map(|path| path.capacity() + size_of::<PathBuf>()).sum();
        names
            + (MAX_OPEN + 1) * (size_of::<(usize, Arc<File>)>() + 2 * size_of::<usize>() + size_of::<File>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_read_with_few_open_at_a_time() {
        let folder = std::env::temp_dir().join(format!("plimsoll-files-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let paths: Vec<PathBuf> = (0..40).map(|i| folder.join(format!("{i:02}"))).collect();
        paths.iter().enumerate().for_each(|(i, path)| fs::write(path, [i as u8; 3]).unwrap());
        let files = Files::new(paths);
        for i in (0..40).chain([0, 39, 3]) {
            let mut bytes = [0; 2];
            files.read_at(i, &mut bytes, 1).unwrap();
            assert_eq!(bytes, [i as u8; 2]);
            assert!(files.open.lock().unwrap().len() <= MAX_OPEN);
        }
        let error = files.read_at(7, &mut [0; 4], 0).unwrap_err().to_string();
        assert!(error.contains("07 at byte 0"), "{error}");
        fs::remove_dir_all(folder).unwrap();
    }
}
