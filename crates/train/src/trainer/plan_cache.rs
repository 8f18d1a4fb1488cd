//! Plans kept in a folder under what they depend on, so that none is searched for twice.
//!
//! A file is written beside its place and renamed, so that several programs may share a folder. What is read is checked
//! like a stranger's: a file that is damaged, too large, or no plan of these graphs is as good as none, and so is a folder
//! that cannot be written.

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

/// Bytes of all files at most; beyond them those go that were not used for longest.
const MOST_BYTES: u64 = 256 << 20;
/// Bytes of a file, and of its text, at most.
const MOST_FILE: u64 = 16 << 20;
const MOST_TEXT: u64 = 64 << 20;
/// How the names of files end: plans, and those that are being written.
const ENDING: &str = "plan";
const BEGUN: &str = "begun";
/// A file that is being written for longer was left behind.
const ABANDONED: Duration = Duration::from_secs(600);

/// A folder of plans.
#[derive(Debug)]
pub(crate) struct PlanCache {
    folder: PathBuf,
    most_bytes: u64,
}

/// What a file holds. Its key is in it, so that a file under another's name is none.
#[derive(Serialize, Deserialize)]
struct Kept {
    key: String,
    record: PlanRecord,
}

impl Trainer {
    /// Keeps plans in a folder under a hash of all that they depend on (graphs, the target's kernels and their predicted
    /// times, the line, the planner itself), and takes them from there the next time, once they have been verified. Plans
    /// are the same with and without it. The folder is made where there is none, and stays under 256 MiB; one that cannot
    /// be written is no cache.
    ///
    /// ```
    /// # use plimsoll_nn::{AdamW, zoo};
    /// # use plimsoll_plan::NullExecutor;
    /// # use plimsoll_train::{TrainError, Trainer};
    /// # use plimsoll_data::{OpenOptions, open};
    /// let folder = std::env::temp_dir().join(format!("plimsoll-plans-{}", std::process::id()));
    /// let data = open("mnist", &OpenOptions::default())?;
    /// let trainer = || Trainer::new(zoo::lenet(), AdamW::new(1e-3), NullExecutor::default()).plan_cache(&folder);
    /// let (first, second) = (trainer(), trainer());
    /// assert_eq!(first.plan(&data)?, second.plan(&data)?);
    /// assert_eq!((first.searches(), second.searches()), (1, 0));
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn plan_cache(mut self, folder: impl Into<PathBuf>) -> Self {
        self.plan_cache = Some(PlanCache::new(folder.into()));
        self
    }

    /// How often plans were searched for so far; what [`Trainer::plan_cache`] held is not counted.
    pub fn searches(&self) -> u64 {
        self.searches.get()
    }

    /// Plans as low as a budget asks, from the cache if they are there.
    pub(super) fn plan_cached(
        &self,
        batches: &Batches,
        budget: &Budget,
        search_cache: &SearchCache,
    ) -> Result<PlanSet, PlanError> {
        let (graphs, target) = (batches.graphs(), self.executor.target());
        let search = || {
            self.searches.set(self.searches.get() + 1);
            search_cache.plan_lowest(graphs, target, budget)
        };
        let Some(cache) = &self.plan_cache else { return search() };
        let key = batches.fingerprint(target).key(budget);
        let found = cache.get(key).and_then(|record| record.restore(graphs, target, budget).ok());
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
        Self { folder, most_bytes: MOST_BYTES }
    }

    fn path(&self, key: PlanKey) -> PathBuf {
        self.folder.join(format!("{key}.{ENDING}"))
    }

    /// What is kept under a key, if it can be read.
    fn get(&self, key: PlanKey) -> Option<PlanRecord> {
        let path = self.path(key);
        fs::metadata(&path).ok().filter(|about| about.is_file() && about.len() <= MOST_FILE)?;
        let file = File::open(path).ok()?;
        let mut text = Vec::new();
        GzDecoder::new((&file).take(MOST_FILE)).take(MOST_TEXT).read_to_end(&mut text).ok()?;
        let kept: Kept = serde_json::from_slice(&text).ok()?;
        // It stays longer than what is not used.
        let _ = file.set_modified(SystemTime::now());
        (kept.key == key.to_string()).then_some(kept.record)
    }

    /// Keeps a record, if that can be done.
    fn put(&self, key: PlanKey, record: PlanRecord) {
        let kept = Kept { key: key.to_string(), record };
        if self.write(key, &kept).is_ok() {
            let _ = self.shrink();
        }
    }

    fn write(&self, key: PlanKey, kept: &Kept) -> io::Result<()> {
        static FILES: AtomicU64 = AtomicU64::new(0);
        let mut bytes = GzEncoder::new(Vec::new(), Compression::fast());
        serde_json::to_writer(io::BufWriter::new(&mut bytes), kept)?;
        let bytes = bytes.finish()?;
        if bytes.len() as u64 > MOST_FILE {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        fs::create_dir_all(&self.folder)?;
        let number = FILES.fetch_add(1, Ordering::Relaxed);
        let beside = self.folder.join(format!("{key}.{}.{number}.{BEGUN}", std::process::id()));
        let written = File::create_new(&beside).and_then(|mut file| file.write_all(&bytes));
        let placed = written.and_then(|()| fs::rename(&beside, self.path(key)));
        if placed.is_err() {
            let _ = fs::remove_file(&beside);
        }
        placed
    }

    /// Removes what was not used for longest until the rest is under the limit, and what writers left behind.
    fn shrink(&self) -> io::Result<()> {
        let now = SystemTime::now();
        let ends = |path: &Path, ending: &str| path.extension().is_some_and(|e| e == ending);
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder)?.flatten() {
            let (path, Ok(about)) = (entry.path(), entry.metadata()) else { continue };
            let used = about.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            if ends(&path, BEGUN) && now.duration_since(used).is_ok_and(|age| age > ABANDONED) {
                let _ = fs::remove_file(&path);
            } else if ends(&path, ENDING) {
                files.push((used, path, about.len()));
            }
        }
        let mut sum: u64 = files.iter().map(|(_, _, bytes)| bytes).sum();
        files.sort();
        for (_, path, bytes) in files {
            if sum <= self.most_bytes {
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
    fn a_folder_stays_small_and_what_was_used_last_stays() {
        let folder = std::env::temp_dir().join(format!("plimsoll-shrink-{}", std::process::id()));
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
        let cache = |most_bytes| PlanCache { folder: folder.clone(), most_bytes };
        cache(1_200).shrink().unwrap();
        assert_eq!(left(), ["a.plan", "b.plan", "c.plan", "d.begun", "mine"]);
        cache(900).shrink().unwrap();
        assert_eq!(left(), ["a.plan", "c.plan", "d.begun", "mine"]);
        cache(799).shrink().unwrap();
        assert_eq!(left(), ["a.plan", "d.begun", "mine"]);
        fs::remove_dir_all(&folder).unwrap();
    }
}
