//! A cache of plans in a folder, keyed by a hash of all that they depend on.
//!
//! Files are written under a temporary name and renamed, so that several programs may share a folder. They are untrusted
//! input: a file that is damaged, too large, or no plan of these graphs is a cache miss. A folder that cannot be written is
//! ignored.

use crate::Trainer;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use plimsoll_plan::{Batches, Budget, PlanError, PlanKey, PlanRecord, PlanSet, SearchCache};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// Bytes of all files at most; beyond that, the least recently used are evicted.
const MAX_BYTES: u64 = 256 << 20;
/// Bytes of a file at most.
const MAX_FILE_BYTES: u64 = 16 << 20;
/// Bytes of its text at most, for each node of the graphs and besides: what is read takes memory, whoever wrote it.
const TEXT_BYTES_PER_NODE: u64 = 2 << 10;
const MORE_TEXT_BYTES: u64 = 64 << 10;
/// Extensions of complete files, and of those being written.
const COMPLETE: &str = "plan";
const PARTIAL: &str = "begun";
/// A partial file older than this was left behind by a killed program.
const ABANDONED: Duration = Duration::from_secs(600);

/// A folder of plans.
#[derive(Clone, Debug)]
pub(crate) struct PlanCache {
    folder: PathBuf,
    max_bytes: u64,
}

/// The content of a file. It holds its key, so that a renamed file is a miss.
#[derive(Serialize, Deserialize)]
struct CacheFile {
    key: String,
    record: PlanRecord,
}

impl Trainer {
    /// Caches plans in a folder, keyed by a hash of all that they depend on (graphs, the target's kernels and their predicted
    /// times, the line, the planner itself). Plans from the cache are verified, and are the same as without it. The folder
    /// is created if needed, and stays under 256 MiB; one that cannot be written is ignored.
    ///
    /// ```
    /// # use plimsoll_nn::{AdamW, zoo};
    /// # use plimsoll_plan::NullExecutor;
    /// # use plimsoll_train::{TrainError, Trainer};
    /// # use plimsoll_data::{OpenOptions, open};
    /// let folder = std::env::temp_dir().join(format!("plimsoll-plans-{}", std::process::id()));
    /// let data = open("mnist", &OpenOptions::default())?;
    /// let trainer = || {
    ///     let trainer = Trainer::new(zoo::lenet(), AdamW::new(1e-3)).executor(NullExecutor::default());
    ///     trainer.line(usize::MAX).plan_cache(&folder)
    /// };
    /// let (first, second) = (trainer(), trainer());
    /// assert_eq!(first.plan(&data)?.into_plans(), second.plan(&data)?.into_plans());
    /// assert!(first.searches() > 0 && second.searches() == 0);
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn plan_cache(mut self, folder: impl Into<PathBuf>) -> Self {
        self.plan_cache = Some(PlanCache::new(folder.into()));
        self
    }

    /// Calls of the planner so far, without hits of [`Trainer::plan_cache`].
    pub fn searches(&self) -> u64 {
        self.searches.get()
    }

    /// As [`SearchCache::plan_lowest`], from the plan cache if the plan is there.
    pub(super) fn plan_cached(
        &self,
        batches: &Batches,
        budget: &Budget,
        search_cache: &SearchCache,
    ) -> Result<PlanSet, PlanError> {
        let (graphs, target) = (batches.graphs(), self.chosen_executor().target());
        let search = || {
            self.searches.set(self.searches.get() + 1);
            search_cache.plan_lowest(graphs, target, budget)
        };
        let Some(cache) = &self.plan_cache else { return search() };
        let key = batches.fingerprint(target).key(budget);
        let nodes: usize = graphs.iter().map(|(_, graph)| graph.nodes.len()).sum();
        let most = MORE_TEXT_BYTES + TEXT_BYTES_PER_NODE * nodes as u64;
        let found = cache.get(key, most).and_then(|record| record.restore(graphs, target, budget).ok());
        if let Some(plans) = found {
            return Ok(plans);
        }
        let plans = search()?;
        cache.put(key, PlanRecord::of(&plans));
        Ok(plans)
    }
}

impl PlanCache {
    fn new(folder: PathBuf) -> Self {
        Self { folder, max_bytes: MAX_BYTES }
    }

    fn path(&self, key: PlanKey) -> PathBuf {
        self.folder.join(format!("{key}.{COMPLETE}"))
    }

    /// The record of a key, if its file can be read and its text has so many bytes at most.
    fn get(&self, key: PlanKey, most: u64) -> Option<PlanRecord> {
        let path = self.path(key);
        fs::metadata(&path).ok().filter(|about| about.is_file() && about.len() <= MAX_FILE_BYTES)?;
        let file = File::open(path).ok()?;
        let text = GzDecoder::new((&file).take(MAX_FILE_BYTES)).take(most);
        let found: CacheFile = serde_json::from_reader(io::BufReader::new(text)).ok()?;
        // The modification time is that of the last use, for eviction.
        let _ = file.set_modified(SystemTime::now());
        (found.key == key.to_string()).then_some(found.record)
    }

    /// Writes a record; failures are ignored.
    fn put(&self, key: PlanKey, record: PlanRecord) {
        let content = CacheFile { key: key.to_string(), record };
        if self.write(key, &content).is_ok() {
            let _ = self.evict();
        }
    }

    fn write(&self, key: PlanKey, content: &CacheFile) -> io::Result<()> {
        static FILES: AtomicU64 = AtomicU64::new(0);
        let mut bytes = GzEncoder::new(Vec::new(), Compression::fast());
        serde_json::to_writer(io::BufWriter::new(&mut bytes), content)?;
        let bytes = bytes.finish()?;
        if bytes.len() as u64 > MAX_FILE_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        fs::create_dir_all(&self.folder)?;
        let number = FILES.fetch_add(1, Ordering::Relaxed);
        let partial = self.folder.join(format!("{key}.{}.{number}.{PARTIAL}", std::process::id()));
        let written = File::create_new(&partial).and_then(|mut file| file.write_all(&bytes));
        let renamed = written.and_then(|()| fs::rename(&partial, self.path(key)));
        if renamed.is_err() {
            let _ = fs::remove_file(&partial);
        }
        renamed
    }

    /// Removes the least recently used files until the rest is under the limit, and abandoned partial files.
    fn evict(&self) -> io::Result<()> {
        let now = SystemTime::now();
        let has = |path: &Path, extension: &str| path.extension().is_some_and(|e| e == extension);
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder)?.flatten() {
            let (path, Ok(about)) = (entry.path(), entry.metadata()) else { continue };
            let used = about.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            if has(&path, PARTIAL) && now.duration_since(used).is_ok_and(|age| age > ABANDONED) {
                let _ = fs::remove_file(&path);
            } else if has(&path, COMPLETE) {
                files.push((used, path, about.len()));
            }
        }
        let mut sum: u64 = files.iter().map(|(_, _, bytes)| bytes).sum();
        files.sort();
        for (_, path, bytes) in files {
            if sum <= self.max_bytes {
                break;
            }
            fs::remove_file(path)?;
            sum -= bytes;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eviction_keeps_the_most_recently_used() {
        let folder = std::env::temp_dir().join(format!("plimsoll-evict-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let at = |seconds: u64| SystemTime::now() - Duration::from_secs(seconds);
        let file = |name: &str, bytes: usize, used: u64| {
            fs::write(folder.join(name), vec![0; bytes]).unwrap();
            File::open(folder.join(name)).unwrap().set_modified(at(used)).unwrap();
        };
        file("a.plan", 400, 10);
        file("b.plan", 400, 40);
        file("c.plan", 400, 30);
        file("mine", 4_000, 90);
        file("d.begun", 400, 5);
        file("e.begun", 400, 700);
        let left = || {
            let mut names: Vec<_> = fs::read_dir(&folder)
                .unwrap()
                .map(|e| e.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        let cache = |max_bytes| PlanCache { folder: folder.clone(), max_bytes };
        cache(1_200).evict().unwrap();
        assert_eq!(left(), ["a.plan", "b.plan", "c.plan", "d.begun", "mine"]);
        cache(900).evict().unwrap();
        assert_eq!(left(), ["a.plan", "c.plan", "d.begun", "mine"]);
        cache(799).evict().unwrap();
        assert_eq!(left(), ["a.plan", "d.begun", "mine"]);
        fs::remove_dir_all(&folder).unwrap();
    }
}
