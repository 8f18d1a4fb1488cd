//! An allocator that counts: the system's, with live and peak bytes by tag.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What an allocation is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// Everything without a tag of its own: counts against the heap cap.
    Program,
    /// Planning, whose memory is returned to the system before the arena is mapped.
    Planning,
    /// The data set and batches, which have entries of their own in the load sheet.
    Data,
}

const TAGS: usize = 3;

/// Bytes of one tag.
struct Account {
    live: AtomicUsize,
    peak: AtomicUsize,
}

/// Live and peak bytes of every tag; zero where [`Heap`] is not the program's allocator.
static ACCOUNTS: [Account; TAGS] =
    [const { Account { live: AtomicUsize::new(0), peak: AtomicUsize::new(0) } }; TAGS];

/// The system's allocator with accounts by tag, so that a run which stops near its line says whose memory grew. Every block has
/// its tag in front, so that freeing it on any thread is accounted to the tag that allocated it. A program has it by one line:
///
/// ```
/// use plimsoll_train::memory::{self, Heap, Tag};
///
/// #[global_allocator]
/// static HEAP: Heap = Heap;
///
/// let before = memory::heap_peak(Tag::Data);
/// let rows = memory::tagged(Tag::Data, || vec![0_u8; 1 << 20]);
/// assert!(memory::heap_peak(Tag::Data) >= before + rows.len());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Heap;

thread_local! {
    static CURRENT: Cell<Tag> = const { Cell::new(Tag::Program) };
}

/// Runs `work` with this thread's allocations under a tag.
pub fn tagged<T>(tag: Tag, work: impl FnOnce() -> T) -> T {
    let outer = CURRENT.replace(tag);
    let result = work();
    CURRENT.set(outer);
    result
}

/// The most live bytes of a tag since [`restart_heap_peaks`].
pub fn heap_peak(tag: Tag) -> usize {
    ACCOUNTS[tag as usize].peak.load(Relaxed)
}

/// Live bytes of each tag, by name; empty where [`Heap`] is not the program's allocator.
pub fn heap_parts() -> Vec<(String, usize)> {
    let names = ["heap of the program", "heap of planning", "heap of the data"];
    let live: Vec<usize> = ACCOUNTS.iter().map(|account| account.live.load(Relaxed)).collect();
    if live.iter().all(|&bytes| bytes == 0) {
        return Vec::new();
    }
    names.iter().map(ToString::to_string).zip(live).collect()
}

/// Sets every peak to what is live now.
pub fn restart_heap_peaks() {
    for account in &ACCOUNTS {
        account.peak.store(account.live.load(Relaxed), Relaxed);
    }
}

impl Heap {
    /// Writes the thread's tag in front of a new block, and counts it.
    ///
    /// # Safety
    /// `start` is null or a block of the layout, which begins with `offset` bytes for the tag.
    unsafe fn with_current_tag(&self, start: *mut u8, whole: Layout, offset: usize) -> *mut u8 {
        if start.is_null() {
            return start;
        }
        let tag = CURRENT.try_with(Cell::get).unwrap_or(Tag::Program) as usize;
        self.credit(tag, whole.size());
        // SAFETY: the block begins with `offset` bytes in front of the returned pointer.
        unsafe {
            start.write(tag as u8);
            start.add(offset)
        }
    }

    fn credit(&self, tag: usize, bytes: usize) {
        let live = ACCOUNTS[tag].live.fetch_add(bytes, Relaxed) + bytes;
        ACCOUNTS[tag].peak.fetch_max(live, Relaxed);
    }

    fn debit(&self, tag: usize, bytes: usize) {
        ACCOUNTS[tag].live.fetch_sub(bytes, Relaxed);
    }
}

/// The layout with space for the tag in front, and the size of that space.
fn with_tag(layout: Layout) -> Option<(Layout, usize)> {
    let offset = layout.align().max(16);
    let size = layout.size().checked_add(offset)?;
    Some((Layout::from_size_align(size, offset).ok()?, offset))
}

// SAFETY: every block comes from the system's allocator with a larger layout. The returned pointer is `offset` bytes into it,
// which keeps the alignment because `offset` is a multiple of it, and `dealloc` computes the same layout.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some((whole, offset)) = with_tag(layout) else { return std::ptr::null_mut() };
        // SAFETY: the layout's size is at least 16.
        let start = unsafe { System.alloc(whole) };
        // SAFETY: the block was just allocated with this layout.
        unsafe { self.with_current_tag(start, whole, offset) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some((whole, offset)) = with_tag(layout) else { return std::ptr::null_mut() };
        // SAFETY: the layout's size is at least 16.
        let start = unsafe { System.alloc_zeroed(whole) };
        // SAFETY: the block was just allocated with this layout.
        unsafe { self.with_current_tag(start, whole, offset) }
    }

    /// Large blocks grow where they are, or without a second copy.
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let new = Layout::from_size_align(new_size, layout.align()).ok().and_then(with_tag);
        let (Some((old, offset)), Some((new, _))) = (with_tag(layout), new) else {
            return std::ptr::null_mut();
        };
        // SAFETY: `alloc` allocated the block with the old layout and wrote its tag there; the space in front of the returned
        // pointer depends on the alignment alone, so it is the same in the new block.
        unsafe {
            let start = System.realloc(pointer.sub(offset), old, new.size());
            if start.is_null() {
                return start;
            }
            let tag = (start.read() as usize).min(TAGS - 1);
            self.debit(tag, old.size());
            self.credit(tag, new.size());
            start.add(offset)
        }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        let Some((whole, offset)) = with_tag(layout) else { return };
        // SAFETY: `alloc` allocated the block with this layout and wrote its tag there.
        unsafe {
            let start = pointer.sub(offset);
            let tag = (start.read() as usize).min(TAGS - 1);
            self.debit(tag, whole.size());
            System.dealloc(start, whole);
        }
    }
}
