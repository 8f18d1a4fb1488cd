//! The resident pages of the program's own code.

#[cfg(target_os = "linux")]
use rustix::mm::{Advice, madvise};
#[cfg(target_os = "linux")]
use std::fs::{self, File};
#[cfg(target_os = "linux")]
use std::os::unix::fs::FileExt;
#[cfg(target_os = "linux")]
use std::sync::OnceLock;

/// Drops the resident pages of the program's code and constants, so that the planner's and the loader's do not count beside the
/// arena. Pages in use are read from the file again.
pub fn trim_code() {
    #[cfg(target_os = "linux")]
    for &Mapping { start, bytes, .. } in constant_mappings() {
        // SAFETY: a mapping of the program's own file that the loader does not write to (see `constant_mappings`), so no page
        // differs from the file, and a dropped page is read again when it is touched.
        let _ =
            unsafe { madvise(std::ptr::with_exposed_provenance_mut(start), bytes, Advice::LinuxDontNeed) };
    }
}

/// A mapping of the program's file.
#[cfg(target_os = "linux")]
#[derive(Clone, Copy, Debug)]
struct Mapping {
    start: usize,
    bytes: usize,
    /// Its offset in the file.
    offset: u64,
    is_code: bool,
}

/// The mappings that are the program's file, byte for byte, and so may be dropped: code, constants, and the loader's list of relocations.
/// Constants with addresses in them are none of these: their segment is writable in the file's headers, though not when the program runs.
#[cfg(target_os = "linux")]
fn constant_mappings() -> &'static [Mapping] {
    static FOUND: OnceLock<Vec<Mapping>> = OnceLock::new();
    FOUND.get_or_init(|| {
        let Ok(program) = std::env::current_exe() else { return Vec::new() };
        let (constant, written) = File::open(&program).and_then(|file| segments(&file)).unwrap_or_default();
        let is_constant = |mapping: &Mapping| {
            mapping.is_code || constant.contains(&mapping.offset) && !written.contains(&mapping.offset)
        };
        own_mappings(&program.to_string_lossy()).into_iter().filter(is_constant).collect()
    })
}

/// Where the loaded segments of an ELF file begin, in whole pages: those that are never written, and the others.
#[cfg(target_os = "linux")]
fn segments(file: &File) -> std::io::Result<(Vec<u64>, Vec<u64>)> {
    const LITTLE_64_BIT: [u8; 6] = *b"\x7fELF\x02\x01";
    const LOADED: u32 = 1;
    const WRITABLE: u32 = 2;
    let mut header = [0; 64];
    file.read_exact_at(&mut header, 0)?;
    let (mut constant, mut written) = (Vec::new(), Vec::new());
    if !header.starts_with(&LITTLE_64_BIT) {
        return Ok((constant, written));
    }
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0_u64, |word, byte| word << 8 | u64::from(*byte));
    let (first, size, count) = (number(&header[32..40]), number(&header[54..56]), number(&header[56..58]));
    let page = rustix::param::page_size() as u64;
    for segment in 0..count {
        let mut entry = [0; 16];
        file.read_exact_at(&mut entry, first.saturating_add(segment * size))?;
        let (kind, flags) = (number(&entry[..4]) as u32, number(&entry[4..8]) as u32);
        let start = number(&entry[8..]) / page * page;
        if kind == LOADED {
            if flags & WRITABLE == 0 { &mut constant } else { &mut written }.push(start);
        }
    }
    Ok((constant, written))
}

/// The mappings of the program's file that are not writable.
#[cfg(target_os = "linux")]
fn own_mappings(program: &str) -> Vec<Mapping> {
    let mapping = |line: &str| {
        let mut words = line.split_whitespace();
        let (range, rights, offset) = (words.next()?, words.next()?, words.next()?);
        // The path is the sixth field, and may hold spaces.
        let path = line.splitn(6, ' ').nth(5)?.trim_start();
        if path != program || !["r-xp", "r--p"].contains(&rights) {
            return None;
        }
        let (start, end) = range.split_once('-')?;
        let (start, end) = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
        let (bytes, offset) = (end.checked_sub(start)?, u64::from_str_radix(offset, 16).ok()?);
        Some(Mapping { start, bytes, offset, is_code: rights == "r-xp" })
    };
    fs::read_to_string("/proc/self/maps").unwrap_or_default().lines().filter_map(mapping).collect()
}

/// Whether touched pages of the code make many more than their neighbours resident. Newer kernels map whole folios of a file, and those
/// of a file that was copied are large, so that more of the code is resident than is used. A file that was just linked has a few large
/// ones. Tries it once, with pages far from each other.
pub fn code_is_mapped_in_large_folios() -> bool {
    #[cfg(target_os = "linux")]
    {
        static FOUND: OnceLock<bool> = OnceLock::new();
        *FOUND.get_or_init(|| {
            trim_code();
            let code = constant_mappings().iter().filter(|mapping| mapping.is_code);
            let bytes = code.filter_map(|mapping| bytes_per_fault(mapping).ok().flatten()).max();
            trim_code();
            bytes.is_some_and(|bytes| bytes > FAULT_AROUND_BYTES * 3 / 2)
        })
    }
    #[cfg(not(target_os = "linux"))]
    false
}

/// What kernels map around a touched page of a file whose folios are small.
#[cfg(target_os = "linux")]
const FAULT_AROUND_BYTES: usize = 64 << 10;

/// The mean of the bytes that become resident by touching a page in each part of a mapping that has no resident ones, if there are such
/// parts. A part is larger than most folios of programs, so that a touch seldom makes pages of the next one resident.
#[cfg(target_os = "linux")]
fn bytes_per_fault(&Mapping { start, bytes, .. }: &Mapping) -> std::io::Result<Option<usize>> {
    const PART_BYTES: usize = 512 << 10;
    let page = rustix::param::page_size();
    let part = PART_BYTES / page;
    let (mut touched, mut present) = (0, 0);
    for first in (0..bytes / page).step_by(part).filter(|first| first + part <= bytes / page) {
        let resident = || -> std::io::Result<usize> {
            let pages = resident_pages(start / page + first, part)?;
            Ok(pages.into_iter().filter(|present| *present).count())
        };
        if resident()? > 0 {
            continue;
        }
        let middle = start + (first + part / 2) * page;
        // SAFETY: an address inside a readable mapping of the program's file, which stays mapped. Code is only read by this.
        unsafe { std::ptr::read_volatile(std::ptr::with_exposed_provenance::<u8>(middle)) };
        touched += 1;
        present += resident()?;
    }
    Ok((touched > 0).then(|| present * page / touched))
}

/// Which pages of this process are resident.
#[cfg(target_os = "linux")]
fn resident_pages(first: usize, count: usize) -> std::io::Result<Vec<bool>> {
    const PRESENT: u64 = 1 << 63;
    let mut entries = vec![0; 8 * count];
    File::open("/proc/self/pagemap")?.read_exact_at(&mut entries, 8 * first as u64)?;
    let entry = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    Ok(entries.chunks_exact(8).map(|bytes| entry(bytes) & PRESENT != 0).collect())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::{constant_mappings, trim_code};

    /// A constant that the loader fills in, one that it does not, and a variable.
    static NAMES: [&str; 3] = ["one", "two", "three"];
    static NUMBERS: [u64; 512] = [7; 512];
    static VARIABLE: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(3);

    #[test]
    fn what_is_dropped_is_read_again_and_relocated_constants_stay() {
        use std::sync::atomic::Ordering::Relaxed;
        VARIABLE.store(5, Relaxed);
        let within = |address: usize| {
            constant_mappings()
                .iter()
                .any(|mapping| (mapping.start..mapping.start + mapping.bytes).contains(&address))
        };
        assert!(within(trim_code as fn() as usize), "code");
        assert!(within(std::hint::black_box(&NUMBERS).as_ptr().addr()), "constants");
        assert!(!within(std::hint::black_box(&NAMES).as_ptr().addr()), "relocated constants");
        assert!(!within(std::ptr::from_ref(&VARIABLE).addr()), "variables");
        trim_code();
        assert_eq!(std::hint::black_box(&NAMES).concat(), "onetwothree");
        assert_eq!(std::hint::black_box(&NUMBERS).iter().sum::<u64>(), 7 * 512);
        assert_eq!(VARIABLE.load(Relaxed), 5);
    }
}
