//! Prints how fast a folder's disk is, plainly and through a spill queue:
//! `cargo run --release --example spill_speed FOLDER`.
#![allow(clippy::print_stdout, reason = "it is what the example is for")]

use plimsoll_runtime::TransferQueue;
use plimsoll_runtime::spill::SpillFile;
use plimsoll_runtime::transfer::{FileQueue, disk_rates};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Instant;

const FILE_BYTES: usize = 256 << 20;
const ROUNDS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    plain(&folder)?;
    queued(&folder)?;
    let start = Instant::now();
    let rates = disk_rates(&folder, usize::MAX)?;
    let (read, write) = (rates.read_bytes_per_ns * 1e3, rates.write_bytes_per_ns * 1e3);
    let [asking, latency] = [rates.request_cpu_ns, rates.latency_ns].map(|ns| ns as f64 / 1e3);
    println!(
        "disk_rates: read {read:.0} MB/s, write {write:.0} MB/s, after {latency:.0} us, {asking:.0} of them busy, in {:.2?}",
        start.elapsed()
    );
    Ok(())
}

/// One system call after another on page-aligned memory: the lower bound.
#[cfg(target_os = "linux")]
fn plain(folder: &Path) -> Result<(), Box<dyn Error>> {
    use std::os::unix::fs::{FileExt, OpenOptionsExt};
    let path = folder.join(format!("plimsoll-spill-speed-{}", std::process::id()));
    let mut options = std::fs::OpenOptions::new();
    let direct = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    let file = options.read(true).write(true).create_new(true).custom_flags(direct).open(&path)?;
    std::fs::remove_file(&path)?;
    let mut memory = Memory::new(16 << 20);
    let buffer = memory.at(0, 16 << 20);
    buffer
        .chunks(1 << 20)
        .cycle()
        .take(FILE_BYTES >> 20)
        .enumerate()
        .try_for_each(|(i, chunk)| file.write_all_at(chunk, (i << 20) as u64))?;
    for bytes in [1 << 20, 4 << 20, 16 << 20] {
        let offsets = || (0..FILE_BYTES).step_by(bytes);
        let write =
            best(|| Ok(offsets().try_for_each(|at| file.write_all_at(&buffer[..bytes], at as u64))?))?;
        let read =
            best(|| Ok(offsets().try_for_each(|at| file.read_exact_at(&mut buffer[..bytes], at as u64))?))?;
        println!("plain,  {:>8} bytes:              read {read:>5.0} MB/s, write {write:>5.0} MB/s", bytes);
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn plain(_: &Path) -> Result<(), Box<dyn Error>> {
    Ok(())
}

fn queued(folder: &Path) -> Result<(), Box<dyn Error>> {
    let file = SpillFile::create(folder, FILE_BYTES as u64)?;
    println!("memory aligned to {} bytes is not copied", file.memory_alignment());
    let queue = FileQueue::new(file, 64)?;
    let mut memory = Memory::new(32 << 20);
    // The first writes allocate blocks.
    memory
        .at(0, 16 << 20)
        .chunks(1 << 20)
        .cycle()
        .take(FILE_BYTES >> 20)
        .enumerate()
        .try_for_each(|(i, chunk)| queue.write_now((i << 20) as u64, chunk))?;
    for bytes in [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20] {
        for skew in [0, 64] {
            let mut pass = |load: bool| {
                best(|| {
                    let mut last = None;
                    // Alternates between two buffers, as a plan loads one value while another is used.
                    for (i, offset) in (0..FILE_BYTES).step_by(bytes).enumerate() {
                        let length = bytes - skew;
                        let at = memory.at(i % 2 * (16 << 20) + skew, length);
                        // SAFETY: the memory is alive and unused until the pass has waited for its last request.
                        last = Some(unsafe {
                            if load {
                                queue.load(offset as u64, at.as_mut_ptr(), length)
                            } else {
                                queue.store(offset as u64, at.as_ptr(), length)
                            }
                        });
                    }
                    Ok(last.map_or(Ok(()), |ticket| queue.wait(ticket))?)
                })
            };
            let (write, read) = (pass(false)?, pass(true)?);
            println!(
                "queued, {bytes:>8} bytes, {skew:>2} past a page: read {read:>5.0} MB/s, write {write:>5.0} MB/s"
            );
        }
    }
    Ok(())
}

/// The best rate of some passes over the file, in MB/s.
fn best(mut pass: impl FnMut() -> Result<(), Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    let mut shortest = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        pass()?;
        shortest = shortest.min(start.elapsed().as_secs_f64());
    }
    Ok(FILE_BYTES as f64 / 1e6 / shortest)
}

/// Memory that starts at a page.
struct Memory(Vec<u8>);

impl Memory {
    fn new(bytes: usize) -> Self {
        Self(vec![1; bytes + 4096])
    }

    fn at(&mut self, offset: usize, bytes: usize) -> &mut [u8] {
        let start = self.0.as_ptr().align_offset(4096) + offset;
        &mut self.0[start..start + bytes]
    }
}
