//! How fast the processes of a run pass messages to each other, by short trials.

use plimsoll_plan::{Network, Ranks};
use std::time::Instant;

/// Bytes of the messages whose times are measured: how fast one passes depends on how a library copies it, and on which caches it fits.
const SIZES: [usize; 9] = [8, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 2 << 20, 4 << 20, 16 << 20];
/// How often each goes around.
const TRIALS: usize = 9;
/// Bytes that the messages are taken from in turn, at least: more than a core's own caches hold, because kernels run between the messages of a
/// step.
const LEAST_BUFFER: usize = 8 << 20;

/// Measures the connection of the processes of a run, of which so many messages pass at the same time at most, the largest with so many
/// bytes. All call it, with the same numbers. Messages go around all processes, one after another, so that what they take is what they take among so many.
pub fn measure(ranks: &dyn Ranks, at_once: usize, largest: usize) -> Result<Network, String> {
    let above = SIZES.iter().position(|&bytes| bytes >= largest).unwrap_or(SIZES.len() - 1);
    let sizes = &SIZES[..=above.max(1)];
    let longest = sizes[sizes.len() - 1];
    let (mut buffer, mut signal) = (vec![1; longest.max(LEAST_BUFFER)], [1]);
    let (mut times, mut start) = (vec![Vec::with_capacity(TRIALS); sizes.len()], 0);
    for _ in 0..TRIALS {
        for (&bytes, times) in sizes.iter().zip(&mut times) {
            start = if start + bytes > buffer.len() { 0 } else { start };
            // Nobody sleeps in a wait for the next one then.
            around(ranks, &mut signal)?;
            times.push(around(ranks, &mut buffer[start..start + bytes])?);
            start += bytes;
        }
    }
    let median = |mut times: Vec<u64>| {
        times.sort_unstable();
        times[TRIALS / 2].to_le_bytes()
    };
    let own: Vec<[u8; 8]> = times.into_iter().map(median).collect();
    // All go by what the first one found.
    let all = ranks.gather(own.as_flattened())?;
    let told = all.first().map_or(&[][..], Vec::as_slice);
    let words = told.chunks_exact(8).filter_map(|word| Some(u64::from_le_bytes(word.try_into().ok()?)));
    let times: Vec<u64> = words.collect();
    let latency_ns = times.first().copied().unwrap_or(0);
    // A longer message takes no less.
    let mut most = 0;
    let rest = times.iter().map(|time| {
        most = most.max(time.saturating_sub(latency_ns));
        most
    });
    let measured: Vec<(usize, u64)> = sizes.iter().copied().zip(rest).collect();
    let bytes_per_second = longest as f64 * 1e9 / most.max(1) as f64;
    Ok(Network { bytes_per_second, latency_ns, at_once, measured })
}

/// The time in nanoseconds that a message takes from one process to the next. Each sends on what it has received, as sums are.
fn around(ranks: &dyn Ranks, buffer: &mut [u8]) -> Result<u64, String> {
    let (own, count) = (ranks.device(), ranks.devices());
    let (next, previous) = ((own + 1) % count, (own + count - 1) % count);
    let start = Instant::now();
    if own == 0 {
        ranks.give(next, buffer)?;
        ranks.take(previous, buffer)?;
    } else {
        ranks.take(previous, buffer)?;
        ranks.give(next, buffer)?;
    }
    Ok(start.elapsed().as_nanos() as u64 / count as u64)
}
