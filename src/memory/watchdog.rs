//! The process's memory as the system has it, for a run's watch.

use super::trim_heap;
use plimsoll_train::{Held, Watch};
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

/// Looks between two that ask for swap, too: its answer takes the system ten times as long.
const LOOKS_PER_SWAP: u32 = 64;

/// Watches the resident set and swap of this process; [`super::declare`] gives it to a trainer. It never sees anything
/// where the system does not say.
pub struct Watchdog {
    resident: Option<File>,
    status: Option<File>,
    page_bytes: usize,
    /// Pages of files that count.
    file_bytes: usize,
    looks: AtomicU32,
    swapped_bytes: AtomicUsize,
    heap: fn() -> Vec<(String, usize)>,
}

impl Watchdog {
    /// A watchdog of this process.
    pub fn new() -> Self {
        Self {
            resident: open("/proc/self/statm").ok(),
            status: open("/proc/self/status").ok(),
            page_bytes: page_bytes(),
            file_bytes: usize::MAX,
            looks: AtomicU32::new(0),
            swapped_bytes: AtomicUsize::new(0),
            heap: Vec::new,
        }
    }

    /// A watchdog that never barks.
    pub fn asleep() -> Self {
        Self { resident: None, ..Self::new() }
    }

    /// Counts pages of mapped files, like code, up to so many bytes: those beyond the system drops when memory is short.
    pub fn files(self, bytes: usize) -> Self {
        Self { file_bytes: bytes, ..self }
    }

    /// With parts of the heap, from an allocator that knows them.
    pub fn heap(self, parts: fn() -> Vec<(String, usize)>) -> Self {
        Self { heap: parts, ..self }
    }

    fn held(&self) -> Option<Held> {
        let [resident_bytes, swapped_bytes, files] = self.status(["VmRSS", "VmSwap", "RssFile"])?;
        Some(Held { resident_bytes, swapped_bytes, droppable_bytes: files.saturating_sub(self.file_bytes) })
    }

    /// Reads sizes that the system states in KiB, into a fixed buffer.
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
        if self.looks.fetch_add(1, Relaxed).is_multiple_of(LOOKS_PER_SWAP) {
            let [swapped] = self.status(["VmSwap"])?;
            self.swapped_bytes.store(swapped, Relaxed);
        }
        let mut buffer = [0; 128];
        let text = read(self.resident.as_ref()?, &mut buffer)?;
        let pages: usize = text.split_whitespace().nth(1)?.parse().ok()?;
        if pages * self.page_bytes + self.swapped_bytes.load(Relaxed) <= limit {
            return None;
        }
        self.held().filter(|held| held.total_bytes() > limit)?;
        // Heap that is free already does not count.
        trim_heap();
        self.held().filter(|held| held.total_bytes() > limit)
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

fn open(path: &str) -> io::Result<File> {
    File::open(path)
}

/// Reads a file of the system from its start.
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

fn page_bytes() -> usize {
    #[cfg(unix)]
    // SAFETY: asks for a constant of the system; no pointer is involved.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    #[cfg(not(unix))]
    let bytes = 4096;
    usize::try_from(bytes).unwrap_or(4096)
}
