//! The program's allocator: the system's, with an account of who holds what.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Who allocates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// Everything that has no tag of its own: counts against the heap cap.
    Program,
    /// Planning, whose memory is given back before the arena is mapped.
    Planning,
    /// The data set and batches, which the load sheet names by their size.
    Data,
}

const TAGS: usize = 3;

/// What one tag holds.
struct Account {
    live: AtomicUsize,
    peak: AtomicUsize,
}

/// The tagging allocator. Every block carries its tag in front, so that it is credited to who took it, whoever frees it.
pub struct Heap {
    accounts: [Account; TAGS],
}

thread_local! {
    static CURRENT: Cell<Tag> = const { Cell::new(Tag::Program) };
}

impl Heap {
    /// An allocator with empty accounts.
    pub const fn new() -> Self {
        Self { accounts: [const { Account { live: AtomicUsize::new(0), peak: AtomicUsize::new(0) } }; TAGS] }
    }

    /// Runs `work` with this thread's allocations under a tag.
    pub fn tagged<T>(&self, tag: Tag, work: impl FnOnce() -> T) -> T {
        let outer = CURRENT.replace(tag);
        let result = work();
        CURRENT.set(outer);
        result
    }

    /// The most bytes a tag ever held since [`Heap::restart_peaks`].
    pub fn peak(&self, tag: Tag) -> usize {
        self.accounts[tag as usize].peak.load(Relaxed)
    }

    /// What each tag holds now, by name.
    pub fn parts(&self) -> Vec<(String, usize)> {
        let names = ["heap of the program", "heap of planning", "heap of the data"];
        let live = self.accounts.iter().map(|account| account.live.load(Relaxed));
        names.iter().map(ToString::to_string).zip(live).collect()
    }

    /// Starts the peaks anew from what is live.
    pub fn restart_peaks(&self) {
        for account in &self.accounts {
            account.peak.store(account.live.load(Relaxed), Relaxed);
        }
    }

    fn credit(&self, tag: usize, bytes: usize) {
        let live = self.accounts[tag].live.fetch_add(bytes, Relaxed) + bytes;
        self.accounts[tag].peak.fetch_max(live, Relaxed);
    }

    fn debit(&self, tag: usize, bytes: usize) {
        self.accounts[tag].live.fetch_sub(bytes, Relaxed);
    }
}

/// The layout with room for the tag in front, and how much room that is.
fn with_room(layout: Layout) -> Option<(Layout, usize)> {
    let room = layout.align().max(16);
    let size = layout.size().checked_add(room)?;
    Some((Layout::from_size_align(size, layout.align().max(16)).ok()?, room))
}

// SAFETY: every block comes from the system's allocator with a larger layout; the pointer handed out lies `room` bytes
// in, which keeps the alignment because `room` is a multiple of it, and the same layout is rebuilt when freeing.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some((whole, room)) = with_room(layout) else { return std::ptr::null_mut() };
        // SAFETY: the layout's size is at least 16.
        let start = unsafe { System.alloc(whole) };
        if start.is_null() {
            return start;
        }
        let tag = CURRENT.try_with(Cell::get).unwrap_or(Tag::Program) as usize;
        self.credit(tag, whole.size());
        // SAFETY: `room` bytes in front of the block belong to it.
        unsafe {
            start.write(tag as u8);
            start.add(room)
        }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        let Some((whole, room)) = with_room(layout) else { return };
        // SAFETY: `alloc` made the block with this layout and put its tag there.
        unsafe {
            let start = pointer.sub(room);
            let tag = (start.read() as usize).min(TAGS - 1);
            self.debit(tag, whole.size());
            System.dealloc(start, whole);
        }
    }
}
