//! Round trips, order, refusals and failures.

use super::file::NO_PART;
use super::rates::demand;
use super::*;
use plimsoll_testing::Random;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder on a disk: where the tests were built, or else the system's for what outlives a restart.
fn disk() -> PathBuf {
    let built = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let found = [built, "/var/tmp".into()].into_iter().find(|folder| SpillFile::create(folder, 1).is_ok());
    found.expect("the tests need a disk with direct I/O")
}

fn queue(bytes: usize, capacity: usize) -> SpillQueue {
    SpillQueue::new(SpillFile::create(&disk(), bytes as u64).unwrap(), capacity).unwrap()
}

/// Bytes whose first lies at a chosen distance from a block's start.
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

/// A load or store under way, and what its memory must hold when it is done.
struct Pending {
    ticket: Ticket,
    memory: Memory,
    expected: Vec<u8>,
}

impl Pending {
    fn check(self, queue: &SpillQueue) {
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
    let length = 5 * PIECE / 2;
    for (seed, capacity) in [(1, 1), (2, 3), (3, 32)] {
        let queue = queue(length, capacity);
        let mut model = vec![0; length];
        let mut numbers = Random::new(seed);
        let mut pending: Vec<Pending> = Vec::new();
        for _ in 0..120 {
            let offset = numbers.below(length);
            let most = [90, BLOCK, 40_000, length][numbers.below(4)];
            let bytes = numbers.below((length - offset).min(most) + 1);
            let distance = [0, 64, 512, 7][numbers.below(4)];
            let inside = offset..offset + bytes;
            match numbers.below(4) {
                0 => {
                    let offset = offset / BLOCK * BLOCK;
                    let expected = numbers.bytes(bytes);
                    let mut memory = Memory::new(&expected, distance);
                    model[offset..offset + bytes].copy_from_slice(&expected);
                    model[offset + bytes..(offset + bytes).next_multiple_of(BLOCK)].fill(0);
                    // SAFETY: the memory is kept as it is until the queue is done with it.
                    let ticket = unsafe { queue.store(offset as u64, memory.start(), bytes) };
                    pending.push(Pending { ticket, memory, expected });
                }
                1 => {
                    let expected = model[inside].to_vec();
                    let mut memory = Memory::new(&vec![1; bytes], distance);
                    // SAFETY: the memory is kept and not looked at until the queue is done with it.
                    let ticket = unsafe { queue.load(offset as u64, memory.start(), bytes) };
                    pending.push(Pending { ticket, memory, expected });
                }
                2 => {
                    let content = numbers.bytes(bytes);
                    queue.write_now(offset as u64, &content).unwrap();
                    model[inside].copy_from_slice(&content);
                }
                _ => {
                    let mut content = vec![1; bytes];
                    queue.read_now(offset as u64, &mut content).unwrap();
                    assert!(content == model[inside], "{bytes} bytes at {offset}");
                }
            }
            while pending.len() > numbers.below(12) {
                pending.swap_remove(numbers.below(pending.len())).check(&queue);
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
    for (distance, bytes) in [(0, 2 * PIECE + 100), (64, 2 * PIECE), (0, 300_000), (64, 300_000)] {
        let room = bytes.next_multiple_of(BLOCK);
        let queue = queue(2 * room, 16);
        let mut last = vec![0; bytes];
        for round in 1..20 {
            let mut one = Memory::new(&vec![round; bytes], distance);
            let mut two = Memory::new(&vec![100; bytes], distance);
            let (a, b) = (one.start(), two.start());
            // The same places again and again, and no wait in between: only order keeps them apart.
            // SAFETY: both memories are alive, and not looked at until the last request is done.
            let ticket = unsafe {
                queue.store(0, a, bytes);
                queue.load(0, b, bytes);
                queue.store(room as u64, b, bytes);
                queue.store(0, a, 1);
                queue.load(0, a, bytes);
                queue.load(room as u64, b, bytes)
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
fn a_filesystem_in_memory_is_refused() {
    let shm = Path::new("/dev/shm");
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    if !mounts.lines().any(|line| line.split(' ').skip(1).take(2).eq(["/dev/shm", "tmpfs"])) {
        return;
    }
    let error = SpillFile::create(shm, 1 << 20).unwrap_err();
    assert_eq!(error, SpillError::Memory { folder: shm.into(), filesystem: "tmpfs" });
    let words =
        "cannot spill to `/dev/shm`: it is a tmpfs, whose files are memory; give --spill a folder on a disk";
    assert_eq!(error.to_string(), words);
}

#[test]
fn a_folder_that_is_missing_or_closed_is_refused() {
    let exe = std::env::current_exe().unwrap();
    let missing = disk().join("plimsoll-no-such-folder");
    let cases = [
        (missing.as_path(), "No such file"),
        (exe.as_path(), "Not a directory"),
        // No user may make files here.
        (Path::new("/proc/self"), ""),
    ];
    for (folder, reason) in cases {
        let error = SpillFile::create(folder, 1 << 20).unwrap_err();
        let words = error.to_string();
        assert!(matches!(error, SpillError::Folder { .. }), "{words}");
        assert!(words.contains(folder.to_str().unwrap()) && words.contains(reason), "{words}");
        assert!(words.contains("--spill"), "{words}");
    }
}

#[test]
fn a_disk_without_room_is_refused_with_what_is_free() {
    let needed = 1 << 60;
    let error = SpillFile::create(&disk(), needed).unwrap_err();
    let words = error.to_string();
    let SpillError::Full { needed_bytes, free_bytes, .. } = error else { panic!("{words}") };
    assert!(needed_bytes == needed && free_bytes > 0 && free_bytes < needed);
    assert!(words.contains("are free; free some"), "{words}");
}

/// The limit is a whole process's, so that the test runs itself in one of its own.
#[test]
fn a_limit_on_files_is_told_before_it_ends_the_process() {
    let name = "spill::tests::a_limit_on_files_is_told_before_it_ends_the_process";
    if std::env::var_os("PLIMSOLL_TEST_LIMITED").is_some() {
        let error = SpillFile::create(&disk(), 1 << 20).unwrap_err();
        assert!(matches!(error, SpillError::Limited { limit_bytes: 4096 | 8192, .. }), "{error}");
        return;
    }
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "ulimit -f 8; exec \"$0\" --exact \"$1\""])
        .arg(std::env::current_exe().unwrap())
        .arg(name);
    let output = shell.env("PLIMSOLL_TEST_LIMITED", "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn nothing_is_left_in_the_folder_and_the_space_is_taken() {
    use std::os::unix::fs::MetadataExt;
    let folder = disk().join(format!("plimsoll-spill-test-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let file = SpillFile::create(&folder, 3 << 20);
    let named = system::open_named(&folder);
    let left = std::fs::read_dir(&folder).unwrap().count();
    std::fs::remove_dir_all(&folder).unwrap();
    let (file, named) = (file.unwrap(), named.unwrap());
    assert_eq!(left, 0);
    assert!(file.file.metadata().unwrap().blocks() * 512 >= 3 << 20);
    // Where the filesystem promises nothing, zeros take the space.
    let file = SpillFile { file: named, ..file };
    system::go_direct(&file.file).unwrap();
    file.write_zeros().unwrap();
    assert!(file.file.metadata().unwrap().blocks() * 512 >= 3 << 20);
}

#[test]
fn nothing_stays_in_the_cache_of_pages() {
    let bytes = 3 * PIECE;
    let queue = queue(bytes, 2);
    let mut memory = vec![7; bytes];
    queue.write_now(0, &memory).unwrap();
    queue.read_now(0, &mut memory).unwrap();
    assert!(!system::cached(&queue.file().file, bytes).unwrap());
    // What goes through the cache is seen.
    let buffered = system::open(queue.file().folder()).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&buffered, &memory, 0).unwrap();
    assert!(system::cached(&buffered, bytes).unwrap());
}

fn broken(file: File, bytes: usize) -> SpillQueue {
    let folder = PathBuf::from("/some/folder");
    SpillQueue::new(SpillFile { file, folder, bytes: bytes as u64, memory_alignment: BLOCK }, 4).unwrap()
}

#[test]
fn a_failed_store_is_told_from_its_ticket_on() {
    // A device that is always full.
    let full = OpenOptions::new().read(true).write(true).open("/dev/full").unwrap();
    let queue = broken(full, 3 * PIECE);
    let mut memory = vec![1; 3 * PIECE];
    let start = memory.as_mut_ptr();
    // SAFETY: the memory is alive until the queue is dropped, and not looked at.
    let [load, store, later] = unsafe {
        [queue.load(0, start, 3 * PIECE), queue.store(0, start, 3 * PIECE), queue.load(0, start, 3 * PIECE)]
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
fn a_file_that_ends_early_is_told() {
    let file = SpillFile::create(&disk(), BLOCK as u64).unwrap().file;
    let queue = broken(file, 2 * BLOCK);
    queue.read_now(0, &mut [0; BLOCK]).unwrap();
    let words = queue.read_now(BLOCK as u64, &mut [0; 9]).unwrap_err().to_string();
    assert!(words.starts_with("reading 9 bytes at 4096 of the spill file in `/some/folder`"), "{words}");
}

#[test]
fn a_transfer_goes_on_where_the_system_stopped() {
    let file = SpillFile::create(&disk(), 0).unwrap();
    assert_eq!(file.bytes(), 0);
    let part =
        |start: usize, blocks| Part { start: std::ptr::without_provenance_mut(start), bytes: blocks * BLOCK };
    let mut seen = Vec::new();
    let once = |parts: [Part; 2], offset: u64| {
        seen.push((parts.map(|part| (part.start.addr(), part.bytes / BLOCK)), offset / BLOCK as u64));
        if seen.len() == 2 { Err(std::io::ErrorKind::Interrupted.into()) } else { Ok(3 * BLOCK) }
    };
    file::whole([part(0, 2), part(1 << 20, 4)], 0, once).unwrap();
    let rest = ([(2 * BLOCK, 0), ((1 << 20) + BLOCK, 3)], 3);
    assert_eq!(seen, [([(0, 2), (1 << 20, 4)], 0), rest, rest]);
    assert!(file::whole([part(0, 2), NO_PART], 0, |_, _| Ok(100)).is_err());
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
fn dropping_gives_up_what_is_under_way() {
    let mut memory = vec![3; 4 * PIECE];
    let queue = queue(4 * PIECE, 8);
    for _ in 0..8 {
        // SAFETY: the memory outlives the queue.
        unsafe { queue.store(0, memory.as_mut_ptr(), 4 * PIECE) };
    }
    drop(queue);
}

#[test]
fn a_disk_has_rates_and_may_be_too_slow() {
    let folder = disk();
    let rates = disk_rates(&folder, 64 << 20).unwrap();
    let both = [rates.read_bytes_per_ns, rates.write_bytes_per_ns];
    assert!(both[0] > 0.0 && both[1] > 0.0);
    assert!((100..1_000_000_000).contains(&rates.latency_ns), "{} ns", rates.latency_ns);
    assert!((100..100_000_000).contains(&rates.request_cpu_ns), "{} ns", rates.request_cpu_ns);
    assert_eq!(demand(&folder, both, 0.0), Ok(()));
    let words = demand(Path::new("/tape"), [2.0, 0.001], 0.1).unwrap_err().to_string();
    assert!(words.starts_with("cannot spill to `/tape`: it writes "), "{words}");
}
