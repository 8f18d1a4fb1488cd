//! Files that are there whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The suffix of a file that is still being written.
pub const PARTIAL: &str = ".partial";

/// Bytes between two syncs, so that the page cache holds little of the file.
const SYNC_BYTES: usize = 32 << 20;

/// Whether files that are being written are given up.
static GIVEN_UP: OnceLock<fn() -> bool> = OnceLock::new();

/// Files that are being written are given up as soon as this says so: what writes one gets an error, and nothing is left of it.
pub fn give_up_when(stopped: fn() -> bool) {
    // The first call decides.
    let _ = GIVEN_UP.set(stopped);
}

/// An error once files are given up.
fn go_on() -> io::Result<()> {
    match GIVEN_UP.get().is_some_and(|stopped| stopped()) {
        true => Err(io::Error::other("stopped before it was whole")),
        false => Ok(()),
    }
}

/// Whether a path names a device, a pipe or a file that this program has open: these are written to, not replaced.
pub fn is_written_in_place(path: &Path) -> bool {
    let open = ["/dev", "/dev/fd", "/proc/self/fd"].map(Path::new);
    let special = |found: fs::Metadata| !found.is_file() && !found.is_dir();
    let is_open = path.parent().is_some_and(|folder| open.contains(&folder));
    fs::metadata(path).is_ok_and(|found| is_open || special(found))
}

/// A file that is being written under a partial name. [`PartialFile::commit`] gives it its own, and [`PartialFile::commit_all`] does so
/// for several that belong together; without that it is removed, and a file that was there before stays as it is. A device or a pipe is written to as it is.
pub struct PartialFile {
    file: File,
    /// None where the file is written in place.
    partial: Option<PathBuf>,
    path: PathBuf,
    unsynced: usize,
    committed: bool,
}

impl PartialFile {
    /// Creates the partial file. One that a killed program left is replaced, and so is a link: nothing is written through it, but to a
    /// device or a pipe.
    pub fn create(path: &Path) -> io::Result<Self> {
        go_on()?;
        let (file, partial) = match is_written_in_place(path) {
            true => (OpenOptions::new().write(true).open(path)?, None),
            false => {
                let mut partial = path.as_os_str().to_owned();
                partial.push(PARTIAL);
                let partial = PathBuf::from(partial);
                let file = match fs::remove_file(&partial) {
                    Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                    _ => File::create_new(&partial)?,
                };
                (file, Some(partial))
            }
        };
        Ok(Self { file, partial, path: path.to_path_buf(), unsynced: 0, committed: false })
    }

    /// The file, to write what is before its end.
    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Waits for the disk, and gives the file its name.
    pub fn commit(self) -> io::Result<()> {
        Self::commit_all(vec![self]).map_err(|(_, error)| error)
    }

    /// Waits for the disk, and gives files their names, in this order: all of them or, if they are given up or a name cannot be given,
    /// none. An error comes with the file that it is about.
    pub fn commit_all(mut files: Vec<Self>) -> Result<(), (PathBuf, io::Error)> {
        for file in files.iter().filter(|file| file.partial.is_some()) {
            go_on().and_then(|()| file.file.sync_all()).map_err(|error| (file.path.clone(), error))?;
        }
        // Once the first has its name, the others get theirs.
        if let Some(first) = files.first() {
            go_on().map_err(|error| (first.path.clone(), error))?;
        }
        for i in 0..files.len() {
            let Some(partial) = &files[i].partial else { continue };
            if let Err(error) = fs::rename(partial, &files[i].path) {
                // What a file of the same name was before is lost by now; without the others it would be of no use.
                for file in files.iter().filter(|file| file.committed) {
                    let _ = fs::remove_file(&file.path);
                }
                return Err((files[i].path.clone(), error));
            }
            files[i].committed = true;
        }
        for file in files.iter().filter(|file| file.committed) {
            let folder = file.path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let synced = File::open(folder).and_then(|folder| folder.sync_all());
            synced.map_err(|error| (file.path.clone(), error))?;
        }
        Ok(())
    }
}

impl Write for PartialFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        go_on()?;
        let count = self.file.write(bytes)?;
        self.unsynced += count;
        if self.unsynced >= SYNC_BYTES && self.partial.is_some() {
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
        if let (Some(partial), false) = (&self.partial, self.committed) {
            let _ = fs::remove_file(partial);
        }
    }
}
