//! What a spill file needs from Linux.

pub use super::unix::{free_bytes, max_file_bytes, open_unlinked, process_cpu_ns};

use super::{BLOCK, Segment};
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, StatxFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::mm::{MapFlags, ProtFlags};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::path::Path;

/// Filesystems whose files are memory, by the magic number that `statfs` returns.
const IN_MEMORY: [(u32, &str); 3] =
    [(0x0102_1994, "tmpfs"), (0x8584_58f6, "ramfs"), (0x9584_58f6, "hugetlbfs")];

/// The shortest time slice that a thread may ask for.
const SHORTEST_SLICE_NS: u64 = 100_000;

/// Opens a file without a name.
pub fn open(folder: &Path) -> io::Result<File> {
    // O_EXCL: it cannot be linked into the filesystem later.
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::EXCL | OFlags::CLOEXEC;
    match retry_on_intr(|| rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR)) {
        Ok(file) => Ok(file.into()),
        // Not every filesystem has O_TMPFILE.
        Err(_) => open_unlinked(folder),
    }
}

/// The filesystem's type, if its files are memory.
pub fn in_memory(file: &File) -> io::Result<Option<&'static str>> {
    let magic = rustix::fs::fstatfs(file)?.f_type as u32;
    Ok(IN_MEMORY.iter().find(|(number, _)| *number == magic).map(|(_, name)| *name))
}

/// Makes all later transfers bypass the page cache.
///
/// Set on the open file: opening with the flag would leave a file behind where it is refused.
pub fn set_direct(file: &File) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    Ok(rustix::fs::fcntl_setfl(file, flags | OFlags::DIRECT)?)
}

/// Allocates disk space; false if the filesystem cannot.
pub fn reserve(file: &File, bytes: u64) -> io::Result<bool> {
    if i64::try_from(bytes).is_err() {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    match retry_on_intr(|| rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes)) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Asks the scheduler for the shortest time slices, so that this thread runs soon after it wakes even if all cores are
/// busy: threads with shorter slices go first. Needs no privileges; older kernels ignore it.
pub fn prefer_latency() {
    // rustix has neither call.
    // SAFETY: plain numbers, for which zero is a value.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of_val(&attributes) as u32;
    // SAFETY: this thread, and a struct of the right type and size to fill.
    let known = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    if known == 0 && attributes.sched_policy == libc::SCHED_OTHER as u32 {
        attributes.sched_runtime = SHORTEST_SLICE_NS;
        // SAFETY: this thread, and a struct of the right type.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    }
}

/// What memory addresses must be multiples of for direct I/O.
pub fn memory_alignment(file: &File) -> usize {
    let wanted = StatxFlags::DIOALIGN;
    let about = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, wanted).ok();
    let known = about.filter(|about| about.stx_mask & wanted.bits() != 0);
    let alignment = known.map_or(BLOCK, |about| about.stx_dio_mem_align as usize);
    if alignment.is_power_of_two() { alignment.min(BLOCK) } else { BLOCK }
}

/// Whether any of the first `bytes` of the file are in the page cache.
///
/// This detects stacked filesystems (overlays) whose lower one is memory.
pub fn cached(file: &File, bytes: usize) -> io::Result<bool> {
    // SAFETY: a new mapping at an address of the system's choice; nothing reads through it.
    let start =
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, file, 0)? };
    let mut pages = vec![0u8; bytes.div_ceil(BLOCK)];
    // rustix has no `mincore`.
    // SAFETY: the mapping just made, and a byte for each of its pages, which are no smaller than a block.
    let answer = match unsafe { libc::mincore(start, bytes, pages.as_mut_ptr()) } {
        0 => Ok(pages.iter().any(|page| page & 1 != 0)),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: exactly what was mapped above.
    unsafe { rustix::mm::munmap(start, bytes)? };
    answer
}

/// Reads from `offset` into the segments in turn; returns how many bytes were read.
///
/// # Safety
/// The segments are valid memory that nothing else uses.
pub unsafe fn read(file: &File, segments: [Segment; 2], offset: u64) -> io::Result<usize> {
    let (segments, count) = filled(segments);
    // SAFETY: the caller's promise.
    let mut slices = segments.map(|segment| IoSliceMut::new(unsafe { segment.bytes_mut() }));
    Ok(rustix::io::preadv(file, &mut slices[..count], offset)?)
}

/// Writes the segments in turn to `offset`; returns how many bytes were written.
///
/// # Safety
/// The segments are valid memory that nothing else writes to.
pub unsafe fn write(file: &File, segments: [Segment; 2], offset: u64) -> io::Result<usize> {
    let (segments, count) = filled(segments);
    // SAFETY: the caller's promise.
    let slices = segments.map(|segment| IoSlice::new(unsafe { segment.bytes() }));
    Ok(rustix::io::pwritev(file, &slices[..count], offset)?)
}

/// The segments with the empty ones last, and how many are not empty (at least one).
fn filled([first, second]: [Segment; 2]) -> ([Segment; 2], usize) {
    match (first.len, second.len) {
        (0, _) => ([second, first], 1),
        (_, 0) => ([first, second], 1),
        _ => ([first, second], 2),
    }
}
