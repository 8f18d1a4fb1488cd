//! `images:DIR`: image files in a folder for each class.

use super::shared::decoding::images;
use super::shared::files::failed;
use super::shared::image_files::{
    TEST_EVERY, TEST_FOLDERS, as_path, image_schema, is_image, path_bytes, path_in, read_file,
};
use crate::{DataError, Dataset, OpenOptions, Pipeline, Preparation, Record, Schema, Source};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) fn open(spec: &str, folder: &str, options: &OpenOptions) -> Result<Dataset, DataError> {
    let (train, test) = Folder::open(folder, options.max_bytes)?;
    let notes = train.note.iter().cloned().collect();
    let preparation = Preparation { notes, ..Preparation::named(train.classes()) };
    images(spec, Pipeline::new(train).prepared(preparation), test, options)
}

/// Images as files, `FOLDER/class/*.jpg|jpeg|png`: the file's bytes, and the index of its class among the sorted names.
///
/// Names are concatenated in one buffer; each file takes eight bytes more.
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
    longest_path: usize,
    /// How small classes were split.
    note: Option<String>,
}

/// A file: where its name is in the buffer of names, and its class.
#[derive(Clone, Copy, Debug)]
struct Entry {
    start: u32,
    length: u16,
    class: u16,
}

/// The files of one part.
#[derive(Default)]
struct Listing {
    names: Vec<u8>,
    files: Vec<Entry>,
    largest: u64,
    /// Classes of two to nine files, and of one, that were split.
    small: [usize; 2],
}

/// The folders in a folder, sorted by name.
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
    /// Lists a folder. `train` and `test` (or `val`) in it are the two parts, each with a folder for each class; without them
    /// every tenth file of a class is the test part, of a class with two to nine files the last one, and of a class with one
    /// none. The lists take at most `max_bytes`.
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
                let remaining = max_bytes.saturating_sub(train.bytes());
                list(test_root, &classes, &mut test, None, remaining)?;
            }
        }
        let largest = train.largest.max(test.largest);
        if test.files.is_empty() && test_root.is_none() && !train.files.is_empty() {
            let shown = train_root.display();
            let reason = format!(
                "`{shown}`: every class has one picture, and training needs it; add pictures, or make folders `train` and `test`"
            );
            return Err(DataError::Option { option: "images", reason });
        }
        let note = train.note();
        let finish = |root: &Path, listing: Listing| listing.finish(root, &classes, largest);
        let train_part = Self { note, ..finish(&train_root, train)? };
        Ok((train_part, finish(test_root.as_deref().unwrap_or(&train_root), test)?))
    }

    /// Names of the classes.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// The path of a file.
    pub fn path(&self, index: usize) -> PathBuf {
        let Some(entry) = self.files.get(index) else { return self.root.clone() };
        let [_, class, name] = self.path_parts(entry);
        self.root.join(as_path(class)).join(as_path(name))
    }

    /// Root, class and name of a file.
    fn path_parts(&self, entry: &Entry) -> [&[u8]; 3] {
        let name = &self.names[entry.start as usize..][..usize::from(entry.length)];
        let class = self.classes[usize::from(entry.class)].as_bytes();
        [self.root.as_os_str().as_encoded_bytes(), class, name]
    }
}

/// Whether a file of a class of `count` files is for testing: every tenth, or the last of two to nine.
fn is_test(index: usize, count: usize) -> bool {
    match count < TEST_EVERY {
        true => count > 1 && index == count - 1,
        false => index % TEST_EVERY == TEST_EVERY - 1,
    }
}

/// Lists the files of each class, sorted by name; some go to the test part, if one is given ([`is_test`]).
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
            // Follows links; a broken one is an error when it is read.
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
        let Listing { names, files, largest, .. } = &mut found;
        let name = |entry: &Entry| &names[entry.start as usize..][..usize::from(entry.length)];
        files.sort_unstable_by(|a, b| name(a).cmp(name(b)));
        let count = files.len();
        if test.is_some() && (1..TEST_EVERY).contains(&count) {
            part.small[usize::from(count == 1)] += 1;
        }
        for (i, entry) in files.iter().enumerate() {
            let part = match &mut test {
                Some(test) if is_test(i, count) => &mut **test,
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

    /// How small classes were split, as a sentence.
    fn note(&self) -> Option<String> {
        let [few, one] = self.small;
        let classes = |n: usize, rest: &str| match n {
            0 => None,
            1 => Some(format!("1 class has {rest}")),
            n => Some(format!("{n} classes have {rest}")),
        };
        let few = classes(few, "fewer than 10 pictures: the last of each class is for testing");
        let one = classes(one, "one picture, which is for training: the test part has none of it");
        match (few, one) {
            (Some(few), Some(one)) => Some(format!("{few}; {one}")),
            (few, one) => few.or(one),
        }
    }

    fn bytes(&self) -> usize {
        self.names.capacity() + self.files.capacity() * size_of::<Entry>()
    }

    fn finish(mut self, root: &Path, classes: &Arc<[String]>, largest: u64) -> Result<Folder, DataError> {
        if self.files.is_empty() {
            let what = format!(
                "`{}`: no folder in it, one for each class, has .jpg or .png files, so it",
                root.display()
            );
            return Err(DataError::Empty { what });
        }
        self.names.shrink_to_fit();
        self.files.shrink_to_fit();
        let class = classes.iter().map(String::len).max().unwrap_or(0);
        let name = self.files.iter().map(|entry| usize::from(entry.length)).max().unwrap_or(0);
        Ok(Folder {
            root: root.to_path_buf(),
            classes: classes.clone(),
            names: self.names,
            files: self.files,
            schema: image_schema(largest, classes.len()),
            longest_path: path_bytes(&[root.as_os_str().len(), class, name]),
            note: None,
        })
    }
}

impl Source for Folder {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn len(&self) -> usize {
        self.files.len()
    }

    fn read(&self, index: usize, record: &mut Record<'_>, scratch: &mut [u8]) -> Result<(), DataError> {
        let Some(entry) = self.files.get(index) else {
            return Err(DataError::Index { index, len: self.len() });
        };
        let path = path_in(scratch, &self.path_parts(entry));
        read_file(path.as_ref(), record, 0)?;
        record.put_i32(1, i32::from(entry.class))
    }

    fn scratch_bytes(&self) -> usize {
        self.longest_path
    }

    fn resident_bytes(&self) -> usize {
        self.names.capacity() + self.files.capacity() * size_of::<Entry>()
    }

    /// A long path of the file that is open.
    fn decoder_bytes(&self, readers: usize) -> usize {
        readers.saturating_mul(self.longest_path + 1)
    }

    fn origin(&self, index: usize, _: u64) -> String {
        format!("`{}`", self.path(index).display())
    }
}
