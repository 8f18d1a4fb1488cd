//! Memory of the process as the system reports it, and what a process needs besides its arena.

mod code;
mod heap;
mod process;
mod watchdog;

pub use code::{code_is_mapped_in_large_folios, trim_code};
pub use heap::{Heap, Tag, heap_parts, heap_peak, restart_heap_peaks, tagged};
pub use process::Process;
pub(crate) use process::thread_bytes;
pub use watchdog::Watchdog;

use std::fs;
use std::path::{Path, PathBuf};

/// The largest resident set this process ever had (`VmHWM`), swap included, in bytes; `None` where the system does not
/// report it.
pub fn measured_peak() -> Option<usize> {
    Some(status("VmHWM")? + status("VmSwap").unwrap_or(0))
}

/// The resident set of this process now (`VmRSS`) in bytes, without free heap, which is returned to the system first; `None`
/// where the system does not report it.
pub fn resident() -> Option<usize> {
    trim_heap();
    status("VmRSS")
}

/// What this process holds now that is not backed by a file, in bytes; `None` where the system does not report it.
pub fn anonymous() -> Option<usize> {
    status("RssAnon")
}

/// A size from `/proc/self/status`, in bytes.
fn status(name: &str) -> Option<usize> {
    sized(&fs::read_to_string("/proc/self/status").ok()?, name)
}

/// A count from `/proc/self/status`.
fn status_count(name: &str) -> Option<usize> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok())
}

/// Memory that this process could use in all: what it holds, and what the host or the tightest control group has left.
pub fn available() -> Option<usize> {
    // Not the pages of its files: the kernel can drop them, so they count as left already.
    let own = status("RssAnon").or_else(|| status("VmRSS")).unwrap_or(0) + status("RssShmem").unwrap_or(0);
    let left = groups().into_iter().map(|group| group.free_bytes).min();
    [meminfo("MemAvailable"), left].into_iter().flatten().min().map(|left| left.saturating_add(own))
}

/// Memory of the host, whoever uses it.
pub fn total() -> Option<usize> {
    meminfo("MemTotal")
}

/// The limit of the tightest control group of this process, if that is less than the host has.
pub fn group_limit() -> Option<usize> {
    let limit = groups().into_iter().map(|group| group.limit_bytes).min()?;
    (limit < total().unwrap_or(usize::MAX)).then_some(limit)
}

/// Swap, to which the system may move pages of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swap {
    /// Of the host.
    pub total_bytes: usize,
    /// Of that, in use by anybody.
    pub used_bytes: usize,
    /// What the control groups of this process allow it.
    pub allowed_bytes: usize,
    /// What of this process is there now.
    pub own_bytes: usize,
}

impl Swap {
    /// What this process may still have swapped: with none of it, a line that was planned is a line that holds.
    pub fn possible_bytes(self) -> usize {
        self.total_bytes.min(self.allowed_bytes)
    }
}

/// The swap of this machine, as this process may use it; `None` where the system does not tell.
pub fn swap() -> Option<Swap> {
    swap_of(Path::new("/"))
}

/// The same of a system whose files lie below this folder.
fn swap_of(root: &Path) -> Option<Swap> {
    let meminfo = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let total_bytes = sized(&meminfo, "SwapTotal")?;
    let used_bytes = total_bytes.saturating_sub(sized(&meminfo, "SwapFree").unwrap_or(0));
    let allowed_bytes = group_files(root).into_iter().filter_map(swap_limit).min().unwrap_or(usize::MAX);
    let status = fs::read_to_string(root.join("proc/self/status")).unwrap_or_default();
    let own_bytes = sized(&status, "VmSwap").unwrap_or(0);
    Some(Swap { total_bytes, used_bytes, allowed_bytes, own_bytes })
}

/// From here on a limit of version 1 is none: it says so with the largest number of whole pages.
const NO_LIMIT: usize = 1 << 62;

/// The swap that a control group allows, if it limits it: version 2 states it, version 1 states it together with memory.
fn swap_limit(GroupFiles { folder, version_two }: GroupFiles) -> Option<usize> {
    let read =
        |file: &str| -> Option<usize> { fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok() };
    if version_two {
        return read("memory.swap.max");
    }
    let (both, memory) = (read("memory.memsw.limit_in_bytes")?, read("memory.limit_in_bytes")?);
    (both < NO_LIMIT).then(|| both.saturating_sub(memory))
}

/// A size from `/proc/meminfo`, in bytes.
fn meminfo(name: &str) -> Option<usize> {
    sized(&fs::read_to_string("/proc/meminfo").ok()?, name)
}

/// The size of a line `NAME: SIZE kB`, in bytes.
fn sized(text: &str, name: &str) -> Option<usize> {
    let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().trim_end_matches("kB").trim().parse::<usize>().ok()? << 10)
}

/// A control group with a limit.
struct Group {
    limit_bytes: usize,
    free_bytes: usize,
}

/// The folder of a control group's files.
struct GroupFiles {
    folder: PathBuf,
    version_two: bool,
}

/// The control groups of this process that account for memory, cgroup v1 or v2, ancestors included, of a system whose files lie
/// below this folder.
fn group_files(root: &Path) -> Vec<GroupFiles> {
    let mut found = Vec::new();
    for line in fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default().lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let (controller, version_two) = match controllers {
            "" => ("sys/fs/cgroup", true),
            c if c.split(',').any(|c| c == "memory") => ("sys/fs/cgroup/memory", false),
            _ => continue,
        };
        let mut path = path.trim_end_matches('/');
        loop {
            found.push(GroupFiles { folder: root.join(format!("{controller}{path}")), version_two });
            match path.rfind('/') {
                Some(end) => path = &path[..end],
                None => break,
            }
        }
    }
    found
}

/// The control groups of this process that limit memory.
fn groups() -> Vec<Group> {
    let group = |GroupFiles { folder, version_two }: GroupFiles| {
        let (limit, usage) = match version_two {
            true => ("memory.max", "memory.current"),
            false => ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        };
        let read =
            |file: &str| -> Option<usize> { fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok() };
        let limit_bytes = read(limit)?;
        // The kernel drops file cache when memory is short.
        let used = read(usage).unwrap_or(0).saturating_sub(droppable(&folder.join("memory.stat")));
        Some(Group { limit_bytes, free_bytes: limit_bytes.saturating_sub(used) })
    };
    group_files(Path::new("/")).into_iter().filter_map(group).collect()
}

/// File cache of a control group, in bytes.
fn droppable(stat: &Path) -> usize {
    let text = fs::read_to_string(stat).unwrap_or_default();
    let field = |name: &str| {
        text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' ')?.parse::<usize>().ok())
    };
    let cached =
        |state: &str| field(&format!("total_{state}_file")).or_else(|| field(&format!("{state}_file")));
    cached("inactive").unwrap_or(0) + cached("active").unwrap_or(0)
}

/// Returns freed heap to the system, so that memory of planning does not stay resident beside the arena.
pub fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: releases free memory of the allocator; no pointer is involved.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Makes all threads share one heap with fixed thresholds, so that the heap's size is what is in use. Call it before other
/// threads start.
pub fn configure_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: sets parameters of the allocator; no pointer is involved.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 256 << 10);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 128 << 10);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_testing::Scratch;

    const GIB: usize = 1 << 30;

    /// A system with 4 GiB of swap, of which this process holds 3 MiB.
    fn system(name: &str, cgroup: &str, files: &[(&str, &str)]) -> Option<Swap> {
        let scratch = Scratch::new(name);
        scratch
            .write("proc/meminfo", b"MemTotal: 16777216 kB\nSwapTotal:  4194304 kB\nSwapFree: 3145728 kB\n");
        scratch.write("proc/self/status", b"VmRSS:\t 9999 kB\nVmSwap:\t    3072 kB\n");
        scratch.write("proc/self/cgroup", cgroup.as_bytes());
        for (file, text) in files {
            scratch.write(&format!("sys/fs/cgroup/{file}"), text.as_bytes());
        }
        swap_of(&scratch.0)
    }

    #[test]
    fn swap_is_what_the_system_has_and_the_tightest_group_allows() {
        let free = system("swap-free", "", &[]).unwrap();
        let whole =
            Swap { total_bytes: 4 * GIB, used_bytes: GIB, allowed_bytes: usize::MAX, own_bytes: 3 << 20 };
        assert_eq!((free, free.possible_bytes()), (whole, 4 * GIB));
        let allowed =
            |name, cgroup, files: &[(&str, &str)]| system(name, cgroup, files).unwrap().possible_bytes();
        // Version 2: an ancestor forbids it, or none says anything.
        let two = "0::/jobs/mine\n";
        assert_eq!(
            allowed(
                "swap-two",
                two,
                &[("jobs/mine/memory.swap.max", "max\n"), ("jobs/memory.swap.max", "0\n")]
            ),
            0
        );
        assert_eq!(allowed("swap-max", two, &[("jobs/mine/memory.swap.max", "max\n")]), 4 * GIB);
        // Version 1 limits memory and swap together.
        let one = "9:name=systemd:/\n4:cpu,memory:/mine\n";
        let limits = [
            ("memory/mine/memory.memsw.limit_in_bytes", "3221225472\n"),
            ("memory/mine/memory.limit_in_bytes", "1073741824\n"),
        ];
        assert_eq!(allowed("swap-one", one, &limits), 2 * GIB);
        // Without limits both are the same number.
        let none = [
            ("memory/mine/memory.memsw.limit_in_bytes", "9223372036854771712\n"),
            ("memory/mine/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        assert_eq!(allowed("swap-none", one, &none), 4 * GIB);
        assert_eq!(swap_of(Path::new("/no/such/system")), None);
    }
}
