//! What a spill file asks of Linux.

use super::{BLOCK, Part};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Filesystems whose files are memory, by the magic number that `statfs` gives.
const IN_MEMORY: [(u32, &str); 3] =
    [(0x0102_1994, "tmpfs"), (0x8584_58f6, "ramfs"), (0x9584_58f6, "hugetlbfs")];

/// The shortest turn on a processor that a thread may ask for.
const SHORTEST_TURN_NS: u64 = 100_000;

/// A file without a name.
pub fn open(folder: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    // O_EXCL: nobody can give it a name later.
    if let Ok(file) = options.custom_flags(libc::O_TMPFILE | libc::O_EXCL).open(folder) {
        return Ok(file);
    }
    open_named(folder)
}

/// Not every filesystem has files without a name: there it has one for a moment.
pub fn open_named(folder: &Path) -> io::Result<File> {
    let moment = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let path = folder.join(format!(".plimsoll-spill-{}-{moment}", std::process::id()));
    let file = OpenOptions::new().read(true).write(true).mode(0o600).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// The kind of filesystem, where its files are memory.
pub fn in_memory(file: &File) -> io::Result<Option<&'static str>> {
    // SAFETY: plain numbers, for which zero is a value.
    let mut about: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: an open file, and a struct of the right type to fill.
    checked(unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut about) })?;
    let magic = about.f_type as u32;
    Ok(IN_MEMORY.iter().find(|(number, _)| *number == magic).map(|(_, name)| *name))
}

/// What the filesystem has left for this user; nothing where it does not tell.
pub fn free_bytes(file: &File) -> io::Result<Option<u64>> {
    // SAFETY: plain numbers, for which zero is a value.
    let mut about: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: an open file, and a struct of the right type to fill.
    checked(unsafe { libc::fstatvfs(file.as_raw_fd(), &raw mut about) })?;
    #[allow(clippy::unnecessary_cast, reason = "the fields are narrower on some machines")]
    let free = (about.f_bavail as u64).saturating_mul(about.f_frsize as u64);
    Ok((about.f_blocks > 0).then_some(free))
}

/// Processor time that this process has taken so far.
pub fn busy_ns() -> u64 {
    let mut busy = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a struct of the right type to fill.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut busy) };
    Duration::new(busy.tv_sec.max(0) as u64, busy.tv_nsec as u32).as_nanos() as u64
}

/// The longest file this process may write: beyond it, writing ends the process.
pub fn longest_file() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: a struct of the right type to fill.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    limit.rlim_cur
}

/// Makes all later transfers go past the cache of pages.
///
/// Asked of the open file: opening with the flag would leave a file behind where it is refused.
pub fn go_direct(file: &File) -> io::Result<()> {
    // SAFETY: an open file; the command takes no argument.
    let flags = checked(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) })?;
    // SAFETY: an open file; the command takes an integer.
    checked(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags | libc::O_DIRECT) })?;
    Ok(())
}

/// Takes the disk space; false where the filesystem cannot promise any.
pub fn reserve(file: &File, bytes: u64) -> io::Result<bool> {
    let length = i64::try_from(bytes).map_err(|_| io::ErrorKind::FileTooLarge)?;
    loop {
        // SAFETY: an open file and plain numbers.
        let error = match checked(unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, length) }) {
            Ok(_) => return Ok(true),
            Err(error) => error,
        };
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EOPNOTSUPP | libc::ENOSYS) => return Ok(false),
            _ => return Err(error),
        }
    }
}

/// Lets this thread run soon after it wakes, where all cores are busy: it wants turns as short as can be, and those with
/// shorter ones go first. Older systems pay no heed, and no rights are needed.
pub fn hurry() {
    // SAFETY: plain numbers, for which zero is a value.
    let mut turns: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of_val(&turns) as u32;
    // SAFETY: this thread, and a struct of the right type and size to fill.
    let known = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut turns, size, 0) };
    if known == 0 && turns.sched_policy == libc::SCHED_OTHER as u32 {
        turns.sched_runtime = SHORTEST_TURN_NS;
        // SAFETY: this thread, and a struct of the right type.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const turns, 0) };
    }
}

/// What addresses of memory must be multiples of to take part in direct transfers.
#[cfg(target_env = "gnu")]
pub fn memory_alignment(file: &File) -> usize {
    // SAFETY: plain numbers, for which zero is a value.
    let mut about: libc::statx = unsafe { std::mem::zeroed() };
    let (flags, mask) = (libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN);
    // SAFETY: an open file, an empty path that ends in a zero, and a struct of the right type to fill.
    let answer = unsafe { libc::statx(file.as_raw_fd(), c"".as_ptr(), flags, mask, &raw mut about) };
    let told = about.stx_dio_mem_align as usize;
    if answer == 0 && about.stx_mask & mask != 0 && told.is_power_of_two() { told.min(BLOCK) } else { BLOCK }
}

/// What addresses of memory must be multiples of to take part in direct transfers.
#[cfg(not(target_env = "gnu"))]
pub fn memory_alignment(_: &File) -> usize {
    BLOCK
}

/// Whether any of the first `bytes` of the file are in the cache of pages.
///
/// Filesystems above others (overlays) are found out by this where the one below is memory.
pub fn cached(file: &File, bytes: usize) -> io::Result<bool> {
    // SAFETY: a new mapping at an address of the system's choice; nothing reads through it.
    let start = unsafe {
        libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let mut pages = vec![0u8; bytes.div_ceil(BLOCK)];
    // SAFETY: the mapping just made, and a byte for each of its pages, which are no smaller than a block.
    let answer = checked(unsafe { libc::mincore(start, bytes, pages.as_mut_ptr()) });
    // SAFETY: exactly what was mapped above.
    unsafe { libc::munmap(start, bytes) };
    answer?;
    Ok(pages.iter().any(|page| page & 1 != 0))
}

/// Reads from `offset` into the parts in turn; returns how much was read.
///
/// # Safety
/// The parts are memory that nothing else uses.
pub unsafe fn read(file: &File, parts: [Part; 2], offset: u64) -> io::Result<usize> {
    let (parts, count) = vectors(parts);
    // SAFETY: the caller's promise; `count` vectors are there.
    let moved = unsafe { libc::preadv64(file.as_raw_fd(), parts.as_ptr(), count, offset.cast_signed()) };
    usize::try_from(moved).map_err(|_| io::Error::last_os_error())
}

/// Writes the parts in turn to `offset`; returns how much was written.
///
/// # Safety
/// The parts are memory that nothing else writes to.
pub unsafe fn write(file: &File, parts: [Part; 2], offset: u64) -> io::Result<usize> {
    let (parts, count) = vectors(parts);
    // SAFETY: the caller's promise; `count` vectors are there.
    let moved = unsafe { libc::pwritev64(file.as_raw_fd(), parts.as_ptr(), count, offset.cast_signed()) };
    usize::try_from(moved).map_err(|_| io::Error::last_os_error())
}

/// The parts that are not empty, and how many these are.
fn vectors(parts: [Part; 2]) -> ([libc::iovec; 2], i32) {
    let [first, second] = parts.map(|part| libc::iovec { iov_base: part.start.cast(), iov_len: part.bytes });
    match (first.iov_len, second.iov_len) {
        (0, _) => ([second, first], 1),
        (_, 0) => ([first, second], 1),
        _ => ([first, second], 2),
    }
}

fn checked(answer: i32) -> io::Result<i32> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}
