//! Watches the memory of the process during a run.

use super::trim_heap;
use crate::{Held, Watch};
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

/// Checks per check that reads swap, too, which takes ten times as long.
const CHECKS_PER_SWAP: u32 = 64;

/// Watches the resident set and swap of this process; [`super::Process`] gives one to a trainer. Where the system does not
/// report them, it never stops a run.
pub struct Watchdog {
    resident: Option<File>,
    status: Option<File>,
    page_bytes: usize,
    /// Resident bytes of mapped files that count.
    file_bytes: usize,
    checks: AtomicU32,
    swapped_bytes: AtomicUsize,
    heap: fn() -> Vec<(String, usize)>,
}

impl Watchdog {
    /// A watchdog of this process.
    pub fn new() -> Self {
        Self::of(Path::new("/proc/self"))
    }

    /// A watchdog of the process whose files of `/proc` lie in this folder.
    fn of(process: &Path) -> Self {
        let mut watchdog = Self {
            resident: File::open(process.join("statm")).ok(),
            status: File::open(process.join("status")).ok(),
            page_bytes: page_bytes(),
            file_bytes: usize::MAX,
            checks: AtomicU32::new(0),
            swapped_bytes: AtomicUsize::new(0),
            heap: Vec::new,
        };
        // What is there before the first check counts, too.
        let [swapped] = watchdog.status(["VmSwap"]).unwrap_or_default();
        watchdog.swapped_bytes = AtomicUsize::new(swapped);
        watchdog
    }

    /// A watchdog that never stops a run.
    pub fn disabled() -> Self {
        Self { resident: None, ..Self::new() }
    }

    /// Counts mapped files, like code, up to so many bytes: the kernel drops the rest when memory is short.
    pub fn files(self, bytes: usize) -> Self {
        Self { file_bytes: bytes, ..self }
    }

    /// Adds parts of the heap, from an allocator that counts them.
    pub fn heap(self, parts: fn() -> Vec<(String, usize)>) -> Self {
        Self { heap: parts, ..self }
    }

    fn all_held(&self) -> Option<Held> {
        let [resident_bytes, swapped_bytes, files] = self.status(["VmRSS", "VmSwap", "RssFile"])?;
        Some(Held { resident_bytes, swapped_bytes, droppable_bytes: files.saturating_sub(self.file_bytes) })
    }

    /// Resident bytes, and those of them that are pages of files or shared, without allocating.
    fn resident(&self) -> Option<[usize; 2]> {
        let mut buffer = [0; 128];
        let text = read(self.resident.as_ref()?, &mut buffer)?;
        let mut pages = text.split_whitespace().skip(1).map(|count| count.parse::<usize>().ok());
        let [resident, shared] = [pages.next()??, pages.next()??];
        Some([resident * self.page_bytes, shared * self.page_bytes])
    }

    /// Reads sizes from `/proc/self/status` without allocating.
    fn status<const N: usize>(&self, names: [&str; N]) -> Option<[usize; N]> {
        let mut buffer = [0; 4096];
        let text = read(self.status.as_ref()?, &mut buffer)?;
        let size = |name: &str| {
            let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<usize>().ok()).unwrap_or(0) << 10
        };
        Some(names.map(size))
    }
}

impl Default for Watchdog {
    fn default() -> Self {
        Self::new()
    }
}

impl Watch for Watchdog {
    fn above(&self, limit: usize) -> Option<Held> {
        if self.checks.fetch_add(1, Relaxed).is_multiple_of(CHECKS_PER_SWAP) {
            let [swapped] = self.status(["VmSwap"])?;
            self.swapped_bytes.store(swapped, Relaxed);
        }
        let [resident, _] = self.resident()?;
        if resident + self.swapped_bytes.load(Relaxed) <= limit {
            return None;
        }
        self.all_held().filter(|held| held.total_bytes() > limit)?;
        // Free heap does not count.
        trim_heap();
        self.all_held().filter(|held| held.total_bytes() > limit)
    }

    fn held(&self) -> Option<Held> {
        let [resident_bytes, shared] = self.resident()?;
        Some(Held {
            resident_bytes,
            swapped_bytes: self.swapped_bytes.load(Relaxed),
            droppable_bytes: shared.saturating_sub(self.file_bytes),
        })
    }

    fn parts(&self) -> Vec<(String, usize)> {
        let [own, swapped, files, shared] =
            self.status(["RssAnon", "VmSwap", "RssFile", "RssShmem"]).unwrap_or_default();
        let mut parts = vec![
            ("the process's own memory".to_string(), own + swapped),
            ("mapped files".to_string(), files),
            ("shared memory".to_string(), shared),
        ];
        parts.extend((self.heap)());
        parts
    }
}

/// Reads a file of `/proc` from its start.
fn read<'b>(file: &File, buffer: &'b mut [u8]) -> Option<&'b str> {
    #[cfg(unix)]
    let count = std::os::unix::fs::FileExt::read_at(file, buffer, 0).ok()?;
    #[cfg(not(unix))]
    let count = {
        let _ = file;
        0
    };
    std::str::from_utf8(&buffer[..count]).ok()
}

/// The system's page: ARM has them of 4, 16 and 64 KiB.
pub(super) fn page_bytes() -> usize {
    #[cfg(unix)]
    return rustix::param::page_size();
    #[cfg(not(unix))]
    return 4096;
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use plimsoll_testing::Scratch;

    #[test]
    fn swap_is_looked_at_from_time_to_time_and_counts() {
        const MIB: usize = 1 << 20;
        let scratch = Scratch::new("watchdog-swap");
        let process = |resident: usize, swapped: usize| {
            let pages = resident / page_bytes();
            scratch.write("statm", format!("99999 {pages} 0 0 0 0 0\n").as_bytes());
            let status =
                format!("VmRSS:\t{} kB\nVmSwap:\t{} kB\nRssFile:\t0 kB\n", resident >> 10, swapped >> 10);
            scratch.write("status", status.as_bytes());
        };
        process(100 * MIB, 8 * MIB);
        let watchdog = Watchdog::of(&scratch.0);
        let limit = 110 * MIB;
        let held = Held { resident_bytes: 100 * MIB, swapped_bytes: 8 * MIB, droppable_bytes: 0 };
        assert_eq!((watchdog.held(), watchdog.above(limit)), (Some(held), None));
        // Pages that went to swap are not resident, and count as before once they are looked at.
        process(80 * MIB, 40 * MIB);
        let looks: Vec<Option<Held>> = (0..CHECKS_PER_SWAP).map(|_| watchdog.above(limit)).collect();
        assert!(looks[..looks.len() - 1].iter().all(Option::is_none), "{looks:?}");
        let held = Held { resident_bytes: 80 * MIB, swapped_bytes: 40 * MIB, droppable_bytes: 0 };
        assert_eq!((looks.last(), watchdog.held()), (Some(&Some(held)), Some(held)));
        assert_eq!(watchdog.parts()[0], ("the process's own memory".to_string(), 40 * MIB));
    }
}
