//! Spilling allocates nothing once its queue is there, on any thread.
#![cfg(target_os = "linux")]

use plimsoll_cpu::runtime::spill::{BLOCK, SpillError, SpillFile};
use plimsoll_cpu::runtime::transfer::TransferQueue;
use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: hands everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// One test, because allocations of another on its own thread would be counted.
#[test]
fn spilling_allocates_nothing() {
    let bytes: usize = (5 << 20) + 100;
    let room = bytes.next_multiple_of(BLOCK) as u64;
    let create = |folder: &str| SpillFile::create(Path::new(folder), 2 * room);
    let file = match create(env!("CARGO_TARGET_TMPDIR")) {
        Err(SpillError::Memory { .. }) => create("/var/tmp"),
        outcome => outcome,
    };
    // Fewer slots than requests: making one waits, too.
    let queue = TransferQueue::new(file.unwrap(), 2).unwrap();
    let mut memory = vec![1u8; 2 * bytes + 128];
    let start = memory.as_ptr().align_offset(64);
    let (one, two) = memory[start..].split_at_mut(bytes.next_multiple_of(64));
    let before = ALLOCATIONS.load(Relaxed);
    for round in 0..6 {
        one.fill(round);
        // SAFETY: the memory is alive, and not looked at until the last request is done.
        let ticket = unsafe {
            queue.store(room, one.as_ptr(), bytes);
            queue.store(0, one.as_ptr(), bytes);
            queue.load(room, two.as_mut_ptr(), bytes);
            queue.load(0, one.as_mut_ptr(), 77)
        };
        queue.wait(ticket).unwrap();
        queue.write_now(3, &one[..9]).unwrap();
        queue.read_now(5, &mut one[..9000]).unwrap();
        assert!(two[..bytes].iter().all(|b| *b == round));
    }
    assert_eq!(ALLOCATIONS.load(Relaxed) - before, 0);
}
