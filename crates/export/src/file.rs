//! Files that are there whole or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The suffix of a file that is still being written.
pub const PARTIAL: &str = ".partial";

/// Bytes between two syncs, so that the page cache holds little of the file.
const SYNC_BYTES: usize = 32 << 20;

/// A file that is being written under a partial name. [`PartialFile::commit`] gives it its own; without that it is removed, and
/// a file that was there before stays as it is.
pub struct PartialFile {
    file: File,
    partial: PathBuf,
    path: PathBuf,
    unsynced: usize,
    committed: bool,
}

impl PartialFile {
    /// Creates the partial file. One that a killed program left is replaced, and so is a link: nothing is written through it.
    pub fn create(path: &Path) -> io::Result<Self> {
        let mut partial = path.as_os_str().to_owned();
        partial.push(PARTIAL);
        let partial = PathBuf::from(partial);
        let file = match fs::remove_file(&partial) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => File::create_new(&partial)?,
        };
        Ok(Self { file, partial, path: path.to_path_buf(), unsynced: 0, committed: false })
    }

    /// The file, to write what is before its end.
    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Waits for the disk, and gives the file its name.
    pub fn commit(mut self) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.partial, &self.path)?;
        self.committed = true;
        let folder = self.path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder)?.sync_all()
    }
}

impl Write for PartialFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.unsynced += count;
        if self.unsynced >= SYNC_BYTES {
            self.unsynced = 0;
            self.file.sync_data()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if !self.committed {
            let _ = fs::remove_file(&self.partial);
        }
    }
}
