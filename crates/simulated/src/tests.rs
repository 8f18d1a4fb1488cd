//! The copy queue against a model that does one request after the other.

use crate::copy_queue::CopyQueue;
use crate::device::device_address;
use crate::store::Store;
use plimsoll_plan::{Link, TIER_ALIGNMENT};
use plimsoll_runtime::TransferQueue;
use plimsoll_runtime::arena::Arena;
use plimsoll_tensor::random::Lcg;
use std::time::{Duration, Instant};

const PAGE: usize = TIER_ALIGNMENT as usize;
const PAGES: usize = 8;

/// A queue to memory of [`PAGES`] pages.
fn queue(link: Link) -> CopyQueue {
    CopyQueue::new(Store::memory(PAGES * PAGE).unwrap(), link).unwrap()
}

/// The device's address of memory.
fn device(memory: &Arena, offset: usize, bytes: usize) -> *mut u8 {
    device_address(memory.at(offset, bytes))
}

#[test]
fn requests_see_the_effects_of_all_earlier_ones() {
    // Loads and stores of very different speeds.
    for (load_ns_per_mib, store_ns_per_mib) in [(0, 0), (60_000_000, 0), (0, 60_000_000)] {
        let link = Link { load_ns_per_mib, store_ns_per_mib, ..Link::default() };
        let queue = queue(link);
        let memory = Arena::new(PAGES * PAGE).unwrap();
        let (mut tier_model, mut memory_model) = (vec![0_u8; PAGES * PAGE], vec![0_u8; PAGES * PAGE]);
        for (at, byte) in memory_model.iter_mut().enumerate() {
            *byte = (at / PAGE + 1) as u8;
        }
        // SAFETY: nothing is in transfer.
        unsafe { memory.view_mut(0, PAGES * PAGE) }.copy_from_slice(&memory_model);
        let mut random = Lcg::new(7);
        for _ in 0..400 {
            let pages = 1 + random.below(2);
            let [in_tier, in_memory] = [0; 2].map(|_| random.below(PAGES - pages + 1) * PAGE);
            let (bytes, place) = (pages * PAGE, device(&memory, in_memory, pages * PAGE));
            if random.below(2) == 0 {
                // SAFETY: the arena outlives the queue's use of it: `drain` below.
                unsafe { queue.load(in_tier as u64, place, bytes) };
                memory_model[in_memory..in_memory + bytes]
                    .copy_from_slice(&tier_model[in_tier..in_tier + bytes]);
            } else {
                // SAFETY: as above.
                unsafe { queue.store(in_tier as u64, place, bytes) };
                tier_model[in_tier..in_tier + bytes]
                    .copy_from_slice(&memory_model[in_memory..in_memory + bytes]);
            }
        }
        queue.drain().unwrap();
        // SAFETY: nothing is in transfer.
        assert!(unsafe { memory.view::<u8>(0, PAGES * PAGE) } == memory_model, "{link:?}");
        let mut tier = vec![0; PAGES * PAGE];
        queue.read_now(0, &mut tier).unwrap();
        assert!(tier == tier_model, "{link:?}");
    }
}

#[test]
fn directions_work_side_by_side_at_the_speed_of_the_link() {
    // Each transfer takes 20 ms.
    let ns_per_mib = 20_000_000 * (1 << 20) / (2 * PAGE as u64);
    let link = Link { load_ns_per_mib: ns_per_mib, store_ns_per_mib: ns_per_mib, ..Link::default() };
    let queue = queue(link);
    let memory = Arena::new(PAGES * PAGE).unwrap();
    let start = Instant::now();
    for at in 0..2 {
        // SAFETY: the arena outlives the queue's use of it: `drain` below.
        unsafe {
            queue.load((at * 2 * PAGE) as u64, device(&memory, at * 2 * PAGE, 2 * PAGE), 2 * PAGE);
            queue.store(
                ((4 + at * 2) * PAGE) as u64,
                device(&memory, (4 + at * 2) * PAGE, 2 * PAGE),
                2 * PAGE,
            );
        }
    }
    queue.drain().unwrap();
    let took = start.elapsed();
    // One after the other they would take 80 ms.
    assert!(took >= Duration::from_millis(39) && took < Duration::from_millis(78), "{took:?}");
    assert!(queue.waited() >= Duration::from_millis(30));
}

#[test]
#[should_panic(expected = "outside the tier")]
fn a_range_past_the_end_is_refused() {
    let memory = Arena::new(PAGE).unwrap();
    // SAFETY: the request is refused.
    unsafe { queue(Link::default()).load((PAGES * PAGE - 1) as u64, device(&memory, 0, PAGE), PAGE) };
}
