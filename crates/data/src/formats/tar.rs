//! `tar:GLOB`: images in tar files.

use super::shared::decoding::images;
use super::shared::files::{Files, is_test_file};
use super::shared::image_files::{TEST_EVERY, TEST_FOLDERS, image_schema, is_image};
use crate::{DataError, Dataset, OpenOptions, Pipeline, Preparation, Record, Schema, Source};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

pub(super) fn open(spec: &str, pattern: &str, options: &OpenOptions) -> Result<Dataset, DataError> {
    let (train, test) = Shards::open(pattern, options.max_bytes)?;
    let preparation = Preparation::named(train.classes());
    images(spec, Pipeline::new(train).prepared(preparation), test, options)
}

/// Images in tar files, as in WebDataset (`key.jpg` beside `key.cls`) or in a folder for each class: the file's bytes, and its
/// class. Images are read by their offset in the shard, in any order; each takes 24 bytes of the list.
///
/// ```no_run
/// use plimsoll_data::{Shards, Source};
/// let (train, test) = Shards::open("flowers-*.tar", 1 << 30)?;
/// println!("{} and {} images", train.len(), test.len());
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Debug)]
pub struct Shards {
    shards: Arc<Files>,
    classes: Arc<[String]>,
    members: Vec<Member>,
    schema: Schema,
}

/// Where an image is, and its class.
#[derive(Clone, Copy, Debug)]
struct Member {
    offset: u64,
    shard: u32,
    length: u32,
    class: i32,
}

/// An image of which not all members were read yet.
struct Pending {
    key: Vec<u8>,
    /// The image's own name.
    name: Vec<u8>,
    member: Option<Member>,
    class: Option<i32>,
    test: Option<bool>,
}

/// The images of all shards.
#[derive(Default)]
struct Listing {
    members: Vec<(Member, Option<bool>)>,
    /// Names of folders, numbered in order of occurrence.
    folders: BTreeMap<Vec<u8>, i32>,
    /// One more than the largest number in a `.cls`.
    numbers: i32,
}

/// The longest `.cls` file; it holds a number.
const MAX_CLASS_BYTES: u64 = 32;
/// The bound of class numbers: every class up to the largest gets a name.
const MAX_CLASSES: i32 = 1 << 20;

impl Shards {
    /// Lists the images of every shard that a pattern with `*` and `?` matches. Members in a folder or shards named `test` or
    /// `val` are the test part; without any, every tenth image is. The list takes at most `max_bytes`.
    pub fn open(pattern: &str, max_bytes: usize) -> Result<(Self, Self), DataError> {
        let invalid = |reason: String| DataError::Option { option: "tar", reason };
        let paths = glob::glob(pattern).map_err(|e| invalid(format!("`{pattern}`: {e}")))?;
        let mut shards = Vec::new();
        let mut found = Listing::default();
        for path in paths {
            let path = path.map_err(|e| invalid(e.to_string()))?;
            let failed = |source| DataError::Read { file: path.display().to_string(), source };
            let file = File::open(&path).map_err(failed)?;
            found.add_shard(&file, &path, shards.len() as u32, max_bytes)?;
            shards.push(path);
        }
        if found.members.is_empty() {
            let what = format!("`{pattern}`: {} tar files with .jpg or .png members, so it", shards.len());
            return Err(DataError::Empty { what });
        }
        let classes = found.number_classes()?;
        let largest = found.members.iter().map(|(member, _)| u64::from(member.length)).max().unwrap_or(0);
        let schema = image_schema(largest, classes.len());
        let (shards, classes): (_, Arc<[String]>) = (Arc::new(Files::new(shards)), classes.into());
        let named = found.members.iter().any(|(_, test)| *test == Some(true));
        let is_test = |i: usize, test: Option<bool>| match named {
            true => test == Some(true),
            false => i % TEST_EVERY == TEST_EVERY - 1,
        };
        let part = |wanted: bool| {
            let members = found.members.iter().enumerate();
            let mut members: Vec<Member> =
                members.filter(|(i, (_, test))| is_test(*i, *test) == wanted).map(|(_, (m, _))| *m).collect();
            members.shrink_to_fit();
            if members.is_empty() {
                let what = format!("the {} part of `{pattern}`", if wanted { "test" } else { "training" });
                return Err(DataError::Empty { what });
            }
            Ok(Self { shards: shards.clone(), classes: classes.clone(), members, schema: schema.clone() })
        };
        Ok((part(false)?, part(true)?))
    }

    /// Names of the classes, or their numbers.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }
}

impl Listing {
    /// Reads the headers of a shard.
    fn add_shard(&mut self, file: &File, path: &Path, shard: u32, max_bytes: usize) -> Result<(), DataError> {
        let name = path.display().to_string();
        let failed = |source: io::Error| DataError::Read { file: name.clone(), source };
        let test_shard = is_test_file(path);
        let size = file.metadata().map_err(failed)?.len();
        let mut archive = tar::Archive::new(file);
        let mut pending: Option<Pending> = None;
        for entry in archive.entries_with_seek().map_err(failed)? {
            let mut entry = entry.map_err(failed)?;
            if !entry.header().entry_type().is_file() {
                continue;
            }
            let path = entry.path_bytes().into_owned();
            let (folder, file_name) = split_last(&path, b'/');
            // A key ends at the first dot of the name.
            let dot = file_name.iter().position(|&b| b == b'.').unwrap_or(file_name.len());
            let key = path[..path.len() - file_name.len() + dot].to_vec();
            if pending.as_ref().is_some_and(|pending| pending.key != key) {
                self.add(pending.take(), &name)?;
            }
            if is_image(file_name)
                && let Some(first) = pending.take_if(|pending| pending.member.is_some())
            {
                // `cat/cat.0.jpg` and `cat/cat.1.jpg` are two images of the class that their folder names.
                if first.class.is_none_or(|class| class >= 0) {
                    let [first, second, key] =
                        [&first.name, &path, &key].map(|name| String::from_utf8_lossy(name));
                    let reason =
                        format!("`{name}`: `{first}` and `{second}` have the same key `{key}`: rename one");
                    return Err(DataError::Corrupt { reason });
                }
                self.add(Some(first), &name)?;
            }
            let new = Pending { key, name: Vec::new(), member: None, class: None, test: None };
            let now = pending.get_or_insert(new);
            if is_image(file_name) {
                now.name.clone_from(&path);
                let (offset, length) = (entry.raw_file_position(), entry.size());
                if offset.saturating_add(length) > size {
                    let (promised, found) = (length, size.saturating_sub(offset));
                    return Err(DataError::Truncated {
                        file: format!("{name} at byte {offset}"),
                        promised,
                        found,
                    });
                }
                let length = u32::try_from(length).map_err(|_| DataError::OverCap {
                    what: "bytes: a member of a shard",
                    found: length,
                    cap: u64::from(u32::MAX),
                })?;
                let first = folder.split(|&b| b == b'/').find(|part| !part.is_empty() && *part != b".");
                let part = |names: &[&str]| first.is_some_and(|f| names.iter().any(|n| n.as_bytes() == f));
                let test = part(&TEST_FOLDERS);
                now.test = if test || part(&["train"]) { Some(test) } else { Some(test_shard) };
                now.member = Some(Member { offset, shard, length, class: -1 });
                let (_, class) = split_last(folder, b'/');
                if !class.is_empty() && class != b"." {
                    let next = -2 - self.folders.len() as i32;
                    now.class = now.class.or(Some(*self.folders.entry(class.to_vec()).or_insert(next)));
                }
            } else if file_name.ends_with(b".cls") && entry.size() <= MAX_CLASS_BYTES {
                let mut text = String::new();
                entry.read_to_string(&mut text).map_err(failed)?;
                let number = text.trim().parse::<i32>().ok().filter(|n| (0..MAX_CLASSES).contains(n));
                let Some(number) = number else {
                    let (member, class) = (String::from_utf8_lossy(&path), text.trim());
                    let reason = format!(
                        "`{name}`: `{member}` has the class `{class}`, not a number below {MAX_CLASSES}"
                    );
                    return Err(DataError::Corrupt { reason });
                };
                self.numbers = self.numbers.max(number + 1);
                now.class = Some(number);
            }
            let bytes = self.members.capacity() * size_of::<(Member, Option<bool>)>();
            if bytes > max_bytes {
                let (what, limit) = ("the list of members".into(), max_bytes as u64);
                return Err(DataError::TooLarge { what, bytes: bytes as u64, limit });
            }
        }
        self.add(pending, &name)
    }

    fn add(&mut self, pending: Option<Pending>, shard: &str) -> Result<(), DataError> {
        let Some(Pending { name, member: Some(member), class, test, .. }) = pending else { return Ok(()) };
        let Some(class) = class else {
            let key = String::from_utf8_lossy(&name);
            let reason =
                format!("`{shard}`: `{key}` has neither a .cls beside it nor a folder that names its class");
            return Err(DataError::Corrupt { reason });
        };
        self.members.push((Member { class, ..member }, test));
        Ok(())
    }

    /// Names of the classes: their numbers, or the sorted names of folders.
    fn number_classes(&mut self) -> Result<Vec<String>, DataError> {
        let named = self.members.iter().any(|(member, _)| member.class <= -2);
        let numbered = self.members.iter().any(|(member, _)| member.class >= 0);
        if named && numbered {
            let reason = "some images have a .cls, others only a folder; give all the same".to_string();
            return Err(DataError::Option { option: "tar", reason });
        }
        if numbered {
            return Ok((0..self.numbers).map(|n| n.to_string()).collect());
        }
        let mut ranks = vec![0; self.folders.len()];
        for (rank, number) in self.folders.values().enumerate() {
            ranks[(-2 - number) as usize] = rank as i32;
        }
        self.members.iter_mut().for_each(|(member, _)| member.class = ranks[(-2 - member.class) as usize]);
        Ok(self.folders.keys().map(|name| String::from_utf8_lossy(name).into_owned()).collect())
    }
}

/// The parts before and after the last separator.
fn split_last(path: &[u8], separator: u8) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == separator) {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&[], path),
    }
}

impl Source for Shards {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn len(&self) -> usize {
        self.members.len()
    }

    fn read(&self, index: usize, record: &mut Record<'_>, _: &mut [u8]) -> Result<(), DataError> {
        let Some(member) = self.members.get(index) else {
            return Err(DataError::Index { index, len: self.len() });
        };
        record.set_length(0, member.length as usize)?;
        let buffer = &mut record.buffer_mut(0)[..member.length as usize];
        self.shards.read_at(member.shard as usize, buffer, member.offset)?;
        record.put_i32(1, member.class)
    }

    fn resident_bytes(&self) -> usize {
        self.members.capacity() * size_of::<Member>() + self.shards.bytes()
    }

    fn origin(&self, index: usize, _: u64) -> String {
        self.members.get(index).map_or_else(String::new, |member| {
            format!("`{}` at byte {}", self.shards.path(member.shard as usize).display(), member.offset)
        })
    }
}
