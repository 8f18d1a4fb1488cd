//! How fast the processes of a run pass messages to each other, by short trials.

use plimsoll_plan::{Network, Ranks};
use std::time::Instant;

/// Bytes of a short message, and of a long one.
const SIZES: [usize; 2] = [8, 2 << 20];
/// How often each goes around.
const TRIALS: usize = 21;

/// Measures the connection of the processes of a run, of which so many messages pass at the same time at most. All call it. Messages go
/// around all processes, one after another, so that what they take is what they take among so many.
pub fn measure(ranks: &dyn Ranks, at_once: usize) -> Result<Network, String> {
    let mut buffer = vec![0; SIZES[1]];
    let [short, long] = SIZES.map(|bytes| around(ranks, &mut buffer[..bytes]));
    let own = [short?, long?].map(u64::to_le_bytes).concat();
    // All go by what the first one found.
    let all = ranks.gather(&own)?;
    let word = |at: usize| {
        let bytes = all.first().and_then(|told| told.get(at * 8..at * 8 + 8)?.try_into().ok());
        bytes.map_or(0, u64::from_le_bytes)
    };
    let (latency_ns, long) = (word(0), word(1));
    let rest = long.saturating_sub(latency_ns).max(1);
    let bytes_per_second = (SIZES[1] - SIZES[0]) as f64 * 1e9 / rest as f64;
    Ok(Network { bytes_per_second, latency_ns, at_once })
}

/// The median time in nanoseconds that a message takes from one process to the next.
fn around(ranks: &dyn Ranks, buffer: &mut [u8]) -> Result<u64, String> {
    let (own, count) = (ranks.device(), ranks.devices());
    let (next, previous) = ((own + 1) % count, (own + count - 1) % count);
    let mut times = Vec::with_capacity(TRIALS);
    for _ in 0..TRIALS {
        let start = Instant::now();
        if own == 0 {
            ranks.give(next, buffer)?;
            ranks.take(previous, buffer)?;
        } else {
            ranks.take(previous, buffer)?;
            ranks.give(next, buffer)?;
        }
        times.push(start.elapsed().as_nanos() as u64 / count as u64);
    }
    times.sort_unstable();
    Ok(times[TRIALS / 2])
}
