//! Image files in a folder for each class.

use crate::{DataError, Field, Record, Schema, Source, files::failed};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Names of folders that hold the part to measure with, beside one that is called `train`.
pub(crate) const TEST_FOLDERS: [&str; 4] = ["test", "val", "valid", "validation"];
/// The longest image file: every worker has room for the longest there is.
pub(crate) const MOST_FILE_BYTES: u64 = 64 << 20;
/// One file in so many is for measuring where the folder does not say which.
pub(crate) const TEST_SHARE: usize = 10;

/// Images as files, `FOLDER/class/*.jpg|jpeg|png`: the file's bytes, and the place of its class among the names in order.
///
/// The names are kept one after another in one buffer, eight bytes more for each file.
///
/// ```no_run
/// use plimsoll_data::{Folder, Source};
/// let (train, test) = Folder::open("flowers", 1 << 30)?;
/// println!("{} and {} files of {:?}", train.len(), test.len(), train.classes());
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Debug)]
pub struct Folder {
    root: PathBuf,
    classes: Arc<[String]>,
    names: Vec<u8>,
    files: Vec<Entry>,
    schema: Schema,
}

/// A file: where its name is among the names, and its class.
#[derive(Clone, Copy, Debug)]
struct Entry {
    start: u32,
    length: u16,
    class: u16,
}

/// What was found of one part.
#[derive(Default)]
struct Listing {
    names: Vec<u8>,
    files: Vec<Entry>,
    largest: u64,
}

/// Whether a name is one of an image file.
pub(crate) fn is_image(name: &[u8]) -> bool {
    let end = name.iter().rposition(|&byte| byte == b'.').map_or(&[][..], |dot| &name[dot + 1..]);
    name.first() != Some(&b'.')
        && ["jpg", "jpeg", "png"].iter().any(|e| end.eq_ignore_ascii_case(e.as_bytes()))
}

/// The folders in a folder, in the order of their names.
fn folders(folder: &Path) -> Result<Vec<String>, DataError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(|e| failed(folder, e))? {
        let entry = entry.map_err(|e| failed(folder, e))?;
        let name = entry.file_name();
        if name.as_encoded_bytes().starts_with(b".") || !entry.path().is_dir() {
            continue;
        }
        let Some(name) = name.to_str() else {
            let reason = format!("`{}` is not a name in UTF-8; rename it", entry.path().display());
            return Err(DataError::Option { option: "classes", reason });
        };
        names.push(name.to_string());
    }
    names.sort_unstable();
    Ok(names)
}

impl Folder {
    /// Lists a folder: `train` and `test` (or `val`) in it are the two parts, each with a folder for each class; where they
    /// are not, every tenth file of a class is for measuring. Names and places take at most `max_bytes`.
    pub fn open(folder: impl AsRef<Path>, max_bytes: usize) -> Result<(Self, Self), DataError> {
        let folder = folder.as_ref();
        let inside = folders(folder)?;
        let has = |name: &str| inside.iter().any(|inside| inside == name);
        let test = TEST_FOLDERS.into_iter().find(|name| has(name));
        let (train_root, test_root) = match test {
            Some(test) if has("train") => (folder.join("train"), Some(folder.join(test))),
            _ => (folder.to_path_buf(), None),
        };
        let classes: Arc<[String]> = folders(&train_root)?.into();
        if classes.len() > usize::from(u16::MAX) {
            let reason = format!("{} folders in `{}`; at most 65535", classes.len(), train_root.display());
            return Err(DataError::Option { option: "classes", reason });
        }
        let (mut train, mut test) = (Listing::default(), Listing::default());
        match &test_root {
            None => list(&train_root, &classes, &mut train, Some(&mut test), max_bytes)?,
            Some(test_root) => {
                if let Some(other) = folders(test_root)?.into_iter().find(|name| !classes.contains(name)) {
                    let (file, folder) = (test_root.join(other), train_root.display().to_string());
                    return Err(DataError::UnknownClass { file: file.display().to_string(), folder });
                }
                list(&train_root, &classes, &mut train, None, max_bytes)?;
                let left = max_bytes.saturating_sub(train.bytes());
                list(test_root, &classes, &mut test, None, left)?;
            }
        }
        let largest = train.largest.max(test.largest);
        let finish = |root: &Path, listing: Listing| listing.finish(root, &classes, largest);
        let train_part = finish(&train_root, train)?;
        Ok((train_part, finish(test_root.as_deref().unwrap_or(&train_root), test)?))
    }

    /// Names of the classes.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// The path of a file.
    pub fn path(&self, index: usize) -> PathBuf {
        let Some(entry) = self.files.get(index) else { return self.root.clone() };
        let name = &self.names[entry.start as usize..][..usize::from(entry.length)];
        self.root.join(&self.classes[usize::from(entry.class)]).join(as_path(name))
    }
}

#[cfg(unix)]
pub(crate) fn as_path(name: &[u8]) -> &Path {
    Path::new(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(name))
}

#[cfg(not(unix))]
pub(crate) fn as_path(name: &[u8]) -> PathBuf {
    PathBuf::from(String::from_utf8_lossy(name).into_owned())
}

/// Lists the files of each class in the order of their names; every tenth is for the test part, if one is given.
fn list(
    root: &Path,
    classes: &[String],
    part: &mut Listing,
    mut test: Option<&mut Listing>,
    max_bytes: usize,
) -> Result<(), DataError> {
    for (class, name) in classes.iter().enumerate() {
        let folder = root.join(name);
        if !folder.is_dir() {
            continue;
        }
        let mut found = Listing::default();
        for entry in fs::read_dir(&folder).map_err(|e| failed(&folder, e))? {
            let entry = entry.map_err(|e| failed(&folder, e))?;
            let name = entry.file_name();
            let name = name.as_encoded_bytes();
            if !is_image(name) {
                continue;
            }
            // Through links, too; one that leads nowhere shows when it is read.
            let length = match fs::metadata(entry.path()) {
                Ok(file) if file.is_file() => file.len(),
                Ok(_) => continue,
                Err(_) => 0,
            };
            found.push(name, class as u16, length)?;
            let bytes = found.bytes() + part.bytes() + test.as_ref().map_or(0, |test| test.bytes());
            if bytes > max_bytes {
                let (what, limit) = ("the list of files".into(), max_bytes as u64);
                return Err(DataError::TooLarge { what, bytes: bytes as u64, limit });
            }
        }
        let Listing { names, files, largest } = &mut found;
        let name = |entry: &Entry| &names[entry.start as usize..][..usize::from(entry.length)];
        files.sort_unstable_by(|one, other| name(one).cmp(name(other)));
        for (i, entry) in files.iter().enumerate() {
            let part = match &mut test {
                Some(test) if i % TEST_SHARE == TEST_SHARE - 1 => &mut **test,
                _ => &mut *part,
            };
            part.push(name(entry), entry.class, *largest)?;
        }
    }
    Ok(())
}

impl Listing {
    fn push(&mut self, name: &[u8], class: u16, length: u64) -> Result<(), DataError> {
        let (start, size) = (u32::try_from(self.names.len()), u16::try_from(name.len()));
        let (Ok(start), Ok(size)) = (start, size) else {
            let reason = "the names of the files take more than 4 GiB; split the folder".to_string();
            return Err(DataError::Option { option: "folder", reason });
        };
        self.names.extend_from_slice(name);
        self.files.push(Entry { start, length: size, class });
        self.largest = self.largest.max(length);
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.names.capacity() + self.files.capacity() * size_of::<Entry>()
    }

    fn finish(mut self, root: &Path, classes: &Arc<[String]>, largest: u64) -> Result<Folder, DataError> {
        if self.files.is_empty() {
            let what = format!("`{}`: no folders with .jpg or .png files in them, so it", root.display());
            return Err(DataError::Empty { what });
        }
        self.names.shrink_to_fit();
        self.files.shrink_to_fit();
        Ok(Folder {
            root: root.to_path_buf(),
            classes: classes.clone(),
            names: self.names,
            files: self.files,
            schema: files_schema(largest, classes.len()),
        })
    }
}

/// The bytes of a file of at most this length, and its class; longer files than [`MOST_FILE_BYTES`] are bad.
pub(crate) fn files_schema(largest: u64, classes: usize) -> Schema {
    Schema::new()
        .bytes("image", largest.min(MOST_FILE_BYTES) as usize)
        .tensor("label", Field::below(classes, []))
}

/// Reads a file into a column, which has room for the longest there was.
pub(crate) fn read_file(path: &Path, record: &mut Record<'_>, column: usize) -> Result<(), DataError> {
    let mut file = File::open(path).map_err(|e| failed(path, e))?;
    let (mut length, room) = (0, record.room(column));
    loop {
        match file.read(&mut room[length..]) {
            Ok(0) => break,
            Ok(n) => length += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(failed(path, e)),
        }
    }
    if length == room.len() && file.read(&mut [0]).map_err(|e| failed(path, e))? > 0 {
        let (cap, found) = (length as u64, fs::metadata(path).map_or(length as u64 + 1, |m| m.len()));
        let grown = cap < MOST_FILE_BYTES;
        let what = if grown { "bytes: the file has grown and" } else { "bytes: a file" };
        return Err(DataError::OverCap { what, found, cap });
    }
    record.set_length(column, length)
}

impl Source for Folder {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn len(&self) -> usize {
        self.files.len()
    }

    fn read(&self, index: usize, record: &mut Record<'_>, _: &mut [u8]) -> Result<(), DataError> {
        let Some(entry) = self.files.get(index) else {
            return Err(DataError::Index { index, len: self.len() });
        };
        read_file(&self.path(index), record, 0)?;
        record.put_i32(1, i32::from(entry.class))
    }

    fn resident_bytes(&self) -> usize {
        self.names.capacity() + self.files.capacity() * size_of::<Entry>()
    }

    /// Paths are put together when a file is opened.
    fn decoder_bytes(&self) -> usize {
        8 << 10
    }

    fn origin(&self, index: usize, _: u64) -> String {
        format!("`{}`", self.path(index).display())
    }
}
