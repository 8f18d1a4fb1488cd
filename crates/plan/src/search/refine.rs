//! Makes a schedule faster: takes repeats out, alone and in groups, and shaves what then is too high.

use super::gauge::{Gauge, Level};
use super::random::Random;
use super::shave::{Effort, shave};
use super::table::Table;

/// Rounds without success after which refining ends, for each repeat.
const PATIENCE: usize = 20;

/// Takes out every repeat without which a list is still under the line: neighbours together first, then one by one,
/// the longest first.
pub(super) fn prune(gauge: &mut Gauge, table: &Table, runs: &mut Vec<u32>, line: u64, until: u64) -> Level {
    let mut trial = Vec::with_capacity(runs.len());
    for size in [64, 16, 4, 1] {
        let mut places = repeats(table, runs);
        if size == 1 {
            places.sort_by_key(|&at| (std::cmp::Reverse(table.nanoseconds[runs[at] as usize]), at));
        }
        let mut out = vec![false; runs.len()];
        for group in places.chunks(size) {
            if gauge.work > until || group.len() * 2 < size {
                break;
            }
            group.iter().for_each(|&at| out[at] = true);
            without(runs, &out, &mut trial);
            if !gauge.fits(&trial, line) {
                group.iter().for_each(|&at| out[at] = false);
            }
        }
        without(runs, &out, &mut trial);
        std::mem::swap(runs, &mut trial);
    }
    gauge.measure(runs, line)
}

fn without(runs: &[u32], out: &[bool], into: &mut Vec<u32>) {
    into.clear();
    into.extend(runs.iter().zip(out).filter(|(_, out)| !**out).map(|(&run, _)| run));
}

/// Positions of the runs that are not the first of their call.
pub(super) fn repeats(table: &Table, runs: &[u32]) -> Vec<usize> {
    let mut seen = vec![false; table.calls];
    let again = |&(_, &call): &(usize, &u32)| std::mem::replace(&mut seen[call as usize], true);
    runs.iter().enumerate().filter(again).map(|(at, _)| at).collect()
}

/// Improves a list that is under the line until the work is used up.
pub(super) fn refine(
    gauge: &mut Gauge,
    table: &Table,
    runs: &mut Vec<u32>,
    line: u64,
    until: u64,
    seed: u64,
) -> Level {
    let mut random = Random::new(seed);
    let mut best = prune(gauge, table, runs, line, until);
    let mut current = runs.clone();
    let mut now = best.nanoseconds;
    let mut trial = Vec::new();
    let base: u64 = table.nanoseconds.iter().sum();
    let mut stale = 0;
    while gauge.work < until && best.nanoseconds > base {
        let places = repeats(table, &current);
        if stale > PATIENCE * (places.len() + 2) {
            break;
        }
        stale += 1;
        let mut out = vec![false; current.len()];
        let centre = random.below(places.len());
        let count = 1 + random.below(12.min(places.len()));
        if random.below(3) == 0 {
            for _ in 0..count.min(4) {
                out[places[random.below(places.len())]] = true;
            }
        } else {
            let first = centre.saturating_sub(count / 2);
            places[first..].iter().take(count).for_each(|&at| out[at] = true);
        }
        without(&current, &out, &mut trial);
        let effort = Effort {
            tries: 3 + random.below(6),
            noise: [0.0, 0.3, 1.0][random.below(3)],
            until: (gauge.work + 400 * current.len() as u64).min(until + 1),
        };
        let Some(level) = shave(gauge, table, &mut trial, line, &mut random, effort) else { continue };
        if level.nanoseconds > now + now / 200 {
            continue;
        }
        let level = prune_some(gauge, table, &mut trial, line, &mut random);
        if level.nanoseconds <= now + now / 2000 {
            now = level.nanoseconds;
            std::mem::swap(&mut current, &mut trial);
        }
        if now < best.nanoseconds {
            best = level;
            stale = 0;
            runs.clone_from(&current);
        } else if now > best.nanoseconds + best.nanoseconds / 500 {
            current.clone_from(runs);
            now = best.nanoseconds;
        }
    }
    best
}

/// Tries a few repeats at random.
fn prune_some(
    gauge: &mut Gauge,
    table: &Table,
    runs: &mut Vec<u32>,
    line: u64,
    random: &mut Random,
) -> Level {
    let places = repeats(table, runs);
    let mut out = vec![false; runs.len()];
    let mut trial = Vec::new();
    for _ in 0..places.len().min(8) {
        let at = places[random.below(places.len())];
        if std::mem::replace(&mut out[at], true) {
            continue;
        }
        without(runs, &out, &mut trial);
        if !gauge.fits(&trial, line) {
            out[at] = false;
        }
    }
    without(runs, &out, &mut trial);
    std::mem::swap(runs, &mut trial);
    gauge.measure(runs, line)
}
