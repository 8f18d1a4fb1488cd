//! Round trips, order, failures and measured rates.

use super::*;
use crate::spill::system;
use crate::spill::tests::disk;
use plimsoll_tensor::random::Lcg;
use std::fs::{File, OpenOptions};
use std::path::PathBuf;

fn queue(bytes: usize, capacity: usize) -> FileQueue {
    FileQueue::new(SpillFile::create(&disk(), bytes as u64).unwrap(), capacity).unwrap()
}

fn random_bytes(random: &mut Lcg, count: usize) -> Vec<u8> {
    (0..count).map(|_| random.below(256) as u8).collect()
}

/// Bytes that start at a chosen distance from a block's start.
struct Memory {
    bytes: Vec<u8>,
    start: usize,
}

impl Memory {
    fn new(content: &[u8], distance: usize) -> Self {
        let mut bytes = vec![0; content.len() + 2 * BLOCK];
        let start = bytes.as_ptr().align_offset(BLOCK) + distance;
        bytes[start..start + content.len()].copy_from_slice(content);
        Self { bytes, start }
    }

    fn start(&mut self) -> *mut u8 {
        self.bytes[self.start..].as_mut_ptr()
    }
}

/// A load or store in flight, and what its memory must hold when it has completed.
struct Pending {
    ticket: Ticket,
    memory: Memory,
    expected: Vec<u8>,
}

impl Pending {
    fn check(self, queue: &FileQueue) {
        queue.wait(self.ticket).unwrap();
        let Memory { bytes, start } = self.memory;
        let end = start + self.expected.len();
        assert!(bytes[start..end] == self.expected, "{} bytes differ", self.expected.len());
        assert!(
            bytes[..start].iter().chain(&bytes[end..]).all(|b| *b == 0),
            "bytes beside them were written"
        );
    }
}

#[test]
fn random_transfers_agree_with_a_model() {
    let length = 5 * CHUNK_BYTES / 2;
    for (seed, capacity) in [(1, 1), (2, 3), (3, 32)] {
        let queue = queue(length, capacity);
        let mut model = vec![0; length];
        let mut random = Lcg::new(seed);
        let mut pending: Vec<Pending> = Vec::new();
        for _ in 0..120 {
            let offset = random.below(length);
            let most = [90, BLOCK, 40_000, length][random.below(4)];
            let bytes = random.below((length - offset).min(most) + 1);
            let distance = [0, 64, 512, 7][random.below(4)];
            let inside = offset..offset + bytes;
            match random.below(4) {
                0 => {
                    let offset = offset / BLOCK * BLOCK;
                    let expected = random_bytes(&mut random, bytes);
                    let mut memory = Memory::new(&expected, distance);
                    model[offset..offset + bytes].copy_from_slice(&expected);
                    model[offset + bytes..(offset + bytes).next_multiple_of(BLOCK)].fill(0);
                    // SAFETY: the memory is kept as it is until its request has completed.
                    let ticket = unsafe { queue.store(offset as u64, memory.start(), bytes) };
                    pending.push(Pending { ticket, memory, expected });
                }
                1 => {
                    let expected = model[inside].to_vec();
                    let mut memory = Memory::new(&vec![1; bytes], distance);
                    // SAFETY: the memory is kept and not looked at until its request has completed.
                    let ticket = unsafe { queue.load(offset as u64, memory.start(), bytes) };
                    pending.push(Pending { ticket, memory, expected });
                }
                2 => {
                    let content = random_bytes(&mut random, bytes);
                    queue.write_now(offset as u64, &content).unwrap();
                    model[inside].copy_from_slice(&content);
                }
                _ => {
                    let mut content = vec![1; bytes];
                    queue.read_now(offset as u64, &mut content).unwrap();
                    assert!(content == model[inside], "{bytes} bytes at {offset}");
                }
            }
            while pending.len() > random.below(12) {
                pending.swap_remove(random.below(pending.len())).check(&queue);
            }
        }
        pending.into_iter().for_each(|pending| pending.check(&queue));
        let mut all = vec![1; length];
        queue.read_now(0, &mut all).unwrap();
        assert!(all == model);
    }
}

#[test]
fn a_request_sees_what_earlier_ones_did_to_file_and_memory() {
    for (distance, bytes) in [(0, 2 * CHUNK_BYTES + 100), (64, 2 * CHUNK_BYTES), (0, 300_000), (64, 300_000)]
    {
        let stride = bytes.next_multiple_of(BLOCK);
        let queue = queue(2 * stride, 16);
        let mut last = vec![0; bytes];
        for round in 1..20 {
            let mut one = Memory::new(&vec![round; bytes], distance);
            let mut two = Memory::new(&vec![100; bytes], distance);
            let (a, b) = (one.start(), two.start());
            // The same ranges over and over, without a wait in between: only the queue's order separates them.
            // SAFETY: both memories are alive, and not looked at until the last request has completed.
            let ticket = unsafe {
                queue.store(0, a, bytes);
                queue.load(0, b, bytes);
                queue.store(stride as u64, b, bytes);
                queue.store(0, a, 1);
                queue.load(0, a, bytes);
                queue.load(stride as u64, b, bytes)
            };
            queue.wait(ticket).unwrap();
            last.fill(round);
            assert!(two.bytes[two.start..][..bytes] == last);
            let first = &one.bytes[one.start..][..bytes];
            assert!(
                first[0] == round
                    && first[1..BLOCK].iter().all(|b| *b == 0)
                    && first[BLOCK..] == last[BLOCK..]
            );
        }
    }
}

#[test]
fn transfers_bypass_the_page_cache() {
    let bytes = 3 * CHUNK_BYTES;
    let queue = queue(bytes, 2);
    let mut memory = vec![7; bytes];
    queue.write_now(0, &memory).unwrap();
    queue.read_now(0, &mut memory).unwrap();
    assert!(!system::cached(&queue.file().file, bytes).unwrap());
    // Buffered writes are detected.
    let buffered = system::open(queue.file().folder()).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&buffered, &memory, 0).unwrap();
    assert!(system::cached(&buffered, bytes).unwrap());
}

fn broken(file: File, bytes: usize) -> FileQueue {
    let folder = PathBuf::from("/some/folder");
    FileQueue::new(SpillFile { file, folder, bytes: bytes as u64, memory_alignment: BLOCK }, 4).unwrap()
}

#[test]
fn a_failed_store_fails_its_ticket_and_all_later_ones() {
    // A device that is always full.
    let full = OpenOptions::new().read(true).write(true).open("/dev/full").unwrap();
    let queue = broken(full, 3 * CHUNK_BYTES);
    let mut memory = vec![1; 3 * CHUNK_BYTES];
    let start = memory.as_mut_ptr();
    // SAFETY: the memory is alive until the queue is dropped, and not looked at.
    let [load, store, later] = unsafe {
        [
            queue.load(0, start, 3 * CHUNK_BYTES),
            queue.store(0, start, 3 * CHUNK_BYTES),
            queue.load(0, start, 3 * CHUNK_BYTES),
        ]
    };
    let error = queue.wait(later).unwrap_err();
    assert_eq!(queue.wait(load), Ok(()));
    assert_eq!(queue.wait(store), Err(error.clone()));
    assert_eq!(queue.read_now(0, &mut [0]), Err(error.clone()));
    let words = error.to_string();
    assert!(words.starts_with("writing 1048576 bytes at "), "{words}");
    assert!(words.contains("`/some/folder` failed: No space left on device"), "{words}");
    assert_eq!(queue.bytes_written(), 0);
    drop(queue);
}

#[test]
fn reading_past_the_end_of_a_short_file_is_an_error() {
    let file = SpillFile::create(&disk(), BLOCK as u64).unwrap().file;
    let queue = broken(file, 2 * BLOCK);
    queue.read_now(0, &mut [0; BLOCK]).unwrap();
    let words = queue.read_now(BLOCK as u64, &mut [0; 9]).unwrap_err().to_string();
    assert!(words.starts_with("reading 9 bytes at 4096 of the spill file in `/some/folder`"), "{words}");
}

#[test]
fn counts_are_in_whole_blocks() {
    let queue = queue(4 * BLOCK, 1);
    queue.write_now(10, &[1; 20]).unwrap();
    assert_eq!((queue.bytes_read(), queue.bytes_written()), (BLOCK as u64, BLOCK as u64));
    queue.read_now(BLOCK as u64 - 1, &mut [0; 2]).unwrap();
    assert_eq!(queue.bytes_read(), 3 * BLOCK as u64);
    queue.read_now(4 * BLOCK as u64, &mut []).unwrap();
    assert_eq!(queue.bytes_read(), 3 * BLOCK as u64);
}

#[test]
#[should_panic(expected = "outside the spill file")]
fn a_range_past_the_end_is_refused() {
    let _ = queue(BLOCK, 1).read_now(1, &mut [0; BLOCK]);
}

#[test]
fn dropping_the_queue_abandons_requests_in_flight() {
    let mut memory = vec![3; 4 * CHUNK_BYTES];
    let queue = queue(4 * CHUNK_BYTES, 8);
    for _ in 0..8 {
        // SAFETY: the memory outlives the queue.
        unsafe { queue.store(0, memory.as_mut_ptr(), 4 * CHUNK_BYTES) };
    }
    drop(queue);
}

#[test]
fn a_disk_has_rates() {
    let folder = disk();
    let rates = disk_rates(&folder, 64 << 20).unwrap();
    let both = [rates.read_bytes_per_ns, rates.write_bytes_per_ns];
    assert!(both[0] > 0.0 && both[1] > 0.0);
    assert!((100..1_000_000_000).contains(&rates.latency_ns), "{} ns", rates.latency_ns);
    assert!((100..100_000_000).contains(&rates.request_cpu_ns), "{} ns", rates.request_cpu_ns);
}
