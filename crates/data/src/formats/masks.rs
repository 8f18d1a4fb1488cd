//! `masks:DIR`: pictures and their masks, in two folders.

use super::shared::decoding::masks;
use super::shared::files::{failed, length};
use super::shared::image_files::{MAX_FILE_BYTES, TEST_FOLDERS, as_path, is_image, read_file};
use super::shared::split;
use crate::{DataError, Dataset, OpenOptions, Pipeline, Record, Schema, Source};
use std::fs;
use std::path::{Path, PathBuf};

pub(super) fn open(spec: &str, folder: &str, options: &OpenOptions) -> Result<Dataset, DataError> {
    let (train, test) = Pairs::open(folder, options.max_bytes)?;
    let (train, test) = split(spec, Pipeline::new(train), test.map(Pipeline::new))?;
    masks(spec, train, test, options)
}

/// Pictures in `FOLDER/images` and their masks in `FOLDER/masks`, under the same names with the extension `.png`: the bytes of
/// both files are a record.
///
/// ```no_run
/// use plimsoll_data::{Pairs, Source};
/// let (train, test) = Pairs::open("cells", 1 << 30)?;
/// println!("{} training pairs and {:?} test pairs", train.len(), test.map(|test| test.len()));
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Debug)]
pub struct Pairs {
    root: PathBuf,
    /// The pictures' names, concatenated, and where each ends.
    names: Vec<u8>,
    ends: Vec<u32>,
    schema: Schema,
}

impl Pairs {
    /// Lists a folder. `train` and `test` (or `val`) in it, each with `images` and `masks`, are the two parts. Names take at
    /// most `max_bytes`.
    pub fn open(folder: impl AsRef<Path>, max_bytes: usize) -> Result<(Self, Option<Self>), DataError> {
        let folder = folder.as_ref();
        let test = TEST_FOLDERS.iter().map(|name| folder.join(name)).find(|part| part.is_dir());
        match test {
            Some(test) if folder.join("train").is_dir() => {
                let train = Self::list(&folder.join("train"), max_bytes)?;
                let remaining = max_bytes.saturating_sub(train.resident_bytes());
                let mut test = Self::list(&test, remaining)?;
                // Workers read both parts into the same buffers.
                let caps = [0, 1].map(|i| {
                    train.schema.columns()[i].kind.capacity().max(test.schema.columns()[i].kind.capacity())
                });
                let schema = Schema::new().bytes("image", caps[0]).bytes("mask", caps[1]);
                test.schema = schema.clone();
                Ok((Self { schema, ..train }, Some(test)))
            }
            _ => Ok((Self::list(folder, max_bytes)?, None)),
        }
    }

    fn list(root: &Path, max_bytes: usize) -> Result<Self, DataError> {
        let images = root.join("images");
        let mut found: Vec<Vec<u8>> = Vec::new();
        let mut bytes = 0;
        for entry in fs::read_dir(&images).map_err(|e| failed(&images, e))? {
            let entry = entry.map_err(|e| failed(&images, e))?;
            let name = entry.file_name().as_encoded_bytes().to_vec();
            if !is_image(&name) || !entry.path().is_file() {
                continue;
            }
            bytes += name.len() + size_of::<Vec<u8>>();
            if bytes > max_bytes {
                let (what, limit) = ("the list of files".into(), max_bytes as u64);
                return Err(DataError::TooLarge { what, bytes: bytes as u64, limit });
            }
            found.push(name);
        }
        if found.is_empty() {
            let what = format!("`{}`: no .jpg or .png files, so it", images.display());
            return Err(DataError::Empty { what });
        }
        found.sort_unstable();
        let ends = found.iter().scan(0u64, |end, name| {
            *end += name.len() as u64;
            Some(u32::try_from(*end))
        });
        let Ok(ends) = ends.collect::<Result<Vec<u32>, _>>() else {
            let reason = "the names of the files take more than 4 GiB; split the folder".to_string();
            return Err(DataError::Option { option: "folder", reason });
        };
        let mut pairs = Self { root: root.to_path_buf(), names: found.concat(), ends, schema: Schema::new() };
        let mut largest = [0; 2];
        for index in 0..pairs.len() {
            for (largest, path) in largest.iter_mut().zip(pairs.paths(index)) {
                // A missing mask is an error here, before any training.
                *largest = length(&path)?.max(*largest);
            }
        }
        let [image, mask] = largest.map(|bytes| bytes.min(MAX_FILE_BYTES) as usize);
        pairs.schema = Schema::new().bytes("image", image).bytes("mask", mask);
        Ok(pairs)
    }

    /// The files of a pair.
    fn paths(&self, index: usize) -> [PathBuf; 2] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        let name = as_path(&self.names[start..self.ends[index] as usize]).to_path_buf();
        [self.root.join("images").join(&name), self.root.join("masks").join(name.with_extension("png"))]
    }
}

impl Source for Pairs {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn len(&self) -> usize {
        self.ends.len()
    }

    fn read(&self, index: usize, record: &mut Record<'_>, _: &mut [u8]) -> Result<(), DataError> {
        if index >= self.len() {
            return Err(DataError::Index { index, len: self.len() });
        }
        let paths = self.paths(index);
        paths.iter().enumerate().try_for_each(|(column, path)| {
            read_file(path, record, column).map_err(|e| e.of(|| format!("`{}`", path.display())))
        })
    }

    fn resident_bytes(&self) -> usize {
        self.names.capacity() + self.ends.capacity() * 4 + self.root.capacity()
    }

    /// The paths of the files that are open.
    fn decoder_bytes(&self, readers: usize) -> usize {
        readers.saturating_mul(8 << 10)
    }

    fn origin(&self, index: usize, _: u64) -> String {
        if index >= self.len() {
            return format!("`{}`", self.root.display());
        }
        format!("`{}`", self.paths(index)[0].display())
    }
}
