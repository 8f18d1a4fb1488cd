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
    for (start, bytes) in constant_mappings() {
        // SAFETY: a mapping of the program's own file that the loader does not write to (see `constant_mappings`), so no page
        // differs from the file, and a dropped page is read again when it is touched.
        let _ =
            unsafe { madvise(std::ptr::with_exposed_provenance_mut(start), bytes, Advice::LinuxDontNeed) };
    }
}

/// Whether [`trim_code`] drops data that is inside the program: its constants are where the linker put this one.
pub(crate) fn trims_constants() -> bool {
    #[cfg(target_os = "linux")]
    {
        static CONSTANT: [u8; 64] = [1; 64];
        let at = CONSTANT.as_ptr().addr();
        constant_mappings().into_iter().any(|(start, bytes)| (start..start + bytes).contains(&at))
    }
    #[cfg(not(target_os = "linux"))]
    false
}

/// Start and length of the mappings that hold the program's code.
#[cfg(target_os = "linux")]
fn code_mappings() -> Vec<(usize, usize)> {
    own_mappings(|rights, _| rights == "r-xp")
}

/// Start and length of the mappings that are the program's file, byte for byte: its code, which is not relocated when it is
/// loaded, and the file's start, which has the headers, the list of relocations, and with most linkers the constants. Constants
/// with addresses in them are relocated; they are in a later mapping, which was writable.
#[cfg(target_os = "linux")]
fn constant_mappings() -> Vec<(usize, usize)> {
    own_mappings(|rights, offset| {
        rights == "r-xp" || rights == "r--p" && offset.bytes().all(|digit| digit == b'0')
    })
}

/// Start and length of the mappings of the program's file with certain rights and offsets in the file.
#[cfg(target_os = "linux")]
fn own_mappings(wanted: fn(&str, &str) -> bool) -> Vec<(usize, usize)> {
    let (Ok(program), Ok(maps)) = (std::env::current_exe(), fs::read_to_string("/proc/self/maps")) else {
        return Vec::new();
    };
    let program = program.to_string_lossy().into_owned();
    let mapping = |line: &str| {
        let mut words = line.split_whitespace();
        let (range, rights, offset) = (words.next()?, words.next()?, words.next()?);
        // The path is the sixth field, and may hold spaces.
        let path = line.splitn(6, ' ').nth(5)?.trim_start();
        if path != program || !wanted(rights, offset) {
            return None;
        }
        let (start, end) = range.split_once('-')?;
        let (start, end) = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
        Some((start, end.checked_sub(start)?))
    };
    maps.lines().filter_map(mapping).collect()
}

/// Whether a touched page of the code makes more than its neighbours resident. Newer kernels map whole folios of a file, and those of a
/// file that was copied are large, so that more of the code is resident than is used. Tries it once, with a page far from others.
pub fn code_is_mapped_in_large_folios() -> bool {
    #[cfg(target_os = "linux")]
    {
        static FOUND: OnceLock<bool> = OnceLock::new();
        *FOUND.get_or_init(|| {
            trim_code();
            let pages = code_mappings()
                .into_iter()
                .filter_map(|mapping| pages_per_touch(mapping).ok().flatten())
                .max();
            trim_code();
            pages.is_some_and(|pages| pages > FAULT_AROUND_PAGES)
        })
    }
    #[cfg(not(target_os = "linux"))]
    false
}

/// Pages that a kernel maps around a touched one where folios are small: 64 KiB.
#[cfg(target_os = "linux")]
const FAULT_AROUND_PAGES: usize = 16;

/// The pages that become resident when one is touched, in the middle of the longest part of a mapping without resident ones.
#[cfg(target_os = "linux")]
fn pages_per_touch((start, bytes): (usize, usize)) -> std::io::Result<Option<usize>> {
    let page = rustix::param::page_size();
    let resident = resident_pages(start / page, bytes / page)?;
    let (mut longest, mut from) = (0..0, 0);
    for (at, present) in resident.iter().copied().chain([true]).enumerate() {
        if present {
            if at - from > longest.len() {
                longest = from..at;
            }
            from = at + 1;
        }
    }
    // Room for a large folio on both sides.
    if longest.len() < 8 * FAULT_AROUND_PAGES {
        return Ok(None);
    }
    let middle = start + (longest.start + longest.len() / 2) * page;
    // SAFETY: an address inside a readable mapping of the program's file, which stays mapped. Code is only read by this.
    unsafe { std::ptr::read_volatile(std::ptr::with_exposed_provenance::<u8>(middle)) };
    let resident = resident_pages(start / page + longest.start, longest.len())?;
    Ok(Some(resident.into_iter().filter(|present| *present).count()))
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
