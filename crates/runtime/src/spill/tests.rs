//! Which folders are refused, and what a spill file takes of its disk.

use super::file::{check_rates, complete};
use super::*;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder on a disk: where the tests were built, or else the one for temporary files that survive a reboot.
pub(crate) fn disk() -> PathBuf {
    let built = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let found = [built, "/var/tmp".into()].into_iter().find(|folder| SpillFile::create(folder, 1).is_ok());
    found.expect("the tests need a disk with direct I/O")
}

#[test]
fn a_filesystem_in_memory_is_refused() {
    let shm = Path::new("/dev/shm");
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    if !mounts.lines().any(|line| line.split(' ').skip(1).take(2).eq(["/dev/shm", "tmpfs"])) {
        return;
    }
    let error = SpillFile::create(shm, 1 << 20).unwrap_err();
    assert_eq!(error, TransferError::Memory { folder: shm.into(), filesystem: "tmpfs" });
    let words =
        "cannot spill to `/dev/shm`: it is a tmpfs, whose files are memory; give --spill a folder on a disk";
    assert_eq!(error.to_string(), words);
}

#[test]
fn a_folder_that_is_missing_or_read_only_is_refused() {
    let exe = std::env::current_exe().unwrap();
    let missing = disk().join("plimsoll-no-such-folder");
    let cases = [
        (missing.as_path(), "No such file"),
        (exe.as_path(), "Not a directory"),
        // No user may create files here.
        (Path::new("/proc/self"), ""),
    ];
    for (folder, reason) in cases {
        let error = SpillFile::create(folder, 1 << 20).unwrap_err();
        let words = error.to_string();
        assert!(matches!(error, TransferError::Folder { .. }), "{words}");
        assert!(words.contains(folder.to_str().unwrap()) && words.contains(reason), "{words}");
        assert!(words.contains("--spill"), "{words}");
    }
}

#[test]
fn a_full_disk_is_refused_with_its_free_bytes() {
    let needed = 1 << 60;
    let error = SpillFile::create(&disk(), needed).unwrap_err();
    let words = error.to_string();
    let TransferError::Full { needed_bytes, free_bytes, .. } = error else { panic!("{words}") };
    assert!(needed_bytes == needed && free_bytes > 0 && free_bytes < needed);
    assert!(words.contains("are free; free some"), "{words}");
}

/// The limit holds for a whole process, so the test runs itself in a process of its own.
#[test]
fn a_file_size_limit_is_an_error_and_not_a_signal() {
    let name = "spill::tests::a_file_size_limit_is_an_error_and_not_a_signal";
    if std::env::var_os("PLIMSOLL_TEST_LIMITED").is_some() {
        let error = SpillFile::create(&disk(), 1 << 20).unwrap_err();
        assert!(matches!(error, TransferError::Limited { limit_bytes: 4096 | 8192, .. }), "{error}");
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
fn the_file_is_unlinked_and_its_space_allocated() {
    use std::os::unix::fs::MetadataExt;
    let folder = disk().join(format!("plimsoll-spill-test-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let file = SpillFile::create(&folder, 3 << 20);
    let named = system::open_unlinked(&folder);
    let left = std::fs::read_dir(&folder).unwrap().count();
    std::fs::remove_dir_all(&folder).unwrap();
    let (file, named) = (file.unwrap(), named.unwrap());
    assert_eq!(left, 0);
    assert!(file.file.metadata().unwrap().blocks() * 512 >= 3 << 20);
    // Where the filesystem cannot allocate, writing zeros does.
    let file = SpillFile { file: named, ..file };
    system::set_direct(&file.file).unwrap();
    file.write_zeros().unwrap();
    assert!(file.file.metadata().unwrap().blocks() * 512 >= 3 << 20);
}

#[test]
fn a_short_transfer_is_continued() {
    let file = SpillFile::create(&disk(), 0).unwrap();
    assert_eq!(file.bytes(), 0);
    let segment = |start: usize, blocks| Segment {
        start: std::ptr::without_provenance_mut(start),
        len: blocks * BLOCK,
    };
    let mut seen = Vec::new();
    let once = |segments: [Segment; 2], offset: u64| {
        seen.push((
            segments.map(|segment| (segment.start.addr(), segment.len / BLOCK)),
            offset / BLOCK as u64,
        ));
        if seen.len() == 2 { Err(std::io::ErrorKind::Interrupted.into()) } else { Ok(3 * BLOCK) }
    };
    complete([segment(0, 2), segment(1 << 20, 4)], 0, once).unwrap();
    let rest = ([(2 * BLOCK, 0), ((1 << 20) + BLOCK, 3)], 3);
    assert_eq!(seen, [([(0, 2), (1 << 20, 4)], 0), rest, rest]);
    assert!(complete([segment(0, 2), Segment::EMPTY], 0, |_, _| Ok(100)).is_err());
}

#[test]
fn a_slow_disk_is_refused() {
    assert_eq!(check_rates(Path::new("/disk"), [2.0, 0.2], 0.1), Ok(()));
    let words = check_rates(Path::new("/tape"), [2.0, 0.001], 0.1).unwrap_err().to_string();
    assert!(words.starts_with("cannot spill to `/tape`: it writes "), "{words}");
}
