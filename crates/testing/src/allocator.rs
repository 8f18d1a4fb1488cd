//! An allocator that counts.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// The system's allocator, with counters over all threads of the process. A test binary that installs it holds one test:
/// allocations of a test on another thread would be counted, too.
///
/// ```
/// use plimsoll_testing::CountingAllocator;
/// #[global_allocator]
/// static HEAP: CountingAllocator = CountingAllocator::new();
///
/// let (before, count) = (HEAP.live_bytes(), HEAP.allocations());
/// let block = vec![0u8; 100];
/// assert_eq!((HEAP.live_bytes() - before, HEAP.allocations() - count), (100, 1));
/// # drop(block);
/// ```
pub struct CountingAllocator {
    allocations: AtomicUsize,
    live_bytes: AtomicUsize,
    peak_bytes: AtomicUsize,
}

impl CountingAllocator {
    /// An allocator whose counters are zero.
    #[allow(clippy::new_without_default, reason = "only a constant can be the global allocator")]
    pub const fn new() -> Self {
        Self {
            allocations: AtomicUsize::new(0),
            live_bytes: AtomicUsize::new(0),
            peak_bytes: AtomicUsize::new(0),
        }
    }

    /// Allocations since the process started.
    pub fn allocations(&self) -> usize {
        self.allocations.load(SeqCst)
    }

    /// Bytes that are allocated now.
    pub fn live_bytes(&self) -> usize {
        self.live_bytes.load(SeqCst)
    }

    /// The most live bytes since [`CountingAllocator::restart_peak`].
    pub fn peak_bytes(&self) -> usize {
        self.peak_bytes.load(SeqCst)
    }

    /// Sets the peak to what is live now; returns that.
    pub fn restart_peak(&self) -> usize {
        let live = self.live_bytes();
        self.peak_bytes.store(live, SeqCst);
        live
    }
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.allocations.fetch_add(1, SeqCst);
        let live = self.live_bytes.fetch_add(layout.size(), SeqCst) + layout.size();
        self.peak_bytes.fetch_max(live, SeqCst);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        self.live_bytes.fetch_sub(layout.size(), SeqCst);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}
