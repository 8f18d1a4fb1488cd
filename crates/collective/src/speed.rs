//! How fast the processes of a run pass messages to each other, by short trials.

use plimsoll_plan::{Message, Network, Ranks};
use std::time::Instant;

/// Bytes of the messages whose times are measured: how fast one passes depends on how a library copies it, and on which caches it fits.
const SIZES: [usize; 9] = [8, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 2 << 20, 4 << 20, 16 << 20];
/// How often each goes around.
const TRIALS: usize = 9;
/// So many of the smallest messages are sent at once, to learn what each of them takes where none is waited for.
const AHEAD: usize = 16;
/// Bytes that messages are sent from, and received into, at least: more than a core's own caches hold, because kernels run between the
/// messages of a step; and at most.
const LEAST_BUFFER: usize = 8 << 20;
const LARGEST_BUFFER: usize = 32 << 20;
/// Where values begin, as in an arena.
const ALIGNMENT: usize = 64;
const TRIAL: Message = Message { chain: 0, micro_batch: Message::SHARED };

/// Measures the connection of the processes of a run, of which so many messages pass at the same time at most, the largest with so many
/// bytes; all that a process passes in a step has `together` bytes. All call it, with the same numbers. Messages go around all
/// processes, one after another, so that what they take is what they take among so many. None lies where another one has just been,
/// which would be in a core's caches: in a step a value comes back when all others have passed.
pub fn measure(
    ranks: &dyn Ranks,
    at_once: usize,
    largest: usize,
    together: usize,
) -> Result<Network, String> {
    let above = SIZES.iter().position(|&bytes| bytes >= largest).unwrap_or(SIZES.len() - 1);
    let sizes = &SIZES[..=above.max(1)];
    let longest = sizes[sizes.len() - 1];
    let half = (together / 2).clamp(longest.max(LEAST_BUFFER), LARGEST_BUFFER);
    let (mut first, mut second) = (vec![1; half], vec![1; half]);
    let (mut ahead, mut start) = (Vec::with_capacity(TRIALS), 0);
    let mut times = vec![Vec::with_capacity(TRIALS); sizes.len()];
    for _ in 0..TRIALS {
        for (&bytes, times) in sizes.iter().zip(&mut times) {
            if start + bytes > half {
                // What was received is sent on, half a buffer later.
                (first, second, start) = (second, first, 0);
            }
            // Nobody sleeps in a wait for the next one then.
            around(ranks, &[0], &mut [0], 1)?;
            let place = start..start + bytes;
            times.push(around(ranks, &first[place.clone()], &mut second[place], bytes)?);
            start = (start + bytes).next_multiple_of(ALIGNMENT);
        }
        let several = [0; AHEAD * SIZES[0]];
        ahead.push(around(ranks, &several, &mut several.clone(), SIZES[0])?);
    }
    let median = |mut times: Vec<u64>| {
        times.sort_unstable();
        times[TRIALS / 2].to_le_bytes()
    };
    let own: Vec<[u8; 8]> = times.into_iter().chain([ahead]).map(median).collect();
    // All go by what the first one found.
    let all = ranks.gather(own.as_flattened())?;
    let told = all.first().map_or(&[][..], Vec::as_slice);
    let words = told.chunks_exact(8).filter_map(|word| Some(u64::from_le_bytes(word.try_into().ok()?)));
    let mut times: Vec<u64> = words.collect();
    let ahead = times.pop().unwrap_or(0);
    let alone = times.first().copied().unwrap_or(0);
    let each = (ahead.saturating_sub(alone) / (AHEAD - 1) as u64).min(alone);
    let latency_ns = alone - each;
    // A longer message takes no less.
    let mut most = each;
    let rest = times.iter().map(|time| {
        most = most.max(time.saturating_sub(latency_ns));
        most
    });
    let measured: Vec<(usize, u64)> = sizes.iter().copied().zip(rest).collect();
    let bytes_per_second = longest as f64 * 1e9 / most.max(1) as f64;
    Ok(Network { bytes_per_second, latency_ns, at_once, measured })
}

/// The time in nanoseconds that bytes take from one process to the next, in messages of `each` bytes. Each process sends as many as it has
/// received, when it has them all.
fn around(ranks: &dyn Ranks, from: &[u8], into: &mut [u8], each: usize) -> Result<u64, String> {
    let (own, count) = (ranks.device(), ranks.devices());
    let (next, previous) = ((own + 1) % count, (own + count - 1) % count);
    let send = || {
        // SAFETY: the bytes are borrowed until the wait below is over; where that fails, the run ends.
        from.chunks(each).try_for_each(|message| unsafe { ranks.send(next, TRIAL, message) })?;
        ranks.finish()
    };
    let mut receive =
        || into.chunks_mut(each).try_for_each(|message| ranks.receive(previous, TRIAL, message));
    let start = Instant::now();
    if own == 0 {
        send()?;
        receive()?;
    } else {
        receive()?;
        send()?;
    }
    Ok(start.elapsed().as_nanos() as u64 / count as u64)
}
