//! Transfers allocate nothing once their queue exists, on any thread.
#![cfg(target_os = "linux")]

use plimsoll_runtime::TransferQueue;
use plimsoll_runtime::spill::{BLOCK, SpillFile, TransferError};
use plimsoll_runtime::transfer::FileQueue;
use plimsoll_testing::CountingAllocator;
use std::path::Path;

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

/// One test, because allocations of another on its own thread would be counted.
#[test]
fn transfers_allocate_nothing() {
    let bytes: usize = (5 << 20) + 100;
    let stride = bytes.next_multiple_of(BLOCK) as u64;
    let create = |folder: &str| SpillFile::create(Path::new(folder), 2 * stride);
    let file = match create(env!("CARGO_TARGET_TMPDIR")) {
        Err(TransferError::Memory { .. }) => create("/var/tmp"),
        outcome => outcome,
    };
    // Fewer slots than requests: submitting one waits, too.
    let queue = FileQueue::new(file.unwrap(), 2).unwrap();
    let mut memory = vec![1u8; 2 * bytes + 128];
    let start = memory.as_ptr().align_offset(64);
    let (one, two) = memory[start..].split_at_mut(bytes.next_multiple_of(64));
    let before = HEAP.allocations();
    for round in 0..6 {
        one.fill(round);
        // SAFETY: the memory is alive, and not looked at until the last request has completed.
        let ticket = unsafe {
            queue.store(stride, one.as_ptr(), bytes);
            queue.store(0, one.as_ptr(), bytes);
            queue.load(stride, two.as_mut_ptr(), bytes);
            queue.load(0, one.as_mut_ptr(), 77)
        };
        queue.wait(ticket).unwrap();
        queue.write_now(3, &one[..9]).unwrap();
        queue.read_now(5, &mut one[..9000]).unwrap();
        assert!(two[..bytes].iter().all(|b| *b == round));
    }
    assert_eq!(HEAP.allocations() - before, 0);
}
