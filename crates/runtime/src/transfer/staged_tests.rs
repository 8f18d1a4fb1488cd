//! The staged queue against a model that does one request after the other, its order with the device, and failures.

use super::*;
use crate::spill::tests::disk;
use plimsoll_tensor::random::Lcg;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// Addresses of the device are the host's plus this: who follows one by mistake ends the test.
const APART: usize = 1 << 52;

/// Two parts and a half pass host memory.
const LENGTH: usize = 5 << 20;

/// A device that has run what it queued when told so.
#[derive(Default)]
struct State {
    behind: AtomicBool,
    refuses: AtomicBool,
    /// Marks that were set and not reached yet, and copies.
    open_marks: AtomicUsize,
    copies: AtomicUsize,
}

struct TestLane(Arc<State>);

impl TestLane {
    fn copying(&self) -> Result<(), String> {
        self.0.copies.fetch_add(1, Relaxed);
        match (self.0.behind.load(Relaxed), self.0.refuses.load(Relaxed)) {
            (true, _) => Err("a copy before what the device had queued".into()),
            (_, true) => Err("the device refuses".into()),
            _ => Ok(()),
        }
    }
}

impl DeviceLane for TestLane {
    fn mark(&self, number: usize) -> Result<(), String> {
        assert!(number < StagedQueue::MARKS);
        self.0.open_marks.fetch_add(1, Relaxed);
        Ok(())
    }

    fn reach(&self, _: usize) -> Result<(), String> {
        while self.0.behind.load(Relaxed) {
            thread::yield_now();
        }
        self.0.open_marks.fetch_sub(1, Relaxed);
        Ok(())
    }

    unsafe fn copy_in(&self, to: *mut u8, from: &[u8]) -> Result<(), String> {
        self.copying()?;
        // SAFETY: the caller's promise, of the host's address.
        unsafe { to.wrapping_sub(APART).copy_from_nonoverlapping(from.as_ptr(), from.len()) };
        Ok(())
    }

    unsafe fn copy_out(&self, from: *const u8, into: &mut [u8]) -> Result<(), String> {
        self.copying()?;
        // SAFETY: as above.
        unsafe { from.wrapping_sub(APART).copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) };
        Ok(())
    }
}

fn queue() -> (StagedQueue, Arc<State>) {
    let state = Arc::<State>::default();
    let file = SpillFile::create(&disk(), LENGTH as u64).unwrap();
    (StagedQueue::new(file, Box::new(TestLane(state.clone()))).unwrap(), state)
}

#[test]
fn random_staged_transfers_agree_with_a_model() {
    let (queue, state) = queue();
    let memory = Arena::new(LENGTH).unwrap();
    let (mut file, mut device) = (vec![0_u8; LENGTH], vec![0_u8; LENGTH]);
    let mut random = Lcg::new(3);
    device.iter_mut().for_each(|byte| *byte = random.below(256) as u8);
    // SAFETY: nothing is in transfer.
    unsafe { memory.view_mut(0, LENGTH) }.copy_from_slice(&device);
    for _ in 0..200 {
        let most = [1, BLOCK, 3 * BLOCK + 7, LENGTH][random.below(4)];
        let [offset, at] = [0; 2].map(|_| random.below(LENGTH / BLOCK) * BLOCK);
        let bytes = 1 + random.below(most.min(LENGTH - offset.max(at)));
        let place = memory.at(at, bytes).wrapping_add(APART);
        match random.below(5) {
            0 | 1 => {
                // SAFETY: the arena outlives the queue's use of it: `drain` below.
                unsafe { queue.load(offset as u64, place, bytes) };
                device[at..at + bytes].copy_from_slice(&file[offset..offset + bytes]);
            }
            2 | 3 => {
                // SAFETY: as above.
                unsafe { queue.store(offset as u64, place, bytes) };
                file[offset..offset + bytes].copy_from_slice(&device[at..at + bytes]);
                file[offset + bytes..(offset + bytes).next_multiple_of(BLOCK)].fill(0);
            }
            _ => {
                let mut found = vec![0; bytes];
                queue.read_now(offset as u64, &mut found).unwrap();
                assert!(found == file[offset..offset + bytes]);
                found.iter_mut().for_each(|byte| *byte = !*byte);
                queue.write_now(offset as u64, &found).unwrap();
                file[offset..offset + bytes].copy_from_slice(&found);
            }
        }
    }
    queue.drain().unwrap();
    assert_eq!(state.open_marks.load(Relaxed), 0);
    // SAFETY: nothing is in transfer.
    assert!(unsafe { memory.view::<u8>(0, LENGTH) } == device);
    let mut found = vec![0; LENGTH];
    queue.read_now(0, &mut found).unwrap();
    assert!(found == file);
}

#[test]
fn a_staged_transfer_comes_after_what_the_device_had_queued() {
    let (queue, state) = &queue();
    let memory = Arena::new(LENGTH).unwrap();
    state.behind.store(true, Relaxed);
    let ticket = thread::scope(|scope| {
        // SAFETY: the arena outlives the queue's use of it: `wait` below.
        let ticket = unsafe { queue.store(0, memory.at(0, LENGTH).wrapping_add(APART), LENGTH) };
        assert_eq!((state.open_marks.load(Relaxed), state.copies.load(Relaxed)), (1, 0));
        let waiting = scope.spawn(move || queue.wait(ticket));
        thread::sleep(Duration::from_millis(20));
        assert!(!waiting.is_finished() && state.copies.load(Relaxed) == 0);
        state.behind.store(false, Relaxed);
        ticket
    });
    queue.wait(ticket).unwrap();
    assert!(state.copies.load(Relaxed) == 3 && queue.waited() >= Duration::from_millis(10));
}

#[test]
fn after_a_failed_staged_transfer_every_one_fails() {
    let (queue, state) = queue();
    let memory = Arena::new(LENGTH).unwrap();
    state.refuses.store(true, Relaxed);
    for _ in 0..2 {
        // SAFETY: as above.
        let ticket = unsafe { queue.load(0, memory.at(0, LENGTH).wrapping_add(APART), LENGTH) };
        let error = queue.wait(ticket).unwrap_err().to_string();
        assert!(error.contains("the device refuses"), "{error}");
        state.refuses.store(false, Relaxed);
    }
    assert_eq!(state.copies.load(Relaxed), 1);
    assert!(queue.drain().is_err() && queue.read_now(0, &mut [0]).is_err());
}
